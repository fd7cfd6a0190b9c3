// DeepSpeed's estimators, to the digit that they print: issue 4527 (6805 M parameters, largest layer 131 M, 4 GPUs), where a
// run took forty times the estimate.
#include "study/deepspeed_estimate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace wt::study {
namespace {

double two_digits(double bytes) { return std::round(bytes / 1073741824.0 * 100) / 100; }

TEST(DeepSpeedEstimate, StageThreeAsIssue4527Prints) {
  const auto rows = deepspeed_estimate(3, {6'805'000'000, 131'000'000, 1, 4});
  ASSERT_EQ(rows.size(), 6u);
  const double host[] = {171.13, 171.13, 152.11, 152.11, 2.93, 152.11},
               device[] = {0.49, 0.49, 3.66, 3.66, 29.01, 29.01};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(two_digits(rows[i].host_bytes), host[i], 0.011) << i;
    EXPECT_NEAR(two_digits(rows[i].device_bytes), device[i], 0.011) << i;
    EXPECT_EQ(rows[i].zero_init, i % 2 == 0);
  }
}

/// 2 bytes a parameter on the GPU with offload; 2 + 18 / d without.
TEST(DeepSpeedEstimate, StageTwo) {
  const auto rows = deepspeed_estimate(2, {1'000'000'000, 0, 2, 8});
  EXPECT_EQ(rows[0].device_bytes, 2e9);
  EXPECT_EQ(rows[0].host_bytes, 1e9 * 64 * 1.5);
  EXPECT_EQ(rows[1].device_bytes, 2e9 + 18e9 / 16);
  EXPECT_EQ(rows[1].host_bytes, 1e9 * 4 * 8 * 1.5);
}

TEST(DeepSpeedEstimate, LargestModuleIsTheTableOfLlama7b) {
  JobSpec j;
  j.model.vocab = 32000;
  j.model.hidden = 4096;
  j.model.ffn_hidden = 11008;
  j.model.heads = 32;
  j.model.head_dim = 128;
  EXPECT_EQ(state_counts(j).largest_layer, 131'072'000);
}

TEST(DeepSpeedEstimate, OtherKindsAreToldSo) {
  EXPECT_THAT(print_deepspeed_estimate(JobSpec{}, {}), testing::HasSubstr("stages 2 and 3"));
}

}  // namespace
}  // namespace wt::study
