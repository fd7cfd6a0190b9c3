// Where the time of one rank's step went: the walk goes backwards through what an op waited for, inside the rank, a
// critical path of every idle gap. Not a report (core/report/step.cpp). Constructing a walk costs by invocation and
// transfer, a breakdown by kernel; every instant of it has one term.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/report/block_shape.hpp"
#include "core/trace/trace.hpp"

namespace wt::report {

using TermSums = std::array<int64_t, kTermCount>;  // ps by Term

class RankWalk;

/// The ranks of one step in a trace. Spans and plan must outlive it and belong together (trace::check_against_plan).
class StepWalks {
 public:
  explicit StepWalks(const plan::Plan&);
  ~StepWalks();
  void add(const trace::RankSpans&);

  int64_t stage(uint32_t rank) const { return pp_ ? plan_.mesh.coordinate(RankId{rank}, *pp_) : 0; }
  bool has(uint32_t rank) const { return by_rank_.contains(rank); }
  RankWalk& walk(const trace::RankSpans&);
  /// Of that rank, else of one at the same stage; null: the trace has neither.
  RankWalk* walk_like(uint32_t rank);
  const BlockShape& shape(BlockId);

 private:
  const plan::Plan& plan_;
  std::optional<AxisId> pp_;
  std::vector<BlockShape> shapes_;  // [block]
  std::unordered_map<uint32_t, const trace::RankSpans*> by_rank_;
  std::map<int64_t, const trace::RankSpans*> by_stage_;
  std::unordered_map<uint32_t, std::unique_ptr<RankWalk>> walks_;
};

class RankWalk {
 public:
  RankWalk(const plan::Plan&, StepWalks&, const trace::RankSpans&);

  /// Every instant of [begin, end), ps, under one term.
  TermSums breakdown(int64_t begin, int64_t end);

  /// Calls f(block, op, span) for each span in issue order; `op` indexes the ops of the block.
  template <class F>
  void for_each_span(F&& f) const {
    for (const trace::Span& s : spans_) {
      const BlockShape& shape = *entries_[s.invocation].shape;
      f((*order_)[s.invocation].block, shape.instances[s.op].op, s);
    }
  }

 private:
  static constexpr uint32_t kNone = BlockShape::kNone;
  struct Entry {  // of an invocation
    const BlockShape* shape = nullptr;
    uint32_t first_span = 0, first_message = 0;
  };
  struct Message {
    uint32_t peer = kNone;  // kNone: none, an end of the pipeline
    bool sends = false;
    uint64_t key = 0;  // the same on both sides
  };
  struct Cause {
    uint32_t span;
    int64_t at;
  };

  void find_order();
  void index_invocations();
  void name_messages();
  plan::Binding binding(const plan::Invocation&, const plan::Block&, const plan::Op&) const;

  /// Last span on `queue` before span i, kNone if there is none.
  uint32_t before_on(size_t queue, uint32_t i) const;
  uint32_t tail(size_t invocation, size_t queue) const { return tails_[invocation * BlockShape::kQueues + queue]; }

  /// When this rank was ready for its collectives of a group, in order, and for its messages, by key.
  const std::vector<int64_t>& collective_times(GroupId);
  int64_t message_time(bool sends, uint64_t key, int64_t otherwise);

  int64_t others_ready(uint32_t i, const BlockShape& shape, const BlockShape::OpFacts&);
  int64_t attribute(uint32_t i, int64_t now);
  std::optional<Cause> latest_cause(uint32_t i, int64_t limit) const;
  void explain_gap(uint32_t i, int64_t now);
  int64_t before(uint32_t i, int64_t now);
  int64_t behind_the_last_kernel(int64_t end);
  void add(Term t, int64_t ps) { sums_[static_cast<size_t>(t)] += ps; }

  const plan::Plan& plan_;
  StepWalks& walks_;
  const std::vector<trace::Span>& spans_;
  RankId rank_;
  const std::vector<plan::Invocation>* order_ = nullptr;
  std::vector<Entry> entries_;         // [invocation]
  std::vector<uint32_t> tails_;        // [(invocation, one more) * kQueues] last span before the invocation
  std::vector<uint32_t> collectives_;  // [invocation * groups] collectives of the group before it
  std::vector<Message> messages_;      // of all invocations, in order
  struct OfGroup {
    bool known = false, timed = false;
    std::vector<RankWalk*> others;  // other members in the trace
    std::vector<int64_t> times;
  };
  std::vector<OfGroup> groups_;
  bool messages_timed_ = false;
  std::unordered_map<uint64_t, int64_t> sends_, receives_;
  int64_t from_ = 0;
  TermSums sums_{};
};

}  // namespace wt::report
