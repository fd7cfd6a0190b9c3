// Export and back: the same plan where the format can say it, and the keys it cannot say by name.
#include "import/export.hpp"

#include <fmt/format.h>

#include <random>
#include <tuple>

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

/// Each format says the offload that its framework has.
TEST(Export, OffloadIsCarried) {
  const std::pair<const char*, std::pair<const char*, const char*>> jobs[] = {
      {"deepspeed",
       {"data_parallel: zero3, overlap_grad_reduce: true, gradient_dtype: bf16, zero: {secondary_shard: 8, "
        "quantized_weights: true}, offload: {optimizer: nvme, parameters: cpu, pinned: false}",
        "host_profile: eager, vocab_multiple: 1"}},
      {"fsdp",
       {"data_parallel: fsdp, gradient_dtype: bf16, overlap_grad_reduce: true, offload: {optimizer: cpu, parameters: "
        "cpu}",
        "host_profile: eager, vocab_multiple: 1"}},
      {"torchtitan",
       {"data_parallel: fsdp2, sequence_parallel: true, fsdp: {wrap: block_and_ends}, overlap_grad_reduce: true, "
        "recompute: {kind: full, early_stop: true}, offload: {optimizer: cpu, parameters: cpu}",
        "host_profile: compiled, vocab_multiple: 1"}},
      {"megatron",
       {"data_parallel: distributed_optimizer, offload: {optimizer: cpu, overlap: true, activation_layers: 4}",
        "host_profile: megatron, dropout: false, seed: 7"}}};
  for (const auto& [name, keys] : jobs) {
    const std::string framework = std::string(name) == "deepspeed" || std::string(name) == "fsdp" ? name : "";
    const auto exported = export_job(job_of(keys.first, keys.second, framework), *find_exporter(name));
    ASSERT_TRUE(exported) << name << ": " << to_text(exported.errors());
    EXPECT_THAT(exported.value().not_carried, IsEmpty()) << name;
  }
}

/// Keys that the last strategies brought, where the framework has them.
TEST(Export, LaterKeysAreCarried) {
  const std::tuple<const char*, const char*, const char*> jobs[] = {
      {"megatron", "data_parallel: distributed_optimizer, offload: {optimizer: cpu, ratio: 0.5}",
       "host_profile: megatron, loop: {evaluate_every: 100, evaluation_batches: 10}"},
      {"megatron", "data_parallel: megatron, context: 4, context_exchange: ring, context_all_to_all: 2",
       "host_profile: megatron"},
      {"megatron", "data_parallel: megatron, context: 2, context_exchange: all_gather", "host_profile: megatron"},
      {"megatron",
       "data_parallel: megatron, tensor: 2, pipeline: 2, virtual_stages: 2, schedule: interleaved, pipeline_layout: "
       "'Ett|tt|tt|ttL', recompute: {kind: selective, modules: layernorm mlp}",
       "host_profile: megatron"},
      {"deepspeed", "data_parallel: zero2, gradient_dtype: bf16, context: 2, context_exchange: all_to_all",
       "host_profile: eager, vocab_multiple: 1"},
      {"deepspeed",
       "data_parallel: zero3, gradient_dtype: bf16, overlap_grad_reduce: true, recompute: {kind: full, every: 2}",
       "host_profile: eager, vocab_multiple: 1"},
      {"torchtitan",
       "data_parallel: fsdp2, sequence_parallel: true, fsdp: {wrap: block_and_ends}, overlap_grad_reduce: true, "
       "recompute: "
       "{kind: full, every: 2, early_stop: true}",
       "host_profile: compiled, vocab_multiple: 1, loop: {evaluate_every: 50, evaluation_batches: 4}"},
      {"torchtitan",
       "data_parallel: fsdp2, sequence_parallel: true, fsdp: {wrap: block_and_ends}, overlap_grad_reduce: true, "
       "recompute: "
       "{kind: selective, modules: layernorm act residual}",
       "host_profile: compiled, vocab_multiple: 1"}};
  for (const auto& [name, strategy, training] : jobs) {
    const std::string framework = std::string(name) == "deepspeed" ? name : "";
    const std::string more = std::string(name) == "megatron" ? ", dropout: false, seed: 7" : "";
    const auto exported = export_job(job_of(strategy, training + more, framework), *find_exporter(name));
    ASSERT_TRUE(exported) << strategy << ": " << to_text(exported.errors());
    EXPECT_THAT(exported.value().not_carried, IsEmpty()) << name << ": " << strategy;
  }
}

TEST(Export, FpEightIsCarried) {
  for (const char* keys : {"fp8_recipe: current", "fp8_recipe: block, fp8_params: true"}) {
    JobSpec job = job_of("tensor: 2, data_parallel: distributed_optimizer",
                         std::string("host_profile: megatron, dropout: false, seed: 7, compute_dtype: fp8, ") + keys);
    const auto exported = export_job(job, *find_exporter("megatron"));
    ASSERT_TRUE(exported) << to_text(exported.errors());
    EXPECT_THAT(exported.value().not_carried, IsEmpty()) << keys;
  }
  const auto titan = export_job(
      job_of("data_parallel: fsdp2, sequence_parallel: true, fsdp: {wrap: block_and_ends}, overlap_grad_reduce: true",
             "host_profile: compiled, vocab_multiple: 1, compute_dtype: fp8, fp8_recipe: current"),
      *find_exporter("torchtitan"));
  ASSERT_TRUE(titan) << to_text(titan.errors());
  EXPECT_THAT(titan.value().not_carried, IsEmpty());
}

TEST(Export, EveryExporterTakesEveryStrategy) {
  for (const Exporter* e : all_exporters())
    for (const char* kind : {"ddp", "megatron", "distributed_optimizer", "zero1", "zero2", "zero3", "fsdp", "fsdp2"}) {
      const auto exported = export_job(job_of(std::string("data_parallel: ") + kind, "dropout: true"), *e);
      EXPECT_TRUE(exported) << e->name << " " << kind << ": " << to_text(exported.errors());
    }
}

/// A legal job of random degrees and switches, as the text of its strategy and training.
std::pair<std::string, std::string> random_job(std::mt19937& random) {
  auto one_of = [&](std::initializer_list<const char*> list) {
    return std::string(*(list.begin() + random() % list.size()));
  };
  auto flip = [&] { return one_of({"true", "false"}); };
  const std::string tensor = one_of({"1", "2", "4"}), pipeline = one_of({"1", "1", "2"});
  // Units on stages, and sequence parallelism without tensor ranks, are no plans.
  const std::string kind =
      pipeline == "1" ? one_of({"ddp", "megatron", "distributed_optimizer", "zero1", "zero2", "zero3", "fsdp", "fsdp2"})
                      : one_of({"megatron", "distributed_optimizer", "zero1"});
  std::string strategy = "tensor: " + tensor + ", pipeline: " + pipeline + ", data_parallel: " + kind;
  if (tensor != "1") strategy += ", sequence_parallel: " + flip();
  if (pipeline == "1" && kind[0] != 'z' && kind[0] != 'f') strategy += ", context: " + one_of({"1", "2"});
  strategy += ", gradient_dtype: " + one_of({"fp32", "bf16"}) + ", overlap_grad_reduce: " + flip();
  if (kind == "distributed_optimizer") strategy += ", overlap_param_gather: " + flip();
  if (kind == "zero2" || kind == "zero3") strategy += ", bucket_elements: " + one_of({"0", "7000000"});
  if (kind == "zero3") strategy += ", zero: {persistence_threshold: " + one_of({"100000", "5"}) + "}";
  if (kind == "fsdp") strategy += ", fsdp: {sharding: " + one_of({"full_shard", "shard_grad_op"}) + "}";
  if (kind == "fsdp2") strategy += ", fsdp: {reshard_after_forward: " + flip() + "}";
  strategy += ", recompute: " + one_of({"none", "full", "{kind: full, method: block, layers: 2}"});
  const std::string training = "dropout: " + flip() + ", gradient_clipping: " + one_of({"0", "1.0", "0.5"}) +
                               ", optimizer: " + one_of({"adam", "sgd"});
  return {strategy, training};
}

// What comes back from a framework's file is a job of that framework: the way there and back loses nothing of it, and its
// text is the same again.
TEST(ExportProperty, ASecondTripLosesNothing) {
  std::mt19937 random(20260);
  constexpr int kJobs = 20;
  int trips = 0;
  for (int n = 0; n < kJobs; ++n) {
    const auto [strategy, training] = random_job(random);
    const JobSpec job = job_of(strategy, training);
    if (!lower::lower(job)) continue;
    for (const Exporter* e : all_exporters()) {
      SCOPED_TRACE(fmt::format("{}: {{{}}} {{{}}}", e->name, strategy, training));
      const auto first = export_job(job, *e);
      if (!first) continue;  // refused in the framework's words
      const auto second = export_job(first.value().back, *e);
      ASSERT_TRUE(second) << to_text(second.errors());
      EXPECT_THAT(second.value().not_carried, IsEmpty());
      const auto third = export_job(second.value().back, *e);
      ASSERT_TRUE(third) << to_text(third.errors());
      EXPECT_EQ(third.value().text, second.value().text);
      EXPECT_EQ(third.value().beside, second.value().beside);
      if (lower::lower(first.value().back)) {
        EXPECT_EQ(digest_of(second.value().back), digest_of(first.value().back));
      }
      ++trips;
    }
  }
  EXPECT_GT(trips, kJobs);
}

// A job that cuts its weights over the ranks is not written as one that keeps them whole.
TEST(Export, DeepSpeedCutsWhatFsdpCuts) {
  const std::pair<const char*, const char*> stages[] = {
      {"data_parallel: fsdp", "3"},
      {"data_parallel: fsdp, fsdp: {sharding: shard_grad_op}", "2"},
      {"data_parallel: fsdp, fsdp: {sharding: no_shard}", "0"},
      {"data_parallel: fsdp2", "3"},
      {"data_parallel: fsdp2, fsdp: {reshard_after_forward: false}", "2"}};
  for (const auto& [strategy, stage] : stages) {
    const auto exported = export_job(job_of(strategy, "dropout: false"), *find_exporter("deepspeed"));
    ASSERT_TRUE(exported) << to_text(exported.errors());
    EXPECT_THAT(exported.value().text, HasSubstr(fmt::format("\"stage\": {}", stage))) << strategy;
  }
}

}  // namespace
}  // namespace wt::import
