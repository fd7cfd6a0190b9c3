// Runs priced programs: streams, matching of sends and receives, collectives, overlap slowdown. Not a model of anything.
//
// A unit is evaluated in issue order as far as it can go; an op whose end is not known yet leaves a *token* in its place
// (a number above every time), and a unit that needs it stalls until it is resolved. A message behind one that has not
// met its partner is queued on its stream, and the host goes on. Which unit runs next changes no time: every end is a
// maximum of other ends plus a constant. The one thing that needs the queue is a kernel that a
// collective not yet begun may slow down: it waits for the collective, and if nothing else can advance, the earliest
// such kernels are released undisturbed (all of that time at once, so folding cannot change the outcome).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/trace/trace.hpp"
#include "sim/engine/event_engine.hpp"
#include "sim/fold/fold.hpp"
#include "sim/price/priced_program.hpp"
#include "sim/price/pricing.hpp"

namespace wt::sim {

class RankEngine {
 public:
  /// All arguments must outlive the engine.
  RankEngine(const plan::Plan&, const Pricing&, const Fold&, const PricedPlan&);

  /// One step of every unit from where the last one ended. With a sink, spans count from `origin` (ps). Errors: every
  /// stuck rank with its op and what it waits for; the engine must not be used after.
  Status run_step(uint32_t step, trace::Sink* sink, int64_t origin);

  /// [unit] end of the last op of the last step, ps.
  const std::vector<int64_t>& ends() const { return ends_; }
  uint64_t ops() const { return ops_; }
  uint64_t events() const { return events_; }
  uint64_t released() const { return released_; }

 private:
  // Tokens: kUnknown + stream + kStreams * a number on that stream. Every time lies below, so a maximum that holds a token
  // is a token.
  static constexpr int64_t kUnknown = int64_t{1} << 62;
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Interval {  // a collective that runs beside later compute
    int64_t begin = 0, end = 0;
    uint32_t channels = 0;
  };
  struct Scenario {  // see Summary
    uint16_t base = 0;
    struct Time {
      uint16_t at = 0;
      int64_t value = 0;
    };                         // from the base
    std::vector<Time> limits;  // no later than this, or the scenario does not hold
    std::vector<Time> outputs;
    std::vector<Interval> in_flight;  // what may run beside later kernels
    int64_t first_kernel = 0;         // start; kUnknown: there is none
    int64_t issue = 0;                // of all ops, where the host is not among the outputs
  };
  struct Release {  // of a kernel that waits for a collective
    uint32_t unit = 0;
    int64_t ready = 0;
  };
  static_assert(plan::kStreams <= 32, "Unit::open_exposed has a bit for each stream");
  struct Unit {
    uint32_t invocation = 0, op = 0;  // next: position in the order, index into FlatBlock::ops
    uint32_t cls = 0;
    uint32_t open = 0;          // ops posted or queued and not resolved
    uint32_t open_exposed = 0;  // bit of each stream whose posted collective may slow later compute
    bool waits_for_overlap = false;
    int64_t stalled_on = 0;    // a token; 0: not stalled
    int64_t released_end = 0;  // of the next op, a kernel released undisturbed; 0: none
    EventEngine<Release>::Handle release;
  };
  struct Posted {  // the first unresolved op of a stream
    const FlatOp* op = nullptr;
    const Pieces* pieces = nullptr;
    int64_t ready = 0;
    int64_t token = 0;
    uint32_t span = 0;
    uint32_t behind = kNone, last = kNone;  // messages queued behind it: the first and the last, in queued_
  };
  struct Queued {  // a message that lacks nothing but the end of the one before it on its stream
    const FlatOp* op = nullptr;
    int64_t ready = 0;  // but for that one
    int64_t token = 0;
    uint32_t channel = 0, span = 0;
    uint32_t next = kNone;
  };
  struct Comm {                                   // one communicator: its collectives come one at a time
    int64_t latest = 0, duration = 0, floor = 0;  // of those that have arrived: ready, price, earliest end
    uint32_t arrived = 0;
  };
  struct Channel {  // messages from one unit to another in one direction; only one side can be ahead
    struct Waiting {
      int64_t ready;
      uint32_t size;
      uint8_t stream;
    };
    std::array<Waiting, plan::kStreams> waiting{};
    uint8_t count = 0;
    bool receives_wait = false;
    uint32_t from = 0, to = 0;
  };

  template <bool kTrace, bool kSummaries>
  void run(uint32_t unit);
  void post(uint32_t unit, const FlatOp& op, const Pieces* pieces, int64_t ready, uint32_t span);
  void resolve(uint32_t unit, uint8_t stream, int64_t begin, int64_t end);
  uint32_t channel_of(uint32_t unit, const OrderEntry&, const FlatOp&) const;
  std::optional<Interval> meet(uint32_t channel, const FlatOp&, int64_t ready);
  int64_t beside_collectives(std::vector<Interval>& intervals, const FlatOp& op, int64_t ready);
  template <class Progress>
  int64_t slowed_end(const std::vector<Interval>&, const FlatOp&, int64_t ready);
  int64_t compute_end(uint32_t unit, const FlatOp& op, int64_t ready);
  uint32_t rate(uint32_t row, uint32_t channels);
  void stall(uint32_t unit, int64_t token);
  bool apply(uint32_t unit, const FlatBlock&, const Summary&);
  bool apply_scenario(uint32_t unit, const FlatBlock&, const Summary&);
  bool find_scenario(const FlatBlock&, const Summary&, uint16_t base, Scenario& out);
  bool release_earliest();
  void flush(uint32_t unit);

  // rank_engine_messages.cpp
  void make_channels();
  void queue(uint32_t unit, const OrderEntry&, const FlatOp&, int64_t ready, bool traced);
  void post_next_messages();

  // rank_engine_stuck.cpp
  Diagnostics describe_stuck() const;
  std::string describe(uint32_t unit) const;

  const plan::Plan& plan_;
  const Pricing& pricing_;
  const Fold& fold_;
  const PricedPlan& priced_;
  uint32_t chunks_ = 1;

  std::vector<Unit> units_;
  std::vector<int64_t> times_;           // [unit * row]
  std::vector<Posted> posted_;           // [unit * kStreams]
  std::vector<Queued> queued_;           // lists in one pool
  uint32_t free_queued_ = kNone;         // list of those not in use
  std::vector<uint32_t> next_messages_;  // [any] unit * kStreams + stream whose first message is over, more behind
  std::vector<std::vector<Interval>> in_flight_;  // [unit], at most a few
  std::vector<uint32_t> comm_of_;                 // [unit * comms] index into comms_
  std::vector<Comm> comms_;
  std::vector<uint32_t> port_;  // [(unit * chunks + chunk) * 4 + port] channel
  std::vector<Channel> channels_;
  std::vector<int64_t> message_time_;  // [channel * sizes + size]
  std::vector<uint32_t> rates_;        // [row * channel classes + class - 1]; 0: not asked yet
  std::vector<uint32_t> runnable_;     // a stack: those just woken run first, their data is still in the cache
  std::vector<std::vector<trace::Span>> spans_;  // [unit]
  std::vector<int64_t> ends_;
  std::vector<std::vector<Scenario>> scenarios_;  // [Summary::id]
  std::vector<uint8_t> scenarios_found_;
  std::vector<int64_t> scratch_;
  std::vector<uint8_t> scratch_written_;
  EventEngine<Release> queue_;
  trace::Sink* sink_ = nullptr;
  uint32_t step_ = 0, done_ = 0;
  int64_t origin_ = 0;
  uint64_t ops_ = 0, events_ = 0, released_ = 0;
};

}  // namespace wt::sim
