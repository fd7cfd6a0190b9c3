#include "sim/fold/fold.hpp"

#include <gtest/gtest.h>

#include <map>

#include "random_plan.hpp"
#include "sim/simulate.hpp"

namespace wt::sim {
namespace {

struct Outcome {
  RunSummary summary;
  trace::Trace trace;
};

Outcome run(const RandomCase& c, bool all_ranks, uint32_t steps = 2) {
  trace::MemorySink sink;
  SimulateOptions options;
  options.all_ranks = all_ranks;
  options.steps = steps;
  options.sink = &sink;
  auto result = simulate(c.plan, c.pricing, options);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : to_text(result.errors()));
  if (!result.ok()) return {};
  return {result.value(), sink.take({}, "")};
}

/// Bit for bit: the end of every rank, every span of the ranks that both runs hold.
TEST(Fold, FoldedAndUnfoldedAreEqual) {
  uint64_t folded_ranks = 0, ranks = 0, released = 0;
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomCase c = random_case(seed);
    const Outcome folded = run(c, false), all = run(c, true);
    ASSERT_EQ(all.summary.rank_times.size(), static_cast<size_t>(c.plan.mesh.ranks()));
    ASSERT_EQ(folded.summary.step_time, all.summary.step_time);
    const Fold fold = fold_ranks(c.plan, c.pricing, false);
    ASSERT_EQ(fold.units() * fold.stands_for, c.plan.mesh.ranks());
    for (const RankTime& t : all.summary.rank_times) {
      const RankTime& same = folded.summary.rank_times[fold.unit_of(RankId{t.rank})];
      ASSERT_EQ(t.end, same.end) << "rank " << t.rank << " folded into " << same.rank;
    }
    std::map<std::pair<uint32_t, uint32_t>, const trace::RankSpans*> by_rank;
    for (const trace::RankSpans& r : all.trace.ranks) by_rank[{r.step, r.rank}] = &r;
    ASSERT_EQ(folded.trace.ranks.size(), 2 * folded.summary.distinct_ranks);
    for (const trace::RankSpans& r : folded.trace.ranks) ASSERT_EQ(r.spans, by_rank.at({r.step, r.rank})->spans);
    folded_ranks += fold.units();
    ranks += static_cast<uint64_t>(c.plan.mesh.ranks());
    released += all.summary.released;
    if (testing::Test::HasFatalFailure()) return;
  }
  // The cases are not trivial: some ranks fold, some do not, some kernels had to be released.
  EXPECT_LT(folded_ranks, ranks * 3 / 4);
  EXPECT_GT(released, 0u);
}

/// Summaries of blocks, or op by op: bit for bit the same ends.
TEST(Summary, SummarisedAndOpByOpAreEqual) {
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    const RandomCase c = random_case(seed);
    for (bool all_ranks : {false, true}) {
      SimulateOptions options;
      options.all_ranks = all_ranks;
      options.steps = 2;
      const auto fast = simulate(c.plan, c.pricing, options);
      options.op_by_op = true;
      const auto slow = simulate(c.plan, c.pricing, options);
      ASSERT_TRUE(fast.ok() && slow.ok());
      ASSERT_EQ(fast.value().step_time, slow.value().step_time) << "seed " << seed;
      ASSERT_EQ(fast.value().ops, slow.value().ops);
      ASSERT_EQ(fast.value().rank_times.size(), slow.value().rank_times.size());
      for (size_t i = 0; i < fast.value().rank_times.size(); ++i)
        ASSERT_EQ(fast.value().rank_times[i].end, slow.value().rank_times[i].end) << "seed " << seed << " unit " << i;
    }
  }
}

/// Where the machine tells no ranks apart, the order of the mesh axes only renames ranks.
TEST(Simulate, RenamingRanksChangesNothing) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    RandomCase c = random_case(seed);
    c.pricing.machine = {};
    const Outcome before = run(c, true);
    // Axis i of the old mesh becomes axis (i + 1) % 3.
    auto moved = [](AxisId a) { return AxisId{(a.v + 1) % 3}; };
    std::rotate(c.plan.mesh.axes.begin(), c.plan.mesh.axes.end() - 1, c.plan.mesh.axes.end());
    for (plan::Group& g : c.plan.groups) {
      for (AxisId& a : g.axes) a = moved(a);
      if (g.filter) g.filter->axis = moved(g.filter->axis);
    }
    for (plan::Program& p : c.plan.programs)
      if (p.when.axis.valid()) p.when.axis = moved(p.when.axis);
    const Outcome after = run(c, true);
    ASSERT_EQ(before.summary.step_time, after.summary.step_time) << seed;
    auto ends = [](const RunSummary& s) {
      std::vector<int64_t> out;
      for (const RankTime& t : s.rank_times) out.push_back(t.end.count_ps());
      std::sort(out.begin(), out.end());
      return out;
    };
    ASSERT_EQ(ends(before.summary), ends(after.summary)) << seed;
  }
}

/// One value for every compiler and machine. A change of what the simulator does to a plan changes it: say so in the commit.
TEST(Simulate, FingerprintOfRandomRuns) {
  uint64_t all = 0;
  for (uint32_t seed = 1; seed <= 100; ++seed)
    all = (all ^ trace::fingerprint(run(random_case(seed), seed % 2 == 0).trace)) * 0x100000001b3u;
  EXPECT_EQ(all, 1728663901251324254u);
}

TEST(Fold, SameInputSameTrace) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    const RandomCase c = random_case(seed);
    EXPECT_EQ(trace::fingerprint(run(c, true).trace), trace::fingerprint(run(c, true).trace)) << seed;
  }
}

}  // namespace
}  // namespace wt::sim
