// Export and back: the same plan where the format can say it, and the keys it cannot say by name.
#include "import/export.hpp"
#include "common.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kModel =
    "model: {name: m, layers: 8, hidden: 512, ffn_hidden: 1024, heads: 8, kv_heads: 4, head_dim: 64, vocab: 1000, "
    "max_context: 2048, "
    "gated_mlp: true, activation: silu, norm: rms_norm, position: rotary, tied_embeddings: false}\n"
    "cluster: {from: dgx-h100, nodes: 2}\n";

JobSpec job_of(const std::string& strategy, const std::string& training, const std::string& framework = "") {
  auto job = parse_job(kModel + (framework.empty() ? "" : "framework: " + framework + "\n") + "strategy: {" + strategy +
                           "}\ntraining: {micro_batch: 1, global_batch: 32, seq_len: 1024, precision: bf16, " +
                           training + "}\n",
                       "job.yaml");
  EXPECT_TRUE(job) << to_text(job.errors());
  return std::move(job.value());
}

/// Digest of the plan of a job called "job".
uint64_t digest_of(JobSpec job) {
  job.name = job.model.name = "job";
  job.model.source.clear();
  auto plan = lower::lower(job);
  EXPECT_TRUE(plan) << to_text(plan.errors());
  return plan::digest(plan.value());
}

TEST(Export, MegatronCarriesAMegatronJob) {
  const JobSpec job = job_of(
      "tensor: 2, pipeline: 2, virtual_stages: 2, schedule: interleaved, sequence_parallel: true, "
      "data_parallel: distributed_optimizer, overlap_grad_reduce: true, overlap_param_gather: true, "
      "recompute: {kind: full, method: block, layers: 1}",
      "host_profile: megatron, dropout: false, seed: 7");
  const auto exported = export_job(job, *find_exporter("megatron"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().not_carried, IsEmpty());
  Options o;
  o.cluster = "dgx-h100";
  const Imported back = import_text("job.sh", exported.value().text, o);
  ASSERT_WHOLE(back);
  EXPECT_EQ(digest_of(*back.job), digest_of(job));
}

TEST(Export, WhatMegatronCannotSayIsNamed) {
  const auto exported =
      export_job(job_of("kept_edges: 2", "host_profile: megatron, norm_kernel: eager"), *find_exporter("megatron"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().not_carried, Contains(HasSubstr("strategy.kept_edges: 2, reads back as -1")));
  EXPECT_THAT(exported.value().not_carried, Contains(HasSubstr("training.norm_kernel: eager")));
}

TEST(Export, DeepSpeedCarriesZeroThree) {
  const JobSpec job = job_of(
      "data_parallel: zero3, overlap_grad_reduce: true, gradient_dtype: bf16, bucket_elements: 1000000, zero: "
      "{prefetch_elements: 100000}, recompute: full",
      "host_profile: eager, vocab_multiple: 1", "deepspeed");
  const auto exported = export_job(job, *find_exporter("deepspeed"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().not_carried, IsEmpty());
  EXPECT_THAT(exported.value().beside, Contains("training.seq_len=1024"));
  EXPECT_THAT(exported.value().text, HasSubstr("\"stage\": 3"));
}

// A job that cuts its optimizer states keeps them cut, and nothing is written that no job says.
TEST(Export, DeepSpeedCutsWhatADistributedOptimizerCuts) {
  const auto exported = export_job(job_of("data_parallel: distributed_optimizer", ""), *find_exporter("deepspeed"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().text, HasSubstr("\"stage\": 1"));
  EXPECT_THAT(exported.value().text, ::testing::Not(HasSubstr("\"lr\"")));
  EXPECT_THAT(exported.value().not_carried,
              Contains(HasSubstr("strategy.data_parallel: distributed_optimizer, reads back as zero1")));
}

TEST(Export, TorchtitanCarriesFsdpTwo) {
  const JobSpec job = job_of(
      "tensor: 2, sequence_parallel: true, data_parallel: fsdp2, fsdp: {wrap: block_and_ends}, overlap_grad_reduce: "
      "true, recompute: {kind: full, early_stop: true}",
      "host_profile: compiled, vocab_multiple: 1");
  const auto exported = export_job(job, *find_exporter("torchtitan"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().not_carried, IsEmpty());
}

TEST(Export, AccelerateCarriesFsdp) {
  const JobSpec job = job_of(
      "data_parallel: fsdp, fsdp: {sharding: shard_grad_op, backward_prefetch: post}, gradient_dtype: bf16, "
      "overlap_grad_reduce: true",
      "host_profile: eager, vocab_multiple: 1", "fsdp");
  const auto exported = export_job(job, *find_exporter("fsdp"));
  ASSERT_TRUE(exported) << to_text(exported.errors());
  EXPECT_THAT(exported.value().not_carried, IsEmpty());
}

TEST(Export, EveryExporterTakesEveryStrategy) {
  for (const Exporter* e : all_exporters())
    for (const char* kind : {"ddp", "megatron", "distributed_optimizer", "zero1", "zero2", "zero3", "fsdp", "fsdp2"}) {
      const auto exported = export_job(job_of(std::string("data_parallel: ") + kind, "dropout: true"), *e);
      EXPECT_TRUE(exported) << e->name << " " << kind << ": " << to_text(exported.errors());
    }
}

}  // namespace
}  // namespace wt::import
