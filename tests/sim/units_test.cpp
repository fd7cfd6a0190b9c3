// Sharded units in the simulator: ranks folded or not, blocks summarised or op by op give the same times, bit for bit; and
// what prefetching hides.
#include <gtest/gtest.h>

#include <functional>

#include "core/lower/lower.hpp"
#include "fake_pricing.hpp"
#include "sim/simulate.hpp"
#include "tests/core/lower/small_job.hpp"

namespace wt::sim {
namespace {

JobSpec job(DataParallel kind, int64_t tensor = 1) {
  JobSpec j = lower::small_job({.layers = 6, .kv_heads = 8, .vocab = 128, .seq_len = 64, .nodes = 2, .devices = 4});
  j.strategy.data_parallel = kind;
  j.strategy.tensor = tensor;
  j.strategy.sequence_parallel = true;
  j.training.global_batch = 8 / tensor * 3;
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

int64_t step(const JobSpec& j, const FakePricing& pricing) {
  const auto r = run(j, pricing, false, false);
  EXPECT_TRUE(r.ok()) << to_text(r.errors());
  return r.ok() ? r.value().step_time.count_ps() : 0;
}

TEST(UnitsSimulated, FoldedAndSummarisedAreEqual) {
  for (const DataParallel kind : {DataParallel::fsdp, DataParallel::fsdp2, DataParallel::zero2, DataParallel::zero3})
    for (const int64_t tensor : {1, 2})
      for (int variant = 0; variant < 8; ++variant) {
        JobSpec j = job(kind, tensor);
        const bool torch = kind == DataParallel::fsdp || kind == DataParallel::fsdp2;
        if (torch && variant >= 1 && variant < 5) {
          j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
          j.strategy.fsdp.backward_prefetch = variant == 2 ? BackwardPrefetch::none : BackwardPrefetch::pre;
          j.strategy.fsdp.no_sync = variant == 3;
          j.strategy.fsdp.wrap = variant == 4 ? WrapKind::block_and_ends : WrapKind::block;
        }
        if (!torch) j.strategy.bucket_elements = 60000 * variant;
        if (kind == DataParallel::zero2) j.strategy.overlap_grad_reduce = variant % 2;
        if (variant == 2) j.strategy.recompute.kind = RecomputeKind::full;
        if (variant == 5) j.strategy.offload.activation_layers = 3;
        if (variant >= 6) {
          j.strategy.offload.optimizer = OffloadDevice::cpu;
          if (kind != DataParallel::zero2) j.strategy.offload.parameters = OffloadDevice::cpu;
          j.strategy.offload.pinned = variant == 6;
        }
        FakePricing pricing;
        pricing.collective_latency = 30000;
        pricing.issue = variant * 900;
        pricing.gap = 100;
        pricing.slow = variant % 2 ? 1.25 : 1;
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " tensor " << tensor << " variant "
                                        << variant);
        const auto folded = run(j, pricing, false, false), all = run(j, pricing, true, false),
                   slow = run(j, pricing, false, true);
        ASSERT_TRUE(folded.ok()) << to_text(folded.errors());
        ASSERT_TRUE(all.ok() && slow.ok());
        EXPECT_EQ(folded.value().step_time, all.value().step_time);
        EXPECT_EQ(folded.value().step_time, slow.value().step_time);
        EXPECT_LT(folded.value().distinct_ranks, 8u);
        EXPECT_EQ(all.value().distinct_ranks, 8u);
      }
}

TEST(UnitsSimulated, BucketsOnTheHostAreEqualToo) {
  for (const DataParallel kind : {DataParallel::zero1, DataParallel::distributed_optimizer, DataParallel::ddp}) {
    JobSpec j = job(kind);
    j.strategy.offload.optimizer = OffloadDevice::cpu;
    j.strategy.offload.overlap = kind == DataParallel::distributed_optimizer;
    j.strategy.offload.activation_layers = 2;
    FakePricing pricing;
    pricing.issue = 900;
    const auto folded = run(j, pricing, false, false), all = run(j, pricing, true, false),
               slow = run(j, pricing, false, true);
    ASSERT_TRUE(folded.ok()) << to_text(folded.errors());
    ASSERT_TRUE(all.ok() && slow.ok());
    EXPECT_EQ(folded.value().step_time, all.value().step_time);
    EXPECT_EQ(folded.value().step_time, slow.value().step_time);
  }
}

/// Kernels cost nothing for the host here, so what shows is the order of the wire.
TEST(UnitsSimulated, PrefetchHidesGathers) {
  FakePricing pricing;
  pricing.collective_latency = 4'000'000;  // as long as a good part of a block's kernels
  JobSpec j = job(DataParallel::fsdp);
  const int64_t pre = step(j, pricing);
  j.strategy.fsdp.backward_prefetch = BackwardPrefetch::none;
  const int64_t none = step(j, pricing);
  EXPECT_LT(pre, none);
  // Without prefetch each block's backward waits for the reduction before it and for its own gather, alone on the wire:
  // 6 blocks, 3 micro-batches.
  EXPECT_GT(none - pre, 3 * 5 * pricing.collective_latency);
  // A slower wire never makes a step faster, and with no wire the policies are the same.
  FakePricing free = pricing;
  free.collective_latency = 0;
  free.scale = 1;
  j.strategy.fsdp.backward_prefetch = BackwardPrefetch::pre;
  EXPECT_LT(step(j, free), pre);
}

/// The whole model as one unit: nothing to hide the gather behind (accelerate's NO_WRAP).
TEST(UnitsSimulated, OneUnitShowsItsGather) {
  FakePricing pricing;
  JobSpec j = job(DataParallel::fsdp);
  const int64_t blocks = step(j, pricing);
  j.strategy.fsdp.wrap = WrapKind::model;
  EXPECT_GT(step(j, pricing), blocks);
}

/// One host wait for each unit under the limiter, so a host that is late shows it.
TEST(UnitsSimulated, LimiterHoldsTheHostBack) {
  FakePricing pricing;
  pricing.issue = 100'000;
  JobSpec j = job(DataParallel::fsdp);
  const int64_t limited = step(j, pricing);
  j.strategy.fsdp.limit_all_gathers = false;
  EXPECT_LE(step(j, pricing), limited);
}

}  // namespace
}  // namespace wt::sim
