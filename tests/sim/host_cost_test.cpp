// The host's side of a node: shares of ranks, cores against memory, pinned and pageable copies, drives.
#include "sim/cost/host_cost.hpp"

#include <gtest/gtest.h>

#include "core/lower/work.hpp"

namespace wt::sim {
namespace {

NodeSpec node() {
  NodeSpec n;
  n.devices = 4;
  n.pcie_bandwidth = {16e9};
  n.host_copy_bandwidth = {12e9};
  n.host_memory_bandwidth = {200e9};
  n.nvme_read = {8e9};
  n.nvme_write = {4e9};
  return n;
}

HostCost cost(const NodeSpec& n) {
  auto c = HostCost::load(n);
  EXPECT_TRUE(c.ok());
  return c.value();
}

double seconds(Time t) { return t.seconds(); }

TEST(HostCost, RanksShareMemoryAndCores) {
  NodeSpec n = node();
  const plan::Compute op = lower::adam(1'000'000'000, {4, 4, 8, 0}, true, false);
  const double alone = seconds(cost([&] {
                                 NodeSpec one = n;
                                 one.devices = 1;
                                 return one;
                               }())
                                   .compute(op));
  EXPECT_NEAR(alone, 28e9 / (200e9 * 0.5), 1e-6);
  EXPECT_NEAR(seconds(cost(n).compute(op)), 4 * alone, 1e-6);
  n.cpu_cores = 4;  // one core a rank: 12 GB/s each
  EXPECT_NEAR(seconds(cost(n).compute(op)), 28e9 / 12e9, 1e-6);
}

/// ZeRO-Offload's table: torch's Adam on the host is several times slower than DeepSpeed's.
TEST(HostCost, TorchAdamIsSlower) {
  const plan::Compute fused = lower::adam(1'000'000, {4, 4, 8, 0}, true, true),
                      eager = lower::adam(1'000'000, {4, 4, 8, 0}, false, true);
  const double ratio = seconds(cost(node()).compute(eager)) / seconds(cost(node()).compute(fused));
  EXPECT_GT(ratio, 5);
  EXPECT_LT(ratio, 8);
}

TEST(HostCost, Copies) {
  const HostCost c = cost(node());
  const int64_t bytes = 12'000'000'000;
  EXPECT_NEAR(seconds(c.copy({plan::Space::device, plan::Space::pinned, bytes})), 1, 1e-6);
  EXPECT_NEAR(seconds(c.copy({plan::Space::pageable, plan::Space::device, bytes})), 2.5, 1e-6);
  EXPECT_NEAR(seconds(c.copy({plan::Space::nvme, plan::Space::pinned, bytes})), 6, 1e-6);  // a quarter of the drives
  EXPECT_NEAR(seconds(c.copy({plan::Space::pinned, plan::Space::nvme, bytes})), 12, 1e-6);
  NodeSpec narrow = node();
  narrow.host_memory_bandwidth = {16e9};  // 4 GB/s a rank
  EXPECT_NEAR(seconds(cost(narrow).copy({plan::Space::device, plan::Space::pinned, bytes})), 3, 1e-6);
}

}  // namespace
}  // namespace wt::sim
