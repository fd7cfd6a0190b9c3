// The validation study on fixtures of its own: reading, mapping, judging, summing up. No simulation: predictions are
// given by the test.
#include "study/validate.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/spec/read.hpp"

namespace wt::study {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char kRow[] = R"(
- id: one
  group: gamma
  tier: A
  confidence: high
  cluster: c1
  task: pretrain
  source: {title: A paper, where: 'figure 1', year: 2022}
  model: {name: GPT tiny, layers: 8, hidden: 1024, ffn_hidden: 4096, heads: 16, kv_heads: 16, head_dim: 64, vocab: 51200, seq_len: 2048, gated_mlp: false, tied_embeddings: true, attention: MHA}
  hardware: {gpu: A100-SXM4-80GB, gpus_total: 16, gpus_per_node: 8, mem_gb: 80, intra: NVLink3, inter: '8x200Gb/s HDR IB per node', peak_bf16: 312}
  parallel: {tp: 2, pp: 4, dp: 2, cp: 1, ep: 1, vpp: 1, sp: true, zero_stage: 1, fsdp: false, schedule: 1F1B}
  batch: {micro: 2, global: 64, grad_accum: 16}
  precision: bf16
  recompute: selective
  offload: none
  framework: Megatron-Core r0.8.0
  flash_attention: true
  overlap: DP grad/param overlap
  measured: {step_time_s: 2.0, memory_gb: 20}
  unknown_fields: []
  check: {status: ok}
  notes: none
)";

std::string edited(std::string text, std::initializer_list<std::pair<const char*, const char*>> edits) {
  for (const auto& [from, to] : edits) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, std::string(from).size(), to);
  }
  return text;
}

Case row_of(std::initializer_list<std::pair<const char*, const char*>> edits) {
  auto file = parse_cases(edited(kRow, edits), "runs.yaml");
  EXPECT_TRUE(file.ok());
  return file.value().cases.at(0);
}

const ValidateData& data() {
  static const Result<ValidateData> loaded = ValidateData::load();
  return loaded.value();
}

Mapping map_of(std::initializer_list<std::pair<const char*, const char*>> edits) {
  return map_case(row_of(edits), data());
}

JobSpec job_of(const Mapping& m, size_t i = 0) {
  EXPECT_EQ(m.skip, "");
  auto job = parse_job(m.candidates.at(i).job, "row");
  if (!job) {
    ADD_FAILURE() << to_text(job.errors()) << m.candidates.at(i).job;
    return {};
  }
  return job.value();
}

Predict constant(double seconds, std::string fits = "fits") {
  return [=](const JobSpec&) -> Result<Prediction> {
    Prediction p;
    p.step_time_s = seconds;
    p.peak_gib = 18;
    p.reserved_gib = 22;
    p.context_gib = 1;
    p.fits = fits;
    return p;
  };
}

Validation run(const std::string& text, const Predict& predict, ValidateOptions options = {}) {
  auto file = parse_cases(text, "runs.yaml");
  if (!file) {
    ADD_FAILURE() << to_text(file.errors());
    return {};
  }
  options.threads = 2;
  auto out = validate({file.value()}, data(), predict, options);
  if (!out) {
    ADD_FAILURE() << to_text(out.errors());
    return {};
  }
  return out.value();
}

// ------------------------------------------------------------------------------------------------------ reading

TEST(Cases, ReadsARow) {
  const Case row = row_of({});
  EXPECT_EQ(row.id, "one");
  EXPECT_EQ(row.layers, 8);
  EXPECT_EQ(row.sp, true);
  EXPECT_EQ(row.flash_attention, "true");
  EXPECT_EQ(row.measured.at("step_time_s"), 2.0);
  EXPECT_EQ(row.fault, "");
  EXPECT_FALSE(row.moe.has_value());
}

TEST(Cases, WhatTheSourceLeavesOutStaysEmpty) {
  const Case row = row_of(
      {{"micro: 2", "micro: null"}, {"vpp: 1", "vpp: unknown"}, {"flash_attention: true", "flash_attention: unknown"}});
  EXPECT_FALSE(row.micro);
  EXPECT_FALSE(row.vpp);
  EXPECT_EQ(row.fault, "");
}

TEST(Cases, AValueThatCannotBeReadSkipsTheRowWithItsLine) {
  const Case row = row_of({{"layers: 8", "layers: eight"}});
  EXPECT_EQ(row.fault, "line 9: model.layers: 'eight' is not a whole number of 1 or more");
  EXPECT_EQ(map_case(row, data()).skip, row.fault);
  EXPECT_THAT(row_of({{"tp: 2", "tp: -2"}}).fault, HasSubstr("parallel.tp: '-2'"));
  EXPECT_THAT(row_of({{"hidden: 1024", "hidden: 99999999999999999999"}}).fault, HasSubstr("model.hidden"));
  EXPECT_FALSE(row_of({{"grad_accum: 16", "grad_accum: 1e300"}}).grad_accum);
}

TEST(Cases, UnknownKeysAreWarned) {
  auto file = parse_cases(edited(kRow, {{"tier: A", "tiger: A"}, {"sp: true", "sq: true"}}), "runs.yaml");
  ASSERT_TRUE(file);
  EXPECT_THAT(file.value().warnings, ElementsAre("runs.yaml:11: key 'parallel.sq' is not known and has no effect",
                                                 "runs.yaml:4: key 'tiger' is not known and has no effect"));
}

TEST(Cases, MalformedFilesNameTheLine) {
  const std::pair<const char*, const char*> table[] = {
      {"{a: 1}", "f.yaml:1: is not a list of runs"},
      {"", "f.yaml: is empty"},
      {"- {id: a}\n- 3", "f.yaml:2:3: is not a run"},
      {"- {id: a}\n- {di: b}", "f.yaml:2:3: a run without an id"},
      {"- {id: a}\n- {id: a}", "f.yaml:2:3: id 'a' is taken by the run of line 1"},
      {"- id: a\n  tier: A\n  tier: B", "f.yaml:3:3: tier: key 'tier' is written twice (first at line 2; keep one)"},
      {"- id: a\n- id: \xff", "f.yaml:2:7: not UTF-8 text"},
      {"- id: 'cut", "f.yaml:1:11: not YAML: illegal EOF in scalar"},
      {"&a [*a]", "alias to a value that contains it"},
      {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "nested more than 32 levels deep"},
      {"- {id: a\n- {id: b}", "f.yaml:2:"},
      {"- id: a\n\tb: c", "f.yaml:2:"},
  };
  for (const auto& [text, expected] : table) {
    const auto file = parse_cases(text, "f.yaml");
    ASSERT_FALSE(file) << text;
    EXPECT_THAT(to_text(file.errors()), HasSubstr(expected)) << text;
  }
  EXPECT_FALSE(read_cases("/nowhere/runs.yaml"));
}

// ------------------------------------------------------------------------------------------------------ mapping

TEST(Mapping, AWholeRow) {
  const Mapping m = map_of({});
  ASSERT_EQ(m.candidates.size(), 1u);
  const JobSpec job = job_of(m);
  EXPECT_EQ(job.model.layers, 8);
  EXPECT_EQ(job.model.norm, Norm::layer_norm);
  EXPECT_TRUE(job.model.mlp_bias);
  EXPECT_EQ(job.cluster.nodes, 2);
  EXPECT_EQ(job.cluster.node.devices, 8);
  EXPECT_EQ(job.cluster.fabric.nics_per_node, 8);
  EXPECT_EQ(job.cluster.fabric.nic_bandwidth.n, 25e9);
  EXPECT_EQ(job.strategy.tensor, 2);
  EXPECT_EQ(job.strategy.pipeline, 4);
  EXPECT_TRUE(job.strategy.sequence_parallel);
  EXPECT_EQ(job.strategy.schedule, "1f1b");
  EXPECT_EQ(job.strategy.data_parallel, DataParallel::distributed_optimizer);
  EXPECT_TRUE(job.strategy.overlap_grad_reduce);
  EXPECT_TRUE(job.strategy.overlap_param_gather);
  EXPECT_EQ(job.strategy.gradient_dtype, DType::f32);
  EXPECT_EQ(job.strategy.recompute.kind, RecomputeKind::selective);
  EXPECT_EQ(job.strategy.attention, AttentionKernel::flash);
  EXPECT_EQ(job.training.micro_batch, 2);
  EXPECT_EQ(job.training.global_batch, 64);
  EXPECT_EQ(job.training.compute_dtype, DType::bf16);
}

TEST(Mapping, FrameworksDecideImplementation) {
  JobSpec job = job_of(map_of({{"Megatron-Core r0.8.0", "Megatron-LM (2021)"},
                               {"precision: bf16", "precision: fp16"},
                               {"flash_attention: true", "flash_attention: false"},
                               {"zero_stage: 1", "zero_stage: 0"},
                               {"overlap: DP grad/param overlap", "overlap: none"}}));
  EXPECT_EQ(job.strategy.data_parallel, DataParallel::megatron);
  EXPECT_EQ(job.strategy.gradient_dtype, DType::f16);
  EXPECT_EQ(job.strategy.attention, AttentionKernel::unfused);
  EXPECT_FALSE(job.strategy.overlap_grad_reduce);
  EXPECT_TRUE(job.training.dropout);

  job = job_of(map_of({{"Megatron-Core r0.8.0", "Megatron-DeepSpeed (2022-02), ZeRO-1"},
                       {"overlap: DP grad/param overlap", "overlap: none"}}));
  EXPECT_EQ(job.strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(job.strategy.gradient_dtype, DType::f32);  // BF16_Optimizer
  EXPECT_FALSE(job.strategy.overlap_param_gather);
}

TEST(Mapping, ShardedWeights) {
  auto mapped = [](const char* framework, const char* zero, const char* more) {
    return job_of(map_of({{"Megatron-Core r0.8.0", framework},
                          {"tp: 2, pp: 4, dp: 2", "tp: 1, pp: 1, dp: 16"},
                          {"zero_stage: 1, fsdp: false", zero},
                          {"recompute: selective", more},
                          {"overlap: DP grad/param overlap", "overlap: prefetch"}}))
        .strategy;
  };
  StrategySpec s = mapped("torchtitan (2024)", "zero_stage: 3, fsdp: true", "recompute: selective (every 2nd layer)");
  EXPECT_EQ(s.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(s.gradient_dtype, DType::f32);
  EXPECT_EQ(s.fsdp.keep_last, 1);
  EXPECT_EQ(s.recompute.kind, RecomputeKind::full);
  EXPECT_EQ(s.recompute.method, RecomputeMethod::uniform);
  EXPECT_EQ(s.recompute.every, 2);
  EXPECT_TRUE(s.recompute.early_stop);
  s = mapped("llm-foundry/Composer + PyTorch FSDP (SHARD_GRAD_OP)", "zero_stage: 2, fsdp: true", "recompute: none");
  EXPECT_EQ(s.data_parallel, DataParallel::fsdp);
  EXPECT_EQ(s.fsdp.sharding, ShardingKind::shard_grad_op);
  EXPECT_EQ(s.fsdp.backward_prefetch, BackwardPrefetch::post);
  EXPECT_EQ(s.gradient_dtype, DType::bf16);
  s = mapped("PyTorch FSDP1 + torch.compile (fms-fsdp)", "zero_stage: 3, fsdp: true, hybrid_shard: '8'",
             "recompute: full");
  EXPECT_EQ(s.fsdp.sharding, ShardingKind::hybrid_shard);
  EXPECT_EQ(s.fsdp.shard_size, 8);
  EXPECT_EQ(mapped("DeepSpeed ZeRO-3 (2021)", "zero_stage: 3, fsdp: false", "recompute: full").data_parallel,
            DataParallel::zero3);
}

TEST(Mapping, ShardsOnStagesReduceOnceAndStayWhole) {
  const StrategySpec s = job_of(map_of({{"Megatron-Core r0.8.0", "torchtitan (2024)"},
                                        {"zero_stage: 1, fsdp: false", "zero_stage: 3, fsdp: true"}}))
                             .strategy;
  EXPECT_EQ(s.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(s.pipeline, 4);
  EXPECT_TRUE(s.fsdp.no_sync);
  EXPECT_EQ(s.fsdp.reshard_after_forward, 0);
}

TEST(Mapping, CorrectionsAreNamed) {
  const Mapping m = map_of({{"Megatron-Core r0.8.0", "Megatron-LM fork (zero-bubble)"}});
  EXPECT_EQ(job_of(m).strategy.attention, AttentionKernel::unfused);
  EXPECT_THAT(m.assumptions, Contains(HasSubstr("flash_attention corrected to false")));
}

TEST(Mapping, ACorrectedPlanReplacesWhatFollowsFromIt) {
  const Mapping m = map_of({{"GPT tiny", "GPT-3 175B"},
                            {"gpus_total: 16", "gpus_total: 128"},
                            {"tp: 2, pp: 4, dp: 2", "tp: 4, pp: 8, dp: 4"},
                            {"micro: 2", "micro: 1"},
                            {"Megatron-Core r0.8.0", "NeMo Megatron 22.x/23.x"}});
  for (const char* change : {"tp corrected to 8", "micro corrected to 2"})
    EXPECT_THAT(m.assumptions, Contains(HasSubstr(change)));
  const JobSpec job = job_of(m);
  EXPECT_EQ(job.strategy.tensor, 8);
  EXPECT_EQ(job.strategy.pipeline, 8);
  EXPECT_EQ(job.cluster.ranks(), 128);
  EXPECT_THAT(m.assumptions, Contains(HasSubstr("dp not given: 2 is what is left")));
  EXPECT_EQ(job.training.micro_batch, 2);
}

TEST(Mapping, EveryRuleHasAUserAndASource) {
  // The mapping of any framework yields a job that the strict reader takes.
  for (const char* framework : {"Megatron-LM v1.0",
                                "Megatron-LM v2.x (2021)",
                                "Megatron-LM (2022)",
                                "Megatron-Core r0.8.0",
                                "Megatron-LM fork (zero-bubble)",
                                "Megatron-DeepSpeed",
                                "Megatron-DeepSpeed (2022-02), ZeRO-1",
                                "DeepSpeed + Megatron (2021)",
                                "GPT-NeoX (Megatron-DeepSpeed)",
                                "NeMo Megatron 23.x",
                                "NeMo 25.02",
                                "NeMo (NeMo 24.12)",
                                "Megatron-Bridge / Megatron-Core, NeMo container 26.02",
                                "Primus (Megatron) ROCm",
                                "nanoGPT (PyTorch DDP + compile)",
                                "flash-attention training code (Lightning DDP / ZeRO-1)",
                                "llm.c (CUDA/C)",
                                "Skywork Megatron",
                                "Paxml (JAX)",
                                "a framework of the future"}) {
    const Mapping m = map_of({{"Megatron-Core r0.8.0", framework}});
    SCOPED_TRACE(framework);
    job_of(m);
  }
  EXPECT_THAT(map_of({{"Megatron-Core r0.8.0", "nnScaler"}}).skip, HasSubstr("compiler"));
}

TEST(Mapping, Fp8WordsNameTheRecipe) {
  for (const auto& [words, recipe] : {std::pair{"fp8", Fp8Recipe::delayed},
                                      {"fp8 (current scaling)", Fp8Recipe::current},
                                      {"fp8 (rowwise)", Fp8Recipe::current},
                                      {"fp8 (float8 linear)", Fp8Recipe::current},
                                      {"fp8 (mxfp8)", Fp8Recipe::block}}) {
    const JobSpec job = job_of(map_of({{"precision: bf16", (std::string("precision: ") + words).c_str()}}));
    EXPECT_EQ(job.training.compute_dtype, DType::f8) << words;
    EXPECT_EQ(job.training.fp8_recipe, recipe) << words;
  }
}

TEST(Mapping, WhatIsNotBuiltIsSkippedWithAReason) {
  const std::pair<std::pair<const char*, const char*>, const char*> table[] = {
      {{"attention: MHA}", "attention: MHA, moe: {experts: 8}}"}, "experts are not published"},
      {{"cp: 1", "cp: 2"}, "does not give 16 GPUs"},
      {{"precision: bf16", "precision: fp4 (nvfp4)"}, "fp4"},
      {{"task: pretrain", "task: dpo"}, "dpo"},
      {{"offload: none", "offload: optimizer"}, "offload"},
      {{"schedule: 1F1B", "schedule: DualPipe"}, "schedule 'DualPipe'"},
      {{"gpu: A100-SXM4-80GB", "gpu: TPU v4"}, "GPU 'TPU v4'"},
      {{"tier: A", "tier: D"}, "tier D"},
      {{"layers: 8, ", ""}, "shape"},
      {{"tp: 2, pp: 4", "tp: null, pp: null"}, "two or more parallel degrees"},
      {{"tp: 2, pp: 4", "tp: 3, pp: 4"}, "does not give 16 GPUs"},
  };
  for (const auto& [edit, reason] : table) {
    const Mapping m = map_of({edit});
    EXPECT_THAT(m.skip, HasSubstr(reason));
    EXPECT_THAT(m.candidates, IsEmpty());
  }
}

TEST(Mapping, WhatIsOpenIsTriedAndNamed) {
  Mapping m = map_of({{"micro: 2", "micro: null"}, {", grad_accum: 16", ""}});
  EXPECT_EQ(m.candidates.size(), 5u);  // 32 sequences of a replica: 1, 2, 4, 8, 16
  EXPECT_EQ(m.candidates[1].label, "micro_batch 2");
  EXPECT_THAT(m.assumptions, Contains("micro_batch not given: 1, 2, 4, 8, 16 tried"));

  m = map_of({{"micro: 2", "micro: null"}});  // the accumulation steps say it
  ASSERT_EQ(m.candidates.size(), 1u);
  EXPECT_EQ(job_of(m).training.micro_batch, 2);

  m = map_of({{"recompute: selective", "recompute: unknown"}, {"flash_attention: true", "flash_attention: false"}});
  EXPECT_EQ(m.candidates.size(), 3u);

  m = map_of({{"recompute: selective", "recompute: selective (norm, act)"}});
  ASSERT_EQ(m.candidates.size(), 1u);
  EXPECT_EQ(job_of(m).strategy.recompute.kind, RecomputeKind::selective);
  EXPECT_EQ(job_of(m).strategy.recompute.modules, "layernorm act");

  m = map_of({{"recompute: selective", "recompute: selective (a policy)"}});  // no key of a job says just this
  ASSERT_EQ(m.candidates.size(), 2u);
  EXPECT_EQ(job_of(m, 0).strategy.recompute.kind, RecomputeKind::none);
  EXPECT_EQ(job_of(m, 1).strategy.recompute.kind, RecomputeKind::full);
  EXPECT_THAT(m.assumptions, Contains(HasSubstr("'selective (a policy)' keeps more than full and less than none")));

  m = map_of({{"vpp: 1", "vpp: null"},
              {"schedule: 1F1B", "schedule: 1F1B interleaved (v not given)"},
              {"layers: 8", "layers: 32"}});
  ASSERT_EQ(m.candidates.size(), 3u);  // 8 layers a rank: 2, 4, 8
  EXPECT_EQ(job_of(m, 0).strategy.virtual_stages, 2);
  EXPECT_EQ(job_of(m, 0).strategy.schedule, "interleaved");

  m = map_of({{"unknown_fields: []", "unknown_fields: [vocab, zero_stage]"}});
  ASSERT_EQ(m.candidates.size(), 2u);
  EXPECT_EQ(job_of(m, 0).strategy.data_parallel, DataParallel::megatron);
  EXPECT_EQ(job_of(m, 1).strategy.data_parallel, DataParallel::distributed_optimizer);
  EXPECT_THAT(m.assumptions, Contains("vocabulary not in the source: 51200"));

  m = map_of({{"tp: 2, pp: 4", "tp: null, pp: 4"}});
  EXPECT_EQ(job_of(m).strategy.tensor, 2);
}

TEST(Mapping, LayersThatDoNotDivide) {
  JobSpec job = job_of(map_of({{"layers: 8", "layers: 22"}}));
  EXPECT_TRUE(job.strategy.account_for_embedding);
  EXPECT_TRUE(job.strategy.account_for_loss);
  job = job_of(map_of({{"layers: 8", "layers: 25"}, {"Megatron-Core r0.8.0", "Megatron-DeepSpeed"}}));
  EXPECT_EQ(job.strategy.first_stage_layers, 6);
  EXPECT_EQ(job.strategy.last_stage_layers, 5);
}

TEST(Mapping, NetworkPhrases) {
  const std::tuple<const char*, int64_t, double> table[] = {
      {"8x200Gb/s HDR IB per node (Selene)", 8, 200},
      {"4x OmniPath 100Gb/s per node", 4, 100},
      {"OmniPath 4x100Gb/s per node", 4, 100},
      {"8x HDR IB 200Gb/s per node (+2 storage), 3-level fat-tree", 8, 200},
      {"8x HDR200 IB per node class (DGX A100; see paper)", 8, 200},
      {"CX-7 400Gb/s per GPU IB (assumed platform default)", 8, 400},
      {"RoCE 1600Gb/s per node (8x200G)", 8, 200},
      {"InfiniBand/RoCE 3200Gb/s per node class (not stated in README)", 8, 400},
      {"8x400Gb/s IB (8x50GB/s) per node", 8, 400},
      {"400Gb/s per node", 4, 100},
      {"2Tb/s RoCE per node", 8, 250},
      {"4x NDR", 4, 400},
      {"8x200Gb/s GPUDirect-TCPXO per node", 8, 200},
  };
  for (const auto& [phrase, nics, rate] : table) {
    const auto found = parse_nics(phrase, 8);
    ASSERT_TRUE(found) << phrase;
    EXPECT_EQ(found->nics_per_node, nics) << phrase;
    EXPECT_DOUBLE_EQ(found->gigabits, rate) << phrase;
  }
  for (const char* phrase :
       {"", "none", "IB, not stated", "RoCE RDMA network (bandwidth not given)", "3-level fat-tree"})
    EXPECT_FALSE(parse_nics(phrase, 8)) << phrase;
  EXPECT_TRUE(contains_words("8x HDR IB 200Gb/s", "ib"));
  EXPECT_FALSE(contains_words("Gibraltar", "ib"));
}

TEST(Mapping, MemoryKinds) {
  EXPECT_EQ(memory_kind_of(row_of({}), data()).kind, "unknown");
  const MemoryKind bloom =
      memory_kind_of(row_of({{"where: 'figure 1'", "where: 'github bigscience-workshop/bigscience x.md'"}}), data());
  EXPECT_EQ(bloom.kind, "nvidia_smi");
  EXPECT_EQ(bloom.unit_gib, 1);
  EXPECT_EQ(memory_kind_of(row_of({}), data()).kind, "unknown")
      << "what one row matched is not the default of the next";
}

TEST(Mapping, BrokenTablesAreRefused) { EXPECT_FALSE(ValidateData::load("/nowhere")); }

// ------------------------------------------------------------------------------------------------------ judging

TEST(MeasuredTime, OrderOfTrust) {
  const auto seconds = [](const char* measured, const char* check = "check: {status: ok}", int64_t batch = 64) {
    const auto t = measured_step_time(
        row_of({{"measured: {step_time_s: 2.0, memory_gb: 20}", measured}, {"check: {status: ok}", check}}), batch);
    return t ? t->seconds : -1;
  };
  EXPECT_EQ(seconds("measured: {step_time_s: 3, tokens_per_s: 1, step_time_s_derived: 9}"), 3);
  EXPECT_EQ(seconds("measured: {tokens_per_s: 65536, step_time_s_derived: 9}"), 2);
  EXPECT_EQ(seconds("measured: {tokens_per_s_per_gpu: 8192, tflops_per_gpu: 100}"), 1);
  EXPECT_EQ(seconds("measured: {samples_per_s: 16}"), 4);
  EXPECT_EQ(seconds("measured: {step_time_s_derived: 9}"), 9);
  const char* both = "measured: {tflops_per_gpu: 100, derived: {step_time_s_if_full: 4, step_time_s_if_causal: 3}}";
  EXPECT_EQ(seconds(both), 3.5);
  EXPECT_EQ(seconds(both, "check: {matched: tflops via full*4/3}"), 4);
  EXPECT_EQ(seconds(both, "check: {matched: tflops via causal}"), 3);
  EXPECT_EQ(seconds("measured: {mfu: 0.4}"), -1);
}

TEST(Judging, ARowIsCompared) {
  const Validation v = run(kRow, constant(2.5));
  ASSERT_EQ(v.rows.size(), 1u);
  EXPECT_EQ(v.rows[0].status, RowStatus::compared);
  EXPECT_DOUBLE_EQ(*v.rows[0].relative_error, 0.25);
  EXPECT_EQ(v.rows[0].measured_peak_gib, 20);
  EXPECT_EQ(v.rows[0].predicted_peak_gib, 22);  // kind unknown: everything on the device
  EXPECT_DOUBLE_EQ(*v.all.mean, 0.25);
  EXPECT_DOUBLE_EQ(v.all.coverage, 1);
}

TEST(Judging, ABandIsScoredAtItsMiddle) {
  const std::string text = edited(
      kRow, {{"recompute: selective", "recompute: unknown"}, {"unknown_fields: []", "unknown_fields: [recompute]"}});
  const Validation v = run(text, [](const JobSpec& job) {
    return constant(job.strategy.recompute.kind == RecomputeKind::full ? 3 : 2)(job);
  });
  EXPECT_EQ(v.rows[0].status, RowStatus::band);
  EXPECT_EQ(v.rows[0].candidates, 2u);
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_step_time_s, 2.5);
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_low_s, 2);
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_high_s, 3);
  EXPECT_DOUBLE_EQ(*v.rows[0].relative_error, 0.25);
}

TEST(Judging, CandidatesThatDoNotFitWereNotRun) {
  const std::string text = edited(
      kRow, {{"recompute: selective", "recompute: unknown"}, {"unknown_fields: []", "unknown_fields: [recompute]"}});
  const Validation v = run(text, [](const JobSpec& job) {
    return job.strategy.recompute.kind == RecomputeKind::full ? constant(3)(job) : constant(2, "out_of_memory")(job);
  });
  EXPECT_EQ(v.rows[0].status, RowStatus::band);
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_step_time_s, 3);
  EXPECT_THAT(v.rows[0].assumptions, Contains("1 of 2 candidates do not fit and are left out"));
}

TEST(Judging, CandidatesThatNobodyWouldKeepAreLeftOut) {
  const std::string text = edited(
      kRow,
      {{"micro: 2", "micro: null"}, {", grad_accum: 16", ""}, {"unknown_fields: []", "unknown_fields: [micro_batch]"}});
  const Validation v = run(text, [](const JobSpec& job) {
    return constant(job.training.micro_batch == 1 ? 9 : job.training.micro_batch == 2 ? 3 : 2)(job);
  });
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_low_s, 2);
  EXPECT_DOUBLE_EQ(*v.rows[0].predicted_high_s, 3);
  EXPECT_EQ(v.rows[0].candidates, 4u);
}

TEST(Judging, ARunThatIsPredictedNotToFitSaysSo) {
  const Validation v = run(kRow, constant(2, "out_of_memory"));
  EXPECT_EQ(v.rows[0].status, RowStatus::predicted_out_of_memory);
  EXPECT_TRUE(v.rows[0].relative_error);
}

TEST(Judging, ARefusedJobIsSkippedWithTheReason) {
  const Validation v = run(kRow, [](const JobSpec&) -> Result<Prediction> {
    return Diagnostic{"strategy.tensor", "is 3", ""};
  });
  EXPECT_EQ(v.rows[0].status, RowStatus::skipped);
  EXPECT_EQ(v.rows[0].reason, "strategy.tensor: is 3");
  EXPECT_EQ(v.all.coverage, 0);
  EXPECT_FALSE(v.all.mean);
}

TEST(Judging, OutOfMemoryFiles) {
  const std::string oom = edited(kRow, {{"measured: {step_time_s: 2.0, memory_gb: 20}", "result: OOM"}});
  for (const auto& [fits, agrees] :
       {std::pair{"out_of_memory", true}, {"borderline", true}, {"tight", false}, {"fits", false}}) {
    const Validation v = run(oom, constant(2, fits));
    EXPECT_EQ(v.rows[0].agrees, agrees) << fits;
    EXPECT_EQ(v.out_of_memory.judged, 1u);
    EXPECT_EQ(v.out_of_memory_by_source.at("A paper").agreed, agrees ? 1u : 0u);
    EXPECT_FALSE(v.rows[0].relative_error);
  }
}

std::string rows_with(std::initializer_list<std::tuple<const char*, const char*, const char*>> rows) {
  std::string text;
  for (const auto& [id, cluster, time] : rows)
    text += edited(kRow, {{"id: one", fmt::format("id: {}", id).c_str()},
                          {"cluster: c1", fmt::format("cluster: {}", cluster).c_str()},
                          {"step_time_s: 2.0", fmt::format("step_time_s: {}", time).c_str()}});
  return text;
}

TEST(Summary, WeightsQuantilesAndBias) {
  // Errors of a constant 2 s: 0 (x3 in one cluster), +100 %.
  const Validation v =
      run(rows_with({{"a", "x", "2"}, {"b", "x", "2"}, {"c", "x", "2"}, {"d", "y", "1"}}), constant(2));
  EXPECT_DOUBLE_EQ(*v.all.mean, 0.25);
  EXPECT_DOUBLE_EQ(*v.all.weighted_mean, 0.5);
  EXPECT_DOUBLE_EQ(*v.all.median, 0);
  EXPECT_NEAR(*v.all.p90, 0.7, 1e-12);
  EXPECT_DOUBLE_EQ(*v.all.bias, 0.25);
  EXPECT_EQ(v.by_group.at("gamma").compared, 4u);
  EXPECT_EQ(v.by_tier.at("A").compared, 4u);
}

TEST(Summary, SkippingCounts) {
  const std::string text = std::string(kRow) + edited(kRow, {{"id: one", "id: two"}, {"task: pretrain", "task: dpo"}});
  const Validation v = run(text, constant(2));
  EXPECT_EQ(v.all.rows, 2u);
  EXPECT_EQ(v.all.skipped, 1u);
  EXPECT_DOUBLE_EQ(v.all.coverage, 0.5);
  EXPECT_EQ(v.skipped_for.at("task 'dpo' is not built yet"), 1u);
}

TEST(Selection, GroupTierAndIds) {
  const std::string text = rows_with({{"a", "x", "2"}, {"b", "x", "2"}});
  ValidateOptions options;
  options.ids = {"b", "zz"};
  const Validation v = run(text, constant(2), options);
  ASSERT_EQ(v.rows.size(), 1u);
  EXPECT_EQ(v.rows[0].id, "b");
  EXPECT_THAT(v.warnings, Contains("no row has the id 'zz'"));
  options.ids.clear();
  options.group = "delta";
  auto file = parse_cases(text, "runs.yaml");
  EXPECT_FALSE(validate({file.value()}, data(), constant(2), options));
  EXPECT_FALSE(validate({}, data(), constant(2), {}));
}

TEST(Selection, InterruptedRowsAreSkipped) {
  const std::atomic<bool> stop{true};
  ValidateOptions options;
  options.stop = &stop;
  const Validation v = run(kRow, constant(2), options);
  EXPECT_EQ(v.rows[0].reason, "interrupted");
}

TEST(Printing, JsonKeepsTheContract) {
  const auto j = nlohmann::json::parse(print_json(
      run(std::string(kRow) + edited(kRow, {{"id: one", "id: two"}, {"task: pretrain", "task: dpo"}}), constant(2.5))));
  for (const char* key : {"id", "status", "reason", "predicted_step_time_s", "measured_step_time_s", "relative_error",
                          "predicted_peak_gib", "measured_peak_gib", "memory_kind", "cluster", "tier"})
    for (const auto& row : j["rows"]) EXPECT_TRUE(row.contains(key)) << key;
  for (const char* key : {"rows", "compared", "skipped", "coverage", "mean_abs_error", "weighted_mean_abs_error",
                          "median_abs_error", "p90_abs_error", "bias", "by_group", "by_tier"})
    EXPECT_TRUE(j["summary"].contains(key)) << key;
  EXPECT_EQ(j["rows"][0]["status"], "compared");
  EXPECT_EQ(j["rows"][1]["status"], "skipped");
  EXPECT_TRUE(j["rows"][1]["relative_error"].is_null());
}

TEST(Printing, TableAndMarkdownHoldEveryRow) {
  const Validation v =
      run(std::string(kRow) + edited(kRow, {{"id: one", "id: two"}, {"task: pretrain", "task: dpo"}}), constant(2.5));
  EXPECT_THAT(print_table(v), HasSubstr("+25.0 %"));
  EXPECT_THAT(print_table(v), HasSubstr("task 'dpo' is not built yet"));
  EXPECT_THAT(print_markdown(v), HasSubstr("| one "));
}

}  // namespace
}  // namespace wt::study
