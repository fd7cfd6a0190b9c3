// What one rank does, made once from the plan: flat lists of tasks (the setup, and each way a step can go) with operands
// resolved to places in memory, the waits that cross streams, channels and peers. No device, no time, no values.
// Invariant: storage lies in one arena for each memory space. A place is used again only by an op that streams, waits and
// the host already order after the op that released it, so the layout adds no wait: streams overlap as the plan says.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "exec/backend.hpp"

namespace wt::exec {

inline constexpr size_t kSpaces = 4;        // plan::Space
inline constexpr int64_t kAlignment = 256;  // of every place; arenas are to be aligned so

/// An op instance, ready to be issued. Its ticket is its index among the tasks.
struct ScriptTask {
  const plan::Block* block = nullptr;
  uint32_t op = 0;                        // index into block->ops
  uint32_t invocation = 0, instance = 0;  // as a trace names it
  int32_t layer = -1;                     // of the chunk
  int32_t chunk = -1, micro_batch = -1;   // of the first binding
  plan::Range waits;                      // Tasks::waits
  plan::Range reads, writes;              // Tasks::operands
  int64_t group_index = 0, group_size = 1;
  uint32_t channel = 0;  // collective: index into Script::channels
  RankId peer;           // send, receive
  uint32_t lane = 0;

  const plan::Op& body() const { return block->ops[op]; }
};

/// Bytes from the start of a space's arena.
struct Place {
  plan::Space space = plan::Space::device;
  int64_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Tasks {
  std::string name;  // "setup", "steady"
  std::vector<ScriptTask> tasks;
  std::vector<Ticket> waits;      // on other streams; what others already imply is left out
  std::vector<Operand> operands;  // data is null until bind()
  std::vector<Place> places;      // of the operands
};

struct ArenaUse {
  int64_t bytes = 0;  // of the arena
  int64_t peak = 0;   // most bytes reserved at once, as the plan counts them
  /// What alignment and overlapping streams cost: places that are free by the order of issue but may still be in use.
  int64_t slack() const { return bytes - peak; }
};

/// Storage that lives from the setup to the end of the run.
struct Persistent {
  BufferId buffer;
  int64_t chunk = -1, layer = -1;  // -1: of no chunk, of no layer
  Place place;
  DType dtype = DType::f32;
  int64_t elements = 0;
};

struct ScriptOptions {
  std::optional<DType> floats;  // every floating-point buffer in this type in place of the plan's: parity runs
};

struct Script {
  RankId rank;
  Tasks setup;
  std::vector<Tasks> steps;       // as Program::steps
  std::vector<Channel> channels;  // for Communicator::connect
  std::array<ArenaUse, kSpaces> arenas;
  std::vector<Persistent> persistent;

  /// Errors: storage that the rank's devices do not have (NVMe), or that outlives its step.
  static Result<Script> make(const plan::Plan&, RankId, const ScriptOptions& = {});

  /// Points every operand into the arenas. The plan must outlive the script.
  void bind(const std::array<std::byte*, kSpaces>& arenas);
};

/// The storage type of a buffer.
DType stored_type(const plan::Buffer&, const ScriptOptions&);

}  // namespace wt::exec
