// The messages of every schedule, with and without overlap, in plans that the dry run can finish.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/lower/lower.hpp"
#include "core/lower/schedule.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"

namespace wt::lower {
namespace {

TEST(Pipeline, EveryScheduleMakesProgressWithAndWithoutOverlap) {
  int lowered = 0;
  for (const Schedule* schedule : all_schedules())
    for (const int64_t pipeline : {2, 4, 8})
      for (const int64_t chunks : {1, 2, 4})
        for (const int64_t rounds : {1, 3})
          for (const auto& [overlap, in_turn] : {std::pair{"false", "false"}, {"true", "false"}, {"false", "true"}}) {
            const std::string overrides[] = {
                "model.layers=32",
                fmt::format("strategy.pipeline={}", pipeline),
                pipeline == 8 ? "strategy.tensor=1" : "strategy.tensor=2",
                fmt::format("strategy.virtual_stages={}", chunks),
                fmt::format("strategy.schedule={}", schedule->name),
                fmt::format("training.global_batch={}", 16 * rounds * (pipeline == 8 ? 1 : 2) / 2),
                fmt::format("strategy.overlap_p2p={}", overlap),
                fmt::format("strategy.shard_messages={}", in_turn),
                fmt::format("strategy.serial_messages={}", in_turn),
            };
            auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
            ASSERT_TRUE(job) << to_text(job.errors());
            auto plan = lower(job.value());
            if (!plan) continue;
            ++lowered;
            const Status valid = plan::validate(plan.value());
            EXPECT_TRUE(valid) << schedule->name << " p=" << pipeline << " v=" << chunks << " overlap=" << overlap
                               << "\n"
                               << (valid ? "" : to_text(valid.errors()).substr(0, 400));
          }
  EXPECT_GE(lowered, 24);
}

}  // namespace
}  // namespace wt::lower
