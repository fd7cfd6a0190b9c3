// Prices that tests choose, and plans written by hand. A kernel takes Work::flops picoseconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/lower/schedule.hpp"
#include "core/plan/plan.hpp"
#include "sim/price/pricing.hpp"

namespace wt::sim {

class FakePricing : public Pricing {
 public:
  int64_t scale = 1;               // on every duration
  int64_t hop = 0;                 // a message, plus its bytes
  int64_t collective_latency = 0;  // a collective: this plus bytes times nodes
  int64_t gap = 0, issue = 0;
  double slow = 1;
  int64_t beside_messages = 0;  // channels
  MachineCells machine;

  Time compute(const plan::Compute& op) const override { return Time::ps(static_cast<int64_t>(op.work.flops) * scale); }
  Time copy(const plan::Copy& op) const override { return Time::ps(op.bytes * scale); }
  CollectivePrice collective(const plan::Collective& op, const GroupShape& shape) const override {
    return {Time::ps((collective_latency + op.bytes * shape.nodes) * scale), shape.ranks};
  }
  Time message(int64_t bytes, RankId from, RankId to, int64_t concurrent) const override {
    if (from == to) return Time::ps(0);
    const bool far = machine.node && from.v / machine.node != to.v / machine.node;
    return Time::ps((hop + bytes * (far ? concurrent : 1)) * scale);
  }
  int64_t message_channels() const override { return beside_messages; }
  GroupShape shape_of(std::span<const RankId> members) const override {
    GroupShape shape;
    shape.ranks = static_cast<int64_t>(members.size());
    auto cells = [&](int64_t cell) {
      std::vector<int64_t> seen;
      for (RankId m : members) seen.push_back(cell ? m.v / cell : 0);
      std::sort(seen.begin(), seen.end());
      return std::unique(seen.begin(), seen.end()) - seen.begin();
    };
    shape.nodes = cells(machine.node);
    shape.domains = cells(machine.domain);
    shape.crosses_leaf = cells(machine.leaf) > 1;
    return shape;
  }
  double slowdown(const plan::Compute&, int64_t) const override { return slow; }
  Time device_gap() const override { return Time::ps(gap * scale); }
  Time kernel_issue() const override { return Time::ps(issue * scale); }
  Time transfer_issue() const override { return Time::ps(issue * scale); }
  MachineCells cells() const override { return machine; }
};

/// Adds ops to a block; each call returns the op's index.
class BlockMaker {
 public:
  explicit BlockMaker(std::string name) { block_.name = std::move(name); }

  uint32_t op(plan::Stream stream, plan::Body body, std::vector<plan::Wait> waits = {}) {
    plan::Op op;
    op.name = "op" + std::to_string(block_.ops.size());
    op.stream = stream;
    op.body = std::move(body);
    op.waits = {static_cast<uint32_t>(block_.waits.size()), static_cast<uint32_t>(waits.size())};
    block_.waits.insert(block_.waits.end(), waits.begin(), waits.end());
    block_.ops.push_back(op);
    return static_cast<uint32_t>(block_.ops.size() - 1);
  }
  uint32_t compute(int64_t ps, std::vector<plan::Wait> waits = {}, plan::Stream stream = plan::Stream::compute) {
    plan::Compute c;
    c.work.flops = static_cast<double>(ps);
    return op(stream, c, std::move(waits));
  }
  uint32_t collective(plan::Stream stream, uint32_t group, int64_t bytes, std::vector<plan::Wait> waits = {}) {
    plan::Collective c;
    c.group = GroupId{group};
    c.bytes = bytes;
    return op(stream, c, std::move(waits));
  }
  /// Ops since the last call (or the start) repeat so often.
  void segment(uint32_t iterations) {
    const auto end = static_cast<uint32_t>(block_.ops.size());
    block_.segments.push_back({done_, end - done_, iterations, 0, 1});
    done_ = end;
  }
  plan::Block take() {
    if (done_ < block_.ops.size()) segment(1);
    return std::move(block_);
  }

 private:
  plan::Block block_;
  uint32_t done_ = 0;
};

inline plan::Wait on(uint32_t op, uint32_t back = 0) { return {plan::Wait::Kind::op, op, back}; }
inline plan::Wait tail(plan::Stream s) { return {plan::Wait::Kind::tail, static_cast<uint32_t>(s), 0}; }

/// Passes of one kernel each, in ps. A whole backward takes input and weight gradient together.
struct PassLengths {
  int64_t forward = 0, input_gradient = 0, weight_gradient = 0;
};

/// Every pass of every micro-batch in the order of `schedule`, one kernel each, `bytes` between the stages.
inline plan::Plan pipeline_plan(std::string_view schedule, int64_t p, int64_t m, int64_t v, const PassLengths& length,
                                int64_t bytes = 0, int64_t replicas = 1) {
  using lower::Pass;
  using plan::Direction;
  using plan::Stream;
  plan::Plan plan;
  plan.mesh.axes = {{"pp", p}, {"dp", replicas}};
  const lower::Schedule* s = lower::find_schedule(schedule);
  WT_CHECK(s, "no schedule {}", schedule);
  plan.placement = {s->placement, p, v};
  plan.micro_batches = m;
  auto make = [&](Pass pass, bool receives, bool sends, bool on_way_back) {
    const bool back = pass != Pass::forward;
    BlockMaker b(back ? "backward" : "forward");
    std::vector<plan::Wait> waits;
    const auto stream = [&](Stream there, Stream on_return) { return on_way_back ? on_return : there; };
    if (receives && pass != Pass::backward_weight) {
      const Direction d = back ? Direction::next_stage : Direction::previous_stage;
      const Stream from = back ? stream(Stream::receive_next, Stream::back_receive_next)
                               : stream(Stream::receive_previous, Stream::back_receive_previous);
      waits = {on(b.op(from, plan::Receive{d, bytes}))};
    }
    const uint32_t work = b.compute(pass == Pass::forward           ? length.forward
                                    : pass == Pass::backward        ? length.input_gradient + length.weight_gradient
                                    : pass == Pass::backward_weight ? length.weight_gradient
                                                                    : length.input_gradient,
                                    waits);
    if (sends && pass != Pass::backward_weight) {
      const Direction d = back ? Direction::previous_stage : Direction::next_stage;
      const Stream to = back ? stream(Stream::send_previous, Stream::back_send_previous)
                             : stream(Stream::send_next, Stream::back_send_next);
      b.op(to, plan::Send{d, bytes}, {on(work)});
    }
    return b.take();
  };
  // Blocks by pass, by whether the stage is the first, the last, and on a V's way back.
  for (uint32_t i = 0; i < 4 * 8; ++i) {
    const auto pass = static_cast<Pass>(i / 8);
    const bool first = i & 1, last = i & 2;
    plan.blocks.push_back(pass == Pass::forward ? make(pass, !first, !last, i & 4) : make(pass, !last, !first, i & 4));
  }
  const auto orders = s->order({p, v, m, 0});
  WT_CHECK(orders.ok(), "{} refuses p={} v={} m={}", schedule, p, v, m);
  for (int64_t r = 0; r < p; ++r) {
    plan::Program program;
    program.name = "pp" + std::to_string(r);
    program.when = {AxisId{0}, {r}};
    plan::StepOrder step;
    for (const lower::Slot& slot : orders.value()[static_cast<size_t>(r)]) {
      const int64_t stage = plan.placement.stage({r, slot.chunk});
      const bool on_way_back = s->placement == plan::PlacementKind::zigzag && slot.chunk % 2 == 1;
      plan::Invocation i;
      i.block = BlockId{static_cast<uint32_t>(slot.pass) * 8 + (stage == 0) + 2 * (stage == p * v - 1) +
                        4 * static_cast<uint32_t>(on_way_back)};
      i.binding[0] = {static_cast<uint16_t>(slot.chunk), static_cast<uint16_t>(slot.micro_batch)};
      step.order.push_back(i);
    }
    program.steps = {step};
    plan.programs.push_back(program);
  }
  return plan;
}
inline plan::Plan pipeline_plan(std::string_view schedule, int64_t p, int64_t m, int64_t v, int64_t forward,
                                int64_t backward, int64_t bytes = 0, int64_t replicas = 1) {
  return pipeline_plan(schedule, p, m, v, PassLengths{forward, backward, 0}, bytes, replicas);
}

/// One program for all ranks: `block` so often.
inline plan::Plan single_plan(plan::Mesh mesh, std::vector<plan::Group> groups, plan::Block block,
                              int invocations = 1) {
  plan::Plan plan;
  plan.mesh = std::move(mesh);
  plan.groups = std::move(groups);
  plan.blocks = {std::move(block)};
  plan::Program program;
  plan::StepOrder step;
  for (int i = 0; i < invocations; ++i) step.order.push_back({BlockId{0}, 1, {}});
  program.steps = {step};
  plan.programs = {program};
  return plan;
}

}  // namespace wt::sim
