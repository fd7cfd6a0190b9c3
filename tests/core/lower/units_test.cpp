// Sharded units against closed forms that do not use lowering's code: bytes on the wire by kind (facts, section 12), bytes
// that a rank keeps, buckets, the levels of the mesh, and what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "small_job.hpp"

namespace wt::lower {
namespace {

constexpr int64_t kLayers = 6, kHidden = 64, kVocab = 1024, kData = 8, kMicroBatches = 4;
constexpr int64_t kBlock = kSmallBlock, kRoot = small_root(kVocab);
constexpr int64_t kAll = kLayers * kBlock + kRoot;

JobSpec job(DataParallel kind, int64_t micro_batches = kMicroBatches) {
  JobSpec j = small_job({.layers = kLayers, .vocab = kVocab, .nodes = 2, .devices = 4});
  j.training.global_batch = micro_batches * kData;
  j.strategy.data_parallel = kind;
  return j;
}

plan::Plan lowered(const JobSpec& j) {
  auto r = lower(j);
  EXPECT_TRUE(r.ok()) << to_text(r.errors());
  return r.ok() ? r.value() : plan::Plan{};
}

/// Bytes of a step by "<group> <kind>".
std::map<std::string, int64_t> traffic(const plan::Plan& p) {
  std::map<std::string, int64_t> bytes;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      if (const auto* c = std::get_if<plan::Collective>(&op.body); c && c->bytes > 8)
        bytes[p.group(c->group).name + " " + std::string(plan::to_text(c->kind))] += c->bytes;
    });
  return bytes;
}

using Bytes = std::map<std::string, int64_t>;

TEST(Units, TrafficOfPyTorch) {
  for (const DataParallel kind : {DataParallel::fsdp, DataParallel::fsdp2}) {
    SCOPED_TRACE(kind == DataParallel::fsdp ? "fsdp" : "fsdp2");
    JobSpec j = job(kind);
    const int64_t m = kMicroBatches, g = 4, w = 2;  // fp32 on the wire
    // Blocks are gathered for the forward and again for the backward, the root once.
    EXPECT_EQ(traffic(lowered(j)),
              (Bytes{{"dp all_gather", m * w * (2 * kLayers * kBlock + kRoot)}, {"dp reduce_scatter", m * g * kAll}}));
    j.strategy.fsdp.keep_last = 2;
    EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * w * ((2 * kLayers - 2) * kBlock + kRoot));
    j.strategy.fsdp = {};
    j.strategy.recompute.kind = RecomputeKind::full;  // inside the unit: gathered no more often
    EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * w * (2 * kLayers * kBlock + kRoot));
    j.strategy.recompute = {};
    j.strategy.fsdp.no_sync = true;
    EXPECT_EQ(traffic(lowered(j)),
              (Bytes{{"dp all_gather", m * w * (2 * kLayers * kBlock + kRoot)}, {"dp reduce_scatter", g * kAll}}));
    j.strategy.fsdp = {};
    j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;  // 2 replicas of 4 ranks, the nodes
    EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp_shard all_gather", m * w * (2 * kLayers * kBlock + kRoot)},
                                          {"dp_shard reduce_scatter", m * g * kAll},
                                          {"dp_replicas all_reduce", m * g * kAll / 4}}));
    j.strategy.fsdp = {};
    j.strategy.fsdp.wrap = WrapKind::model;  // everything is the root
    EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp all_gather", m * w * kAll}, {"dp reduce_scatter", m * g * kAll}}));
    j.strategy.fsdp.wrap = WrapKind::block_and_ends;  // the embedding twice, the head once
    EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * w * (2 * kLayers * kBlock + kRoot + kVocab * kHidden));
    j.training.param_dtype = DType::f32;
    j.cluster.device.peak[DType::f32] = {1e14};
    j.training.compute_dtype = DType::f32;
    j.strategy.fsdp = {};
    EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * 4 * (2 * kLayers * kBlock + kRoot));
  }
  JobSpec j = job(DataParallel::fsdp);
  j.strategy.gradient_dtype = DType::bf16;
  j.strategy.fsdp.sharding = ShardingKind::shard_grad_op;
  const int64_t m = kMicroBatches;
  EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp all_gather", m * 2 * kAll}, {"dp reduce_scatter", m * 2 * kAll}}));
  j.strategy.fsdp.no_sync = true;  // stays whole for the step
  EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp all_gather", 2 * kAll}, {"dp reduce_scatter", 2 * kAll}}));
  j.strategy.fsdp = {};
  j.strategy.fsdp.sharding = ShardingKind::no_shard;
  EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp all_reduce", m * 2 * kAll}}));
  j = job(DataParallel::fsdp2);
  j.strategy.fsdp.reshard_after_forward = 2;  // the backward gathers in pairs
  EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * 2 * kAll);
  EXPECT_EQ(traffic(lowered(j)).at("dp_near all_gather"), m * 2 * kLayers * kBlock);
  j.strategy.fsdp.reshard_after_forward = 0;
  EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"), m * 2 * kAll);
}

TEST(Units, TrafficOfDeepSpeed) {
  const int64_t m = kMicroBatches;
  JobSpec j = job(DataParallel::zero2);
  j.strategy.gradient_dtype = DType::bf16;
  // Stage 2 reduces whole buckets with an all-reduce, in every micro-batch (DS-3, DS-4).
  EXPECT_EQ(traffic(lowered(j)), (Bytes{{"dp all_reduce", m * 2 * kAll}, {"dp all_gather", 2 * kAll}}));
  j.strategy.data_parallel = DataParallel::zero3;
  j.strategy.zero = {1000, 100, 1, 0};  // norms stay; everything else is released at once
  const int64_t small = kLayers * 2 * kHidden;
  const int64_t large = kLayers * (kBlock - 2 * kHidden);
  // The head stays from its forward to its backward, the embedding does not; small ones once after the step (DS-12).
  const int64_t ends = kRoot + kVocab * kHidden;
  EXPECT_EQ(traffic(lowered(j)),
            (Bytes{{"dp all_gather", m * 2 * (2 * large + ends) + 2 * small}, {"dp reduce_scatter", m * 2 * kAll}}));
  // The last blocks whose backward is within the reuse distance stay: 2 of them when 2 x 2 blocks are within it.
  j.strategy.zero.max_reuse_distance = 4 * kBlock;
  j.strategy.zero.max_live_parameters = 4 * kBlock;
  EXPECT_EQ(traffic(lowered(j)).at("dp all_gather"),
            m * 2 * (2 * large - 2 * (kBlock - 2 * kHidden) + ends) + 2 * small);
}

/// Ops of the first program's step with a name, each as often as it runs, and the kernels that they launch.
std::pair<int64_t, int64_t> count(const plan::Plan& p, std::string_view name) {
  int64_t ops = 0, launches = 0;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      if (op.name != name) return;
      ++ops;
      if (const auto* c = std::get_if<plan::Compute>(&op.body)) launches += c->launches;
    });
  return {ops, launches};
}

TEST(Units, ListsAreCopiedRankByRankAndAwaited) {
  JobSpec j = job(DataParallel::zero3);
  const plan::Plan flat = lowered(j);
  j.strategy.zero.list_collectives = true;
  const plan::Plan lists = lowered(j);
  EXPECT_EQ(traffic(lists), traffic(flat));
  for (const char* copy : {"copy out", "copy in"}) {
    EXPECT_GT(count(flat, copy).first, 0);
    EXPECT_GE(count(lists, copy).second, kData * count(flat, copy).second) << copy;
    EXPECT_EQ(count(lists, copy).second, kData * count(lists, copy).first) << copy;
  }
  EXPECT_EQ(count(flat, "synchronize").first, 0);
  EXPECT_GT(count(lists, "synchronize").first, 0);
}

TEST(Units, Fp8WeightsAreMadeFromWhatWasGathered) {
  for (const DataParallel kind : {DataParallel::fsdp, DataParallel::fsdp2}) {
    JobSpec j = job(kind);
    const Bytes wide = traffic(lowered(j));
    j.training.compute_dtype = DType::f8;
    const plan::Plan narrow = lowered(j);
    EXPECT_EQ(traffic(narrow), wide);                                                // gathered in 16 bits
    EXPECT_EQ(count(narrow, "fp8 weights").first, kMicroBatches * kLayers * 2 * 4);  // both passes, four products
  }
}

/// One collective for each bucket: as many blocks as fit into it, the rest in one, and the ends.
TEST(Units, BucketsOfDeepSpeed) {
  auto reductions = [](int64_t elements) {
    JobSpec j = job(DataParallel::zero2, 1);
    j.strategy.bucket_elements = elements;
    std::vector<int64_t> sizes;
    const plan::Plan p = lowered(j);
    for (const auto& i : p.programs[0].steps[0].order)
      plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
        if (const auto* c = std::get_if<plan::Collective>(&op.body);
            c && c->kind == plan::CollectiveKind::all_reduce && c->bytes > 8)
          sizes.push_back(c->bytes / 4);
      });
    return sizes;
  };
  EXPECT_EQ(reductions(kBlock), (std::vector<int64_t>{kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kRoot}));
  EXPECT_EQ(reductions(4 * kBlock + 1), (std::vector<int64_t>{4 * kBlock, 2 * kBlock, kRoot}));
  EXPECT_EQ(reductions(0), (std::vector<int64_t>{kLayers * kBlock, kRoot}));
}

/// What a rank keeps between steps: FS1-10, FS2-9, DS-7.
TEST(Units, BytesThatARankKeeps) {
  auto kept = [](JobSpec j) {
    const plan::Plan p = lowered(j);
    int64_t bytes = 0;
    for (BufferId id : p.parts[0].persistent)
      bytes += p.buffer(id).bytes().n * (p.buffer(id).per_layer ? p.parts[0].layers : 1);
    return static_cast<double>(bytes) / static_cast<double>(kAll);
  };
  JobSpec j = job(DataParallel::fsdp);
  EXPECT_NEAR(kept(j), 12.0 / 8, 1e-9);
  j.strategy.data_parallel = DataParallel::fsdp2;
  EXPECT_NEAR(kept(j), 12.0 / 8, 1e-9);
  j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
  EXPECT_NEAR(kept(j), 12.0 / 4, 1e-9);
  j.strategy.data_parallel = DataParallel::fsdp;
  j.strategy.fsdp.sharding = ShardingKind::no_shard;
  EXPECT_NEAR(kept(j), 12, 1e-9);
  j.strategy.fsdp = {};
  j.training.master_weights = false;  // 16-bit weights are their own master
  EXPECT_NEAR(kept(j), 10.0 / 8, 1e-9);
  EXPECT_NEAR(kept(job(DataParallel::zero2)), 2 + 12.0 / 8, 1e-9);
  j = job(DataParallel::zero3);
  j.strategy.zero.persistence_threshold = 0;
  EXPECT_NEAR(kept(j), 14.0 / 8, 1e-9);
}

TEST(Units, LevelsOfTheMesh) {
  auto axes = [](const JobSpec& j) {
    std::string out;
    for (const plan::Axis& a : lowered(j).mesh.axes) out += a.name + " " + std::to_string(a.size) + ", ";
    return out;
  };
  JobSpec j = job(DataParallel::fsdp2);
  EXPECT_EQ(axes(j), "pp 1, dp 8, tp 1, ");
  j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
  EXPECT_EQ(axes(j), "pp 1, dp 2, dp_shard 4, tp 1, ");
  j.strategy.fsdp.reshard_after_forward = 2;
  EXPECT_EQ(axes(j), "pp 1, dp 2, dp_shard 2, dp_near 2, tp 1, ");
  j.strategy.fsdp.sharding = ShardingKind::full_shard;
  EXPECT_EQ(axes(j), "pp 1, dp 4, dp_near 2, tp 1, ");
  j.strategy.tensor = 2;  // the ranks of a node: 2 of data, 2 of tensor
  j.strategy.fsdp = {};
  j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
  EXPECT_EQ(axes(j), "pp 1, dp 2, dp_shard 2, tp 2, ");
  const plan::Plan p = lowered(j);
  EXPECT_EQ(p.mesh.data_ranks(), 4);
  for (uint32_t r = 0; r < 8; ++r) EXPECT_EQ(p.mesh.data_coordinate(RankId{r}), r / 2);
}

/// A block is written once for all its iterations: the text does not grow with the layers.
TEST(Units, PlansOfManyLayersAreShort) {
  for (const DataParallel kind : {DataParallel::fsdp, DataParallel::fsdp2, DataParallel::zero2, DataParallel::zero3}) {
    JobSpec j = job(kind);
    j.model.layers = 80;
    j.strategy.bucket_elements = kBlock;
    const size_t small = plan::print(lowered(j)).size();
    j.model.layers = 160;
    const size_t large = plan::print(lowered(j)).size();
    EXPECT_LT(small, 60000u);
    EXPECT_LT(large, small + small / 4);  // the list of what ZeRO gathers after the step has an entry for each layer
  }
}

TEST(Units, IllegalJobsNameKeyAndLegalValues) {
  struct Row {
    std::string where, what, hint;
    DataParallel kind;
    std::function<void(JobSpec&)> spoil;
  };
  const Row rows[] = {
      {"strategy.pipeline", "DeepSpeed's pipeline engine refuses ZeRO 2 and 3", "zero1", DataParallel::zero3,
       [](JobSpec& j) { j.strategy.pipeline = 2; }},
      {"strategy.fsdp.no_sync", "after the last micro-batch", "legal: true", DataParallel::fsdp,
       [](JobSpec& j) { j.strategy.pipeline = 2; }},
      {"strategy.fsdp", "has no effect with data_parallel: zero2", "fsdp2", DataParallel::zero2,
       [](JobSpec& j) { j.strategy.fsdp.no_sync = true; }},
      {"strategy.zero", "has no effect with data_parallel: fsdp", "zero3", DataParallel::fsdp,
       [](JobSpec& j) { j.strategy.zero.prefetch_elements = 0; }},
      {"strategy.fsdp.shard_size", "needs sharding: hybrid_shard", "", DataParallel::fsdp,
       [](JobSpec& j) { j.strategy.fsdp.shard_size = 2; }},
      {"strategy.fsdp.shard_size", "8 data-parallel ranks are not a multiple of shard groups of 3",
       "nearest legal: 2, 4", DataParallel::fsdp2,
       [](JobSpec& j) {
         j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
         j.strategy.fsdp.shard_size = 3;
       }},
      {"strategy.fsdp.sharding", "fsdp2 has no shard_grad_op", "reshard_after_forward: false", DataParallel::fsdp2,
       [](JobSpec& j) { j.strategy.fsdp.sharding = ShardingKind::shard_grad_op; }},
      {"strategy.fsdp.reshard_after_forward", "is fsdp2's", "shard_grad_op", DataParallel::fsdp,
       [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 0; }},
      {"strategy.fsdp.reshard_after_forward", "groups of 8 are not smaller parts of shard groups of 8", "nearest legal",
       DataParallel::fsdp2, [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 8; }},
      {"strategy.fsdp.backward_prefetch", "fsdp2 has no post", "pre, none", DataParallel::fsdp2,
       [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::post; }},
      {"strategy.fsdp.keep_last", "7 blocks of 6", "0 to 6", DataParallel::fsdp,
       [](JobSpec& j) { j.strategy.fsdp.keep_last = 7; }},
      {"strategy.recompute.layers", "2 layers of one checkpoint", "legal: 1", DataParallel::fsdp,
       [](JobSpec& j) {
         j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 2};
       }},
      {"training.precision", "fp8 products of weights that DeepSpeed cuts", "bf16", DataParallel::zero3,
       [](JobSpec& j) { j.training.compute_dtype = DType::f8; }},
  };
  for (const Row& row : rows) {
    JobSpec j = job(row.kind);
    row.spoil(j);
    const auto r = lower(j);
    ASSERT_FALSE(r.ok()) << row.where << " " << row.what;
    bool found = false;
    for (const auto& e : r.errors())
      found |= e.where == row.where && e.what.find(row.what) != std::string::npos &&
               e.hint.find(row.hint) != std::string::npos;
    EXPECT_TRUE(found) << "wanted " << row.where << ": " << row.what << " (" << row.hint << "), got\n"
                       << to_text(r.errors());
  }
}

TEST(Units, WeightsKeptInFp32UnderSixteenBitProductsAreFsdpsShards) {
  for (const DataParallel kind : {DataParallel::fsdp, DataParallel::fsdp2}) {
    JobSpec usual = job(kind), kept = job(kind);
    kept.training.param_dtype = DType::f32;
    kept.training.master_weights = false;  // the shards are the fp32 weights, there is no second copy to leave out
    EXPECT_EQ(lowered(kept), lowered(usual));
  }
}

TEST(Units, OtherPairsOfWeightsAndProductsAreRefusedWithTheLegalOnes) {
  struct Row {
    DataParallel kind;
    DType compute, param;
  };
  const Row rows[] = {
      {DataParallel::ddp, DType::bf16, DType::f32},   {DataParallel::zero3, DType::f16, DType::f32},
      {DataParallel::ddp, DType::f32, DType::bf16},   {DataParallel::fsdp, DType::f32, DType::bf16},
      {DataParallel::fsdp2, DType::bf16, DType::f16}, {DataParallel::megatron, DType::f8, DType::f32},
  };
  for (const Row& row : rows) {
    JobSpec j = job(row.kind);
    for (const DType t : {DType::f16, DType::f32}) j.cluster.device.peak[t] = {1e15};
    j.training.compute_dtype = row.compute;
    j.training.param_dtype = row.param;
    const auto r = lower(j);
    ASSERT_FALSE(r.ok()) << to_text(row.compute) << " with " << to_text(row.param);
    const std::string text = to_text(r.errors());
    EXPECT_NE(text.find("training.param_dtype: "), std::string::npos) << text;
    for (const char* legal : {"bf16 with bf16", "fp16 with fp16", "fp8 with bf16 or fp16", "fp32 with fp32", "fsdp2"})
      EXPECT_NE(text.find(legal), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace wt::lower
