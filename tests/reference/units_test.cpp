// Sharded data parallelism trains like one rank: every way to cut, gather and reduce, with accumulation, tensor
// parallelism and recomputation; no wait is missing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/reference/tiny.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {
namespace {

struct Variant {
  const char* name;
  DataParallel kind;
  int64_t ranks;  // data-parallel
  std::function<void(JobSpec&)> change = [](JobSpec&) {};
};

void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

void tensor(JobSpec& j, int64_t t) {
  j.strategy.tensor = t;
  j.strategy.sequence_parallel = true;
  j.cluster.nodes *= t;
}
void small_buckets(JobSpec& j) {  // two layers of the gpt; one of its modules at a time
  j.strategy.bucket_elements = 4000;
  j.strategy.zero = {300, 40, 4000, 0};
}

const Variant kVariants[] = {
    {"fsdp_full", DataParallel::fsdp, 4},
    {"fsdp_forward_prefetch", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.forward_prefetch = true; }},
    {"fsdp_prefetch_post", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::post; }},
    {"fsdp_no_prefetch", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::none; }},
    {"fsdp_no_limit", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.limit_all_gathers = false; }},
    {"fsdp_shard_grad_op", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.sharding = ShardingKind::shard_grad_op; }},
    {"fsdp_no_shard", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.sharding = ShardingKind::no_shard; }},
    {"fsdp_hybrid", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_hybrid_zero2", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard_zero2;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_no_sync", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.no_sync = true; }},
    {"fsdp_no_sync_shard_grad_op", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::shard_grad_op;
     }},
    {"fsdp_no_sync_no_shard", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::no_shard;
     }},
    {"fsdp_one_micro_batch", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.training.micro_batch = 4;
       j.strategy.fsdp.no_sync = true;
     }},
    {"fsdp_whole_model", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.wrap = WrapKind::model; }},
    {"fsdp_ends", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.wrap = WrapKind::block_and_ends; }},
    {"fsdp_keep_last", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.keep_last = 2; }},
    {"fsdp_tp2", DataParallel::fsdp, 2, [](JobSpec& j) { tensor(j, 2); }},
    {"fsdp_tp2_whole_model", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.fsdp.wrap = WrapKind::model;
     }},
    {"fsdp_tp2_plain_no_sync", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.sequence_parallel = false;
       j.strategy.fsdp.no_sync = true;
     }},
    {"fsdp_recompute", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.recompute.kind = RecomputeKind::full; }},
    {"fsdp_recompute_block", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 2};
     }},
    {"fsdp2_full", DataParallel::fsdp2, 4},
    {"fsdp2_ends_keep_last", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
       j.strategy.fsdp.keep_last = 1;
     }},
    {"fsdp2_no_prefetch", DataParallel::fsdp2, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::none; }},
    {"fsdp2_forward_prefetch", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.forward_prefetch = true; }},
    {"fsdp2_no_reshard", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 0; }},
    {"fsdp2_no_reshard_ends", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.reshard_after_forward = 0;
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
     }},
    {"fsdp2_reshard_to_2", DataParallel::fsdp2, 4, [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 2; }},
    {"fsdp2_hybrid", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp2_hybrid_reshard_to_2", DataParallel::fsdp2, 8,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 4;
       j.strategy.fsdp.reshard_after_forward = 2;
     }},
    {"fsdp2_no_sync", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.no_sync = true; }},
    {"fsdp2_tp2_recompute", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"fsdp2_tp2_hybrid_no_sync", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"zero2", DataParallel::zero2, 4},
    {"zero2_overlap_small_buckets", DataParallel::zero2, 2,
     [](JobSpec& j) {
       j.strategy.bucket_elements = 4000;
       j.strategy.overlap_grad_reduce = true;
     }},
    {"zero2_tp2_one_micro_batch", DataParallel::zero2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.training.micro_batch = 8;
     }},
    {"zero3", DataParallel::zero3, 4},
    {"zero3_small_buckets", DataParallel::zero3, 2, [](JobSpec& j) { small_buckets(j); }},
    {"zero3_no_prefetch", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.zero.prefetch_elements = 0;
     }},
    {"zero3_far_ahead", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.zero.max_live_parameters = 8000;
       j.strategy.zero.max_reuse_distance = 5000;
     }},
    {"zero3_tp2_recompute", DataParallel::zero3, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       small_buckets(j);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
};

void bf16(JobSpec& j, DType wire) {
  j.training.param_dtype = j.training.compute_dtype = DType::bf16;
  j.training.master_weights = true;
  j.strategy.gradient_dtype = wire;
}

struct Model {
  const char* name;
  std::function<void(JobSpec&)> change;
};
const Model kModels[] = {
    {"gpt", [](JobSpec&) {}},
    {"llama, 16 bit with fp32 on the wire",
     [](JobSpec& j) {
       make_llama(j);
       bf16(j, DType::f32);
     }},
    {"embedding norm, 16 bit on the wire, unclipped",
     [](JobSpec& j) {
       j.model.embedding_norm = true;
       j.model.tied_embeddings = false;
       j.training.gradient_clipping = 0;
       bf16(j, DType::bf16);
     }},
    {"qk norm, tied, tight clip",
     [](JobSpec& j) {
       make_llama(j);
       j.model.tied_embeddings = j.model.qk_norm = true;
       j.training.gradient_clipping = 0.01;
     }},
};

class Units : public testing::TestWithParam<Variant> {};

TEST_P(Units, TrainLikeOneRank) {
  const Variant& v = GetParam();
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    JobSpec one = tiny_job();
    model.change(one);
    JobSpec many = one;
    many.strategy.data_parallel = v.kind;
    many.cluster.nodes = v.ranks;
    v.change(many);
    try {
      const auto lowered = lower::lower(many);
      ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
      EXPECT_EQ(races(lowered.value()), std::vector<std::string>{});
      const Trained a = train(one, 1), b = train(many, 2);
      for (size_t i = 0; i < kSteps; ++i)
        EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "step " << i;
      ASSERT_EQ(a.weights.size(), b.weights.size());
      for (const auto& [id, x] : a.weights) {
        const auto& y = b.weights.at(id);
        double worst = 0;
        for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
        EXPECT_LT(worst, 1e-7) << id.first << " layer " << id.second;
      }
    } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Units, testing::ValuesIn(kVariants), [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace wt::reference
