// scale and sensitivity: what a size and a changed resource mean, against the same job simulated alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/spec/read.hpp"
#include "study/run_job.hpp"
#include "study/scale.hpp"
#include "study/sensitivity.hpp"

namespace wt::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobSpec example(std::initializer_list<std::string> overrides = {}) {
  const std::vector<std::string> list(overrides);
  auto job = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml", list);
  EXPECT_TRUE(job) << to_text(job.errors());
  return job.value();
}

TEST(Scale, SizesDouble) {
  EXPECT_THAT(doubling(16, 128), ElementsAre(16, 32, 64, 128));
  EXPECT_THAT(doubling(16, 100), ElementsAre(16, 32, 64, 100));
  EXPECT_THAT(doubling(8, 8), ElementsAre(8));
}

TEST(Scale, AJobOnMoreAndFewerGpus) {
  const JobSpec job = example();
  const auto weak = job_on(job, 2048, Scaling::weak);
  ASSERT_TRUE(weak);
  EXPECT_EQ(weak.value().cluster.nodes, 256);
  EXPECT_EQ(weak.value().training.global_batch, 2048);
  const auto part = job_on(job, 4, Scaling::strong);
  ASSERT_TRUE(part);
  EXPECT_EQ(part.value().cluster.ranks(), 4);
  const auto uneven = job_on(job, 100, Scaling::strong);
  ASSERT_FALSE(uneven);
  EXPECT_THAT(to_text(uneven.errors()), HasSubstr("nearest: 96, 104"));
}

TEST(Scale, PointsAreTheJobsAlone) {
  const JobSpec job = example();
  ScaleOptions options;
  options.gpus = {256, 512, 1024, 16384};
  const auto r = scale(job, options);
  ASSERT_TRUE(r) << to_text(r.errors());
  const auto& points = r.value().points;
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[0].efficiency, 1);
  const auto alone = run_job(example());
  ASSERT_TRUE(alone);
  EXPECT_EQ(points[2].step_s, alone.value().report.step_time.seconds());
  const double per_gpu = points[0].tokens_per_s / 256;
  EXPECT_NEAR(points[2].efficiency, points[2].tokens_per_s / 1024 / per_gpu, 1e-12);
  EXPECT_NEAR(points[2].marginal, (points[2].tokens_per_s - points[1].tokens_per_s) / 512 / per_gpu, 1e-12);
  EXPECT_THAT(points[3].reason, HasSubstr("micro-batches"));  // 2 on each replica are too few for 4 stages
  const auto& t = alone.value().report.time;
  EXPECT_NEAR(points[2].communication + points[2].imbalance + points[2].fixed + t.compute / t.total(), 1, 1e-9);
}

TEST(Scale, TheChosenStrategyIsAtLeastAsFastAsTheHeld) {
  const JobSpec job = example();
  ScaleOptions options;
  options.gpus = {512};
  const auto held = scale(job, options);
  options.choose = true;
  const auto chosen = scale(job, options);
  ASSERT_TRUE(held && chosen);
  EXPECT_LE(chosen.value().points[0].step_s, held.value().points[0].step_s);
}

const SensitivityRow* row_of(const SensitivityResult& r, std::string_view id) {
  for (const SensitivityRow& row : r.rows)
    if (row.id == id) return &row;
  return nullptr;
}

TEST(Sensitivity, ChangesAreTheChangedJobAlone) {
  const auto r = sensitivity(example());
  ASSERT_TRUE(r) << to_text(r.errors());
  const SensitivityRow* nic = row_of(r.value(), "nic");
  ASSERT_TRUE(nic);
  const auto half = run_job(example({"cluster.fabric.nic_bandwidth=200 Gb/s"}));
  ASSERT_TRUE(half);
  EXPECT_EQ(nic->step_s[1], half.value().report.step_time.seconds());
  for (const SensitivityRow& row : r.value().rows) {
    if (!row.more_is_better) continue;
    for (size_t k = 1; k < row.step_s.size(); ++k) EXPECT_LE(row.step_s[k], row.step_s[k - 1] * 1.005) << row.id;
  }
}

TEST(Sensitivity, TheLeastKeepsTheSpeedAndLessDoesNot) {
  SensitivityOptions options;
  options.factors = {2};
  const auto r = sensitivity(example(), options);
  ASSERT_TRUE(r) << to_text(r.errors());
  int asked = 0;
  for (const SensitivityRow& row : r.value().rows) {
    if (row.least_factor == 0) continue;
    ++asked;
    for (const Resource& resource : resources()) {
      if (resource.id != row.id) continue;
      const auto speed = [&](double factor) {
        JobSpec job = example();
        EXPECT_TRUE(resource.scale(job, factor));
        const auto run = run_job(job);
        return run ? r.value().step_s / run.value().report.step_time.seconds() : 0;
      };
      EXPECT_GE(speed(row.least_factor), options.keep) << row.id;
      EXPECT_LT(speed(row.more_is_better ? row.least_factor / 1.1 : row.least_factor * 1.1), options.keep) << row.id;
    }
  }
  EXPECT_GE(asked, 3);
}

TEST(Sensitivity, OneNodeHasNoNetwork) {
  const auto r =
      sensitivity(example({"cluster.nodes=1", "strategy.tensor=8", "strategy.pipeline=1", "strategy.virtual_stages=1",
                           "strategy.schedule=1f1b", "training.global_batch=8"}));
  ASSERT_TRUE(r) << to_text(r.errors());
  EXPECT_FALSE(row_of(r.value(), "nic"));
  EXPECT_FALSE(row_of(r.value(), "latency"));
  EXPECT_TRUE(row_of(r.value(), "scale_up"));
}

}  // namespace
}  // namespace wt::study
