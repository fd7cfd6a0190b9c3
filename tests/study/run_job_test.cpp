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

TEST(Schedules, EveryOneIsSimulated) {
  int ran = 0;
  for (const lower::Schedule* schedule : lower::all_schedules())
    for (const int64_t pipeline : {2, 4, 8})
      for (const int64_t chunks : {1, 2, 3})
        for (const char* overlap : {"false", "true"}) {
          const std::string overrides[] = {
              "model.layers=48",
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
