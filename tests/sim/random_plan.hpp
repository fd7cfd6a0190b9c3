// Random plans that make progress: a pipeline in a known order whose blocks hold random kernels, collectives and waits.
#pragma once

#include <random>

#include "fake_pricing.hpp"

namespace wt::sim {

struct RandomCase {
  plan::Plan plan;
  FakePricing pricing;
};

inline RandomCase random_case(uint32_t seed) {
  using plan::Direction;
  using plan::Stream;
  std::mt19937 random(seed);
  auto upto = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };  // 0 .. n - 1
  RandomCase out;
  plan::Plan& plan = out.plan;
  const int64_t p = 1 + upto(3), m = p * (1 + upto(3));
  std::vector<plan::Axis> axes = {{"pp", p}, {"dp", 1 + upto(3)}, {"tp", 1 + upto(4)}};
  for (size_t i = 2; i > 0; --i)  // not std::shuffle: it differs between libraries
    std::swap(axes[i], axes[static_cast<size_t>(upto(static_cast<uint32_t>(i + 1)))]);
  plan.mesh.axes = axes;
  const int64_t ranks = plan.mesh.ranks();
  const AxisId pp = *plan.mesh.find("pp"), dp = *plan.mesh.find("dp"), tp = *plan.mesh.find("tp");
  plan.groups = {
      {"tp", {tp}, {}},
      {"dp", {dp}, {}},
      {"dp_tp", {dp, tp}, {}},
      {"world", {pp, dp, tp}, {}},
      {"ends", {pp}, plan::AxisFilter{pp, p > 1 ? std::vector<int64_t>{0, p - 1} : std::vector<int64_t>{0}}}};
  out.pricing.machine = {1 + upto(static_cast<uint32_t>(ranks)), upto(2) ? 0 : 1 + upto(6), upto(2) ? 0 : 1 + upto(12)};
  out.pricing.hop = upto(40);
  out.pricing.collective_latency = upto(50);
  out.pricing.issue = upto(2) ? 0 : upto(30);
  out.pricing.gap = upto(5);
  const double slows[] = {1, 1.17, 2, 3.3};
  out.pricing.slow = slows[upto(4)];

  // A collective of the whole world somewhere in the step, with nothing else on its stream: kernels behind it wait for
  // stages that wait for them.
  const bool early = upto(2);
  const bool interleave = p > 1 && upto(2);
  const int64_t v = interleave ? 2 : 1;
  const lower::Schedule* schedule = lower::find_schedule(interleave ? "interleaved" : upto(2) ? "1f1b" : "gpipe");
  plan.placement = {schedule->placement, p, v};
  const auto orders = schedule->order({p, v, m, 0});

  auto add_work = [&](BlockMaker& b, uint32_t first, const std::vector<plan::Wait>& start) {
    uint32_t last = first, ops = 2 + static_cast<uint32_t>(upto(7));
    for (uint32_t i = 0; i < ops; ++i) {
      std::vector<plan::Wait> waits;
      if (i == 0) waits = start;
      for (int64_t w = upto(3); w > 0 && i > 0; --w) {
        const int64_t kind = upto(6);
        const auto index = first + static_cast<uint32_t>(upto(i));
        if (kind == 0)
          waits.push_back(tail(static_cast<Stream>(upto(early ? 2 : 3))));
        else if (kind == 1) {
          // One draw in a statement: the order in which arguments are evaluated is the compiler's.
          const auto other = first + static_cast<uint32_t>(upto(ops));
          waits.push_back(on(other, 1 + static_cast<uint32_t>(upto(2))));
        } else if (kind == 2)
          waits.push_back({plan::Wait::Kind::piece, index, 0, 2 + static_cast<uint32_t>(upto(3))});
        else
          waits.push_back(on(index));
      }
      const int64_t what = upto(8);
      switch (early && what == 1 ? 7 : what) {
        case 0: last = b.collective(Stream::tensor, 0, 1 + upto(60), waits); break;
        case 1: {
          const auto group = 1 + static_cast<uint32_t>(upto(2));
          last = b.collective(Stream::data, group, 1 + upto(200), waits);
          break;
        }
        case 2:
          last = b.op(Stream::copy_in, plan::Copy{plan::Space::pinned, plan::Space::device, upto(50)}, waits);
          break;
        case 3: last = b.op(Stream::compute, plan::Join{}, waits); break;
        case 4:
          if (upto(4) == 0) {
            last = b.op(Stream::compute, plan::HostWait{}, waits);
            break;
          }
          [[fallthrough]];
        default: last = b.compute(1 + upto(100), waits);
      }
    }
    return last;
  };
  for (int64_t r = 0; r < p; ++r) {
    plan::Program program;
    program.name = "pp" + std::to_string(r);
    if (p > 1) program.when = {pp, {r}};
    // Blocks of this rank: [chunk][backward].
    const auto base = static_cast<uint32_t>(plan.blocks.size());
    for (int64_t chunk = 0; chunk < v; ++chunk)
      for (int back = 0; back < 2; ++back) {
        const int64_t stage = plan.placement.stage({r, chunk}), stages = p * v;
        const bool has_before = stage > 0, has_after = stage < stages - 1;
        const bool receives = back ? has_after : has_before, sends = back ? has_before : has_after;
        BlockMaker b(back ? "backward" : "forward");
        std::vector<plan::Wait> start;
        uint32_t first = 0;
        if (receives) {
          start = {on(b.op(back ? Stream::receive_next : Stream::receive_previous,
                           plan::Receive{back ? Direction::next_stage : Direction::previous_stage, 5}))};
          b.segment(1);
          first = 1;
        }
        add_work(b, first, start);
        b.segment(1 + static_cast<uint32_t>(upto(3)));
        if (sends)
          b.op(back ? Stream::send_previous : Stream::send_next,
               plan::Send{back ? Direction::previous_stage : Direction::next_stage, 5},
               {tail(Stream::compute), tail(Stream::tensor)});
        plan.blocks.push_back(b.take());
      }
    plan::StepOrder step;
    for (const lower::Slot& slot : orders.value()[static_cast<size_t>(r)]) {
      plan::Invocation i;
      i.block = BlockId{base + static_cast<uint32_t>(slot.chunk * 2 + (slot.pass != lower::Pass::forward))};
      i.binding[0] = {static_cast<uint16_t>(slot.chunk), static_cast<uint16_t>(slot.micro_batch)};
      step.order.push_back(i);
    }
    program.steps = {step};
    plan.programs.push_back(program);
  }
  if (early) {
    BlockMaker b("early");
    b.collective(Stream::data, 3, 1 + upto(100), {tail(Stream::compute)});
    for (plan::Program& program : plan.programs) {
      auto& order = program.steps[0].order;
      order.insert(order.begin() + upto(static_cast<uint32_t>(order.size())),
                   {BlockId{static_cast<uint32_t>(plan.blocks.size())}, 0, {}});
    }
    plan.blocks.push_back(b.take());
  }
  // Optimizer: the ends meet, then the world, then each rank updates.
  for (int64_t r = 0; r < p; ++r) {
    BlockMaker b("optimizer");
    if (r == 0 || r == p - 1) b.collective(Stream::data, 4, 30, {tail(Stream::compute)});
    b.compute(20 + upto(200));
    b.collective(Stream::data, 3, 4, {tail(Stream::compute)});
    b.compute(30, {tail(Stream::data)});
    plan.programs[static_cast<size_t>(r)].steps[0].order.push_back(
        {BlockId{static_cast<uint32_t>(plan.blocks.size())}, 0, {}});
    plan.blocks.push_back(b.take());
  }
  return out;
}

}  // namespace wt::sim
