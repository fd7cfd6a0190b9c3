// A job that names its framework has that framework's defaults, from the rules that published runs are read by; what the
// job writes itself stays.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/spec/read.hpp"

namespace wt {
namespace {

JobSpec job(const std::string& text, std::vector<std::string> set = {}) {
  const Result<JobSpec> j =
      parse_job("model: llama2-7b\n" + std::string(text.starts_with("cluster:") ? "" : "cluster: dgx-a100-80\n") + text,
                WT_SOURCE_DIR "/examples/own.yaml", set);
  EXPECT_TRUE(j.ok()) << (j.ok() ? "" : to_text(j.errors()));
  return j.ok() ? j.value() : JobSpec{};
}

const std::string kTraining = "training: {micro_batch: 1, global_batch: 8, seq_len: 4096, precision: ";

TEST(Framework, WithoutTheKeyNothingIsFilledIn) {
  const JobSpec j = job(kTraining + "fp16}\n");
  EXPECT_EQ(j.strategy, StrategySpec([] {
              StrategySpec s;
              s.overlap_grad_reduce = true;  // ddp
              return s;
            }()));
  EXPECT_TRUE(j.assumptions.empty());
}

TEST(Framework, MegatronDeepSpeedInFp16) {
  const JobSpec j = job("framework: megatron_deepspeed\nstrategy: {data_parallel: zero1}\n" + kTraining + "fp16}\n");
  EXPECT_EQ(j.strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(j.strategy.gradient_dtype, DType::f16);
  EXPECT_EQ(j.strategy.attention, AttentionKernel::unfused);
  EXPECT_EQ(j.strategy.kept_edges, 2);
  EXPECT_EQ(j.training.host_profile, "eager_2021");
  EXPECT_TRUE(j.training.dropout);
  EXPECT_FALSE(j.training.gradient_fusion);
  ASSERT_EQ(j.assumptions.size(), 1u);
  for (const char* said : {"framework megatron_deepspeed", "strategy.gradient_dtype fp16",
                           "training.host_profile eager_2021", "data/validate/frameworks.yaml"})
    EXPECT_NE(j.assumptions[0].find(said), std::string::npos) << j.assumptions[0];
  EXPECT_EQ(j.assumptions[0].find("data_parallel"), std::string::npos) << "the job says it itself";
}

TEST(Framework, GradientsFollowFrameworkAndPrecision) {
  const auto gradients = [](const char* framework, const char* strategy, const char* precision) {
    return job(std::string("framework: ") + framework + "\nstrategy: " + strategy + "\n" + kTraining + precision +
               "}\n")
        .strategy.gradient_dtype;
  };
  EXPECT_EQ(gradients("megatron", "{}", "bf16"), DType::f32);
  EXPECT_EQ(gradients("megatron", "{}", "fp16"), DType::f16);
  EXPECT_EQ(gradients("deepspeed", "{data_parallel: zero2}", "bf16"), DType::f32);
  EXPECT_EQ(gradients("ddp", "{}", "bf16"), DType::bf16);
  EXPECT_EQ(gradients("fsdp", "{}", "bf16"), DType::bf16);
  EXPECT_EQ(gradients("torchtitan", "{}", "bf16"), DType::f32);
  EXPECT_EQ(gradients("ddp", "{}", "fp32"), DType::f32);
}

TEST(Framework, WhatTheJobWritesStays) {
  const JobSpec j = job("framework: torchtitan\nstrategy: {gradient_dtype: bf16, fsdp: {keep_last: 2}}\n" + kTraining +
                        "bf16, host_profile: eager}\n");
  EXPECT_EQ(j.strategy.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(j.strategy.gradient_dtype, DType::bf16);
  EXPECT_EQ(j.strategy.fsdp.keep_last, 2);
  EXPECT_EQ(j.strategy.fsdp.wrap, WrapKind::block_and_ends);  // the rest of the section is the framework's
  EXPECT_EQ(j.training.host_profile, "eager");
}

TEST(Framework, WhatHasNoEffectIsLeftOut) {
  // torchtitan's units mean nothing to DDP, flat_step nothing to fp32 gradients: neither may make the job illegal.
  EXPECT_EQ(job("framework: torchtitan\nstrategy: {data_parallel: ddp}\n" + kTraining + "bf16}\n").strategy.fsdp,
            FsdpSpec{});
  EXPECT_EQ(job("framework: deepspeed\n" + kTraining + "fp16}\n").strategy.gradient_copies, GradientCopies::flat_step);
  EXPECT_EQ(
      job("framework: deepspeed\nstrategy: {gradient_dtype: fp32}\n" + kTraining + "fp16}\n").strategy.gradient_copies,
      GradientCopies::automatic);
}

TEST(Framework, DescribedInWords) {
  const JobSpec j = job(
      "framework: {words: Megatron-DeepSpeed (2022-02), zero_stage: 1, overlap: DP overlap}\nstrategy: {tensor: 2}\n" +
      kTraining + "bf16}\n");
  EXPECT_EQ(j.strategy.data_parallel, DataParallel::zero1);
  EXPECT_FALSE(j.strategy.overlap_grad_reduce) << "zero1 reduces at the boundary, whatever the words";
  EXPECT_EQ(j.strategy.gradient_dtype, DType::f32);
  EXPECT_TRUE(j.training.blocking_launch) << "a rule of that version alone";
  const JobSpec kernels =
      job("cluster: {from: dgx-a100-80, nodes: 2}\nframework: {words: llm-foundry, fsdp: true, gpu: A100-SXM4-80GB}\n"
          "strategy: {}\n" +
          kTraining + "bf16}\n");
  EXPECT_EQ(kernels.cluster.device.kernels, "a100_fa1");
  EXPECT_EQ(kernels.strategy.data_parallel, DataParallel::fsdp);
}

TEST(Framework, RecomputedBlocksStopEarly) {
  const auto stops = [](const char* recompute) {
    return job(std::string("framework: torchtitan\nstrategy: {recompute: ") + recompute + "}\n" + kTraining + "bf16}\n")
        .strategy.recompute.early_stop;
  };
  EXPECT_TRUE(stops("full"));
  EXPECT_TRUE(stops("{kind: full, method: block, layers: 4}"));
  EXPECT_FALSE(stops("{kind: full, early_stop: false}"));
  EXPECT_FALSE(stops("none"));
}

TEST(Framework, FaultsOfADescription) {
  const auto errors = [](const char* framework) {
    const auto j = parse_job(
        std::string("model: llama2-7b\ncluster: dgx-a100-80\nframework: ") + framework + "\n" + kTraining + "bf16}\n",
        "own.yaml");
    return j.ok() ? std::string() : to_text(j.errors());
  };
  EXPECT_NE(errors("{wrds: Megatron-Core}").find("framework.wrds: unknown key (did you mean 'words'"),
            std::string::npos)
      << errors("{wrds: Megatron-Core}");
  EXPECT_NE(errors("{overlap: none}").find("missing key 'words'"), std::string::npos);
  EXPECT_NE(errors("{words: DeepSpeed, zero_stage: 4}").find("is not a stage of ZeRO"), std::string::npos);
  EXPECT_NE(errors("{words: DeepSpeed, fsdp: maybe}").find("neither true nor false"), std::string::npos);
  EXPECT_NE(errors("{words: nnScaler}").find("chosen by a compiler"), std::string::npos);
  EXPECT_NE(errors("[megatron]").find("is not a name"), std::string::npos);
}

TEST(Framework, OnTheCommandLine) {
  const JobSpec j = job(kTraining + "fp16}\n", {"framework=megatron"});
  EXPECT_EQ(j.training.host_profile, "megatron");
  EXPECT_EQ(j.strategy.gradient_dtype, DType::f16);
}

}  // namespace
}  // namespace wt
