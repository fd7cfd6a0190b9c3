// The band around a step: percentiles of measured over predicted, one weight a setting, and what a job is told.
#include "study/error_band.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/base/file.hpp"
#include "core/spec/read.hpp"

namespace wt::study {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ErrorBand, PercentilesOfMeasuredOverPredicted) {
  std::vector<ComparedRun> runs;
  for (int i = 1; i <= 20; ++i) runs.push_back({"x100", "dense", "setting " + std::to_string(i), 10, 9 + 0.1 * i});
  const auto bands = error_bands(runs);
  ASSERT_EQ(bands.size(), 3u);
  EXPECT_EQ(bands[0].kernels, "x100");
  EXPECT_EQ(bands[1].kernels, "all");
  EXPECT_EQ(bands[1].kind, "dense");
  EXPECT_EQ(bands[2].kind, "all");
  EXPECT_EQ(bands[0].runs, 20);
  EXPECT_NEAR(bands[0].low, 0.92, 1e-9);
  EXPECT_NEAR(bands[0].high, 1.08, 1e-9);
  EXPECT_TRUE(error_bands({}).empty());
}

TEST(ErrorBand, ASettingWeighsAsOneRun) {
  std::vector<ComparedRun> runs;
  for (int i = 0; i < 1000; ++i) runs.push_back({"x100", "dense", "one sweep", 10, 20});
  for (int i = 0; i < 19; ++i) runs.push_back({"x100", "dense", "other " + std::to_string(i), 10, 10});
  const ErrorBand band = error_bands(runs).at(0);
  EXPECT_EQ(band.settings, 20);
  EXPECT_DOUBLE_EQ(band.high, 1);  // the thousand are a twentieth of the weight
}

JobSpec job(const std::string& more = "") {
  std::vector<std::string> set;
  if (!more.empty()) set.push_back(more);
  auto read = read_job(WT_SOURCE_DIR "/examples/llama2-7b-8-a100.yaml", set);
  EXPECT_TRUE(read.ok()) << to_text(read.errors());
  return read.value();
}

TEST(ErrorBand, TheJobsOwnCurvesOrAllOfThem) {
  const std::vector<ErrorBand> bands = {{"a100", "dense", 40, 12, 0.9, 1.2},  {"a100", "sharded", 9, 3, 0.95, 1.05},
                                        {"h100", "dense", 9, 9, 0.99, 1.01},  {"all", "dense", 49, 21, 0.8, 1.3},
                                        {"all", "sharded", 9, 3, 0.95, 1.05}, {"all", "all", 58, 24, 0.7, 1.4}};
  const JobBand own = band_of(job(), bands);
  EXPECT_EQ(own.low, 0.9);
  EXPECT_EQ(own.high, 1.2);
  EXPECT_THAT(own.basis, HasSubstr("published dense a100 runs lay so near their prediction (40 runs, 12 settings)"));
  EXPECT_THAT(own.basis, Not(HasSubstr("of them")));
  const JobBand few = band_of(job("cluster=dgx-h100"), bands);  // nine runs say nothing about a tenth of them
  EXPECT_EQ(few.high, 1.3);
  EXPECT_THAT(few.basis, HasSubstr("; 9 of them with h100 kernels"));
  const JobBand none = band_of(job("cluster=rtx4090-8x"), bands);
  EXPECT_EQ(none.high, 1.3);
  EXPECT_THAT(none.basis, HasSubstr("; 0 of them with rtx4090 kernels"));
}

TEST(ErrorBand, AKindThatTooFewRunsHadIsNamed) {
  const std::vector<ErrorBand> bands = {{"a100", "sharded", 9, 3, 0.95, 1.05}, {"all", "all", 58, 24, 0.7, 1.4}};
  const JobBand sharded = band_of(job("strategy.data_parallel=fsdp2"), bands);
  EXPECT_EQ(sharded.high, 1.4);
  EXPECT_THAT(sharded.basis, HasSubstr("published runs lay"));
  EXPECT_THAT(sharded.basis, HasSubstr("; 9 of them FSDP and ZeRO-3 with a100 kernels"));
  JobSpec fp8 = job();
  fp8.training.compute_dtype = DType::f8;
  EXPECT_THAT(band_of(fp8, bands).basis, HasSubstr("; 0 of them fp8 with a100 kernels"));
  JobSpec small = job();
  small.model.hidden = 2048;
  EXPECT_EQ(kind_of(small), "small");
  EXPECT_THAT(band_of(small, bands).basis, HasSubstr("; 0 of them small-model with a100 kernels"));
  small.model.hidden = 2049;
  EXPECT_EQ(kind_of(small), "dense");
  JobSpec experts = job();
  experts.model.moe.emplace();
  EXPECT_THAT(band_of(experts, bands).basis, HasSubstr("; 0 of them mixture-of-experts with a100 kernels"));
}

TEST(ErrorBand, TheTableReadsBackAndFaultsAreNamed) {
  const std::string path = (std::filesystem::temp_directory_path() / "wt_error_bands.csv").string();
  const std::vector<ErrorBand> bands = {{"a100", "dense", 40, 12, 0.9, 1.25}, {"all", "all", 41, 13, 0.8, 1.5}};
  ASSERT_TRUE(write_file_atomically(path, print_error_bands(bands)).ok());
  const auto read = read_error_bands(path);
  ASSERT_TRUE(read.ok()) << to_text(read.errors());
  ASSERT_EQ(read.value().size(), 2u);
  EXPECT_EQ(read.value()[0].settings, 12);
  EXPECT_DOUBLE_EQ(read.value()[0].high, 1.25);
  ASSERT_TRUE(
      write_file_atomically(path, "kernels,kind,runs,settings,low,high\na100,dense,1,1,0,-1\nb,dense,x,1,1,1\n").ok());
  const std::string faults = to_text(read_error_bands(path).errors());
  for (const char* piece : {":2", "is not above zero", "is below 'low'", ":3", "no row 'all'"})
    EXPECT_THAT(faults, HasSubstr(piece));
  std::filesystem::remove(path);
}

TEST(ErrorBand, TheBuiltInTableHoldsTheMainExample) {
  const auto band = error_band(read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml").value());
  ASSERT_TRUE(band.ok()) << to_text(band.errors());
  EXPECT_LT(band.value().low, band.value().high);
  EXPECT_GT(band.value().low, 0.5);
  EXPECT_LT(band.value().high, 2);
}

}  // namespace
}  // namespace wt::study
