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
  op.work = {2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), 2 * (m * k + n * k),
             2 * m * n};
  return op;
}

double tflops(const ComputeCost& cost, const plan::Compute& op) {
  return op.work.flops / cost.estimate(op).time.seconds() / 1e12;
}

TEST(ComputeCost, LargeProductsReachWhatTheChipsSustain) {
  const auto a100 = ComputeCost::load(device("a100"));
  const auto h100 = ComputeCost::load(device("h100"));
  ASSERT_TRUE(a100.ok()) << to_text(a100.errors());
  ASSERT_TRUE(h100.ok()) << to_text(h100.errors());
  EXPECT_NEAR(tflops(a100.value(), gemm(8192, 8192, 8192)), 250, 20);
  EXPECT_NEAR(tflops(h100.value(), gemm(8192, 8192, 8192)), 700, 60);
}

TEST(ComputeCost, NeverAboveThePeakAndLongerIsNotFaster) {
  for (const char* name : {"a100", "h100"}) {
    const auto loaded = ComputeCost::load(device(name));
    const ComputeCost& cost = loaded.value();
    const double peak = device(name).peak.at(DType::bf16).n / 1e12;
    for (int64_t m : {16, 128, 1000, 4096, 20000})
      for (int64_t n : {64, 1024, 5120, 28672}) {
        double before = 0;
        for (int64_t k = 64; k <= 65536; k *= 2) {
          const auto e = cost.estimate(gemm(m, n, k));
          EXPECT_LT(tflops(cost, gemm(m, n, k)), peak) << name << " " << m << " " << n << " " << k;
          EXPECT_GT(e.efficiency, 0);
          EXPECT_LE(e.efficiency, 1);
          // Twice the K costs more; products of a few microseconds, which timers resolve badly, may waver.
          EXPECT_GT(e.time.seconds(), before * (before < 10e-6 ? 0.95 : 1.0))
              << name << " " << m << " " << n << " " << k;
          before = e.time.seconds();
        }
      }
  }
}

TEST(ComputeCost, RowsThatDoNotStartAt16BytesAreSlow) {
  const auto cost = ComputeCost::load(device("a100"));
  const double vocabulary = cost.value().estimate(gemm(8192, 50257, 4096)).time.seconds();
  const double padded = cost.value().estimate(gemm(8192, 50304, 4096)).time.seconds();
  EXPECT_GT(vocabulary, 2 * padded);
}

TEST(ComputeCost, BatchedProductsOff16BytesLeaveTheMatrixUnits) {
  // 4 sequences of 12 heads (BigScience's 13824 columns in heads of 108 and 144, tensor 8): 9.9 to 10.2 TFLOP/s where rows
  // start at 8 bytes, an order of magnitude more where they start at 16. Heads of 150 (4 bytes) were not used for the figure.
  const auto cost = ComputeCost::load(device("a100"));
  const auto rate = [&](const ComputeCost& c, plan::Kernel kernel, int64_t head) {
    plan::Compute op;
    op.kernel = kernel;
    op.dtype = DType::f16;
    op.dims = {4, 2048, 12, 12, head};
    op.work.flops = 2.0 * 48 * 2048 * 2048 * static_cast<double>(head);
    return op.work.flops / c.estimate(op).time.seconds() / 1e12;
  };
  for (const plan::Kernel kernel : {plan::Kernel::scores_forward, plan::Kernel::context_forward}) {
    for (const int64_t head : {108, 150}) EXPECT_NEAR(rate(cost.value(), kernel, head), 10.1, 0.3) << head;
    for (const int64_t head : {96, 144}) EXPECT_GT(rate(cost.value(), kernel, head), 70) << head;
  }
  // Libraries that keep the matrix units pay less.
  EXPECT_GT(rate(ComputeCost::load(device("h100")).value(), plan::Kernel::scores_forward, 108), 40);
}

TEST(ComputeCost, AProductInPiecesIsThatManySmallerProducts) {
  const auto cost = ComputeCost::load(device("h100"));
  plan::Compute whole = gemm(2048, 12288, 12288), cut = whole;
  cut.pieces = 4;
  EXPECT_NEAR(cost.value().estimate(cut).time.seconds(),
              4 * cost.value().estimate(gemm(512, 12288, 12288)).time.seconds(), 1e-9);
  EXPECT_GT(cost.value().estimate(cut).time.seconds(), 1.02 * cost.value().estimate(whole).time.seconds());
}

TEST(ComputeCost, AWaveMoreCostsAStep) {
  // 108 multiprocessors, tiles of 128 x 256: 108 tiles fill one wave, 110 need a second.
  DeviceSpec d = device("a100");
  const auto cost = ComputeCost::load(d);
  const double full = cost.value().estimate(gemm(128 * 36, 256 * 3, 65536)).time.seconds();
  const double more = cost.value().estimate(gemm(128 * 37, 256 * 3, 65536)).time.seconds();
  EXPECT_GT(more / full, 1.10);  // 3 percent more work
}

TEST(ComputeCost, ALowerPowerLimitIsSlowerWhereTheMatrixUnitsBound) {
  DeviceSpec d = device("h100");
  const auto full = ComputeCost::load(d);
  d.power_watts = 500;
  const auto limited = ComputeCost::load(d);
  const double slow = limited.value().estimate(gemm(8192, 8192, 8192)).time.seconds() /
                      full.value().estimate(gemm(8192, 8192, 8192)).time.seconds();
  EXPECT_GT(slow, 1.08);
  EXPECT_LT(slow, 1.25);
  const auto narrow = gemm(16, 8192, 8192);  // memory bounds this one
  EXPECT_EQ(full.value().estimate(narrow).bound, Bound::memory);
  EXPECT_NEAR(limited.value().estimate(narrow).time.seconds() / full.value().estimate(narrow).time.seconds(), 1, 0.03);
}

TEST(ComputeCost, StreamingKernelsFollowBytesAndHaveAFloor) {
  const auto cost = ComputeCost::load(device("a100"));
  plan::Compute op;
  op.kernel = plan::Kernel::add;
  op.work = {0, 2 << 10, 1 << 10};
  EXPECT_EQ(cost.value().estimate(op).bound, Bound::launch);
  EXPECT_NEAR(cost.value().estimate(op).time.seconds(), 2e-6, 0.5e-6);
  op.work = {0, 134217728, 67108864};  // 4096 x 8192 residual add: 113 us measured
  EXPECT_NEAR(cost.value().estimate(op).time.seconds(), 113e-6, 6e-6);
  op.kernel = plan::Kernel::norm_backward;
  EXPECT_GT(cost.value().estimate(op).time.seconds(), 130e-6);
}

TEST(ComputeCost, FewHeadsDoNotFillTheChip) {
  const auto cost = ComputeCost::load(device("a100"));
  plan::Compute op;
  op.kernel = plan::Kernel::attention_forward;
  op.causal = true;
  const auto rate = [&](int64_t heads) {
    op.dims = {1, 4096, heads, heads, 128};
    op.work.flops = 2.0 * static_cast<double>(heads) * 4096 * 4096 * 128;
    return op.work.flops / cost.value().estimate(op).time.seconds() / 1e12;
  };
  EXPECT_LT(rate(4), 0.65 * rate(64));
  EXPECT_NEAR(rate(64), 185, 20);
}

TEST(ComputeCost, CommunicationTakesMultiprocessorsAndMemory) {
  const auto cost = ComputeCost::load(device("a100"));
  const auto op = gemm(4096, 4096, 4096);
  EXPECT_EQ(cost.value().slowdown_beside_collective(op, 0), 1);
  // Galvatron measured 1.1256 for computation beside communication (overlap_coefficient.json).
  EXPECT_NEAR(cost.value().slowdown_beside_collective(op, 12), 1.1256, 0.02);
  EXPECT_GT(cost.value().slowdown_beside_collective(op, 24), 1.2);
}

TEST(ComputeCost, HostProfiles) {
  const auto cost = ComputeCost::load(device("a100"));
  TrainingSpec t;
  EXPECT_GE(cost.value().host_issue(t), Time::us(5));
  t.host_profile = "graph";
  EXPECT_TRUE(cost.value().check(t).ok());
  EXPECT_LT(cost.value().host_issue(t), Time::us(3));
  t.host_issue = Time::us(9);
  EXPECT_EQ(cost.value().host_issue(t), Time::us(9));
  t.host_profile = "grap";
  ASSERT_FALSE(cost.value().check(t).ok());
  EXPECT_NE(to_text(cost.value().check(t).errors()).find("did you mean 'graph'"), std::string::npos);
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
