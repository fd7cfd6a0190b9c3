// Lines through points that were made from known lines: the coefficients come back, terms that are not there stay away.
#include "exec/calibrate/fit.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace wt::exec {
namespace {

KernelPoint point(double flops, double bytes, double seconds) {
  KernelPoint p;
  p.dims = {1};
  p.flops = flops;
  p.bytes = {std::llround(bytes)};
  p.time = Time::from_seconds(seconds);
  return p;
}

/// Products of many proportions.
KernelCurve products(double latency, double rate, double bandwidth, double noise = 0) {
  KernelCurve c;
  c.kernel = "gemm";
  int i = 0;
  for (const double m : {32.0, 128.0, 700.0})
    for (const double n : {48.0, 256.0, 1024.0})
      for (const double k : {64.0, 300.0, 2048.0}) {
        const double flops = 2 * m * n * k, bytes = 4 * (m * n + n * k + m * k);
        const double time = latency + flops / rate + (bandwidth > 0 ? bytes / bandwidth : 0);
        c.points.push_back(point(flops, bytes, time * (1 + noise * (i++ % 2 ? 1 : -1))));
      }
  return c;
}

TEST(Fit, FindsTheThreeTermsOfAKernel) {
  KernelCurve c = products(3e-6, 200e9, 20e9);
  const Residual r = fit(c);
  EXPECT_NEAR(c.latency.seconds(), 3e-6, 0.02e-6);
  EXPECT_NEAR(c.rate, 200e9, 1e9);
  EXPECT_NEAR(c.bandwidth.n, 20e9, 0.1e9);
  EXPECT_LT(r.worst, 1e-4);
}

TEST(Fit, LeavesOutATermThatIsNotThere) {
  KernelCurve c = products(0, 200e9, 0);
  fit(c);
  EXPECT_EQ(c.latency.count_ps(), 0);
  EXPECT_EQ(c.bandwidth.n, 0);
  EXPECT_NEAR(c.rate, 200e9, 1e9);
}

TEST(Fit, WeighsSmallShapesLikeLargeOnes) {
  // Absolute errors would let the longest point decide and lose the latency of the shortest.
  KernelCurve c = products(5e-6, 200e9, 0, 0.03);
  const Residual r = fit(c);
  EXPECT_NEAR(c.latency.seconds(), 5e-6, 0.8e-6);
  EXPECT_NEAR(r.mean, 0.03, 0.01);
  EXPECT_NEAR(c.error, r.mean, 1e-4);
}

TEST(Fit, OnePointIsItsOwnLine) {
  KernelCurve c;
  c.kernel = "adam";
  c.points = {point(0, 1e6, 1e-3)};
  const Residual r = fit(c);
  EXPECT_LT(r.worst, 1e-9);
}

TransferCurve regimes(const std::vector<double>& sizes, double (*time)(double)) {
  TransferCurve t;
  for (const double b : sizes) t.points.push_back({{std::llround(b)}, Time::from_seconds(time(b))});
  return t;
}

const std::vector<double> kSizes = {8,     16,      64,      256,     1024,    4096,    16384,
                                    65536, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 22, 1 << 24};

TEST(Fit, FindsWhereTheRegimeOfATransferChanges) {
  TransferCurve t = regimes(kSizes, [](double b) { return b < 65536 ? 5e-6 + b / 1e9 : 60e-6 + b / 10e9; });
  const Residual r = fit(t);
  ASSERT_EQ(t.lines.size(), 2u);
  EXPECT_EQ(t.lines[0].from.n, 8);
  EXPECT_EQ(t.lines[1].from.n, 65536);
  EXPECT_NEAR(t.lines[0].latency.seconds(), 5e-6, 0.05e-6);
  EXPECT_NEAR(t.lines[1].bandwidth.n, 10e9, 0.05e9);
  EXPECT_LT(r.worst, 1e-4);
}

TEST(Fit, TakesOneLineWhereOneIsEnough) {
  TransferCurve t = regimes(
      kSizes, [](double b) { return (20e-6 + b / 5e9) * (static_cast<int64_t>(std::log2(b)) % 2 ? 1.02 : 0.98); });
  fit(t);
  EXPECT_EQ(t.lines.size(), 1u);
}

}  // namespace
}  // namespace wt::exec
