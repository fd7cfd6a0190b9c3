// Reported cases about host memory, states and verdicts near the edge, and about figures that a log states and a machine
// cannot: each by its name in docs/user_cases.md.
#include <fmt/format.h>

#include "study/deepspeed_estimate.hpp"
#include "study/run_loop.hpp"
#include "user_case.hpp"

namespace wt::study {
namespace {

using testing::HasSubstr;

double host_needed(const JobResult& r) { return static_cast<double>(memory(r).host_needed.n); }

// ------------------------------------------------------------------------------------------------ memory of the host

// P02: DeepSpeed's estimator says 0.49 GB a GPU for 6.8 B parameters with everything offloaded; the run took 14.7 GiB once it
// was set up and 21.3 later. The estimate holds the largest layer and nothing else.
TEST(UserCases, P02_TheEstimatorHoldsTheLargestLayerAlone) {
  const JobResult r =
      run("model: llama-7b\nframework: deepspeed\ncluster: {from: dgx-a100-40, nodes: 1, node: {devices: 4}}\n"
          "strategy: {data_parallel: zero3, offload: {optimizer: cpu, parameters: cpu}}\n"
          "training: {micro_batch: 1, global_batch: 4, seq_len: 2048, precision: fp16}\n");
  const auto rows = deepspeed_estimate(3, state_counts(r.job));
  EXPECT_WITHIN(rows[0].device_bytes / kGib, 0.49, 0.01);
  EXPECT_GT(reserved(r), 20 * rows[0].device_bytes);
  for (const char* part : {"weights", "gradients", "activations"}) EXPECT_GT(item(r, part), 0) << part;
}

// P08: 72 B parameters with everything on a host of 800 GB: killed. The states alone are 12 bytes a parameter.
TEST(UserCases, P08_TheHostIsShort) {
  auto of = [](const char* pinned) {
    return run(
        fmt::format("model: qwen2.5-72b\nframework: deepspeed\n"
                    "cluster: {{from: dgx-a100-80, nodes: 1, node: {{host_memory: 800 GB}}}}\n"
                    "strategy: {{data_parallel: zero3, recompute: full,\n"
                    "           offload: {{optimizer: cpu, parameters: cpu, pinned: {}}}}}\n"
                    "training: {{micro_batch: 4, global_batch: 32, seq_len: 2560, precision: bf16}}\n",
                    pinned));
  };
  const JobResult r = of("true");
  EXPECT_GT(host_needed(r), 12 * 72.7e9);
  EXPECT_EQ(memory(r).fits, "out_of_memory");
  EXPECT_TRUE(memory(r).host_overflows());
  EXPECT_LT(reserved(r), 80 * kGib);  // the devices have room
  EXPECT_GT(seconds(of("false")), seconds(r));
}

// P09: ZeRO 3 with offload of 7 B parameters: a host of 94 GB is not enough for one GPU; 178 GB were in use with eight, 160 and
// more with four. What the ranks share is the states; each has a process beside.
TEST(UserCases, P09_HostMemoryByRanksOfANode) {
  auto of = [](int devices, const char* host) {
    return run(fmt::format(
        "model: llama-7b\nframework: deepspeed\n"
        "cluster: {{from: dgx-a100-40, nodes: 1, node: {{devices: {}, host_memory: {}}}}}\n"
        "strategy: {{data_parallel: zero3, recompute: full, offload: {{optimizer: cpu, parameters: cpu}}}}\n"
        "training: {{micro_batch: 1, global_batch: {}, seq_len: 2048, precision: fp16}}\n",
        devices, host, devices));
  };
  EXPECT_TRUE(memory(of(1, "94 GB")).host_overflows());
  const double four = host_needed(of(4, "1 TB")), eight = host_needed(of(8, "1 TB"));
  EXPECT_GT(eight, four);
  EXPECT_WITHIN(eight, 178 * kGb, 0.25);
  EXPECT_WITHIN(four, 160 * kGb, 0.25);
}

// P10: 100 B parameters on 64 V100 of nodes with 376 GB: stage 3 with everything on the host used about 220 GB a node.
TEST(UserCases, P10_StageThreeSharesTheHostAmongAllRanks) {
  auto of = [](const char* strategy) {
    return run(
        fmt::format("model: {{name: gpt-100b, layers: 80, hidden: 10240, heads: 80, kv_heads: 80, head_dim: 128, "
                    "ffn_hidden: 40960,\n"
                    "        vocab: 50304, max_context: 1024, gated_mlp: false, activation: gelu, norm: layer_norm,\n"
                    "        position: learned, tied_embeddings: true, attention_bias: true, output_bias: true,\n"
                    "        mlp_bias: true}}\n"
                    "framework: deepspeed\ncluster: {{from: dgx-1v, nodes: 8, node: {{host_memory: 376 GB}}}}\n"
                    "strategy: {{recompute: full, {}}}\n"
                    "training: {{micro_batch: 1, global_batch: 8, seq_len: 1024, precision: fp16}}\n",
                    strategy));
  };
  const JobResult three = of("tensor: 8, data_parallel: zero3, offload: {optimizer: cpu, parameters: cpu}");
  EXPECT_WITHIN(host_needed(three), 220 * kGb, 0.2);
  EXPECT_FALSE(memory(three).host_overflows());
  // Stage 2 keeps as many bytes there: what its run was killed for is not in the states.
  const JobResult two = of("tensor: 8, data_parallel: zero2, offload: {optimizer: cpu}");
  EXPECT_WITHIN(host_needed(two), host_needed(three), 0.25);
  EXPECT_GT(reserved(two), reserved(three));  // whole weights on the device
}

// P38: a first checkpoint of 744 B parameters staged on 16 nodes takes about 650 GB of host memory on each.
TEST(UserCases, P38_ACheckpointIsStagedOnTheHost) {
  const JobResult r = run(
      "model: {name: glm-744b, layers: 78, hidden: 6144, heads: 64, kv_heads: 8, head_dim: 192, ffn_hidden: 12288,\n"
      "        vocab: 154880, max_context: 8192, gated_mlp: true, activation: silu, norm: rms_norm, position: rotary,\n"
      "        tied_embeddings: false, moe: {experts: 256, top_k: 8, ffn_hidden: 2048, shared_ffn_hidden: 2048,\n"
      "        first_dense_layers: 3}}\n"
      "framework: megatron\ncluster: {from: gb300-nvl72, nodes: 16, node: {host_memory: 780 GB}}\n"
      "strategy: {tensor: 8, pipeline: 4, expert: 16, first_stage_layers: 19, last_stage_layers: 19,\n"
      "           experts: {tensor: 1}, sequence_parallel: true, data_parallel: distributed_optimizer, recompute: "
      "full}\n"
      "training: {micro_batch: 1, global_batch: 16, seq_len: 8192, precision: bf16}\n");
  EXPECT_WITHIN(static_cast<double>(count_parameters(r.job.model).total()), 744e9, 0.01);
  double staged = 0;
  for (const report::MemoryItem& i : memory(r).host_items)
    if (i.name == "checkpoint staged") staged = static_cast<double>(i.bytes.n);
  EXPECT_WITHIN(staged, 650 * kGb, 0.02);
  EXPECT_GT(memory(r).host_gib_per_node * kGib, 0.8 * 780 * kGb);  // on top of what the trainer needs itself
}

// ------------------------------------------------------------------------------------------- states and verdicts

// P16: Llama-2-70B, all of it, on 16 cards of 23 GB: 1.1 TB of states in 368 GB.
TEST(UserCases, P16_SeventyBillionOnSixteenSmallCards) {
  const JobResult r =
      run("model: llama2-70b\nframework: deepspeed\ncluster: {from: rtx4090-8x, nodes: 2}\n"
          "strategy: {data_parallel: zero3, recompute: full}\n"
          "training: {micro_batch: 1, global_batch: 16, seq_len: 2048, precision: bf16}\n");
  EXPECT_EQ(memory(r).fits, "out_of_memory");
  EXPECT_GT(reserved(r), 2.5 * static_cast<double>(memory(r).capacity.n));
}

// P19: Llama-2-70B on eight A100: 51 GB a GPU with 16-bit weights and moments that are 8 bits or paged out; Adam's fp32 states
// do not fit.
TEST(UserCases, P19_EightBitStates) {
  auto of = [](const char* moments) {
    return run(
        fmt::format("model: llama2-70b\nframework: fsdp\ncluster: {{from: dgx-a100-80, nodes: 1}}\n"
                    "strategy: {{data_parallel: fsdp2, recompute: full}}\n"
                    "training: {{micro_batch: 1, global_batch: 8, seq_len: 2048, precision: bf16,\n"
                    "           master_weights: false, moment_dtype: {}}}\n",
                    moments));
  };
  const JobResult narrow = of("fp8"), wide = of("fp32");
  EXPECT_EQ(memory(wide).fits, "out_of_memory");
  EXPECT_NE(memory(narrow).fits, "out_of_memory");
  EXPECT_WITHIN(static_cast<double>(memory(narrow).stages[0].peak.n), 51 * kGb, 0.2);
}

// P36: Llama-3-70B in fp8 on 32 H100, TP 4, PP 4: 30 to 60 % of the runs with 5 virtual stages ran out of memory, with 10 none
// did. The verdict has a band between yes and no, and more virtual stages hold less.
TEST(UserCases, P36_BetweenYesAndNo) {
  auto of = [](int stages) {
    return run(
        fmt::format("model: llama3-70b\nframework: megatron\ncluster: {{from: dgx-h100, nodes: 4}}\n"
                    "strategy: {{tensor: 4, pipeline: 4, virtual_stages: {}, schedule: interleaved,\n"
                    "           sequence_parallel: true, data_parallel: distributed_optimizer,\n"
                    "           overlap_grad_reduce: true, overlap_param_gather: true}}\n"
                    "training: {{micro_batch: 1, global_batch: 32, seq_len: 4096, precision: fp8}}\n",
                    stages));
  };
  const JobResult five = of(5), ten = of(10);
  EXPECT_LT(reserved(ten), reserved(five));
  EXPECT_NE(memory(five).fits, "fits");
  // As a function of the room: certain, then not, then certain again.
  const auto full = static_cast<int64_t>(reserved(five));
  const char* said[] = {"fits", "tight", "borderline", "out_of_memory"};
  const double shares[] = {1.2, 1.05, 0.99, 0.9};
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(report::verdict(Bytes{full}, Bytes{static_cast<int64_t>(shares[i] * static_cast<double>(full))}),
              said[i]);
}

// P96: 7 B on TP 8: a tool sums 24.4 GB of tensors, nvidia-smi shows 21. The two count different things: what the driver sees
// is what torch reserved, the context and the communicators.
TEST(UserCases, P96_TheDriverSeesMoreThanTorch) {
  const JobResult r =
      run("model: llama2-7b\nframework: megatron\ncluster: {from: dgx-a100-80, nodes: 1}\n"
          "strategy: {tensor: 8, data_parallel: megatron}\n"
          "training: {micro_batch: 1, global_batch: 1, seq_len: 4096, precision: bf16}\n");
  const report::StageMemory& s = memory(r).stages[memory(r).peak_stage];
  const int64_t torch = s.peak.n + s.cached.n;
  EXPECT_EQ(s.reserved.n, torch + s.context.n + s.communicators.n);
  EXPECT_GT(s.context.n + s.communicators.n, int64_t{1} << 29);
  EXPECT_WITHIN(static_cast<double>(s.reserved.n), 21 * kGib, 0.05);
  // 18 bytes a parameter on each of 8 ranks, which is most of it.
  EXPECT_WITHIN(item(r, "weights") + item(r, "gradients") + item(r, "master weights") + item(r, "optimizer states"),
                18 * 6.738e9 / 8, 0.03);
}

// ------------------------------------------------------------------------------------------------- figures and layouts

// P53: 6.1 B on eight H100, eight stages seven times slower than FSDP, with a bubble of 47 or of 30 %. Neither bubble nor
// messages explain it: by the plan stages are less than three times slower. A millisecond for each call does.
TEST(UserCases, P53_NotTheBubble) {
  auto of = [](const char* strategy, int batch, const char* more = "") {
    return run(
        fmt::format("model: gpt3-6.7b\nframework: megatron\ncluster: {{from: dgx-h100, nodes: 1}}\n"
                    "strategy: {{{}}}\n"
                    "training: {{micro_batch: 1, global_batch: {}, seq_len: 2048, precision: bf16{}}}\n",
                    strategy, batch, more));
  };
  const char* const stages = "pipeline: 8, data_parallel: megatron";
  auto rate = [](const JobResult& r) { return r.report.tokens_per_second; };
  const JobResult eight = of(stages, 8), sixteen = of(stages, 16);
  EXPECT_WITHIN(eight.report.bubble_fraction, 0.47, 0.15);  // the last stage, with its logits, waits for nobody
  EXPECT_LT(sixteen.report.bubble_fraction, eight.report.bubble_fraction - 0.08);
  const double sharded = rate(of("data_parallel: distributed_optimizer, recompute: full", 16));
  EXPECT_LT(sharded, 3 * rate(eight));
  EXPECT_GT(rate(sixteen), 1.2 * rate(eight));
  const char* const slow_calls = ", host_issue: 1 ms";
  EXPECT_GT(sharded, 7 * rate(of(stages, 8, slow_calls)));
}

// P54: a log says 1.49 TFLOP/s for 1.58 B parameters on 16 A100 with a micro-batch of 2. That is half a per cent of the peak,
// where the plan reaches forty times as much: the log's unit is not what it says. A micro-batch of 4 runs out of memory here
// too.
TEST(UserCases, P54_AUnitThatCannotBe) {
  auto of = [](int micro_batch) {
    return run(
        fmt::format("model: gpt2-xl\nframework: deepspeed\ncluster: {{from: dgx-a100-40, nodes: 2}}\n"
                    "strategy: {{data_parallel: zero1, attention: unfused}}\n"
                    "training: {{micro_batch: {}, global_batch: {}, seq_len: 1024, precision: fp16, dropout: true,\n"
                    "           fused_kernels: false}}\n",
                    micro_batch, 16 * micro_batch));
  };
  const JobResult two = of(2);
  EXPECT_GT(tflops(two), 20 * 1.49);
  EXPECT_LT(1.49 / two.report.peak_tflops, 0.01);
  EXPECT_EQ(memory(two).fits, "fits");
  EXPECT_EQ(memory(of(4)).fits, "out_of_memory");
}

// P88: Llama-3-70B, TP 4, PP 8, 5 virtual stages: the even split gives the last stage two layers and the loss. A layout that
// takes from it is faster and holds no more.
TEST(UserCases, P88_ALayoutBeatsTheEvenSplit) {
  auto of = [](const char* layout) {
    return run(
        fmt::format("model: llama3-70b\nframework: megatron\ncluster: {{from: dgx-h100, nodes: 8}}\n"
                    "strategy: {{tensor: 4, pipeline: 8, virtual_stages: 5, schedule: interleaved{},\n"
                    "           sequence_parallel: true, data_parallel: distributed_optimizer,\n"
                    "           overlap_grad_reduce: true, overlap_param_gather: true}}\n"
                    "training: {{micro_batch: 1, global_batch: 64, seq_len: 8192, precision: bf16}}\n",
                    layout));
  };
  const JobResult even = of(""), laid = of(", pipeline_layout: 'Et*2|(t*2|)*37t*3|tL'");
  EXPECT_LT(seconds(laid), seconds(even));
  EXPECT_LT(reserved(laid), 1.05 * reserved(even));
}

// P103, of a run's parts: waits for data and evaluations are inputs, and what they cost is said beside the step.
TEST(UserCases, P103_StallsAndEvaluationsAreInputs) {
  const char* const job =
      "model: llama3.1-8b\nframework: torchtitan\ncluster: {from: dgx-h100, nodes: 1}\n"
      "strategy: {data_parallel: fsdp2}\n"
      "training: {micro_batch: 1, global_batch: 8, seq_len: 8192, loop: {loader: 4, evaluate_every: 100,\n"
      "           evaluation_batches: 10}}\n";
  const JobResult r = run(job);
  const LoopShares shares = loop_shares(r.job, seconds(r));
  EXPECT_WITHIN(shares.stall, 2 / seconds(r) - 1, 1e-9);  // 8 sequences at 4 a second take 2 s
  EXPECT_WITHIN(shares.evaluation, 10.0 / 3 / 100, 1e-9);
  EXPECT_THAT(r.warnings, testing::Contains(HasSubstr("waits")));
  EXPECT_THAT(r.warnings, testing::Contains(HasSubstr("evaluations between steps")));
}

}  // namespace
}  // namespace wt::study
