// The table of a collective: nccl-tests' bandwidth conventions, the sizes asked for, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/spec/read.hpp"
#include "study/collective_table.hpp"

namespace wt::study {
namespace {

using testing::HasSubstr;

ClusterSpec cluster() {
  auto c = read_cluster("dgx-h100");
  EXPECT_TRUE(c);
  c.value().nodes = 8;
  return c.value();
}
TableOp op(std::string_view name) {
  for (const TableOp& o : table_ops())
    if (o.name == name) return o;
  ADD_FAILURE() << name;
  return {};
}
CollectiveQuestion question(std::string_view name, int64_t gpus) {
  CollectiveQuestion q;
  q.op = op(name);
  q.gpus = gpus;
  q.bytes = {1024, 1 << 20, 1 << 28};
  return q;
}

TEST(CollectiveTable, BusFactorsOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(op("all_reduce"), 8), 2 * 7 / 8.0);
  EXPECT_DOUBLE_EQ(bus_factor(op("all_gather"), 8), 7 / 8.0);
  EXPECT_DOUBLE_EQ(bus_factor(op("reduce_scatter"), 16), 15 / 16.0);
  EXPECT_DOUBLE_EQ(bus_factor(op("alltoall"), 4), 3 / 4.0);
  EXPECT_DOUBLE_EQ(bus_factor(op("broadcast"), 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(op("sendrecv"), 2), 1);
}

TEST(CollectiveTable, BandwidthFollowsFromTime) {
  for (const TableOp& o : table_ops()) {
    const auto t = collective_table(cluster(), question(o.name, 16));
    ASSERT_TRUE(t) << to_text(t.errors());
    ASSERT_EQ(t.value().rows.size(), 3u);
    double before = 0;
    for (const CollectiveRow& r : t.value().rows) {
      const double seconds = r.estimate.time.seconds();
      EXPECT_GT(seconds, before) << o.name;
      before = seconds;
      EXPECT_DOUBLE_EQ(r.algorithm_gb_s, static_cast<double>(r.bytes) / seconds / 1e9);
      EXPECT_DOUBLE_EQ(r.bus_gb_s, r.algorithm_gb_s * bus_factor(o, 16));
    }
  }
}

TEST(CollectiveTable, APhysicalLimitHolds) {
  const auto node = collective_table(cluster(), question("all_gather", 8));
  const auto nodes = collective_table(cluster(), question("all_gather", 64));
  ASSERT_TRUE(node && nodes);
  EXPECT_LT(node.value().rows.back().bus_gb_s, 450);         // NVLink 4, one direction
  EXPECT_LT(nodes.value().rows.back().bus_gb_s, 400 * 1.2);  // 8 x 50 GB/s leave a node, an eighth stays inside
  EXPECT_EQ(node.value().shape.nodes, 1);
  EXPECT_EQ(nodes.value().shape.nodes, 8);
}

TEST(CollectiveTable, FewerOfEachNode) {
  CollectiveQuestion q = question("all_reduce", 8);
  q.per_node = 1;
  const auto t = collective_table(cluster(), q);
  ASSERT_TRUE(t);
  EXPECT_EQ(t.value().shape.nodes, 8);
  EXPECT_EQ(t.value().shape.ranks_per_node, 1);
}

TEST(CollectiveTable, RefusesWhatTheClusterHasNot) {
  auto t = collective_table(cluster(), question("all_reduce", 65));
  ASSERT_FALSE(t);
  EXPECT_THAT(to_text(t.errors()), HasSubstr("legal: 2 to 64"));
  CollectiveQuestion q = question("all_reduce", 1);
  q.per_node = 9;
  t = collective_table(cluster(), q);
  ASSERT_FALSE(t);
  EXPECT_THAT(to_text(t.errors()), HasSubstr("9 of nodes that have 8 GPUs"));
  EXPECT_THAT(to_text(t.errors()), HasSubstr("--gpus"));
}

}  // namespace
}  // namespace wt::study
