// Which strategy is best: every legal cut of a job over its cluster is lowered, held against the device's memory and
// simulated; the fastest, the front of time against memory and GPUs, and why the others were rejected. Prunes only by
// what is certain: a plan that does not fit is not simulated, and what the caching allocator holds beyond the plan's own
// peak, which costs as much time to know as all the rest, is asked for only where it can change the answer.
// Invariant: the result depends on job and space alone, not on threads, interruptions or the order of evaluation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

/// The values that are tried for each number. All combinations that could be legal are candidates; the checks of
/// core/lower decide which are.
struct SearchSpace {
  std::vector<int64_t> nodes, tensor, pipeline, virtual_stages, context, expert, micro_batch;
  std::vector<std::string> schedules;  // for one chunk a rank, and for several, those that can
  std::vector<DataParallel> data_parallel;
  std::vector<RecomputeKind> recompute;
};

/// What is tried where the user names nothing: tensor degrees that divide heads and NVLink domain, pipelines that divide
/// the layers, every micro-batch up to `largest_micro_batch`, all recompute kinds, the job's data-parallel kind and
/// Megatron's distributed optimizer. Context, expert and the number of nodes stay the job's.
SearchSpace default_space(const JobSpec& job, int64_t largest_micro_batch = 8);

/// One point: what differs from the job.
struct SearchPoint {
  int64_t nodes = 0, micro_batch = 1;
  StrategySpec strategy;
};
/// In a stated order, the same on every machine. Only combinations that divide: others have no name in the space.
std::vector<SearchPoint> candidates(const JobSpec& job, const SearchSpace& space);
JobSpec job_of(const JobSpec& job, const SearchPoint& candidate);

enum class Fate : uint8_t {
  simulated,
  out_of_memory,  // or borderline: within 3 % of the device's memory
  illegal,
  failed
};
struct Outcome {
  size_t candidate = 0;  // index
  Fate fate = Fate::illegal;
  double step_s = 0, mfu = 0, tokens_per_s = 0;  // simulated
  double reserved_gib = 0;                       // simulated, out_of_memory; at least so much, or
  bool exact_memory = false;                     // so much
  std::string fits;                              // the verdict on memory
  std::string reason;  // illegal, failed: the first fault; out_of_memory: the phase of the peak
  bool operator==(const Outcome&) const = default;
};

struct SearchOptions {
  unsigned threads = 0;                                   // 0: one a core
  std::string results;                                    // file that outcomes are appended to; "": none
  std::function<void(size_t done, size_t all)> progress;  // from any thread, one at a time
  const std::atomic<bool>* stop = nullptr;                // set: what is done so far is the result
  size_t exact_rows = 10;                                 // of the ranking have exact memory, as all of the front has
};

struct SearchResult {
  std::vector<SearchPoint> candidates;
  std::vector<Outcome> outcomes;  // by candidate; fewer than candidates if it was stopped
  std::vector<size_t> ranking;    // indices of outcomes that were simulated, fastest first; equal ones by memory
  std::vector<size_t> front;      // of these: nothing else is as fast with as little memory on as few GPUs
  size_t simulated = 0, out_of_memory = 0, illegal = 0, failed = 0, resumed = 0;
  double wall_s = 0;
  bool complete = true;
  std::vector<std::pair<std::string, size_t>> rejections;  // reason without its numbers, count; most frequent first
};

/// Errors: an empty space (says which constraint empties it); a results file of another job or space, or damaged
/// (a cut last line is what a kill leaves: it is dropped); data files that do not parse.
Result<SearchResult> search(const JobSpec& job, const SearchSpace& space, const SearchOptions& options = {});

}  // namespace wt::study
