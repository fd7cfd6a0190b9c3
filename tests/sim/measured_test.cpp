// Curves of a spec as times: measured shapes get their measurement, others the line, and what the machine's own curves
// replace (host, gaps, overlap, NCCL).
#include <gtest/gtest.h>

#include "core/spec/read.hpp"
#include "sim/collective/collective_cost.hpp"
#include "sim/collective/measured_transfers.hpp"
#include "sim/cost/compute_cost.hpp"
#include "sim/cost/measured_kernels.hpp"

namespace wt::sim {
namespace {

plan::Compute product(int64_t m, int64_t n, int64_t k) {
  plan::Compute c;
  c.dtype = DType::f32;
  c.dims = {m, n, k, 0, 0};
  c.work = {2.0 * static_cast<double>(m * n * k), 4 * (m * k + n * k), 4 * m * n};
  return c;
}

/// 100 GFLOP/s and 1 us, but for one shape that takes twice as long.
MeasuredDevice device() {
  MeasuredDevice d;
  d.source = "test";
  d.op_overhead = Time::us(2);
  KernelCurve& k = d.kernels.emplace_back();
  k.kernel = "gemm";
  k.latency = Time::us(1);
  k.rate = 100e9;
  for (const int64_t n : {64, 1024}) {
    const plan::Compute c = product(n, n, n);
    const double line = 1e-6 + c.work.flops / 100e9;
    k.points.push_back({{n, n, n}, c.work.flops, {c.work.bytes_read}, Time::from_seconds(n == 64 ? 2 * line : line)});
  }
  return d;
}

TEST(MeasuredKernels, AMeasuredShapeGetsItsMeasurementAndAFarOneTheLine) {
  const auto m = MeasuredKernels::make(device());
  ASSERT_TRUE(m.ok());
  const auto line = [](const plan::Compute& c) { return 1e-6 + c.work.flops / 100e9; };
  const auto at = [&](int64_t n) { return m.value().estimate(product(n, n, n))->seconds / line(product(n, n, n)); };
  EXPECT_NEAR(at(64), 2, 0.01);
  EXPECT_NEAR(at(1024), 1, 0.01);
  EXPECT_NEAR(at(16384), 1, 1e-9);
  EXPECT_GT(at(80), 1.5);  // near the slow one
  EXPECT_LT(at(80), 2);
}

TEST(MeasuredKernels, WhatWasNotMeasuredHasNoTimeAndAnotherVariantServes) {
  const auto m = MeasuredKernels::make(device());
  plan::Compute c = product(64, 64, 64);
  c.transpose_b = true;
  EXPECT_TRUE(m.value().estimate(c).has_value());
  c.dtype = DType::bf16;
  EXPECT_FALSE(m.value().estimate(c).has_value());
  c = product(64, 64, 64);
  c.kernel = plan::Kernel::adam;
  EXPECT_FALSE(m.value().estimate(c).has_value());
}

TEST(MeasuredKernels, AKernelThatNoPlanHasIsRefusedByName) {
  MeasuredDevice d = device();
  d.kernels[0].kernel = "norm_foward";
  const auto m = MeasuredKernels::make(d);
  ASSERT_FALSE(m.ok());
  EXPECT_NE(to_text(m.errors()).find("norm_forward"), std::string::npos) << to_text(m.errors());
}

TEST(MeasuredKernels, TheDevicesOwnCurvesDecideHostGapsAndOverlap) {
  DeviceSpec spec;
  spec.measured = device();
  spec.peak[DType::f32] = {200e9};
  const auto cost = ComputeCost::load(spec);
  ASSERT_TRUE(cost.ok()) << to_text(cost.errors());
  EXPECT_EQ(cost.value().device_gap(), Time::us(2));
  EXPECT_EQ(cost.value().host_issue(TrainingSpec()), Time());
  EXPECT_GE(cost.value().slowdown_beside_collective(product(64, 64, 64), kWholeDevice), 9e3);  // stands still
  EXPECT_NEAR(cost.value().slowdown_beside_collective(product(64, 64, 64), kWholeDevice / 2), 2, 1e-9);
  EXPECT_EQ(cost.value().slowdown_beside_collective(product(64, 64, 64), 0), 1);
  const CostEstimate e = cost.value().estimate(product(1024, 1024, 1024));
  EXPECT_EQ(e.source, "measured: test");
  EXPECT_EQ(e.bound, Bound::compute);
  EXPECT_NEAR(e.efficiency, 0.5, 0.01);
}

TransferCurve curve(TransferKind kind, int64_t ranks, int64_t nodes) {
  TransferCurve t;
  t.kind = kind;
  t.ranks = ranks;
  t.nodes = nodes;
  t.device_share = 0.7;
  t.lines = {{{8}, Time::us(5), {1e9}}, {{65536}, Time::us(10), {10e9}}};
  return t;
}

TEST(MeasuredTransfers, ASizeLiesInItsRegimeAndNeverFalls) {
  const MeasuredTransfers m({curve(TransferKind::all_reduce, 2, 1)});
  const auto at = [&](double b) { return m.estimate(TransferKind::all_reduce, DType::f32, b, 2, 1)->seconds; };
  EXPECT_NEAR(at(1000), 6e-6, 1e-12);
  EXPECT_NEAR(at(10e6), 1010e-6, 1e-9);
  EXPECT_NEAR(at(8), at(1), 1e-8);  // below the first point: its line
  double before = 0;
  for (double b = 1; b < 1e8; b *= 1.1) {
    EXPECT_GE(at(b), before) << b;  // the second regime begins at 16.6 us, the first ends at 70.5 us
    before = at(b);
  }
}

TEST(MeasuredTransfers, TheNearestGroupServesAnother) {
  TransferCurve far = curve(TransferKind::all_reduce, 2, 2);
  far.lines = {{{8}, Time::us(100), {1e8}}};
  const MeasuredTransfers m({curve(TransferKind::all_reduce, 2, 1), far});
  const auto at = [&](int64_t ranks, int64_t nodes) {
    return m.estimate(TransferKind::all_reduce, DType::f32, 1e6, ranks, nodes)->seconds;
  };
  EXPECT_NEAR(at(2, 2), 100e-6 + 1e-2, 1e-9);
  // Four ranks: three steps for one, 3/4 of the buffer for 1/2.
  EXPECT_NEAR(at(4, 1), 3 * 10e-6 + 1.5 * 1e-4, 1e-9);
  EXPECT_FALSE(m.estimate(TransferKind::message, DType::f32, 1e6, 2, 1).has_value());
}

TEST(MeasuredTransfers, ReplaceTheModelOfTheCluster) {
  auto cluster = read_cluster("dgx-a100-80");
  ASSERT_TRUE(cluster.ok());
  const auto modelled = CollectiveCost::load(cluster.value());
  cluster.value().transfers = {curve(TransferKind::all_reduce, 2, 1), curve(TransferKind::message, 2, 1)};
  const auto cost = CollectiveCost::load(cluster.value());
  ASSERT_TRUE(cost.ok());
  const std::vector<RankId> two = {{0}, {1}};
  const GroupShape shape = cost.value().shape_of(two);
  const auto sum = [&](const CollectiveCost& c, plan::CollectiveKind k) {
    return c.estimate(k, plan::Reduction::sum, DType::f32, 10'000'000, shape);
  };
  const CollectiveEstimate e = sum(cost.value(), plan::CollectiveKind::all_reduce);
  EXPECT_TRUE(e.measured);
  EXPECT_EQ(e.time, Time::us(1010));
  EXPECT_EQ(e.channels, 70);
  EXPECT_EQ(cost.value().estimate_message(10'000'000, {0}, {1}).time, Time::us(1010));
  // What was not measured is still modelled.
  EXPECT_EQ(sum(cost.value(), plan::CollectiveKind::all_gather).time,
            sum(modelled.value(), plan::CollectiveKind::all_gather).time);
}

}  // namespace
}  // namespace wt::sim
