// Calibration as a whole, with few points: what it writes is read by the strict reader, and the simulator takes its times
// from it. How right they are is measured, not tested (docs/executor.md).
#include "exec/calibrate/calibrate.hpp"

#include <gtest/gtest.h>

#include "core/lower/lower.hpp"
#include "core/spec/read.hpp"
#include "exec/comm/inproc.hpp"
#include "sim/simulate.hpp"

namespace wt::exec {
namespace {

Ranks threads(int64_t ranks) {
  Ranks r;
  r.size = r.per_host = ranks;
  r.open = [ranks](CpuKernel kernel) -> Result<std::vector<Machine>> {
    InprocOptions options;
    options.kernel = std::move(kernel);
    return open_inproc(ranks, options);
  };
  return r;
}

const Calibration& two_ranks() {
  static const Calibration done = [] {
    CalibrateOptions o;
    o.extent = Extent::quick;
    o.source = "test";
    auto c = calibrate(threads(2), o);
    EXPECT_TRUE(c.ok()) << to_text(c.errors());
    return c.ok() ? std::move(c.value()) : Calibration();
  }();
  return done;
}

TEST(Calibrate, MeasuresEveryKernelOfTheJobsAndEveryTransfer) {
  const ClusterSpec& c = two_ranks().cluster;
  ASSERT_TRUE(c.device.measured.has_value());
  EXPECT_EQ(c.nodes, 1);
  EXPECT_EQ(c.node.devices, 2);
  EXPECT_GT(c.device.measured->op_overhead.count_ps(), 0);
  std::set<std::string> kernels, products;
  for (const KernelCurve& k : c.device.measured->kernels) {
    kernels.insert(k.kernel);
    if (k.kernel == "gemm") products.insert(k.variant);
    EXPECT_FALSE(k.points.empty()) << k.kernel;
    EXPECT_TRUE(k.latency.count_ps() > 0 || k.rate > 0 || k.bandwidth.n > 0) << k.kernel;
  }
  EXPECT_TRUE(kernels.contains("attention_backward"));
  EXPECT_TRUE(kernels.contains("adam"));
  for (const char* of_strategies : {"route_forward", "permute", "regroup", "grouped_gemm", "expert_activation_backward",
                                    "block_attention_forward", "merge_attention"})
    EXPECT_TRUE(kernels.contains(of_strategies)) << of_strategies;
  EXPECT_EQ(products, (std::set<std::string>{"", "transpose_b", "transpose_a accumulate"}));
  std::set<TransferKind> kinds;
  for (const TransferCurve& t : c.transfers) kinds.insert(t.kind);
  EXPECT_EQ(kinds.size(), 6u);
}

TEST(Calibrate, WritesWhatTheReaderReads) {
  const ClusterSpec& c = two_ranks().cluster;
  const auto read = parse_cluster(print_cluster(c), "calibrated.yaml");
  ASSERT_TRUE(read.ok()) << to_text(read.errors());
  EXPECT_TRUE(read.value() == c);
}

/// Every probe has a plan, on as many ranks as a machine may have.
TEST(Calibrate, HasProbesForEveryNumberOfRanks) {
  for (const int64_t ranks : {1, 2, 3, 4, 8, 16})
    for (const DType precision : {DType::f32, DType::bf16})
      for (const JobSpec& job : probe_jobs(ranks, precision, Extent::full)) {
        const auto plan = lower::lower(job);
        ASSERT_TRUE(plan.ok()) << job.name << " on " << ranks << " ranks: " << to_text(plan.errors());
        EXPECT_EQ(plan.value().programs.size(), 1u) << job.name;
        EXPECT_EQ(plan.value().mesh.ranks(), ranks);
      }
}

class Predicted : public testing::TestWithParam<size_t> {};

/// Of a probe of dense layers, of experts and of ranks that share sequences: each kernel has a measured curve.
TEST_P(Predicted, GivesASimulationItsTimes) {
  const ClusterSpec& c = two_ranks().cluster;
  JobSpec job = probe_jobs(2, DType::f32, Extent::quick).at(GetParam());
  job.cluster = c;
  const auto plan = lower::lower(job);
  ASSERT_TRUE(plan.ok()) << to_text(plan.errors());
  const auto models = sim::load_models(c);
  ASSERT_TRUE(models.ok()) << to_text(models.errors());
  for (const plan::Block& b : plan.value().blocks)
    for (const plan::Op& op : b.ops)
      if (const auto* k = std::get_if<plan::Compute>(&op.body)) {
        EXPECT_EQ(models.value().compute.estimate(*k).source, "measured: test") << plan::to_text(k->kernel);
      }
  const auto run = sim::simulate(plan.value(), c, job.training, models.value(), {});
  ASSERT_TRUE(run.ok()) << to_text(run.errors());
  EXPECT_GT(run.value().step_time.seconds(), 1e-5);
  EXPECT_LT(run.value().step_time.seconds(), 10);
}

INSTANTIATE_TEST_SUITE_P(Probes, Predicted, testing::Values(0, 2, 3));

TEST(Calibrate, TellsHowFarEveryCurveIsFromItsPoints) {
  const std::string table = print_residuals(two_ranks());
  EXPECT_NE(table.find("gemm transpose_b fp32"), std::string::npos) << table;
  EXPECT_NE(table.find("all_reduce fp32 of 2 ranks on 1 node"), std::string::npos) << table;
}

TEST(Calibrate, OneRankHasNoTransfers) {
  CalibrateOptions o;
  o.extent = Extent::quick;
  const auto c = calibrate(threads(1), o);
  ASSERT_TRUE(c.ok()) << to_text(c.errors());
  EXPECT_TRUE(c.value().cluster.transfers.empty());
  const auto read = parse_cluster(print_cluster(c.value().cluster), "one.yaml");
  EXPECT_TRUE(read.ok()) << to_text(read.errors());
}

TEST(Calibrate, AScratchFolderThatIsNotThereIsNamed) {
  CalibrateOptions o;
  o.extent = Extent::quick;
  o.scratch = "/no/such/folder";
  const auto c = calibrate(threads(1), o);
  ASSERT_FALSE(c.ok());
  EXPECT_NE(to_text(c.errors()).find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace wt::exec
