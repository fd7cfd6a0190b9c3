// The YAML and TOML formats: torchtitan, accelerate, NeMo, GPT-NeoX, nanotron, LLaMA-Factory, Axolotl; and files that are
// refused by name.
#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// -------------------------------------------------------------------------------------------------- torchtitan

const std::string kTitan = R"([model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4_096
steps = 10
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
)";

TEST(TorchtitanToml, ModelStrategyBatch) {
  const auto in = import_text("t.toml", kTitan);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->model.layers, 32);
  EXPECT_EQ(in.job->training.seq_len, 4096);
  EXPECT_EQ(in.job->training.global_batch, 32);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::f32);  // mixed_precision_reduce
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::full);
  EXPECT_FALSE(in.job->training.fused_kernels);
}

TEST(TorchtitanToml, EveryNthLayerIsACheckpoint) {
  std::string text = kTitan;
  text.replace(text.find("\"full\""), 6, "\"selective\"\nselective_ac_option = '2'");
  const auto in = import_text("t.toml", text);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.recompute.method, RecomputeMethod::uniform);
  EXPECT_EQ(in.job->strategy.recompute.every, 2);
}

TEST(TorchtitanToml, Float8IsTaken) {
  std::string text = kTitan;
  text.replace(text.find("[training]"), 10, "converters = [\"float8\"]\n[training]");
  const auto in = import_text("t.toml", text);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.compute_dtype, DType::f8);
  EXPECT_EQ(in.job->training.fp8_recipe, Fp8Recipe::current);
  EXPECT_TRUE(in.report.of(Fate::unknown).empty());
}

TEST(TorchtitanToml, HybridShardingAndTensor) {
  std::string text = kTitan;
  text.replace(text.find("data_parallel_shard_degree = -1"), 31,
               "data_parallel_replicate_degree = 2\ntensor_parallel_degree = 2\ndata_parallel_shard_degree = -1");
  const auto in = import_text("t.toml", text);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.fsdp.sharding, ShardingKind::hybrid_shard);
  EXPECT_EQ(in.job->strategy.fsdp.shard_size, 4);
  EXPECT_TRUE(in.job->strategy.sequence_parallel);
}

TEST(TorchtitanToml, TheStagesAreNotEvenByDefault) {
  std::string text = kTitan;
  text.replace(text.find("data_parallel_shard_degree = -1"), 31,
               "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"1f1b\"");
  const auto in = import_text("t.toml", text);
  ASSERT_WHOLE(in);
  EXPECT_TRUE(in.job->strategy.account_for_embedding);
  EXPECT_TRUE(in.job->strategy.account_for_loss);
  EXPECT_EQ(in.job->training.micro_batch, 1);  // pipeline_parallel_microbatch_size
  EXPECT_EQ(in.job->training.global_batch, 2 * 8);
}

TEST(TorchtitanToml, TheNewGenerationCountsTokens) {
  const auto in =
      import_text("t.toml",
                  "[model]\nname='llama3'\nflavor='8B'\n[training]\nmax_context_length = 2048\n"
                  "num_tokens_per_microbatch_per_dp_rank = 8192\n[parallelism]\ndata_parallel_shard_degree=-1\n");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.micro_batch, 4);
  EXPECT_THAT(
      errors(import_text(
          "t.toml",
          "[training]\nmax_context_length = 3000\nnum_tokens_per_microbatch_per_dp_rank = 8192\n[parallelism]\n")),
      HasSubstr("are not whole sequences of 3000"));
}

TEST(TorchtitanToml, FaultsOfTheFramework) {
  std::string text = kTitan;
  text.replace(text.find("= -1"), 4, "= 8");
  EXPECT_THAT(errors(import_text("t.toml", text)), HasSubstr("legal: 16 or -1"));
  EXPECT_THAT(errors(import_text("t.toml", kTitan + "[compile]\nenable = 3\n")), HasSubstr("'3' is not true or false"));
  EXPECT_THAT(errors(import_text("t.toml", "[training\n[parallelism]")), HasSubstr("not TOML"));
  const auto unknown = import_text("t.toml", kTitan + "[memory]\nx = 1\n");
  EXPECT_EQ(fate_of(unknown, "memory"), "unknown");
}

// -------------------------------------------------------------------------------------------------- accelerate

Options for_script() {
  Options o = on_cluster(0, {"training.seq_len=2048", "training.micro_batch=1"});
  o.model = "llama3-8b";
  return o;
}

TEST(AccelerateYaml, FsdpOne) {
  const auto in =
      import_text("a.yaml",
                  "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n"
                  "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_sharding_strategy: 2\n  "
                  "fsdp_backward_prefetch: BACKWARD_POST\n",
                  for_script());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::fsdp);
  EXPECT_EQ(in.job->strategy.fsdp.sharding, ShardingKind::shard_grad_op);
  EXPECT_EQ(in.job->strategy.fsdp.backward_prefetch, BackwardPrefetch::post);
  EXPECT_EQ(in.job->cluster.nodes, 2);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::bf16);
}

TEST(AccelerateYaml, OffloadMovesShardsAndUpdate) {
  const auto in = import_text("a.yaml",
                              "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
                              "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_offload_params: true\n",
                              for_script());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.offload.parameters, OffloadDevice::cpu);
  EXPECT_EQ(in.job->strategy.offload.optimizer, OffloadDevice::cpu);
}

TEST(AccelerateYaml, TheWrapperTurnsPyTorchsDefaultsOff) {
  const auto in = import_text(
      "a.yaml", "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {offload_params: false}\n", for_script());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.fsdp.wrap, WrapKind::model);
  EXPECT_EQ(in.job->strategy.fsdp.backward_prefetch, BackwardPrefetch::none);
  EXPECT_EQ(in.job->training.compute_dtype, DType::f32);
}

TEST(AccelerateYaml, FsdpTwo) {
  const auto in =
      import_text("a.yaml",
                  "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
                  "  fsdp_reshard_after_forward: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
                  for_script());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(in.job->strategy.fsdp.reshard_after_forward, 0);
  EXPECT_THAT(
      errors(import_text(
          "a.yaml",
          "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_forward_prefetch: true\n",
          for_script())),
      HasSubstr("accelerate refuses it"));
}

TEST(AccelerateYaml, DeepSpeedInlineAndByFile) {
  const auto in = import_text(
      "a.yaml",
      "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
      "  gradient_accumulation_steps: 2\n  offload_param_device: none\n",
      for_script());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero3);
  EXPECT_EQ(in.job->training.global_batch, 16);
  const std::string by_file =
      "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  "
      "deepspeed_config_file: ds.json\n";
  EXPECT_THAT(missing(import_text("a.yaml", by_file, for_script())), Contains("the DeepSpeed file"));
  const auto both = import_files(
      {{"a.yaml", by_file},
       {"ds.json",
        R"({"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})"}},
      for_script());
  ASSERT_WHOLE(both);
  EXPECT_EQ(both.job->strategy.data_parallel, DataParallel::zero2);
  EXPECT_THAT(errors(import_text("a.yaml", by_file + "  zero_stage: 2\n", for_script())),
              HasSubstr("stands beside deepspeed_config_file"));
}

// -------------------------------------------------------------------------------------------------------- NeMo

TEST(NemoYaml, ReferencesAndNames) {
  Options o;
  o.cluster = "dgx-a100-80";
  const auto in =
      import_text("n.yaml",
                  "trainer: {num_nodes: 4, devices: 8, precision: bf16-mixed, gradient_clip_val: 1.0}\nmodel:\n"
                  "  micro_batch_size: 1\n  global_batch_size: 64\n  tensor_model_parallel_size: 2\n  "
                  "pipeline_model_parallel_size: 4\n"
                  "  virtual_pipeline_model_parallel_size: 2\n  encoder_seq_length: 1024\n  max_position_embeddings: "
                  "${.encoder_seq_length}\n"
                  "  num_layers: 16\n  hidden_size: 512\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n  "
                  "num_attention_heads: 8\n"
                  "  num_query_groups: 4\n  sequence_parallel: True\n  normalization: rmsnorm\n  activation: "
                  "fast-swiglu\n  hidden_dropout: 0.0\n"
                  "  attention_dropout: 0.0\n  tokenizer: {type: GPT2BPETokenizer}\n  optim: {name: "
                  "distributed_fused_adam, overlap_grad_sync: true}\n"
                  "  activations_checkpoint_granularity: selective\n  typo_key: 3\n",
                  o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->model.ffn_hidden, 2048);
  EXPECT_EQ(in.job->model.max_context, 1024);
  EXPECT_EQ(in.job->model.kv_heads, 4);
  EXPECT_TRUE(in.job->model.gated_mlp);
  EXPECT_EQ(in.job->strategy.virtual_stages, 2);
  EXPECT_FALSE(in.job->strategy.overlap_p2p);  // NeMo's default
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::distributed_optimizer);
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::selective);
  EXPECT_EQ(in.job->cluster.nodes, 4);
  EXPECT_EQ(fate_of(in, "model.typo_key"), "unknown");
  EXPECT_EQ(in.report.decided("strategy.data_parallel")->written, "distributed_fused_adam");
}

TEST(NemoYaml, AReferenceToAnotherFileIsNamed) {
  const auto in = import_text(
      "n.yaml",
      "trainer: {num_nodes: 1, devices: 8, precision: bf16}\nmodel: {num_layers: '${oc.env:L}', hidden_size: 512}\n");
  EXPECT_THAT(errors(in), HasSubstr("${oc.env:L}"));
}

// ------------------------------------------------------------------------------------------- NeoX and nanotron

TEST(NeoxYaml, BracesPythonTruthAndDashes) {
  const auto in = import_text("n.yml",
                              "# a comment\n{\n  \"pipe-parallel-size\": 2,\n  \"model_parallel_size\": 2,\n  "
                              "\"num_layers\": 8, \"hidden_size\": 512, \"num_attention_heads\": 8,\n"
                              "  \"seq_length\": 1024, \"max_position_embeddings\": 1024, \"pos_emb\": \"rotary\", "
                              "\"no_weight_tying\": true, \"gpt_j_residual\": true,\n"
                              "  \"zero_optimization\": {\"stage\": 1, \"reduce_scatter\": True,},\n  "
                              "\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 8,\n"
                              "  \"fp16\": {\"enabled\": true, \"fp16\": true}, \"checkpoint_activations\": true, "
                              "\"checkpoint_num_layers\": 1,\n}\n");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.pipeline, 2);
  EXPECT_EQ(in.job->training.global_batch, 4 * 8 * 4);
  EXPECT_TRUE(in.job->model.parallel_block);
  EXPECT_FALSE(in.job->model.tied_embeddings);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero1);
  EXPECT_TRUE(in.job->strategy.serial_messages);
}

const std::string kNano =
    "model:\n  dtype: bfloat16\n  model_config: {is_llama_config: true, hidden_size: 512, num_hidden_layers: 8, "
    "intermediate_size: 1024, num_attention_heads: 8, num_key_value_heads: 2, vocab_size: 1000, "
    "max_position_embeddings: 2048, tie_word_embeddings: true}\n"
    "tokens: {micro_batch_size: 2, sequence_length: 1024, batch_accumulation_per_replica: ACC, train_steps: 10}\n"
    "optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, clip_grad: 1.0}\nparallelism: {dp: 2, pp: 4, tp: 2, "
    "tp_mode: REDUCE_SCATTER}\n";

std::string with(std::string text, const std::string& word, const std::string& value) {
  return text.replace(text.find(word), word.size(), value);
}

TEST(NanotronYaml, EverythingButTheCluster) {
  Options o;
  o.cluster = "dgx-h100";
  const auto in = import_text("nano.yaml", with(kNano, "ACC", "8"), o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.ranks(), 16);
  EXPECT_EQ(in.job->training.global_batch, 2 * 8 * 2);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::f32);
  EXPECT_TRUE(in.job->strategy.sequence_parallel);
  EXPECT_EQ(in.job->training.total_tokens, 10.0 * 32 * 1024);
}

// P58: the error names the knob in the file's own words.
TEST(NanotronYaml, TooFewMicroBatchesInItsOwnWords) {
  const auto in = import_text("nano.yaml", with(kNano, "ACC", "1"));
  EXPECT_THAT(errors(in), HasSubstr("tokens.batch_accumulation_per_replica: 1 micro-batches for pp 4"));
  EXPECT_THAT(errors(in), HasSubstr("at least pp - 1 = 3"));
}

// ---------------------------------------------------------------------------------- fine-tuning; other files

TEST(FineTuning, FullAndAdaptersAreRead) {
  const std::string llama =
      "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: KIND\ncutoff_len: "
      "2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nbf16: true\n";
  const auto hint = import_text("lf.yaml", with(llama, "KIND", "full"), on_cluster(8));
  EXPECT_THAT(print(hint.report, true), HasSubstr("--model qwen3-8b is built in"));
  Options o = on_cluster(8);
  o.model = "qwen3-8b";
  const auto in = import_text("lf.yaml", with(llama, "KIND", "full"), o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::ddp);
  EXPECT_EQ(in.job->training.global_batch, 16);
  EXPECT_EQ(in.job->training.lora.rank, 0);
  const auto lora = import_text("lf.yaml",
                                with(llama, "KIND", "lora") +
                                    "lora_rank: 16\nlora_alpha: 64\nlora_target: q_proj,v_proj\n"
                                    "quantization_bit: 4\nenable_liger_kernel: true\n",
                                o);
  ASSERT_WHOLE(lora);
  const LoraSpec& l = lora.job->training.lora;
  EXPECT_EQ(l.rank, 16);
  EXPECT_EQ(l.alpha, 64);
  EXPECT_EQ(l.targets, (std::vector<std::string>{"q", "v"}));
  EXPECT_EQ(l.base, BaseWeights::nf4);
  EXPECT_EQ(lora.job->training.loss_chunk, 64);  // 2048 rows, 151936 / 4096 = 38 times as wide: 54, the next power of 2
  EXPECT_THAT(errors(import_text("lf.yaml", with(llama, "KIND", "freeze"), o)),
              HasSubstr("'freeze' cannot be planned yet"));
  const std::string ax =
      "base_model: x/y\nadapter: qlora\nload_in_4bit: true\nmicro_batch_size: 1\nsequence_len: 512\n"
      "gradient_accumulation_steps: 2\nbf16: true\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\n";
  const auto qlora = import_text("ax.yaml", ax + "lora_target_linear: true\nsample_packing: true\n", o);
  ASSERT_WHOLE(qlora);
  EXPECT_EQ(qlora.job->training.lora.targets, std::vector<std::string>{"all"});
  EXPECT_TRUE(qlora.job->training.lora.dropout);
  EXPECT_THAT(print(qlora.report, true), HasSubstr("training.packing.mean_length"));
  EXPECT_THAT(errors(import_text("ax.yaml", ax + "lora_target_modules: [q_proj, lm_head]\n", o)),
              HasSubstr("'lm_head' is no product of a layer"));
  const auto axolotl = import_text(
      "ax.yaml",
      "base_model: x/y\nmicro_batch_size: 1\nsequence_len: 512\ngradient_accumulation_steps: 2\nbf16: "
      "true\nfsdp_version: 2\n"
      "fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, reshard_after_forward: true}\ntensor_parallel_size: 2\n",
      o);
  ASSERT_WHOLE(axolotl);
  EXPECT_EQ(axolotl.job->strategy.data_parallel, DataParallel::fsdp2);
  EXPECT_EQ(axolotl.job->strategy.tensor, 2);
}

TEST(Recognise, OtherFilesAreRefusedWithTheirReason) {
  const std::vector<std::tuple<std::string, std::string, std::string>> files = {
      {"a.yml", "base_config: base.yml\nmodel_name: x\n", "MaxText"},
      {"a.yaml", "hardware_config: {node_bw: 1}\n", "Primus"},
      {"a.json", "{\"num_procs\": 8, \"tensor_par\": 4}", "Calculon"},
      {"a.log", "# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n", "nccl-tests"},
      {"a.xml", "<system version=\"1\">", "topology of NCCL"},
      {"a.py", "def config(): pass", "Python"},
      {"a.gz", "\x1f\x8b\x08", "compressed"},
      {"a.yaml", "x: 1\n", "is of no format that is known"},
      {"a.txt", "hello", "is of no format that is known"},
      {"empty.json", "", "is empty"}};
  for (const auto& [name, text, reason] : files) {
    const auto in = import_text(name, text);
    EXPECT_FALSE(in.job);
    EXPECT_THAT(errors(in), HasSubstr(reason)) << name;
  }
}

TEST(Recognise, HostileYamlAndJsonAreBounded) {
  std::string bomb = "distributed_type: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'l'; ++c) {
    bomb += std::string("k") + c + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) bomb += std::string(i ? ", *" : "*") + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(errors(import_text("a.yaml", bomb)), HasSubstr("once anchors are expanded"));
  EXPECT_THAT(errors(import_text("a.json", std::string(100000, '['))), HasSubstr("levels deep"));
  EXPECT_THAT(errors(import_text("a.toml", std::string(100000, '['))), HasSubstr("not TOML"));
  std::string dots = "a";
  for (int i = 0; i < 50000; ++i) dots += ".a";
  EXPECT_THAT(errors(import_text("a.toml", dots + " = 1")), HasSubstr("levels deep"));
  EXPECT_THAT(errors(import_text("a.json", "{\"x\": \"" + std::string(size_t{5} << 20, 'x') + "\"}")),
              HasSubstr("larger than the limit"));
}

TEST(Recognise, AHundredMegabytesOfLogAreReadOnce) {
  std::string text(size_t{100} << 20, 'x');
  for (size_t i = 80; i < text.size(); i += 81) text[i] = '\n';
  const auto in = import_text("big.log", text);
  EXPECT_FALSE(in.job);
  EXPECT_THAT(errors(in), HasSubstr("is of no format that is known"));
}

TEST(Recognise, OneForcedFormat) {
  Options o = on_cluster();
  o.format = "no_such";
  EXPECT_THAT(errors(import_text("a.yaml", "x: 1", o)), HasSubstr("legal: accelerate_yaml"));
}

TEST(Options, UnknownKeysOfSetAreFaults) {
  EXPECT_THAT(errors(import_text("a.json", "{\"train_batch_size\": 8}", on_cluster(8, {"training.seqlen=3"}))),
              HasSubstr("did you mean 'training.seq_len'?"));
  EXPECT_THAT(errors(import_text("a.json", "{\"train_batch_size\": 8}", on_cluster(8, {"nonsense"}))),
              HasSubstr("key=value"));
}

}  // namespace
}  // namespace wt::import
