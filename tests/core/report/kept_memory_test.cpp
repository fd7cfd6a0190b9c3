// What frameworks hold beyond the closed forms: copies at start-up and in the step, what plain ops keep, every copy of the
// logits. Each against the bytes that the framework's source implies, and the public user cases of that kind.
#include "core/report/report.hpp"
#include "jobs.hpp"

namespace wt::report {
namespace {

constexpr double kGib = 1073741824.0;

double phase_peak(const StageMemory& s, std::string_view phase) {
  for (const PhasePeak& p : s.phases)
    if (p.phase == phase) return static_cast<double>(p.peak.n);
  return -1;
}
double item(const StageMemory& s, std::string_view name) {
  for (const MemoryItem& i : s.items)
    if (i.name == name) return static_cast<double>(i.bytes.n);
  return 0;
}
double parameters(const Lowered& l) { return static_cast<double>(count_parameters(l.job.model).total()); }

/// Few activations, so that states and their copies decide.
std::vector<std::string> states_only(std::vector<std::string> more = {}) {
  for (const char* set : {"model.vocab=128", "model.max_context=128", "training.seq_len=128"}) more.emplace_back(set);
  return more;
}

constexpr const char* kLlama[] = {
    "model.gated_mlp=true",     "model.activation=silu",       "model.norm=rms_norm",
    "model.position=rotary",    "model.tied_embeddings=false", "model.attention_bias=false",
    "model.output_bias=false",  "model.mlp_bias=false",        "model.vocab=128",
    "training.vocab_multiple=1"};

/// Bytes that one more layer keeps for its backward, on the first stage.
double layer_bytes(const std::vector<std::string>& sets, const std::string& strategy) {
  auto activations = [&](const char* layers) {
    std::vector<std::string> all(std::begin(kLlama), std::end(kLlama));
    all.insert(all.end(), sets.begin(), sets.end());
    all.push_back(std::string("model.layers=") + layers);
    const Lowered l = lowered(all, strategy);
    return item(memory_report(l.job, l.plan).stages[0], "activations");
  };
  return activations("41") - activations("40");
}

// P04: what start-up makes and drops is a phase of its own. DeepSpeed's fp16 optimizer makes its states in a step on fp32
// gradients of zero: 4 bytes an owned parameter more than what stays.
TEST(StartUp, DeepSpeedFp16) {
  const Lowered l = lowered(states_only({"training.precision=fp16"}), "{data_parallel: zero1, gradient_dtype: fp16}");
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  const double n = parameters(l);
  EXPECT_NEAR(phase_peak(s, "load") / n, 2, 0.02);
  EXPECT_NEAR(phase_peak(s, "master weights built") / n, 2 + 4.0 / 8, 0.02);
  EXPECT_NEAR(phase_peak(s, "optimizer built") / n, 2 + 12.0 / 8, 0.02);
  EXPECT_NEAR(phase_peak(s, "start up") / n, 2 + 16.0 / 8, 0.02);
}

// Stage 2 is the same optimizer with its gradients cut: the same copies.
TEST(StartUp, DeepSpeedStageTwoAsStageOne) {
  const Lowered l = lowered(states_only({"training.precision=fp16"}), "{data_parallel: zero2, gradient_dtype: fp16}");
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  const double n = parameters(l);
  EXPECT_NEAR(phase_peak(s, "load") / n, 2, 0.02);
  EXPECT_NEAR(phase_peak(s, "master weights built") / n, 2 + 4.0 / 8, 0.02);
  EXPECT_NEAR(phase_peak(s, "optimizer built") / n, 2 + 12.0 / 8, 0.02);
  EXPECT_NEAR(phase_peak(s, "start up") / n, 2 + 16.0 / 8, 0.02);
}

// On one rank the copy is of all parameters: 4 N beside 14 N, "out of memory at the start, not in training".
TEST(StartUp, OneRankPaysForAll) {
  const Lowered l = lowered(states_only({"training.precision=fp16", "cluster.node.devices=1"}),
                            "{data_parallel: zero1, gradient_dtype: fp16}");
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_NEAR(phase_peak(s, "start up") / parameters(l), 18, 0.05);
}

// The bf16 optimizer flattens weights on the device, beside the tensors of the model.
TEST(StartUp, DeepSpeedBf16FlattensOnTheDevice) {
  const Lowered l = lowered(states_only(), "{data_parallel: zero1, gradient_dtype: fp32}");
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_NEAR(phase_peak(s, "start up") / parameters(l), 4, 0.02);
  EXPECT_NEAR(phase_peak(s, "load") / parameters(l), 2, 0.02);
}

TEST(StartUp, MegatronMakesNoCopies) {
  const Lowered l = lowered(states_only(), "{data_parallel: distributed_optimizer}");
  EXPECT_EQ(phase_peak(memory_report(l.job, l.plan).stages[0], "start up"), -1);
}

// BF16_Optimizer reduces fp32 gradients through one 16-bit copy of all of them, in a group of one too.
TEST(GradientCopiesInTheStep, Narrow) {
  for (const int ranks : {1, 8}) {
    const Lowered l = lowered(states_only({"cluster.node.devices=" + std::to_string(ranks)}),
                              "{data_parallel: zero1, gradient_dtype: fp32}");
    const StageMemory s = memory_report(l.job, l.plan).stages[0];
    // 16-bit weights and gradients, fp32 gradients, the copy; states are sharded.
    EXPECT_NEAR(phase_peak(s, "backward") / parameters(l), 2 + 2 + 4 + 2 + 12.0 / ranks, 0.04) << ranks;
  }
}

// Without ZeRO: an fp32 copy of each gradient and all of them flattened, beside 16 N.
TEST(GradientCopiesInTheStep, FlatStep) {
  const Lowered l = lowered(states_only({"training.precision=fp16"}),
                            "{data_parallel: megatron, gradient_dtype: fp16, gradient_copies: flat_step}");
  EXPECT_NEAR(phase_peak(memory_report(l.job, l.plan).stages[0], "optimizer") / parameters(l), 24, 0.05);
}

// P59: fp32 accumulation costs 4 N that data parallelism does not shard, and 2 N for the reduction's copy.
TEST(GradientCopiesInTheStep, Fp32AccumulationIsNotSharded) {
  auto peak = [](const char* dtype) {
    const Lowered l = lowered(
        states_only(), std::string("{data_parallel: zero1, gradient_copies: none, gradient_dtype: ") + dtype + "}");
    return phase_peak(memory_report(l.job, l.plan).stages[0], "backward") / parameters(l);
  };
  EXPECT_NEAR(peak("fp32") - peak("bf16"), 4, 0.2);
}

// P35: accumulation changes memory from one to two micro-batches, not after.
TEST(GradientCopiesInTheStep, MoreAccumulationCostsNothing) {
  auto reserved = [](const char* batch) {
    const Lowered l = lowered({std::string("training.global_batch=") + batch}, "{data_parallel: zero1}");
    return memory_report(l.job, l.plan).stages[0].reserved.n;
  };
  EXPECT_LE(reserved("8"), reserved("16"));
  EXPECT_EQ(reserved("16"), reserved("64"));
  EXPECT_EQ(reserved("64"), reserved("512"));
}

// Plain ops: the normalised rows of two norms, in fp32 also their input; silu of the gate; q and k before rope, which the
// storage of the packed qkv holds as long as v.
TEST(EagerOps, WhatTheyKeep) {
  const double s = 2048, h = 1024, f = 4096;
  const std::string t1 = "{}", t4 = "{tensor: 4}";
  const double fused = layer_bytes({}, t1);
  EXPECT_NEAR(layer_bytes({"training.norm_kernel=eager"}, t1) - fused, 2 * 2 * s * h, 1);
  EXPECT_NEAR(layer_bytes({"training.norm_kernel=eager_fp32"}, t1) - fused, 2 * (2 + 4) * s * h, 1);
  EXPECT_NEAR(layer_bytes({"training.fused_kernels=false", "training.packed_qkv=false"}, t1) - fused, 2 * s * f, 1);
  EXPECT_NEAR(layer_bytes({"training.fused_kernels=false"}, t1) - fused, 2 * s * f + 2 * s * 2 * h, 1);
  EXPECT_NEAR(layer_bytes({"training.fused_kernels=false"}, t4) - layer_bytes({}, t4), (2 * s * f + 2 * s * 2 * h) / 4,
              1);
}

TEST(EagerOps, GatheredInputsAreKeptWhole) {
  const double s = 2048, h = 1024, t = 4;
  const double shards = layer_bytes({}, "{tensor: 4, sequence_parallel: true}");
  const double whole = layer_bytes({}, "{tensor: 4, sequence_parallel: true, keep_gathered: true}");
  EXPECT_NEAR(whole - shards, 2 * 2 * s * h * (1 - 1 / t), 1);
}

// torch's cross entropy on gathered logits: log probabilities, their gradient and that of the fp32 logits are there at
// once, 12 bytes for each token and word on every tensor rank.
TEST(Logits, FullVocabulary) {
  for (const char* tensor : {"1", "4"}) {
    const Lowered l =
        lowered({"training.loss=full_vocabulary", "model.layers=2", std::string("strategy.tensor=") + tensor});
    const StageMemory s = memory_report(l.job, l.plan).stages[0];
    EXPECT_NEAR(item(s, "logits") / (2048.0 * 51200), 12, 0.01) << tensor;
    EXPECT_EQ(s.peak_phase, "backward");
  }
}

// Vocabulary-parallel: fp32 logits and exponentials beside the 16-bit ones in forward.
TEST(Logits, VocabularyParallel) {
  const Lowered l = lowered({"model.layers=2", "strategy.tensor=4"});
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_EQ(s.peak_phase, "forward");
  EXPECT_NEAR(item(s, "logits") / (2048.0 * 51200 / 4), 8, 0.01);
}

// An engine with output buffers keeps those of two micro-batches on the last stage.
TEST(Logits, KeptByThePipelineEngine) {
  auto last = [](const char* kept) {
    const Lowered l = lowered({"training.loss=full_vocabulary", std::string("strategy.kept_edges=") + kept},
                              "{pipeline: 2, tensor: 2}");
    return item(memory_report(l.job, l.plan).stages[1], "logits") / (2048.0 * 51200);
  };
  EXPECT_NEAR(last("1") - last("0"), 2 * 2, 0.01);
}

// P31: every copy of the logits is listed with its size.
TEST(Logits, EachCopyIsListed) {
  const Lowered l = lowered({"training.loss=full_vocabulary", "model.vocab=151936", "model.layers=2",
                             "training.vocab_multiple=1", "model.max_context=4096", "training.seq_len=4096"});
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  const double one = 4096.0 * 151936 * 4;
  int copies = 0;
  for (const MemoryItem& b : s.largest)
    if (b.name.find("logits") != std::string::npos && static_cast<double>(b.bytes.n) == one) ++copies;
  EXPECT_EQ(copies, 3);
}

// P39: a 70 B model, tensor 8 x pipeline 2 on 256 A800: states are 27.7 GiB on each device, what else there is lies with
// the first stage, which keeps two micro-batches.
TEST(Stages, TheFirstHoldsMore) {
  auto job = parse_job(R"(
model: llama2-70b
cluster: {from: dgx-a100-80, nodes: 32}
strategy: {tensor: 8, pipeline: 2, data_parallel: distributed_optimizer}
training: {micro_batch: 1, global_batch: 512, seq_len: 4096, precision: bf16}
)",
                       std::string(WT_SOURCE_DIR) + "/examples/test.yaml", {});
  ASSERT_TRUE(job.ok()) << to_text(job.errors());
  const auto plan = lower::lower(job.value());
  ASSERT_TRUE(plan.ok());
  const MemoryReport r = memory_report(job.value(), plan.value());
  ASSERT_EQ(r.stages.size(), 2u);
  for (const StageMemory& s : r.stages) {
    const double states =
        item(s, "weights") + item(s, "gradients") + item(s, "master weights") + item(s, "optimizer states");
    EXPECT_NEAR(states / kGib, 27.7, 0.03 * 27.7) << s.stage;
  }
  EXPECT_EQ(r.peak_stage, 0u);
  EXPECT_NEAR(item(r.stages[0], "activations") / item(r.stages[1], "activations"), 2, 0.05);
}

}  // namespace
}  // namespace wt::report
