#include "sim/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../core/lower/pipe_oracle.hpp"
#include "fake_pricing.hpp"
#include "sim/price/priced_program.hpp"

namespace wt::sim {
namespace {

using plan::Stream;

int64_t step_time(const plan::Plan& plan, const Pricing& pricing, bool all_ranks = false) {
  SimulateOptions options;
  options.all_ranks = all_ranks;
  auto run = simulate(plan, pricing, options);
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : to_text(run.errors()));
  return run.ok() ? run.value().step_time.count_ps() : -1;
}

/// Time of the first step, which starts everywhere at 0: without what flows over from the step before.
int64_t makespan(const plan::Plan& plan, const Pricing& pricing) {
  plan::Plan cold = plan;
  // A last op that waits for everything and holds up the host makes steps independent of each other.
  BlockMaker fence("fence");
  std::vector<plan::Wait> all;
  for (int s = 1; s < plan::kStreams; ++s) all.push_back(tail(static_cast<Stream>(s)));
  const uint32_t join = fence.op(Stream::compute, plan::Join{}, all);
  cold.groups.push_back({"world", {}, {}});
  for (uint32_t a = 0; a < plan.mesh.axes.size(); ++a) cold.groups.back().axes.push_back(AxisId{a});
  const uint32_t sync = fence.collective(Stream::tensor, static_cast<uint32_t>(cold.groups.size() - 1), 0, {on(join)});
  fence.op(Stream::compute, plan::HostWait{}, {on(sync)});
  cold.blocks.push_back(fence.take());
  for (plan::Program& p : cold.programs)
    p.steps[0].order.push_back({BlockId{static_cast<uint32_t>(cold.blocks.size() - 1)}, 0, {}});
  return step_time(cold, pricing);
}

TEST(Simulate, OneForwardOneBackwardIsTheTextbookBubble) {
  const FakePricing free;
  for (int64_t p : {1, 2, 4, 8})
    for (int64_t m : {1, 3, 8, 32}) {
      SCOPED_TRACE(testing::Message() << "p " << p << " m " << m);
      EXPECT_EQ(makespan(pipeline_plan("1f1b", p, m, 1, 100, 210), free), (m + p - 1) * 310);
      EXPECT_EQ(makespan(pipeline_plan("gpipe", p, m, 1, 100, 210), free), (m + p - 1) * 310);
    }
}

TEST(Simulate, HopLatencyOfOneForwardOneBackward) {
  // Facts 12: c (2 (p - 1) m / p + 2 (p - 2)) more, p divides m; rendezvous where nobody waits for a send.
  FakePricing hops;
  hops.hop = 7;
  for (int64_t p : {4, 8})
    for (int64_t m : {8, 16, 64})
      EXPECT_EQ(makespan(pipeline_plan("1f1b", p, m, 1, 100, 200), hops),
                (m + p - 1) * 300 + 7 * (2 * (p - 1) * m / p + 2 * (p - 2)))
          << p << " " << m;
}

TEST(Simulate, InterleavedDividesTheBubble) {
  FakePricing free;
  for (int64_t p : {4, 8})
    for (int64_t v : {2, 4})
      for (int64_t m : {8, 16, 64}) {
        SCOPED_TRACE(testing::Message() << "p " << p << " v " << v << " m " << m);
        // A chunk is a v-th of the stage.
        EXPECT_EQ(makespan(pipeline_plan("interleaved", p, m, v, 100, 200), free), m * v * 300 + (p - 1) * 300);
      }
}

/// Every schedule of the registry in one event-level run, written apart (pipe_oracle.hpp), and in the engine, folded or not:
/// equal to the picosecond, for unequal passes and messages that take up to the shortest pass.
TEST(Simulate, EveryScheduleAgreesWithTheOracle) {
  int64_t agreed = 0;
  for (const lower::Schedule* s : lower::all_schedules())
    for (const int64_t p : {2, 4, 8})
      for (int64_t m = p; m <= 4 * p; m += p / 2)
        for (const int64_t v : {1, 2, 3})
          for (const int64_t hop : {0, 20, 90}) {
            if (s->reads_file || !s->order({p, v, m})) continue;
            SCOPED_TRACE(testing::Message() << s->name << " p " << p << " v " << v << " m " << m << " hop " << hop);
            FakePricing pricing;
            pricing.hop = hop;
            const auto plan = pipeline_plan(s->name, p, m, v, PassLengths{100, 130, 90}, 0, 2);
            const lower::Ran want = lower::run(*s, {p, v, m}, {100, 130, 90, static_cast<double>(hop)});
            EXPECT_EQ(makespan(plan, pricing), static_cast<int64_t>(want.makespan));
            EXPECT_EQ(step_time(plan, pricing, true), step_time(plan, pricing));
            ++agreed;
          }
  EXPECT_GE(agreed, 600);
}

TEST(Simulate, LoopedBreadthFirstDividesTheBubbleToo) {
  const FakePricing free;
  for (const int64_t p : {2, 4, 8})
    for (const int64_t v : {2, 4})
      for (int64_t m = p; m <= 4 * p; ++m)
        EXPECT_EQ(makespan(pipeline_plan("looped-bfs", p, m, v, 100, 200), free), (m * v + p - 1) * 300);
}

/// Messages of one stream that their receiver takes long after they are there, and receives asked for ahead: only
/// messages wait for each other, not the kernels issued behind them.
TEST(Simulate, MessagesQueueOnTheirStream) {
  for (const bool ahead : {false, true}) {
    plan::Plan plan;
    plan.mesh.axes = {{"pp", 2}};
    plan.placement = {plan::PlacementKind::loop, 2, 1};
    BlockMaker a("first"), b("second");
    for (int i = 0; i < 3; ++i) {
      const uint32_t made = a.compute(10);
      a.op(Stream::send_next, plan::Send{plan::Direction::next_stage, 0}, {on(made)});
    }
    std::vector<uint32_t> got;
    const auto receive = [&] {
      got.push_back(b.op(Stream::receive_previous, plan::Receive{plan::Direction::previous_stage, 0}));
    };
    if (ahead)
      for (int i = 0; i < 3; ++i) receive();
    const uint32_t answer = b.compute(50);
    b.op(Stream::send_previous, plan::Send{plan::Direction::previous_stage, 0}, {on(answer)});
    // The first stage's last send needs the answer: kernels of both are issued behind messages that nobody took yet.
    const uint32_t answered = a.op(Stream::receive_next, plan::Receive{plan::Direction::next_stage, 0});
    a.compute(5, {on(answered)});
    for (int i = 0; i < 3; ++i) {
      if (!ahead) receive();
      b.compute(1, {on(got[static_cast<size_t>(i)])});
    }
    plan.blocks = {a.take(), b.take()};
    for (uint32_t i = 0; i < 2; ++i) {
      plan::Program p;
      p.when = {AxisId{0}, {i}};
      p.steps = {{"steady", {{BlockId{i}, 1, {}}}}};
      plan.programs.push_back(p);
    }
    FakePricing pricing;
    pricing.hop = 7;
    // Sends at 10, 20, 30 of 7 each, long over at 50; the answer is there at 57, then 5 more. Receiver: 53.
    EXPECT_EQ(makespan(plan, pricing), 62) << ahead;
    pricing.hop = 30;  // the three messages: 10 to 40, 70, 100; then a kernel of 1
    EXPECT_EQ(makespan(plan, pricing), 101) << ahead;
  }
}

TEST(Simulate, ScalingEveryDurationScalesTheStep) {
  FakePricing one, many;
  one.hop = many.hop = 13;
  one.gap = many.gap = 3;
  one.issue = many.issue = 5;
  many.scale = 1000;
  for (const char* schedule : {"1f1b", "gpipe", "interleaved"}) {
    const auto plan = pipeline_plan(schedule, 4, 8, schedule == std::string("interleaved") ? 2 : 1, 100, 200, 11);
    EXPECT_EQ(step_time(plan, many), 1000 * step_time(plan, one)) << schedule;
  }
}

TEST(Simulate, HostBoundStepIsTheIssueTime) {
  FakePricing pricing;
  pricing.issue = 50;
  BlockMaker b("block");
  plan::Compute c;
  c.work.flops = 10;
  c.launches = 3;
  b.op(Stream::compute, c);
  EXPECT_EQ(step_time(single_plan({{{"dp", 1}}}, {}, b.take(), 7), pricing), 7 * 150);
}

TEST(Simulate, HundredsOfKernelsTakeTheHostMilliseconds) {
  FakePricing pricing;
  pricing.issue = 55'000'000;
  BlockMaker b("block");
  plan::Compute c;
  c.launches = 60000;
  b.op(Stream::compute, c);
  EXPECT_EQ(step_time(single_plan({{{"dp", 1}}}, {}, b.take(), 2), pricing), int64_t{2} * 60000 * 55'000'000);
}

TEST(Simulate, HostPaysOperatorsByPhaseAndEachCheckpointOnce) {
  struct Host : FakePricing {
    Time operator_issue(plan::Phase phase) const override {
      return Time::ps(phase == plan::Phase::forward || phase == plan::Phase::recompute ? 1000 : 100);
    }
    Time checkpoint_issue() const override { return Time::ps(50000); }
  } pricing;
  pricing.issue = 1;
  const auto taken = [&](std::vector<plan::Phase> phases) {
    BlockMaker b("block");
    for (size_t i = 0; i < phases.size(); ++i) b.op(Stream::compute, plan::Compute{});
    plan::Block block = b.take();
    for (size_t i = 0; i < phases.size(); ++i) block.ops[i].phase = phases[i];
    return step_time(single_plan({{{"dp", 1}}}, {}, block, 1), pricing);
  };
  using enum plan::Phase;
  EXPECT_EQ(taken({forward, forward}), 2 * 1001);
  EXPECT_EQ(taken({recompute, recompute, backward_input}), 2 * 1001 + 101 + 50000);
  EXPECT_EQ(taken({recompute, backward_input, recompute}), 2 * 1001 + 101 + 2 * 50000);
}

TEST(Simulate, GapFollowsEveryKernel) {
  FakePricing pricing;
  pricing.gap = 4;
  BlockMaker b("block");
  b.compute(10);
  EXPECT_EQ(step_time(single_plan({{{"dp", 1}}}, {}, b.take(), 7), pricing), 7 * 14);
}

TEST(Simulate, WaitsReachBackOverIterationsAndSegments) {
  // copy_in of layer i may run while layer i - 1 computes, into a slot that layer i - 2 has left.
  BlockMaker b("block");
  const uint32_t fetch = b.op(Stream::copy_in, plan::Copy{plan::Space::pinned, plan::Space::device, 30}, {on(1, 2)});
  b.compute(100, {on(fetch)});
  b.segment(5);
  b.compute(1, {on(fetch)});
  trace::MemorySink sink;
  SimulateOptions options;
  options.sink = &sink;
  auto plan = single_plan({{{"dp", 1}}}, {}, b.take());
  ASSERT_TRUE(simulate(plan, FakePricing(), options).ok());
  const trace::Trace trace = sink.take({}, "");
  ASSERT_EQ(trace.ranks.size(), 1u);
  const auto& s = trace.ranks[0].spans;
  ASSERT_EQ(s.size(), 11u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(s[2 * i].op, 2 * i);
    if (i >= 2) { EXPECT_EQ(s[2 * i].begin_ps, s[2 * (i - 2) + 1].end_ps) << i; }
    EXPECT_GE(s[2 * i + 1].begin_ps, s[2 * i].end_ps);
  }
  EXPECT_EQ(s[10].end_ps, s[9].end_ps + 1);
}

/// A collective of `bytes` ps beside kernels: [c, k...] where the kernels do not wait.
TEST(Simulate, SlowdownIsExactForTheOverlappedPart) {
  FakePricing pricing;
  pricing.slow = 2;
  BlockMaker b("block");
  b.collective(Stream::data, 0, 100, {tail(Stream::compute)});  // 0 .. 100
  b.compute(30);                                                // all beside: 0 .. 60
  b.compute(50);                                                // 20 in 40 beside, 30 alone: 60 .. 130
  b.compute(10, {on(0)});                                       // 130 .. 140
  const plan::Plan plan = single_plan({{{"dp", 2}}}, {{"dp", {AxisId{0}}, {}}}, b.take());
  EXPECT_EQ(step_time(plan, pricing), 140);
  EXPECT_EQ(step_time(plan, pricing, true), 140);
  pricing.slow = 1;
  EXPECT_EQ(step_time(plan, pricing), 110);
}

/// Two stages, two micro-batches, messages of 40 ps: beside one a kernel goes at half speed, on the end that sends and on the
/// one that receives, whichever of them was there first.
TEST(Simulate, AMessageSlowsTheKernelsOfBothEnds) {
  FakePricing pricing;
  pricing.slow = 2;
  const plan::Plan plan = pipeline_plan("gpipe", 2, 2, 1, 100, 50, 40);
  EXPECT_EQ(makespan(plan, pricing), 530);
  pricing.beside_messages = 1;
  // Stage 0: F 0-100, the second beside its message (100-140) to 220. Stage 1: F 140-260, slow from 220 on; F to 360,
  // B to 410, the second beside the first's message (410-450) to 480. Stage 0: B 450-520, slow from 480 on, B to 570.
  EXPECT_EQ(makespan(plan, pricing), 570);
  EXPECT_EQ(step_time(plan, pricing, true), step_time(plan, pricing));
  pricing.slow = 1;
  EXPECT_EQ(makespan(plan, pricing), 530);
}

TEST(Simulate, OneOpMayTakeHours) {
  constexpr int64_t kHour = int64_t{3600} * 1'000'000'000'000;
  FakePricing pricing;
  pricing.slow = 2;
  BlockMaker b("block");
  b.collective(Stream::data, 0, 50 * kHour, {tail(Stream::compute)});  // 0 .. 50
  b.compute(30 * kHour);                                               // 25 in 50 beside, 5 alone: 0 .. 55
  const plan::Plan plan = single_plan({{{"dp", 2}}}, {{"dp", {AxisId{0}}, {}}}, b.take());
  EXPECT_EQ(step_time(plan, pricing), 55 * kHour);
  EXPECT_EQ(step_time(plan, pricing, true), 55 * kHour);
}

TEST(Simulate, AnOpOfAWeekIsRefusedByName) {
  BlockMaker b("block");
  b.compute(kLongestOp);
  const auto run = simulate(single_plan({{{"dp", 1}}}, {}, b.take()), FakePricing(), {});
  ASSERT_FALSE(run.ok());
  EXPECT_THAT(to_text(run.errors()), testing::HasSubstr("block 'block', op 'op0': would take"));
}

TEST(Simulate, CollectiveStartsWhenTheLastMemberArrives) {
  // Rank 0 is at the collective at 10, rank 1 at 50; the kernel behind it runs beside it from 50 on.
  plan::Plan plan;
  plan.mesh.axes = {{"pp", 2}};
  plan.groups = {{"all", {AxisId{0}}, {}}};
  for (uint32_t r = 0; r < 2; ++r) {
    BlockMaker b("rank");
    const uint32_t k = b.compute(r ? 50 : 10);
    const uint32_t c = b.collective(Stream::data, 0, 20, {on(k)});
    b.compute(60);
    b.op(Stream::compute, plan::HostWait{}, {on(c)});
    plan.blocks.push_back(b.take());
    plan::Program p;
    p.when = {AxisId{0}, {r}};
    p.steps = {{"steady", {{BlockId{r}, 1, {}}}}};
    plan.programs.push_back(p);
  }
  FakePricing pricing;
  pricing.slow = 2;
  trace::MemorySink sink;
  SimulateOptions options;
  options.sink = &sink;
  auto run = simulate(plan, pricing, options);
  ASSERT_TRUE(run.ok()) << to_text(run.errors());
  // Rank 0: kernel 10 .. 70 meets 50 .. 70 at half speed, so ends at 80. Rank 1: kernel 50 .. 110, half speed to 70: 120.
  const trace::Trace t = sink.take({}, "");
  const auto& s0 = t.ranks[0].spans;
  const auto& s1 = t.ranks[1].spans;
  // Steady step: both begin where they ended before, 80 and 120; rank 0 arrives at 90, rank 1 at 170.
  EXPECT_EQ(s1[1].begin_ps, 50);
  EXPECT_EQ(s1[1].end_ps, 70);
  EXPECT_EQ(s1[2].end_ps, 120);
  EXPECT_EQ(s0[1].begin_ps, 90 - 120);
  EXPECT_EQ(s0[1].end_ps, 70);
  EXPECT_EQ(s0[2].end_ps, 150 - 120);  // 90 .. 150, over before the collective begins at 170
}

TEST(Simulate, KernelBeforeTheMissingArrivalIsReleased) {
  // Rank 0 posts the collective, computes, then sends; rank 1 arrives at the collective only after it has received: the
  // kernel cannot be slowed by it, and nothing may hang.
  plan::Plan plan;
  plan.mesh.axes = {{"pp", 2}};
  plan.placement = {plan::PlacementKind::loop, 2, 1};
  plan.groups = {{"all", {AxisId{0}}, {}}};
  BlockMaker a("first");
  a.collective(Stream::data, 0, 1000);
  const uint32_t k = a.compute(30);
  a.op(Stream::send_next, plan::Send{plan::Direction::next_stage, 0}, {on(k)});
  a.op(Stream::compute, plan::HostWait{}, {on(0), tail(Stream::send_next)});
  BlockMaker b("second");
  const uint32_t r = b.op(Stream::receive_previous, plan::Receive{plan::Direction::previous_stage, 0});
  const uint32_t c = b.collective(Stream::data, 0, 1000, {on(r)});
  b.op(Stream::compute, plan::HostWait{}, {on(c)});
  plan.blocks = {a.take(), b.take()};
  for (uint32_t i = 0; i < 2; ++i) {
    plan::Program p;
    p.when = {AxisId{0}, {i}};
    p.steps = {{"steady", {{BlockId{i}, 1, {}}}}};
    plan.programs.push_back(p);
  }
  FakePricing pricing;
  pricing.slow = 3;
  EXPECT_EQ(step_time(plan, pricing), 1030);
}

TEST(Simulate, PipelinedProductAndCollective) {
  // Gather in 4 pieces of 25, product of 40 in pieces of 10: starts at 25, ends no earlier than 100 + 10.
  BlockMaker b("block");
  const uint32_t g = b.collective(Stream::tensor, 0, 100);
  plan::Wait piece{plan::Wait::Kind::piece, g, 0, 4};
  const uint32_t product = b.compute(40, {piece});
  b.compute(5, {on(product)});
  const plan::Plan plan = single_plan({{{"tp", 2}}}, {{"tp", {AxisId{0}}, {}}}, b.take());
  for (bool all : {false, true}) {
    trace::MemorySink sink;
    SimulateOptions options;
    options.sink = &sink;
    options.all_ranks = all;
    ASSERT_TRUE(simulate(plan, FakePricing(), options).ok());
    const trace::Trace t = sink.take({}, "");
    const auto& s = t.ranks[0].spans;
    EXPECT_EQ(s[1].begin_ps - s[0].begin_ps, 25) << all;
    EXPECT_EQ(s[1].end_ps - s[0].begin_ps, 110) << all;
    EXPECT_EQ(s[2].end_ps - s[0].begin_ps, 115) << all;
  }
  // The other way: a scatter behind a product that feeds it.
  BlockMaker r("block");
  const uint32_t feed = r.compute(100);
  r.collective(Stream::tensor, 0, 40, {{plan::Wait::Kind::piece, feed, 0, 4}});
  EXPECT_EQ(step_time(single_plan({{{"tp", 2}}}, {{"tp", {AxisId{0}}, {}}}, r.take(), 1), FakePricing()), 100);
}

TEST(Simulate, StuckPlanNamesEveryStuckRankAndOp) {
  plan::Plan plan;
  plan.mesh.axes = {{"pp", 2}, {"dp", 3}};
  plan.placement = {plan::PlacementKind::loop, 2, 1};
  // Both receive before they send.
  BlockMaker a("first"), b("second");
  const uint32_t x = a.op(Stream::receive_next, plan::Receive{plan::Direction::next_stage, 0});
  const uint32_t y = a.compute(1, {on(x)});
  a.op(Stream::send_next, plan::Send{plan::Direction::next_stage, 0}, {on(y)});
  const uint32_t z = b.op(Stream::receive_previous, plan::Receive{plan::Direction::previous_stage, 0});
  const uint32_t w = b.compute(1, {on(z)});
  b.op(Stream::send_previous, plan::Send{plan::Direction::previous_stage, 0}, {on(w)});
  plan.blocks = {a.take(), b.take()};
  for (uint32_t i = 0; i < 2; ++i) {
    plan::Program p;
    p.when = {AxisId{0}, {i}};
    p.steps = {{"steady", {{BlockId{i}, 1, {}}}}};
    plan.programs.push_back(p);
  }
  const auto run = simulate(plan, FakePricing(), {});
  ASSERT_FALSE(run.ok());
  const std::string text = to_text(run.errors());
  EXPECT_THAT(text, testing::HasSubstr(
                        "rank 0 and 2 ranks like it: stuck before op 1 'op1' of layer 0 of invocation 0 'first'"));
  EXPECT_THAT(text, testing::HasSubstr("rank 3 and 2 ranks like it"));
  SimulateOptions all;
  all.all_ranks = true;
  EXPECT_EQ(simulate(plan, FakePricing(), all).errors().size(), 6u);
}

}  // namespace
}  // namespace wt::sim
