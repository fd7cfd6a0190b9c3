// Scripts with a plugin of Colossal-AI's booster: what a call says, what the command line gives it, what only code knows.
#include "import/python_calls.hpp"

#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Options whole(std::vector<std::string> more = {}) {
  more.emplace_back("training.seq_len=2048");
  Options o = on_cluster(16, more);
  o.model = "llama3-8b";
  return o;
}

/// A script that makes `plugin` and loads `batch` sequences on each data-parallel rank.
std::string script(const std::string& plugin, const std::string& batch = "4") {
  return "import colossalai\nfrom colossalai.booster.plugin import *\n\nplugin = " + plugin +
         "\nloader = plugin.prepare_dataloader(data, batch_size=" + batch + ", shuffle=True)\n";
}

TEST(Colossalai, GeminiCutsWeightsInChunks) {
  const auto in =
      import_text("train.py", script("GeminiPlugin(precision='bf16', max_norm=1.0, max_prefetch=2)"), whole());
  ASSERT_WHOLE(in);
  const StrategySpec& s = in.job->strategy;
  EXPECT_EQ(s.data_parallel, DataParallel::zero3);
  EXPECT_EQ(s.bucket_elements, 32 << 20);
  EXPECT_EQ(s.zero.prefetch_elements, 2 * (int64_t{32} << 20));
  EXPECT_EQ(s.zero.persistence_threshold, 0);
  EXPECT_EQ(s.gradient_dtype, DType::bf16);
  EXPECT_TRUE(s.overlap_grad_reduce);
  EXPECT_EQ(in.job->training.gradient_clipping, 1.0);
  EXPECT_EQ(in.job->training.micro_batch, 4);
  EXPECT_EQ(in.job->training.global_batch, 64);
  EXPECT_EQ(in.report.decided("training.precision")->from.where, "train.py:4");
}

TEST(Colossalai, GeminiOffloadsWholeFractionsOnly) {
  const auto in = import_text(
      "train.py", script("GeminiPlugin(offload_optim_frac=1.0, offload_param_frac=1, pin_memory=True)"), whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.offload.optimizer, OffloadDevice::cpu);
  EXPECT_EQ(in.job->strategy.offload.parameters, OffloadDevice::cpu);
  EXPECT_TRUE(in.job->strategy.offload.pinned);
  EXPECT_THAT(errors(import_text("train.py", script("GeminiPlugin(shard_param_frac=0.5)"), whole())),
              HasSubstr("train.py:4: shard_param_frac: 0.5: a part of the chunks cannot be planned yet (legal: 0, 1)"));
}

TEST(Colossalai, LowLevelZeroStages) {
  const auto one = import_text("train.py", script("LowLevelZeroPlugin()"), whole());
  ASSERT_WHOLE(one);
  EXPECT_EQ(one.job->strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(one.job->strategy.bucket_elements, 12 << 20);
  EXPECT_EQ(one.job->training.param_dtype, DType::f16);  // the plugin's default
  EXPECT_EQ(one.job->training.gradient_clipping, 0);
  const auto two = import_text(
      "train.py",
      script("LowLevelZeroPlugin(stage=2, precision=\"bf16\", cpu_offload=True, reduce_bucket_size_in_m=24)"), whole());
  ASSERT_WHOLE(two);
  EXPECT_EQ(two.job->strategy.data_parallel, DataParallel::zero2);
  EXPECT_EQ(two.job->strategy.bucket_elements, 24 << 20);
  EXPECT_EQ(two.job->strategy.offload.optimizer, OffloadDevice::cpu);
  EXPECT_EQ(two.report.of(Fate::not_carried).at(0)->from.key, "stage");  // it reduce-scatters
  EXPECT_THAT(errors(import_text("train.py", script("LowLevelZeroPlugin(stage=3)"), whole())), HasSubstr("no stage 3"));
}

TEST(Colossalai, HybridParallel) {
  const auto in = import_text(
      "train.py",
      script("HybridParallelPlugin(\n    tp_size=2,\n    pp_size=2,\n    pp_style='interleaved',\n    "
             "num_model_chunks=2,\n"
             "    microbatch_size=1, zero_stage=1, precision='bf16', enable_all_optimization=True,\n"
             "    enable_sequence_parallelism=True, sequence_parallelism_mode='split_gather', overlap_p2p=False)",
             "8"),
      whole());
  ASSERT_WHOLE(in);
  const StrategySpec& s = in.job->strategy;
  EXPECT_EQ(s.tensor, 2);
  EXPECT_EQ(s.pipeline, 2);
  EXPECT_EQ(s.virtual_stages, 2);
  EXPECT_EQ(s.schedule, "interleaved");
  EXPECT_FALSE(s.overlap_p2p);
  EXPECT_TRUE(s.sequence_parallel);
  EXPECT_EQ(s.data_parallel, DataParallel::zero1);
  EXPECT_EQ(in.job->training.micro_batch, 1);
  EXPECT_EQ(in.job->training.global_batch, 32);  // 8 sequences on each of 4 data-parallel ranks
  EXPECT_EQ(in.job->training.vocab_multiple, 64);
  EXPECT_EQ(in.report.decided("strategy.pipeline")->from.where, "train.py:6");
}

TEST(Colossalai, HybridParallelRefusesWhatThePluginRefuses) {
  EXPECT_THAT(errors(import_text("train.py", script("HybridParallelPlugin(tp_size=1, pp_size=2)"), whole())),
              HasSubstr("2 stages without num_microbatches or microbatch_size"));
  EXPECT_THAT(errors(import_text("train.py", script("HybridParallelPlugin(tp_size=2, pp_size=1, sp_size=2)"), whole())),
              HasSubstr("2 without enable_sequence_parallelism"));
}

TEST(Colossalai, SequenceParallelModesAreNotAllMegatrons) {
  const auto in = import_text("train.py",
                              script("HybridParallelPlugin(tp_size=1, pp_size=1, sp_size=4, "
                                     "enable_sequence_parallelism=True, sequence_parallelism_mode='ring_attn')"),
                              whole());
  ASSERT_WHOLE(in);
  EXPECT_FALSE(in.job->strategy.sequence_parallel);
  EXPECT_EQ(in.job->strategy.context, 4);
  EXPECT_EQ(in.job->strategy.context_exchange, ContextExchange::ring);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::ddp);  // zero_stage 0
  EXPECT_FALSE(in.job->strategy.ddp.bucket_view);
}

TEST(Colossalai, UnequalStages) {
  Options o = whole();
  const auto in = import_text("train.py",
                              script("HybridParallelPlugin(tp_size=1, pp_size=4, num_microbatches=4, "
                                     "num_layers_per_stage=[7, 8, 8, 9])"),
                              o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.pipeline_layout, "Et*7|t*8|t*8|t*9L");
  EXPECT_EQ(in.job->training.micro_batch, 1);
}

TEST(Colossalai, TorchPlugins) {
  const auto fsdp =
      import_text("train.py",
                  script("TorchFSDPPlugin(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, "
                         "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), "
                         "cpu_offload=CPUOffload(offload_params=True), auto_wrap_policy=policy)"),
                  whole());
  ASSERT_WHOLE(fsdp);
  EXPECT_EQ(fsdp.job->strategy.fsdp.sharding, ShardingKind::shard_grad_op);
  EXPECT_EQ(fsdp.job->strategy.fsdp.wrap, WrapKind::block);
  EXPECT_EQ(fsdp.job->strategy.gradient_dtype, DType::f32);
  EXPECT_EQ(fsdp.job->strategy.offload.parameters, OffloadDevice::cpu);
  const auto ddp = import_text("train.py",
                               script("TorchDDPPlugin(bucket_cap_mb=50, find_unused_parameters=True)") +
                                   "booster = Booster(plugin=plugin, mixed_precision='bf16')\n",
                               whole());
  ASSERT_WHOLE(ddp);
  EXPECT_EQ(ddp.job->strategy.ddp_bucket.n, int64_t{50} << 20);
  EXPECT_TRUE(ddp.job->strategy.ddp.find_unused);
  EXPECT_EQ(ddp.job->training.param_dtype, DType::bf16);
}

const char* const kArguments =
    "import argparse, colossalai\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('-b', '--batch_size', type=int, default=2)\n"
    "parser.add_argument('--tp', type=int, default=1)\n"
    "parser.add_argument('-g', '--grad_checkpoint', action='store_true')\n"
    "parser.add_argument('-p', '--plugin', default='gemini')\nargs = parser.parse_args()\n"
    "def main():\n    if args.plugin == 'gemini':\n        plugin = GeminiPlugin(tp_size=args.tp, precision='bf16')\n"
    "    elif args.plugin == '3d':\n        plugin = HybridParallelPlugin(tp_size=args.tp, pp_size=2, "
    "microbatch_size=1, zero_stage=1)\n"
    "    loader = plugin.prepare_dataloader(data, batch_size=args.batch_size)\n"
    "    if args.grad_checkpoint:\n        model.gradient_checkpointing_enable()\n";

TEST(Colossalai, DefaultsOfTheCommandLineHoldUntilALaunchSaysMore) {
  const auto in = import_text("bench.py", kArguments, whole());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero3);
  EXPECT_EQ(in.job->training.micro_batch, 2);
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::none);
  EXPECT_THAT(in.report.notes, Contains(HasSubstr("args.batch_size is 2, the default of its command line")));
}

TEST(Colossalai, TheLaunchLineGivesTheArguments) {
  Options o = whole();
  o.gpus = 0;
  const auto in =
      import_files({{"run.sh",
                     "colossalai run --nproc_per_node 8 --hostfile hosts.txt bench.py -p 3d --tp 2 -b 16 -g "
                     "--xformers\n"},
                    {"bench.py", kArguments},
                    {"hosts.txt", "node-a\nnode-b\n"}},
                   o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.ranks(), 16);
  EXPECT_EQ(in.job->strategy.tensor, 2);
  EXPECT_EQ(in.job->strategy.pipeline, 2);
  EXPECT_EQ(in.job->training.micro_batch, 1);
  EXPECT_EQ(in.job->training.global_batch, 64);  // 16 on each of 4
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::full);
  EXPECT_EQ(fate_of(in, "--xformers"), "not_carried");  // nobody in the script asks for it
  EXPECT_EQ(fate_of(in, "--tp"), "");
}

TEST(Colossalai, WhatTheProgramComputesIsAskedFor) {
  const auto in = import_text("train.py", script("GeminiPlugin(tp_size=degree(world))"), whole());
  EXPECT_FALSE(in.job);
  EXPECT_THAT(missing(in), Contains("tp_size of GeminiPlugin (train.py:4)"));
  const auto named = import_text("train.py", script("HybridParallelPlugin(tp_size=TP, pp_size=1)"), whole());
  EXPECT_THAT(missing(named), Contains("tp_size of HybridParallelPlugin (train.py:4)"));
  Options o = whole();
  o.vars = {{"TP", "2"}};
  const auto given = import_text("train.py", script("HybridParallelPlugin(tp_size=TP, pp_size=1)"), o);
  ASSERT_WHOLE(given);
  EXPECT_EQ(given.job->strategy.tensor, 2);
}

TEST(Colossalai, SeveralPluginsAreAskedFor) {
  const auto in = import_text("train.py", script("GeminiPlugin()") + "other = LowLevelZeroPlugin()\n", whole());
  EXPECT_FALSE(in.job);
  EXPECT_THAT(missing(in), Contains("which plugin"));
  Options o = whole();
  o.vars = {{"plugin", "6"}};
  const auto chosen = import_text("train.py", script("GeminiPlugin()") + "other = LowLevelZeroPlugin()\n", o);
  ASSERT_WHOLE(chosen);
  EXPECT_EQ(chosen.job->strategy.data_parallel, DataParallel::zero1);
}

TEST(Colossalai, UnknownArgumentsHaveTheirLineAndAGuess) {
  const auto in = import_text("train.py", script("GeminiPlugin(precision='bf16',\n   max_prefech=1)"), whole());
  ASSERT_WHOLE(in);
  const auto unknown = in.report.of(Fate::unknown);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0]->from.where, "train.py:5");
  EXPECT_THAT(unknown[0]->why, HasSubstr("did you mean 'max_prefetch'?"));
}

TEST(PythonCalls, StringsAndCommentsAreNoCode) {
  constexpr std::string_view kName[] = {"f"};
  const auto calls = python_calls(
      "# f(a=1)\ns = 'f(b=2)'\nt = \"\"\"\nf(c=3)\n\"\"\"\ndef f(x):\n  pass\nclass f(Base):\n  pass\ng.f(\n  a='(,)', "
      "b=[1, 2],  # f(\n  c={'k': h(1)},\n)\nf(never\n",
      kName);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].line, 10);
  ASSERT_EQ(calls[0].arguments.size(), 3u);
  EXPECT_EQ(calls[0].arguments[0].text, "'(,)'");
  EXPECT_EQ(calls[0].arguments[1].text, "[1, 2]");
  ASSERT_TRUE(calls[0].find("c"));
  EXPECT_EQ(calls[0].find("c")->line, 12);
}

TEST(PythonCalls, Values) {
  const PythonNames names = [](std::string_view n) {
    return n == "args.sp" ? std::optional<std::string>("4") : std::nullopt;
  };
  std::string open;
  const auto value = [&](std::string_view e) { return python_value(e, names, open).value_or("?"); };
  EXPECT_EQ(value("2**8"), "256");
  EXPECT_EQ(value(" 'bf16' "), "bf16");
  EXPECT_EQ(value("args.sp > 1"), "True");
  EXPECT_EQ(value("not args.sp == 4"), "False");
  EXPECT_EQ(value("torch.bfloat16"), "torch.bfloat16");
  EXPECT_EQ(value("1_000"), "1000");
  EXPECT_EQ(open, "");
  EXPECT_EQ(value("world // 2"), "?");
  EXPECT_EQ(open, "world // 2");
}

}  // namespace
}  // namespace wt::import
