// What ran on the devices of a program that knows no plan (a profiler's trace of somebody's framework), or a trace of ours
// seen the same way: spans by rank and stream, each with the kind of its work and the phase that launched it.
// Not a Trace: no op of a plan is named, so two profiles are compared by class and phase, never op by op.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wt::trace {

/// The kinds of work that a kernel's name tells and that every op of a plan has.
enum class WorkClass : uint8_t {
  gemm,       // products, convolutions among them
  attention,  // flash or unfused: scores, softmax, context
  norm,
  elementwise,  // activations, residuals, casts, sums, dropout, rope
  embedding,
  loss,
  routing,    // of experts: choice, permutation, sorting
  optimizer,  // the update, norm of the gradients
  copy,       // memcpy and memset, between any spaces
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send_receive,
  communication,  // of a kind that the trace does not tell
  other           // a name that no rule knows
};
inline constexpr int kWorkClasses = static_cast<int>(WorkClass::other) + 1;
std::string_view to_text(WorkClass);
constexpr bool is_communication(WorkClass c) { return c >= WorkClass::all_reduce && c <= WorkClass::communication; }

/// Who launched it. Recomputation is part of the backward, as autograd runs it.
enum class ProfilePhase : uint8_t { forward, backward, optimizer, outside };
inline constexpr int kProfilePhases = static_cast<int>(ProfilePhase::outside) + 1;
std::string_view to_text(ProfilePhase);

inline constexpr uint32_t kNoStep = UINT32_MAX;

struct ProfileSpan {
  uint32_t rank = 0;
  uint32_t step = kNoStep;  // index into Profile::steps
  uint32_t name = 0;        // index into Profile::names
  uint16_t stream = 0;      // of the rank: index, no number of CUDA's
  WorkClass work = WorkClass::other;
  ProfilePhase phase = ProfilePhase::outside;
  int32_t group = 0;   // ranks of a collective's group; 0: not told
  int64_t bytes = -1;  // of a collective as nccl-tests counts them, of a copy; -1: not told
  int64_t begin_ps = 0, end_ps = 0;
};

/// One step of one rank. `length_ps` is what a step takes once steps follow each other.
struct ProfileStep {
  uint32_t rank = 0;
  int64_t number = 0;  // of the program's own count
  int64_t length_ps = 0;
};

struct Profile {
  std::string description;  // "predicted on dgx-h100", "PyTorch profiler, rank 0 of 8"
  bool measured = false;
  int64_t world = 0;            // ranks of the job; 0: not told
  bool marked = true;           // false: nothing marks steps, each rank's whole trace is one
  std::vector<uint32_t> ranks;  // sorted
  std::vector<std::string> names;
  std::vector<ProfileStep> steps;  // by rank, then number
  std::vector<ProfileSpan> spans;  // by rank, then begin
  std::vector<std::string> notes;  // what the source lacked, for people
};

}  // namespace wt::trace
