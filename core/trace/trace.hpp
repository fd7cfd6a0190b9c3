// What happened, from either engine. A span points at an op of the plan by (rank, step, invocation, op); names, layers
// and micro-batches are read from the plan, whose text the native file carries. Nothing is analysed here.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/result.hpp"
#include "core/base/units.hpp"
#include "core/plan/plan.hpp"

namespace wt::trace {

enum class Producer : uint8_t { simulated, executed };

/// Ranks that behave alike were simulated once: `rank` stands for `count` ranks.
struct FoldedRank {
  uint32_t rank = 0;
  uint32_t count = 1;
};

struct Meta {
  uint32_t version = 1;
  Producer producer = Producer::simulated;
  uint64_t plan_digest = 0;
  std::string cluster, code_version, command;
  uint64_t seed = 0;
  std::vector<FoldedRank> ranks;  // the ranks that the trace holds
  Time clock_uncertainty;
};

/// One op instance, from the start of its work on the stream (a communication: from when this side is ready) to its end.
/// Instants count from the end of the step before on the slowest rank (of a measured step: on rank 0's clock), so that
/// the largest end of a step is its time.
struct Span {
  uint32_t invocation = 0, op = 0;  // position in the rank's order; op instance in the block, unrolled
  int64_t begin_ps = 0, end_ps = 0;
  bool operator==(const Span&) const = default;
};

enum class CounterKind : uint8_t { memory_bytes, link_bytes_per_second };
struct Sample {
  uint32_t rank = 0;
  CounterKind kind = CounterKind::memory_bytes;
  int64_t at_ps = 0;  // from the begin of the first step
  double value = 0;
};

/// Write side. Spans of a (rank, step) come in issue order, in any number of calls; calls of one rank come from one thread.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void spans(uint32_t rank, uint32_t step, std::span<const Span>) = 0;
  virtual void sample(const Sample&) = 0;
};

struct RankSpans {
  uint32_t rank = 0, step = 0;
  std::vector<Span> spans;  // in issue order
};

/// A whole trace in memory.
struct Trace {
  Meta meta;
  std::string plan_text;
  std::vector<RankSpans> ranks;  // sorted by (step, rank)
  std::vector<Sample> samples;
};

/// Keeps everything in memory. Calls for different ranks may come from different threads.
class MemorySink final : public Sink {
 public:
  /// `expected`: spans of a rank's step, where the caller knows it; room for them is made at once.
  explicit MemorySink(size_t expected = 0) : expected_(expected) {}
  void spans(uint32_t rank, uint32_t step, std::span<const Span>) override;
  void sample(const Sample&) override;
  /// Sorted and complete; the sink is empty after.
  Trace take(Meta meta, std::string plan_text);

 private:
  const size_t expected_;
  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, size_t> index_;  // (step, rank) -> position in trace_.ranks
  Trace trace_;
};

/// Hash of spans and samples: equal runs, equal value, on every machine.
uint64_t fingerprint(const Trace&);

}  // namespace wt::trace
