#include "import/megatron.hpp"
#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// A small GPT in Megatron's flags.
const std::string kModel =
    " --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024"
    " --max-position-embeddings 1024 --micro-batch-size 2 --vocab-size 1000";

Imported run(const std::string& flags, Options options = on_cluster()) {
  return import_text(
      "run.sh", "#!/bin/bash\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py" + kModel + " " + flags + "\n",
      options);
}

TEST(MegatronArgs, DefaultsAreMegatrons) {
  const auto in = run("--bf16 --global-batch-size 64");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->model.ffn_hidden, 2048);
  EXPECT_EQ(in.job->model.kv_heads, 8);
  EXPECT_TRUE(in.job->model.tied_embeddings);
  EXPECT_TRUE(in.job->model.mlp_bias);
  EXPECT_EQ(in.job->model.position, Position::learned);
  EXPECT_TRUE(in.job->training.dropout);  // 0.1 each
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::megatron);
  EXPECT_EQ(in.job->strategy.gradient_dtype, DType::f32);
  EXPECT_EQ(in.job->training.vocab_multiple, 128);
  EXPECT_EQ(in.job->cluster.ranks(), 16);
}

TEST(MegatronArgs, SwigluHasItsOwnWidth) {
  const auto in = run("--bf16 --swiglu");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->model.ffn_hidden, 1344);  // int(8 * 512 / 3 / 64) * 64
  EXPECT_TRUE(in.job->model.gated_mlp);
  EXPECT_EQ(in.job->training.global_batch, 32);  // micro x data
}

TEST(MegatronArgs, GradientsFollowPrecision) {
  EXPECT_EQ(run("--fp16").job->strategy.gradient_dtype, DType::f16);
  EXPECT_EQ(run("--bf16 --grad-reduce-in-bf16").job->strategy.gradient_dtype, DType::bf16);
  EXPECT_EQ(run("--fp16 --accumulate-allreduce-grads-in-fp32").job->strategy.gradient_dtype, DType::f32);
}

TEST(MegatronArgs, QueryGroupsNeedTheirSwitch) {
  const auto without = run("--bf16 --num-query-groups 2");
  ASSERT_WHOLE(without);
  EXPECT_EQ(without.job->model.kv_heads, 8);
  EXPECT_THAT(without.report.notes, Contains(HasSubstr("no effect without --group-query-attention")));
  EXPECT_EQ(run("--bf16 --group-query-attention --num-query-groups 2").job->model.kv_heads, 2);
}

TEST(MegatronArgs, SequenceParallelAtTensorOneIsSwitchedOff) {
  const auto in = run("--bf16 --sequence-parallel");
  ASSERT_WHOLE(in);
  EXPECT_FALSE(in.job->strategy.sequence_parallel);
  EXPECT_THAT(in.report.notes, Contains(HasSubstr("switches it off in silence")));
}

TEST(MegatronArgs, AssertionsOfMegatronAreFaults) {
  EXPECT_THAT(errors(run("--bf16 --fp16")), HasSubstr("are both given"));
  EXPECT_THAT(errors(run("--bf16 --overlap-param-gather")), HasSubstr("needs --use-distributed-optimizer"));
  EXPECT_THAT(errors(run("--bf16 --use-distributed-optimizer --overlap-param-gather")),
              HasSubstr("needs --overlap-grad-reduce"));
  EXPECT_THAT(errors(run("--bf16 --recompute-granularity full")), HasSubstr("full needs --recompute-method"));
  EXPECT_THAT(errors(run("--bf16 --tp-comm-overlap --tensor-model-parallel-size 2")),
              HasSubstr("needs --sequence-parallel"));
  EXPECT_THAT(errors(run("--bf16 --batch-size 4")), HasSubstr("it is --micro-batch-size now"));
}

// P81: 30 layers on 4 stages became 28 in silence.
TEST(MegatronArgs, LayersThatDoNotDivideAreAFault) {
  EXPECT_THAT(errors(run("--bf16 --num-layers 30 --pipeline-model-parallel-size 4")),
              HasSubstr("30 layers do not divide over 4 stages"));
}

// P86: a row of a paper whose degrees do not give its number of GPUs.
TEST(MegatronArgs, DegreesThatDoNotGiveTheWorldAreAFault) {
  const auto in = run("--bf16 --tensor-model-parallel-size 3");
  EXPECT_THAT(errors(in), HasSubstr("16 ranks are not a multiple of tensor 3"));
  EXPECT_THAT(errors(in), HasSubstr("nearest legal: 15, 18"));
}

TEST(MegatronArgs, VirtualStagesFromLayersOrCount) {
  const auto by_layers = run("--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2");
  ASSERT_WHOLE(by_layers);
  EXPECT_EQ(by_layers.job->strategy.virtual_stages, 2);
  EXPECT_EQ(by_layers.job->strategy.schedule, "interleaved");
  const auto by_count =
      run("--bf16 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 "
          "--no-overlap-p2p-communication");
  ASSERT_WHOLE(by_count);
  EXPECT_EQ(by_count.job->strategy.virtual_stages, 4);
  EXPECT_FALSE(by_count.job->strategy.overlap_p2p);
  EXPECT_THAT(errors(run("--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
                         "--num-virtual-stages-per-pipeline-rank 2")),
              HasSubstr("say the same twice"));
}

TEST(MegatronArgs, OldFlagsKeepTheirMeaningAndAreNamed) {
  const auto in =
      run("--fp16 --activations-checkpoint-method uniform --activations-checkpoint-num-layers 2 --DDP-impl local");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::full);
  EXPECT_EQ(in.job->strategy.recompute.layers, 2);
  EXPECT_THAT(in.report.notes, Contains(HasSubstr("--DDP-impl left Megatron-LM after 2023-09-05")));
}

TEST(MegatronArgs, UnknownFlagsHaveTheirLineAndAGuess) {
  const auto in = import_text(
      "run.sh", "torchrun pretrain_gpt.py \\\n" + kModel + " \\\n --bf16 \\\n --tensor-model-paralel-size 2\n",
      on_cluster());
  const auto unknown = in.report.of(Fate::unknown);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0]->from.where, "run.sh:4");
  EXPECT_THAT(unknown[0]->why, HasSubstr("did you mean '--tensor-model-parallel-size'?"));
}

TEST(MegatronArgs, ContextParallelExchange) {
  const auto in =
      run("--bf16 --context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2");
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.context, 4);
  EXPECT_EQ(in.job->strategy.context_exchange, ContextExchange::ring);
  EXPECT_EQ(in.job->strategy.context_all_to_all, 2);
  EXPECT_EQ(run("--bf16 --context-parallel-size 2 --cp-comm-type all_gather").job->strategy.context_exchange,
            ContextExchange::all_gather);
}

TEST(MegatronArgs, ExpertsAndLatentAttention) {
  const auto in =
      run("--bf16 --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 256 --moe-layer-freq '([0]*3+[1]*5)' "
          "--multi-latent-attention --kv-lora-rank 64 --expert-model-parallel-size 2");
  ASSERT_WHOLE(in);
  ASSERT_TRUE(in.job->model.moe);
  EXPECT_EQ(in.job->model.moe->experts, 16);
  EXPECT_EQ(in.job->model.moe->first_dense_layers, 3);
  ASSERT_TRUE(in.job->model.mla);
  EXPECT_EQ(in.job->model.mla->v_head_dim, 128);
  EXPECT_EQ(in.job->strategy.expert, 2);
}

TEST(MegatronArgs, TheVocabularyIsTheTokenizers) {
  const std::string line =
      "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8"
      " --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --bf16 ";
  const auto unknown = import_text("run.sh", line + "--tokenizer-type Llama2Tokenizer", on_cluster(8));
  EXPECT_THAT(missing(unknown), Contains("model.vocab"));
  const auto gpt2 = import_text("run.sh", line + "--tokenizer-type GPT2BPETokenizer", on_cluster(8));
  ASSERT_WHOLE(gpt2);
  EXPECT_EQ(gpt2.job->model.vocab, 50257);
}

TEST(MegatronYaml, FlagsInAMapWithVariables) {
  const std::string text =
      "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 8\n  --hidden-size: 512\n  --num-attention-heads: 8\n"
      "  --seq-length: 1024\n  --max-position-embeddings: 1024\n  --vocab-size: 1000\n  --micro-batch-size: ${MBS}\n"
      "  --bf16: true\n  --sequence-parallel: true\n  --tensor-model-parallel-size: 2\n  --finetune: false\n";
  const auto open = import_text("model.yaml", text);
  EXPECT_THAT(errors(open),
              HasSubstr("model.yaml:10: --micro-batch-size: is '${MBS}': not known is MBS (--var MBS=VALUE)"));
  Options o = on_cluster();
  o.vars = {{"MBS", "4"}};
  const auto in = import_text("model.yaml", text, o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.micro_batch, 4);
  EXPECT_TRUE(in.job->strategy.sequence_parallel);
}

TEST(MegatronLog, TheResolvedDumpNeedsNoDefaults) {
  std::string text = "host-0: some line\nhost-0: ------------------------ arguments ------------------------\n";
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, std::string>>{{"num_layers", "8"},
                                                        {"hidden_size", "512"},
                                                        {"num_attention_heads", "8"},
                                                        {"ffn_hidden_size", "2048"},
                                                        {"seq_length", "1024"},
                                                        {"max_position_embeddings", "1024"},
                                                        {"micro_batch_size", "2"},
                                                        {"global_batch_size", "64"},
                                                        {"world_size", "16"},
                                                        {"fp16", "True"},
                                                        {"bf16", "False"},
                                                        {"hidden_dropout", "0.0"},
                                                        {"attention_dropout", "0.0"},
                                                        {"tensor_model_parallel_size", "2"},
                                                        {"num_experts", "[1]"},
                                                        {"deepspeed", "True"},
                                                        {"zero_stage", "1"},
                                                        {"transformer_impl", "local"},
                                                        {"deepspeed_config", "ds.json"}})
    text += "host-0:   " + field + " ......................... " + value + "\n";
  text +=
      "host-0: -------------------- end of arguments ---------------------\n"
      "host-0:  > padded vocab (size: 1000) with 24 dummy tokens (new size: 1024)\n"
      "host-0: [INFO] print_user_config]   json = {\nhost-0:     \"train_micro_batch_size_per_gpu\": 2,\n"
      "host-0:     \"zero_optimization\": {\nhost-0:         \"stage\": 1\nhost-0:     }, \"fp16\": {\"enabled\": "
      "true}\nhost-0: }\n";
  Options o;
  o.cluster = "dgx-h100";
  const auto in = import_text("run.log", text, o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->model.vocab, 1000);
  EXPECT_EQ(in.job->cluster.nodes, 2);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(in.job->strategy.attention, AttentionKernel::unfused);
  EXPECT_EQ(in.report.decided("model.hidden")->from.where, "run.log:4");
}

TEST(MegatronArgs, PythonLists) {
  EXPECT_EQ(python_list("([0]*2+[1]*3)"), (std::vector<int64_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(python_list("[1, 0]"), (std::vector<int64_t>{1, 0}));
  EXPECT_FALSE(python_list("[1]*999999999"));
  EXPECT_FALSE(python_list("2"));
  EXPECT_FALSE(python_list("[1"));
}

}  // namespace
}  // namespace wt::import
