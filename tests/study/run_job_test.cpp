// run_job: every schedule of the registry runs in the simulator, with and without overlap of its messages (the dry run of
// the plan is more patient than an engine that resolves waits in the order of issue), and what it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lower/schedule.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::study {
namespace {

// Rotary positions compute at any length: a warning where the model was made for fewer, and where it cannot be timed one
// fault that names the key, not one for each op of attention.
TEST(LongerThanTheContext, IsToldAtItsKey) {
  const auto of = [](const char* set) {
    const std::string overrides[] = {set};
    auto job = read_job(WT_SOURCE_DIR "/examples/tiny-llama.yaml", overrides);
    EXPECT_TRUE(job) << to_text(job.errors());
    return run_job(job.value());
  };
  const auto warned = [](const JobResult& r) {
    return std::ranges::count_if(r.warnings, [](const std::string& w) { return w.starts_with("training.seq_len"); });
  };
  EXPECT_EQ(warned(of("training.seq_len=64").value()), 0);
  EXPECT_EQ(warned(of("training.seq_len=128").value()), 1);
  const auto endless = of("training.seq_len=2000000000");
  ASSERT_FALSE(endless);
  ASSERT_EQ(endless.errors().size(), 1u) << to_text(endless.errors());
  EXPECT_EQ(endless.errors()[0].where, "training.seq_len");
}

// The head on the last stage of a small model: more micro-batches would not help, fewer layers there do.
TEST(Pipeline, UnevenStagesAreNotCalledABubble) {
  const auto told = [](const char* layers, const char* batch, const char* what) {
    const std::string overrides[] = {layers, batch};
    auto job = parse_job(
        "model: llama3-8b\ncluster: {from: dgx-h100, nodes: 2}\nstrategy: {tensor: 4, pipeline: 4, data_parallel: "
        "megatron}\n"
        "training: {micro_batch: 1, global_batch: 64, seq_len: 8192}\n",
        "job.yaml", overrides);
    EXPECT_TRUE(job) << to_text(job.errors());
    const auto r = run_job(job.value());
    EXPECT_TRUE(r) << to_text(r.errors());
    return std::ranges::count_if(r.value().warnings,
                                 [&](const std::string& w) { return w.find(what) != std::string::npos; });
  };
  EXPECT_EQ(told("strategy.last_stage_layers=8", "training.global_batch=64", "stage 3 works"), 1);
  EXPECT_EQ(told("strategy.last_stage_layers=8", "training.global_batch=64", "(strategy.last_stage_layers)"), 1);
  EXPECT_EQ(told("strategy.last_stage_layers=8", "training.global_batch=64", "pipeline bubble"), 0);
  EXPECT_EQ(told("strategy.last_stage_layers=5", "training.global_batch=64", "stage 3 works"), 0);
  // Four micro-batches on four stages wait for each other however the layers lie.
  EXPECT_EQ(told("strategy.last_stage_layers=5", "training.global_batch=4", "pipeline bubble"), 1);
}

// P04: seven billion parameters in fp32 with stage 2 on V100s of 32 GiB: what the optimizer makes at start-up is
// too much, before any training. With 16-bit weights the same start-up fits.
TEST(StartUp, OutOfMemoryBeforeTheFirstStepIsSaid) {
  const auto told = [](const char* precision) {
    const std::string overrides[] = {"cluster.nodes=1"};
    auto job = parse_job(std::string("framework: deepspeed\nmodel: llama2-7b\ncluster: dgx-1v\n"
                                     "strategy: {data_parallel: zero2, recompute: full}\n"
                                     "training: {micro_batch: 1, global_batch: 8, seq_len: 512, precision: ") +
                             precision + "}\n",
                         "job.yaml", overrides);
    EXPECT_TRUE(job) << to_text(job.errors());
    const auto r = run_job(job.value());
    EXPECT_TRUE(r) << to_text(r.errors());
    return std::ranges::count_if(
        r.value().warnings, [](const std::string& w) { return w.starts_with("out of memory before the first step"); });
  };
  EXPECT_EQ(told("fp32"), 1);
  EXPECT_EQ(told("fp16"), 0);
}

TEST(Schedules, EveryOneIsSimulated) {
  int ran = 0;
  for (const lower::Schedule* schedule : lower::all_schedules())
    for (const int64_t pipeline : {2, 4, 8})
      for (const int64_t chunks : {1, 2, 3})
        for (const char* overlap : {"false", "true"}) {
          const std::string overrides[] = {
              "model.layers=48",
              "model.tied_embeddings=false",  // a V has both ends on one rank
              fmt::format("strategy.pipeline={}", pipeline),
              "strategy.tensor=1",
              fmt::format("strategy.virtual_stages={}", chunks),
              fmt::format("strategy.schedule={}", schedule->name),
              "training.global_batch=24",
              fmt::format("strategy.overlap_p2p={}", overlap),
          };
          auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
          ASSERT_TRUE(job) << to_text(job.errors());
          if (!schedule->order({pipeline, chunks, 3 * pipeline})) continue;
          const auto result = run_job(job.value());
          ASSERT_TRUE(result) << schedule->name << " p=" << pipeline << " v=" << chunks << " overlap=" << overlap
                              << "\n"
                              << to_text(result.errors()).substr(0, 300);
          EXPECT_GT(result.value().run.step_time.seconds(), 0);
          ++ran;
        }
  EXPECT_GE(ran, 18);
}

TEST(RunJob, AFasterNicDoesNotSlowTheStep) {
  // It may take a few more channels, hence blocks, from the kernels that it runs beside.
  constexpr double kBlocks = 1.005;
  double least = 1e9;
  for (int gbits = 100; gbits <= 1600; gbits += gbits < 600 ? 20 : 100) {
    const std::string overrides[] = {fmt::format("cluster.fabric.nic_bandwidth={} Gb/s", gbits)};
    const auto job = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml", overrides);
    ASSERT_TRUE(job) << to_text(job.errors());
    const auto result = run_job(job.value());
    ASSERT_TRUE(result) << to_text(result.errors());
    const double step = result.value().run.step_time.seconds();
    EXPECT_LT(step, least * kBlocks) << gbits;
    least = std::min(least, step);
  }
}

TEST(RunJob, ASlowNetworkIsAnsweredHoweverLongAnOpTakes) {
  // Gradients of 70 B parameters over 8 ranks that share one NIC of each node: minutes at 25 Gb/s, an hour at 1.
  double last = 0;
  for (const int gbits : {25, 1}) {
    const std::string overrides[] = {"strategy.data_parallel=megatron",
                                     "strategy.pipeline=1",
                                     "strategy.virtual_stages=1",
                                     "strategy.schedule=1f1b",
                                     "strategy.overlap_grad_reduce=false",
                                     "strategy.overlap_param_gather=false",
                                     fmt::format("cluster.fabric.nic_bandwidth={} Gb/s", gbits)};
    auto job = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml", overrides);
    ASSERT_TRUE(job) << to_text(job.errors());
    job.value().cluster.fabric.nics_per_node = 1;
    const auto result = run_job(job.value());
    ASSERT_TRUE(result) << to_text(result.errors());
    const double step = result.value().run.step_time.seconds();
    EXPECT_GT(step, last == 0 ? 100 : 20 * last);
    last = step;
  }
}

TEST(RunJob, AnUnknownHostProfileIsRefused) {
  const std::string overrides[] = {"training.host_profile=megatrom"};
  const auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  ASSERT_TRUE(job);
  const auto result = run_job(job.value());
  ASSERT_FALSE(result);
  EXPECT_EQ(to_text(result.errors()), "training.host_profile: unknown profile 'megatrom' (did you mean 'megatron'?)\n");
}

}  // namespace
}  // namespace wt::study
