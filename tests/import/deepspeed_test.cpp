#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Options whole(std::vector<std::string> more = {}) {
  std::vector<std::string> set = {"training.seq_len=2048"};
  set.insert(set.end(), more.begin(), more.end());
  Options o = on_cluster(16, set);
  o.model = "llama3-8b";
  return o;
}

TEST(DeepSpeedJson, BatchFollowsFromTwoOfThree) {
  const auto in = import_text("ds.json", R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}})",
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.micro_batch, 2);
  EXPECT_EQ(in.job->training.global_batch, 2 * 4 * 16);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero2);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::bf16);
}

TEST(DeepSpeedJson, OnlyTrainBatchMeansNoAccumulation) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}})", whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.micro_batch, 4);
}

// P90: the batch says one number of data-parallel ranks, the launch another.
TEST(DeepSpeedJson, ContradictoryTriadNamesTheFactor) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 1, "bf16": {"enabled": true}})",
                              whole());
  EXPECT_FALSE(in.job);
  EXPECT_THAT(errors(in), HasSubstr("8 != micro-batch 1 x accumulation 1 x data-parallel ranks 16 = 16"));
  EXPECT_THAT(errors(in), HasSubstr("the batch implies 8 data-parallel ranks"));
}

TEST(DeepSpeedJson, FloatsAreWholeNumbers) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 3.2e1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e7}})",
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.global_batch, 32);
  EXPECT_EQ(in.job->strategy.bucket_elements, 500'000'000);
  EXPECT_EQ(in.job->strategy.zero.prefetch_elements, 50'000'000);
  EXPECT_THAT(errors(import_text("ds.json", R"({"train_batch_size": 3.25})", whole())),
              HasSubstr("'3.25' is not a whole number"));
}

TEST(DeepSpeedJson, AutoFollowsHuggingFace) {
  const auto in = import_text("ds.json", R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                            "stage3_param_persistence_threshold": "auto"}})",
                              whole({"training.micro_batch=1", "training.precision=bf16"}));
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.bucket_elements, 4096 * 4096);
  EXPECT_EQ(in.job->strategy.zero.prefetch_elements, 15'099'494);  // int(0.9 h h)
  EXPECT_EQ(in.job->strategy.zero.persistence_threshold, 40'960);
  EXPECT_EQ(in.job->training.gradient_clipping, 1.0);
  EXPECT_EQ(in.job->training.global_batch, 16);
}

TEST(DeepSpeedJson, AutoOfTheTrainerIsAskedFor) {
  const auto in = import_text("ds.json", R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
      "zero_optimization": {"stage": 2}})",
                              whole());
  EXPECT_FALSE(in.job);
  EXPECT_EQ(errors(in), "");
  EXPECT_THAT(missing(in), Contains("training.micro_batch"));
  EXPECT_THAT(missing(in), Contains("training.precision"));
}

TEST(DeepSpeedJson, NamesWhatItCannotHold) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "zero_optimization": {"stage": 1}})", Options{});
  EXPECT_THAT(missing(in), ::testing::IsSupersetOf({"model", "cluster", "number of GPUs", "training.seq_len"}));
}

TEST(DeepSpeedJson, StageZeroInBf16IsTheBf16Optimizer) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}})", whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::f32);
  const auto half = import_text("ds.json", R"({"train_batch_size": 64, "fp16": {"enabled": true}})", whole());
  ASSERT_WHOLE(half);
  EXPECT_EQ(half.job->strategy.data_parallel, DataParallel::megatron);
  EXPECT_EQ(half.job->strategy.gradient_copies, GradientCopies::flat_step);
}

TEST(DeepSpeedJson, CommentsAndTrailingCommasAsHjson) {
  const auto in = import_text("ds.json",
                              "{\n  // the batch\n  \"train_batch_size\": 64, # all of it\n"
                              "  /* two\n lines */ \"bf16\": {\"enabled\": true,},\n}",
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_THAT(in.report.notes, Contains(HasSubstr("Hugging Face's Trainer does not")));
  EXPECT_EQ(in.report.decided("training.precision")->from.where, "ds.json:5");
}

TEST(DeepSpeedJson, TemplatesAreRefusedByName) {
  const std::string text = "{\n \"train_batch_size\": CONFIG_BATCH_SIZE,\n \"bf16\": {\"enabled\": BF16}\n}";
  const auto in = import_text("ds_TEMPLATE.json", text, whole());
  EXPECT_THAT(errors(in), HasSubstr("ds_TEMPLATE.json:2: CONFIG_BATCH_SIZE: is a blank that a script fills in"));
  EXPECT_THAT(errors(in), HasSubstr("--var BF16=VALUE"));
  Options filled = whole();
  filled.vars = {{"CONFIG_BATCH_SIZE", "32"}, {"BF16", "true"}};
  const auto again = import_text("ds_TEMPLATE.json", text, filled);
  ASSERT_WHOLE(again);
  EXPECT_EQ(again.job->training.global_batch, 32);
}

TEST(DeepSpeedJson, BothPrecisionsAreRefusedAsDeepSpeedDoes) {
  EXPECT_THAT(
      errors(import_text("ds.json", R"({"train_batch_size": 64, "fp16": {"enabled": true}, "bf16": {"enabled": true}})",
                         whole())),
      HasSubstr("fp16 and bf16 are both enabled"));
}

TEST(DeepSpeedJson, DuplicateKeysAreRefusedAsDeepSpeedDoes) {
  EXPECT_THAT(errors(import_text("ds.json", "{\"train_batch_size\": 64,\n\"train_batch_size\": 32}", whole())),
              HasSubstr("ds.json:2: train_batch_size: is written twice, first at line 1"));
}

TEST(DeepSpeedJson, UnknownKeysHaveTheirLineAndAGuess) {
  const auto in = import_text("ds.json",
                              "{\"train_batch_size\": 64,\n\"zero_optimization\": {\"stage\": 2,\n"
                              "\"overlap_com\": true}, \"bf16\": {\"enabled\": true}}",
                              whole());
  ASSERT_WHOLE(in);
  const auto unknown = in.report.of(Fate::unknown);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0]->from.where, "ds.json:3");
  EXPECT_THAT(unknown[0]->why, HasSubstr("did you mean 'overlap_comm'?"));
}

TEST(DeepSpeedJson, WhatHasNoEffectSaysWhy) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization":
      {"stage": 2, "allgather_bucket_size": 5e8, "offload_param": {"device": "cpu"}}})",
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(fate_of(in, "zero_optimization.allgather_bucket_size"), "ignored");
  EXPECT_EQ(fate_of(in, "zero_optimization.offload_param"), "ignored");  // weights: stage 3 only
}

TEST(DeepSpeedJson, PartOfTheOptimizerNeedsStageThree) {
  EXPECT_THAT(errors(import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization":
      {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
                                 whole())),
              HasSubstr("at stage 3 only"));
}

TEST(DeepSpeedJson, OffloadAndZeroPlusPlusArePlanned) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization":
      {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": true,
       "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "pin_memory": true, "pipeline_write": true},
       "offload_param": {"device": "cpu", "pin_memory": true}}})",
                              whole());
  ASSERT_WHOLE(in);
  const StrategySpec& s = in.job->strategy;
  EXPECT_EQ(s.offload.optimizer, OffloadDevice::nvme);
  EXPECT_EQ(s.offload.parameters, OffloadDevice::cpu);
  EXPECT_TRUE(s.offload.pinned && s.offload.overlap);
  EXPECT_EQ(s.zero.secondary_shard, 8);
  EXPECT_TRUE(s.zero.quantized_weights);
  EXPECT_EQ(fate_of(in, "zero_optimization.offload_optimizer.nvme_path"), "ignored");
}

TEST(DeepSpeedJson, OldNamesOfOffload) {
  const auto in = import_text("ds.json", R"({"train_batch_size": 64, "fp16": {"enabled": true}, "zero_optimization":
      {"stage": 2, "cpu_offload": true}})",
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.offload.optimizer, OffloadDevice::cpu);
}

TEST(DeepSpeedJson, NothingIsDroppedInSilence) {
  const auto in =
      import_text("ds.json", R"({"train_batch_size": 64, "bf16": {"enabled": true}, "sequence_parallel_size": 4,
      "zero_optimization": {"stage": 3, "mics_shard_size": 8, "zero_quantized_gradients": true}})",
                  whole());
  ASSERT_WHOLE(in);
  for (const char* key : {"zero_optimization.mics_shard_size", "zero_optimization.zero_quantized_gradients"})
    EXPECT_EQ(fate_of(in, key), "not_carried") << key;
  EXPECT_FALSE(in.job->strategy.sequence_parallel);  // Ulysses is not Megatron's
  EXPECT_EQ(in.job->strategy.context, 4);
  EXPECT_EQ(in.job->strategy.context_exchange, ContextExchange::all_to_all);
  EXPECT_THAT(in.yaml, HasSubstr("# not carried"));
}

TEST(DeepSpeedJson, TheJobReadsBackAndNamesItsOrigins) {
  const auto in = import_text("dir/ds.json", "{\"train_batch_size\": 64,\n\"bf16\": {\"enabled\": true}}", whole());
  ASSERT_WHOLE(in);
  EXPECT_THAT(in.yaml, HasSubstr("# ds.json:1 train_batch_size"));
}

}  // namespace
}  // namespace wt::import
