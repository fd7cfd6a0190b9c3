// The same model trained under every strategy gives the loss of one rank, step by step, and the same weights after.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/lower/lower.hpp"
#include "core/lower/schedule.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::reference {
namespace {

struct Variant {
  const char* name;
  std::function<void(JobSpec&)> change;
};

const Variant kModels[] = {
    {"gpt", [](JobSpec&) {}},
    {"gpt_untied", [](JobSpec& j) { j.model.tied_embeddings = false; }},
    {"llama", [](JobSpec& j) { make_llama(j); }},
    {"llama_tied",
     [](JobSpec& j) {
       make_llama(j);
       j.model.tied_embeddings = true;
     }},
    {"llama_biased",
     [](JobSpec& j) {
       make_llama(j);
       j.model.attention_bias = j.model.mlp_bias = j.model.output_bias = true;
       j.model.head_bias = true;
     }},
    {"parallel_block", [](JobSpec& j) { j.model.parallel_block = true; }},
    {"parallel_one_norm",
     [](JobSpec& j) {
       j.model.parallel_block = true;
       j.model.norms_per_layer = 1;
       j.model.position = Position::rotary;
     }},
    {"qk_norm",
     [](JobSpec& j) {
       make_llama(j);
       j.model.qk_norm = true;
     }},
    {"embedding_norm", [](JobSpec& j) { j.model.embedding_norm = true; }},
    {"no_final_norm", [](JobSpec& j) { j.model.final_norm = false; }},
    {"bidirectional", [](JobSpec& j) { j.model.causal = false; }},
    {"windowed",
     [](JobSpec& j) {
       make_llama(j);
       j.model.sliding_window = 5;
     }},
    {"sgd", [](JobSpec& j) { j.training.optimizer = OptimizerKind::sgd; }},
    {"unclipped", [](JobSpec& j) { j.training.gradient_clipping = 0; }},
    {"tight_clip", [](JobSpec& j) { j.training.gradient_clipping = 0.01; }},
    {"mixed",
     [](JobSpec& j) {
       j.training.param_dtype = j.training.compute_dtype = DType::bf16;
       j.training.master_weights = true;
     }},
    {"mixed_bf16_gradients",
     [](JobSpec& j) {
       j.training.param_dtype = j.training.compute_dtype = DType::bf16;
       j.training.master_weights = true;
       j.strategy.gradient_dtype = DType::bf16;
     }},
};

void cut(JobSpec& j, int64_t tensor, int64_t pipeline, int64_t data) {
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.cluster.nodes = tensor * pipeline * data;
}

const Variant kStrategies[] = {
    {"tp2", [](JobSpec& j) { cut(j, 2, 1, 1); }},
    {"tp2_sp",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.strategy.sequence_parallel = true;
     }},
    {"tp2_sp_overlap",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.strategy.sequence_parallel = j.strategy.tensor_overlap = true;
     }},
    {"tp2_sync",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.strategy.sequence_parallel = true;
       j.strategy.tensor_async_backward = false;
     }},
    {"pp2_1f1b", [](JobSpec& j) { cut(j, 1, 2, 1); }},
    {"pp2_gpipe",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.schedule = "gpipe";
     }},
    {"pp4_1f1b", [](JobSpec& j) { cut(j, 1, 4, 1); }},
    {"tp2_pp2_sharded_messages",
     [](JobSpec& j) {
       cut(j, 2, 2, 1);
       j.strategy.shard_messages = j.strategy.serial_messages = true;
     }},
    {"tp2_pp2_interleaved_sharded_messages",
     [](JobSpec& j) {
       cut(j, 2, 2, 1);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.shard_messages = true;
     }},
    {"pp2_interleaved",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
     }},
    {"pp2_interleaved_blocking",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.overlap_p2p = false;
     }},
    {"dp2_distributed_part_on_host",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.offload.optimizer = OffloadDevice::cpu;
       j.strategy.offload.ratio = 0.4;
     }},
    {"dp2_zero1_offload",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::zero1;
       j.strategy.bucket_elements = 3000;
       j.strategy.offload.optimizer = OffloadDevice::cpu;
     }},
    {"tp2_pp2_dp2_distributed_offload",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       j.strategy.sequence_parallel = true;
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.overlap_grad_reduce = true;
       j.strategy.bucket_elements = 3000;
       j.strategy.offload.optimizer = OffloadDevice::cpu;
       j.strategy.offload.overlap = true;
     }},
    {"pp2_interleaved_activations",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.offload.activation_layers = 1;
     }},
    {"dp2_ddp_activations",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.offload.activation_layers = 3;
     }},
    {"dp2_ddp_offload_pageable",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.offload.optimizer = OffloadDevice::cpu;
       j.strategy.offload.pinned = false;
     }},
    {"dp2_ddp",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
     }},
    {"dp2_megatron",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::megatron;
     }},
    {"dp4_megatron_overlap",
     [](JobSpec& j) {
       cut(j, 1, 1, 4);
       j.strategy.data_parallel = DataParallel::megatron;
       j.strategy.overlap_grad_reduce = true;
       j.strategy.bucket_elements = 5000;
     }},
    {"dp2_distributed",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
     }},
    {"dp4_distributed_overlap",
     [](JobSpec& j) {
       cut(j, 1, 1, 4);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
       j.strategy.bucket_elements = 5000;
     }},
    {"dp2_zero1",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::zero1;
       j.strategy.bucket_elements = 7000;
     }},
    {"recompute_selective",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.recompute.kind = RecomputeKind::selective;
     }},
    {"recompute_full",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"recompute_full_2",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 3};
     }},
    {"recompute_block",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 1};
     }},
    {"recompute_every_2",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 1};
       j.strategy.recompute.every = 2;
     }},
    {"unfused_attention",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.strategy.attention = AttentionKernel::unfused;
     }},
    {"unfused_selective_tp2",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.strategy.attention = AttentionKernel::unfused;
       j.strategy.recompute.kind = RecomputeKind::selective;
       j.strategy.sequence_parallel = true;
     }},
    {"unfused_kernels",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.training.fused_kernels = false;
       j.training.gradient_fusion = false;
     }},
    {"eager_norms",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.training.fused_kernels = false;
       j.training.norm_kernel = NormKernel::eager;
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"eager_norms_fp32",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.training.fused_kernels = j.training.packed_qkv = false;
       j.training.norm_kernel = NormKernel::eager_fp32;
     }},
    {"tp2_sp_keep_gathered",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.strategy.sequence_parallel = j.strategy.keep_gathered = true;
     }},
    {"full_vocabulary",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.training.loss = LossKind::full_vocabulary;
     }},
    {"full_vocabulary_tp2_pp2_kept",
     [](JobSpec& j) {
       cut(j, 2, 2, 1);
       j.strategy.sequence_parallel = j.strategy.keep_gathered = true;
       j.strategy.kept_edges = 1;
       j.training.loss = LossKind::full_vocabulary;
       j.training.vocab_multiple = 16;
     }},
    {"pp2_kept",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.kept_edges = 2;
     }},
    {"dp2_flat_step",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::megatron;
       j.strategy.gradient_copies = GradientCopies::flat_step;
       j.strategy.gradient_dtype = DType::bf16;
       j.strategy.bucket_elements = 5000;
     }},
    {"padded_vocabulary",
     [](JobSpec& j) {
       cut(j, 2, 1, 1);
       j.training.vocab_multiple = 16;
     }},
    {"micro_batch_2",
     [](JobSpec& j) {
       cut(j, 1, 1, 1);
       j.training.micro_batch = 2;
     }},
    {"micro_batch_2_tp2_sp_pp2",
     [](JobSpec& j) {
       cut(j, 2, 2, 1);
       j.training.micro_batch = 2;
       j.strategy.sequence_parallel = true;
     }},
    {"3d_ddp",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       j.strategy.sequence_parallel = true;
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
     }},
    {"3d_distributed",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       j.strategy.sequence_parallel = true;
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
     }},
    {"3d_distributed_overlap",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       j.strategy.sequence_parallel = true;
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
       j.strategy.bucket_elements = 5000;
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.recompute.kind = RecomputeKind::selective;
     }},
    {"3d_zero1",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       j.strategy.data_parallel = DataParallel::zero1;
       j.strategy.bucket_elements = 7000;
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
};

class Parity : public testing::TestWithParam<Variant> {};

TEST_P(Parity, EveryStrategyTrainsLikeOneRank) {
  JobSpec one = tiny_job();
  GetParam().change(one);
  Trained a;
  ASSERT_NO_THROW(a = train(one, 1));
  for (const double loss : a.losses) ASSERT_TRUE(std::isfinite(loss));
  for (const Variant& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name);
    JobSpec many = one;
    strategy.change(many);
    expect_trains_like(a, many);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, testing::ValuesIn(kModels), [](const auto& c) { return c.param.name; });

/// A new schedule is tested without being named: with as many chunks as it takes, on two and four stages.
TEST(Schedules, EachTrainsLikeOneRank) {
  JobSpec one = tiny_job();
  one.model.tied_embeddings = false;
  const Trained a = train(one, 1);
  for (const lower::Schedule* schedule : lower::all_schedules()) {
    if (schedule->reads_file) continue;
    int accepted = 0;
    for (const int64_t pipeline : {2, 4})
      for (const int64_t chunks : {1, 2}) {
        JobSpec many = one;
        cut(many, 1, pipeline, 1);
        many.strategy.schedule = schedule->name;
        many.strategy.virtual_stages = chunks;
        if (!lower::lower(many).ok()) continue;
        ++accepted;
        SCOPED_TRACE(fmt::format("{} on {} stages of {} chunks", schedule->name, pipeline, chunks));
        try {
          const Trained b = train(many, 2);
          for (size_t i = 0; i < kSteps; ++i)
            EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "step " << i;
        } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
      }
    EXPECT_GT(accepted, 0) << schedule->name;
  }
}

/// A loss that cannot fall tests little: on the same tokens in every step it must.
TEST(Training, LossFallsOnTokensSeenBefore) {
  const auto lowered = lower::lower(tiny_job());
  ASSERT_TRUE(lowered.ok());
  Reference run(lowered.value(), {.learning_rate = 1e-2, .same_tokens = true});
  const double first = run.step();
  EXPECT_NEAR(first, std::log(22.0), 0.1);  // random weights: every word of the vocabulary alike
  double last = first;
  for (int i = 0; i < 40; ++i) last = run.step();
  EXPECT_LT(last, first - 1);
}

/// To the bit: reductions add in the order of the group's members.
TEST(Training, OrderOfReadyOpsDoesNotMatter) {
  JobSpec j = tiny_job();
  cut(j, 2, 2, 2);
  j.strategy.sequence_parallel = true;
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
  j.strategy.bucket_elements = 5000;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok());
  std::vector<double> first;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Reference run(p.value(), {.order_seed = seed});
    std::vector<double> losses{run.step(), run.step()};
    if (seed == 0) first = losses;
    EXPECT_EQ(losses, first) << "seed " << seed;
  }
}

/// Plans with the waits of one op taken out. Most waits guard data, and those are seen both as races and, where streams
/// drift far enough, as wrong values; the others (blocking sends, what an earlier op already waited for) guard none.
TEST(Training, MissingWaitsAreSeen) {
  JobSpec j = tiny_job();
  cut(j, 2, 2, 1);
  j.strategy.sequence_parallel = true;
  j.training.global_batch = 4;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(races(p.value()), std::vector<std::string>{});
  const double right = Reference(p.value()).step();
  int all = 0, raced = 0, wrong = 0;
  for (size_t block = 0; block < p.value().blocks.size(); ++block)
    for (size_t op = 0; op < p.value().blocks[block].ops.size(); ++op) {
      if (p.value().blocks[block].ops[op].waits.count == 0) continue;
      plan::Plan broken = p.value();
      broken.blocks[block].ops[op].waits.count = 0;
      const bool race = !races(broken).empty();
      bool noticed = false;
      try {
        noticed = Reference(broken, {.order_seed = 3}).step() != right;
      } catch (const Fault&) { noticed = true; }
      if (noticed) { EXPECT_TRUE(race) << p.value().blocks[block].name << " op " << op; }
      ++all;
      raced += race;
      wrong += noticed;
    }
  EXPECT_GT(raced, all / 2) << all << " ops wait";
  EXPECT_GT(wrong, all / 4) << all << " ops wait";
}

}  // namespace
}  // namespace wt::reference
