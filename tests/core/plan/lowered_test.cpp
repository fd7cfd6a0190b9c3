// Lowered plans of every kind of strategy are valid, round-trip through their text, and are short enough to read.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/base/atomic_file.hpp"
#include "core/base/file.hpp"
#include "core/lower/lower.hpp"
#include "core/lower/schedule.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/specs.hpp"

namespace wt::plan {
namespace {

JobSpec job(int64_t layers, int64_t tensor, int64_t pipeline, int64_t data, int64_t micro_batches) {
  JobSpec j;
  j.name = "job";
  auto& m = j.model;
  m.layers = layers;
  m.hidden = 64;
  m.ffn_hidden = 256;
  m.heads = 8;
  m.kv_heads = 8;
  m.head_dim = 8;
  m.vocab = 1024;
  m.max_context = 128;
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  j.cluster.nodes = tensor * pipeline * data;
  j.cluster.node.devices = 1;
  j.cluster.device.name = "test";
  j.cluster.device.peak[DType::bf16] = {1e15};
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.training.micro_batch = 1;
  j.training.global_batch = micro_batches * data;
  j.training.seq_len = 128;
  return j;
}

void expect_sound(const JobSpec& j, const std::string& what) {
  const auto lowered = lower::lower(j);
  ASSERT_TRUE(lowered.ok()) << what << "\n" << to_text(lowered.errors());
  const Plan& p = lowered.value();
  const Status valid = validate(p);
  EXPECT_TRUE(valid.ok()) << what << "\n" << to_text(valid.errors());
  const std::string text = print(p);
  const auto back = parse_plan(text);
  ASSERT_TRUE(back.ok()) << what << "\n" << to_text(back.errors());
  EXPECT_TRUE(back.value() == p) << what;
  EXPECT_EQ(digest(back.value()), digest(p)) << what;
}

TEST(Lowered, EveryStrategyIsValidAndRoundTrips) {
  for (const lower::Schedule* schedule : lower::all_schedules())
    for (auto data :
         {DataParallel::ddp, DataParallel::megatron, DataParallel::distributed_optimizer, DataParallel::zero1})
      for (bool overlap : {false, true})
        for (int variant = 0; variant < 6; ++variant) {
          const bool interleaved = schedule->name == "interleaved";
          JobSpec j = job(8, 2, 2, 2, 4);
          auto& s = j.strategy;
          s.schedule = schedule->name;
          s.virtual_stages = interleaved ? 2 : 1;
          s.data_parallel = data;
          s.overlap_grad_reduce = s.overlap_param_gather = overlap;
          s.bucket_elements = 100000;
          s.sequence_parallel = variant % 2;
          s.recompute.kind = static_cast<RecomputeKind>(variant % 3);
          s.overlap_p2p = overlap;
          auto& m = j.model;
          m.tied_embeddings = variant < 3;
          if (variant >= 2) {
            m.position = Position::rotary;
            m.norm = Norm::rms_norm;
            m.gated_mlp = true;
            m.activation = Activation::silu;
            m.kv_heads = 4;
          }
          j.training.master_weights = variant != 4;
          j.training.fused_kernels = variant != 1;
          j.training.dropout = variant == 5;
          if (variant == 3) s.attention = AttentionKernel::unfused;
          // What a strategy cannot do together is refused by lowering and is not of interest here.
          if (!lower::lower(j).ok()) continue;
          expect_sound(j, std::string(schedule->name) + " data " + std::to_string(static_cast<int>(data)) +
                              " overlap " + std::to_string(overlap) + " variant " + std::to_string(variant));
        }
}

TEST(Lowered, EveryKindOfUnitIsValidAndRoundTrips) {
  for (auto data : {DataParallel::fsdp, DataParallel::fsdp2, DataParallel::zero2, DataParallel::zero3})
    for (int variant = 0; variant < 8; ++variant) {
      JobSpec j = job(4, variant % 2 ? 2 : 1, 1, 4, 1 + variant % 3);
      auto& s = j.strategy;
      s.data_parallel = data;
      s.sequence_parallel = true;
      s.recompute.kind = static_cast<RecomputeKind>(variant % 3);
      if (data == DataParallel::fsdp || data == DataParallel::fsdp2) {
        s.fsdp.wrap = static_cast<WrapKind>(variant % 3);
        s.fsdp.no_sync = variant >= 4;
        s.fsdp.keep_last = variant % 3;
        if (variant == 5) s.fsdp.sharding = ShardingKind::hybrid_shard, s.fsdp.shard_size = 2;
        if (variant == 6) s.fsdp.sharding = data == DataParallel::fsdp ? ShardingKind::no_shard : s.fsdp.sharding;
      } else {
        s.bucket_elements = 60000 * variant;
      }
      if (data == DataParallel::fsdp2 && variant == 7) s.fsdp.reshard_after_forward = 2;
      j.model.tied_embeddings = variant < 3;
      j.training.dropout = variant == 5;
      j.training.master_weights = variant != 4;
      expect_sound(j, "units data " + std::to_string(static_cast<int>(data)) + " variant " + std::to_string(variant));
    }
}

/// The text of a small plan, for the eye: waits that count iterations, weights that come and go.
TEST(Lowered, SmallShardedPlanIsTheGoldenText) {
  JobSpec j = job(4, 1, 1, 8, 2);
  j.model.attention_bias = j.model.output_bias = j.model.mlp_bias = false;
  j.strategy.data_parallel = DataParallel::fsdp2;
  j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
  j.strategy.fsdp.shard_size = 4;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  const std::string path = WT_SOURCE_DIR "/tests/golden/plans/fsdp2_hybrid.plan";
  if (std::getenv("WT_UPDATE")) { ASSERT_TRUE(write_file_atomically(path, print(p.value())).ok()); }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden.ok());
  EXPECT_EQ(print(p.value()), golden.value()) << "WT_UPDATE=1 accepts the new text";
}

TEST(Lowered, OneRank) { expect_sound(job(2, 1, 1, 1, 2), "one rank"); }

TEST(Lowered, ManyRanksPrintAFewPages) {
  JobSpec j = job(126, 8, 16, 128, 32);  // Llama 3 405B's shape: 126 layers do not divide, the ends are shorter
  j.strategy.first_stage_layers = j.strategy.last_stage_layers = 7;
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  EXPECT_EQ(p.value().mesh.ranks(), 16384);
  expect_sound(j, "16,384 ranks");
  EXPECT_LT(print(p.value()).size(), 120000u);
}

}  // namespace
}  // namespace wt::plan
