// The report by mechanism: which rows are of which, and when a band holds what was measured.
#include "study/validate_mechanisms.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wt::study {
namespace {

using ::testing::ElementsAre;

TEST(Mechanisms, OfARow) {
  Case row;
  row.precision = "bf16";
  EXPECT_THAT(mechanisms_of(row), ElementsAre("dense"));
  row.seq_len = 32767;
  EXPECT_THAT(mechanisms_of(row), ElementsAre("dense"));
  row.seq_len = 32768;
  EXPECT_THAT(mechanisms_of(row), ElementsAre("dense", "long context"));
  row.seq_len = 4096;
  row.cp = 2;
  row.precision = "fp8 (mxfp8)";
  EXPECT_THAT(mechanisms_of(row), ElementsAre("long context", "fp8 and fp4"));
  row.moe = MoeSpec{};
  row.zero_stage = 3;
  row.offload = "activations: 20 layers to CPU";
  EXPECT_THAT(mechanisms_of(row),
              ElementsAre("experts", "FSDP, ZeRO-2 and 3", "long context", "offload", "fp8 and fp4"));
  row = Case{};
  row.offload = "none";
  row.zero_stage = 1;
  EXPECT_THAT(mechanisms_of(row), ElementsAre("dense"));
}

Row row_of(double predicted_low, double predicted_high, double measured) {
  Row r;
  r.tier = "A";
  r.cluster = r.id = "c";
  r.open = true;
  r.predicted_low_s = predicted_low;
  r.predicted_high_s = predicted_high;
  r.predicted_step_time_s = (predicted_low + predicted_high) / 2;
  r.measured_step_time_s = measured;
  r.relative_error = *r.predicted_step_time_s / measured - 1;
  r.band_low = 0.9;
  r.band_high = 1.2;
  r.mechanisms = {"dense"};
  return r;
}

TEST(Mechanisms, ABandHoldsFromTheFastestToTheSlowestCandidate) {
  std::vector<Row> rows = {row_of(10, 20, 9.1), row_of(10, 20, 8.9), row_of(10, 20, 23.9), row_of(10, 20, 24.1)};
  Row known = row_of(10, 10, 100);
  known.open = false;  // the source leaves nothing open
  rows.push_back(known);
  Row skipped;
  skipped.open = true;
  rows.push_back(skipped);
  const BandCount count = bands_that_hold(rows);
  EXPECT_EQ(count.rows, 4u);
  EXPECT_EQ(count.inside, 2u);
  EXPECT_DOUBLE_EQ(count.share(), 0.5);
}

TEST(Mechanisms, TiersAAndBAlone) {
  std::vector<Row> rows = {row_of(10, 10, 20), row_of(10, 10, 10)};
  rows[1].tier = "C";
  const auto summary = by_mechanism(rows);
  ASSERT_TRUE(summary.contains("dense"));
  EXPECT_EQ(summary.at("dense").rows, 1u);
  EXPECT_DOUBLE_EQ(*summary.at("dense").weighted_mean, 0.5);
  EXPECT_TRUE(read_remarks().ok());
}

}  // namespace
}  // namespace wt::study
