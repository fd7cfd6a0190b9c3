// Prices single ops on the devices that the project has curves for: what large products reach, what a missing set says.
// Not the accuracy of the curves (kernel_accuracy_test.cpp).
#include "sim/cost/compute_cost.hpp"

#include <gtest/gtest.h>

namespace wt::sim {
namespace {

DeviceSpec device(const std::string& name) {
  DeviceSpec d;
  d.name = d.kernels = name;
  const auto peaks = [&](double p16, double p8, double p32) {
    d.peak = {{DType::bf16, {p16 * 1e12}}, {DType::f16, {p16 * 1e12}}, {DType::f32, {p32 * 1e12}}};
    if (p8 > 0) d.peak[DType::f8] = {p8 * 1e12};
  };
  if (name == "a100") {
    peaks(312, 0, 19.5);
    d.memory_bandwidth = {2039e9}, d.l2_cache = {40 << 20}, d.multiprocessors = 108, d.power_watts = 400;
  } else {
    peaks(989.4, 1979, 66.9);
    d.memory_bandwidth = {3350e9}, d.l2_cache = {50 << 20}, d.multiprocessors = 132, d.power_watts = 700;
  }
  return d;
}

plan::Compute gemm(int64_t m, int64_t n, int64_t k, DType dtype = DType::bf16) {
  plan::Compute op;
  op.dtype = dtype;
  op.dims = {m, n, k, 0, 0};
  op.transpose_b = true;
  op.work = {2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), 2 * (m * k + n * k), 2 * m * n};
  return op;
}

double tflops(const ComputeCost& cost, const plan::Compute& op) { return op.work.flops / cost.estimate(op).time.seconds() / 1e12; }

TEST(ComputeCost, LargeProductsReachWhatTheChipsSustain) {
  const auto a100 = ComputeCost::load(device("a100"));
  const auto h100 = ComputeCost::load(device("h100"));
  ASSERT_TRUE(a100.ok()) << to_text(a100.errors());
  ASSERT_TRUE(h100.ok()) << to_text(h100.errors());
  EXPECT_NEAR(tflops(a100.value(), gemm(8192, 8192, 8192)), 250, 20);
  EXPECT_NEAR(tflops(h100.value(), gemm(8192, 8192, 8192)), 700, 60);
}

TEST(ComputeCost, UnknownSetNamesTheLegalOnes) {
  DeviceSpec d = device("a100");
  d.kernels = "a10";
  const auto cost = ComputeCost::load(d);
  ASSERT_FALSE(cost.ok());
  EXPECT_NE(to_text(cost.errors()).find("no such kernel set"), std::string::npos);
}

TEST(ComputeCost, NoSetIsARoofline) {
  DeviceSpec d = device("a100");
  d.kernels.clear();
  const auto cost = ComputeCost::load(d);
  ASSERT_TRUE(cost.ok());
  EXPECT_NEAR(tflops(cost.value(), gemm(8192, 8192, 8192)), 312, 1);
}

}  // namespace
}  // namespace wt::sim
