// Plans of strategies that tests elsewhere hold to the mathematics, in the engine: folded, summarised and op by op give the
// same times, to the picosecond; and what a strategy hides is hidden.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/lower/lower.hpp"
#include "fake_pricing.hpp"
#include "sim/simulate.hpp"
#include "tests/core/lower/small_job.hpp"

namespace wt::sim {
namespace {

JobSpec job() {
  JobSpec j = lower::small_job({.layers = 8, .kv_heads = 8, .vocab = 128, .seq_len = 64, .nodes = 4, .devices = 4});
  j.training.global_batch = 64;
  j.training.vocab_multiple = TrainingSpec{}.vocab_multiple;
  return j;
}
JobSpec experts(int64_t pipeline, bool overlap) {
  JobSpec j = job();
  j.model.moe = MoeSpec{.experts = 8, .top_k = 2, .ffn_hidden = 64};
  j.strategy.data_parallel = DataParallel::megatron;
  j.strategy.expert = 4;
  j.strategy.pipeline = pipeline;
  if (pipeline > 1) {
    j.strategy.schedule = "interleaved";
    j.strategy.virtual_stages = 2;
  }
  j.strategy.experts.overlap_passes = overlap;
  j.strategy.experts.dropless = false;  // no host that waits for counts
  return j;
}

Result<RunSummary> run(const JobSpec& j, FakePricing pricing, bool all_ranks, bool op_by_op) {
  const auto p = lower::lower(j);
  if (!p.ok()) return p.errors();
  pricing.machine = {4, 4, 0};
  SimulateOptions options;
  options.all_ranks = all_ranks;
  options.op_by_op = op_by_op;
  options.steps = 2;
  return simulate(p.value(), pricing, options);
}

struct Strategy {
  const char* name;
  std::function<void(JobSpec&)> change;
};
void units(JobSpec& j, DataParallel kind, int64_t pipeline, int64_t context) {
  j.strategy.data_parallel = kind;
  j.strategy.pipeline = pipeline;
  j.strategy.context = context;
  j.strategy.fsdp.no_sync = pipeline > 1;
}
const Strategy kStrategies[] = {
    {"fsdp2 on stages", [](JobSpec& j) { units(j, DataParallel::fsdp2, 4, 1); }},
    {"fsdp2 on interleaved stages, not resharded",
     [](JobSpec& j) {
       units(j, DataParallel::fsdp2, 2, 1);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.fsdp.reshard_after_forward = 0;
     }},
    {"fsdp on looped stages",
     [](JobSpec& j) {
       units(j, DataParallel::fsdp, 2, 1);
       j.strategy.schedule = "looped-bfs";
       j.strategy.virtual_stages = 4;
     }},
    {"fsdp2 with context parallelism", [](JobSpec& j) { units(j, DataParallel::fsdp2, 1, 4); }},
    {"fsdp2 with both",
     [](JobSpec& j) {
       units(j, DataParallel::fsdp2, 2, 2);
       j.strategy.tensor = 2;
       j.strategy.sequence_parallel = true;
     }},
    {"zero3 with context parallelism", [](JobSpec& j) { units(j, DataParallel::zero3, 1, 2); }},
    {"recomputed parts",
     [](JobSpec& j) {
       j.strategy.tensor = 2;
       j.strategy.sequence_parallel = true;
       j.strategy.recompute.kind = RecomputeKind::selective;
       j.strategy.recompute.modules = "layernorm, mlp";
     }},
    {"layout",
     [](JobSpec& j) {
       j.strategy.pipeline = 4;
       j.strategy.pipeline_layout = "Et|ttt|tttt|L";
     }},
    {"multi-token prediction on stages",
     [](JobSpec& j) {
       j = experts(2, false);
       j.model.mtp_layers = 2;
       j.strategy.tensor = 2;
       j.strategy.sequence_parallel = true;
     }},
    {"experts, overlapped passes", [](JobSpec& j) { j = experts(1, true); }},
    {"experts, overlapped passes on stages", [](JobSpec& j) { j = experts(2, true); }},
};

TEST(StrategiesSimulated, FoldedAndSummarisedAreEqual) {
  for (const Strategy& s : kStrategies)
    for (const double slow : {1.0, 1.3}) {
      SCOPED_TRACE(fmt::format("{}, slowdown {}", s.name, slow));
      JobSpec j = job();
      s.change(j);
      FakePricing pricing;
      pricing.slow = slow;
      pricing.hop = 700;
      pricing.collective_latency = 50;
      pricing.issue = 3;
      const auto folded = run(j, pricing, false, false), op_by_op = run(j, pricing, false, true),
                 all = run(j, pricing, true, true);
      ASSERT_TRUE(folded.ok()) << to_text(folded.errors());
      ASSERT_TRUE(op_by_op.ok() && all.ok());
      EXPECT_EQ(folded.value().step_time, op_by_op.value().step_time);
      EXPECT_EQ(folded.value().step_time, all.value().step_time);
    }
}

/// An exchange that takes about as long as the compute of a layer.
TEST(StrategiesSimulated, OverlappedPassesHideTheExchangeOfExperts) {
  for (const int64_t pipeline : {1, 2}) {
    FakePricing dear, free;
    dear.collective_latency = 400'000;
    const auto time = [&](bool overlap, const FakePricing& pricing) {
      const auto r = run(experts(pipeline, overlap), pricing, false, false);
      EXPECT_TRUE(r.ok()) << to_text(r.errors());
      return r.ok() ? r.value().step_time.count_ps() : 0;
    };
    const int64_t compute = time(false, free), plain = time(false, dear), overlapped = time(true, dear);
    EXPECT_LT(overlapped - compute, (plain - compute) * 2 / 3) << pipeline;
  }
}

}  // namespace
}  // namespace wt::sim
