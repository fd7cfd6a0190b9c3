// Holds the collective model to the published measurements of data/measured/nccl.csv: prints the table of docs/collectives.md
// and fails when a median gets worse than what that page claims.
// WT_COLLECTIVE_POINTS=FILE writes every point with its estimate (data/nccl/derive_execution.py reads it).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <tuple>

#include "core/base/text.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"
#include "sim/collective/collective_cost.hpp"
#include "sim/cost/csv.hpp"

namespace wt::sim {
namespace {

struct Point {
  std::string series, op, device, note;
  int64_t ranks = 0, nodes = 0, bytes = 0;
  double measured_us = 0;
  CollectiveEstimate estimate;
  double error() const { return std::abs(estimate.time.seconds() * 1e6 / measured_us - 1); }
};

std::string_view size_class(int64_t bytes) {
  return bytes < (1 << 20) ? "< 1 MiB" : bytes < (128 << 20) ? "1 to 64 MiB" : ">= 128 MiB";
}

/// The set-up of one row: a cluster of cluster_specs/ with the fabric that the row states.
Result<CollectiveCost> load_setup(const ClusterSpec& base, std::string_view fabric, std::string_view nics,
                                  std::string_view nic, const NcclOptions& options) {
  ClusterSpec cluster = base;
  for (const auto& row : names_of(FabricKind{}))
    if (row.name == fabric) cluster.fabric.kind = row.value;
  if (nics != "-") cluster.fabric.nics_per_node = *parse_int(nics);
  if (nic != "-") cluster.fabric.nic_bandwidth.n = *parse_double(nic) * 1e9 / 8;
  return CollectiveCost::load(cluster, options);
}

std::vector<Point> read_points() {
  static constexpr std::string_view columns[] = {"series",    "cluster",  "fabric", "nics",  "nic",   "op",   "dtype",
                                                 "algorithm", "protocol", "ranks",  "nodes", "bytes", "time", "notes"};
  auto read = Csv::read(data_directory() + "/measured/nccl.csv", columns);
  if (!read) ADD_FAILURE() << to_text(read.errors());
  if (!read) return {};
  Csv& csv = read.value();
  std::map<std::string, ClusterSpec> clusters;
  std::map<std::string, CollectiveCost> costs;
  std::vector<Point> points;
  for (size_t r = 0; r < csv.rows(); ++r) {
    const std::string name(csv.text(r, 1));
    if (!clusters.contains(name)) {
      auto cluster = read_cluster(name);
      if (!cluster) ADD_FAILURE() << to_text(cluster.errors());
      clusters.emplace(name, cluster.value());
    }
    const ClusterSpec& cluster = clusters.at(name);
    NcclOptions options;
    for (const Algorithm a : {Algorithm::ring, Algorithm::tree, Algorithm::nvls_tree})
      if (csv.text(r, 7) == to_text(a)) options.algorithm = a;
    for (const Protocol p : {Protocol::ll, Protocol::ll128, Protocol::simple})
      if (csv.text(r, 8) == to_text(p)) options.protocol = p;
    std::string key = name;
    for (const size_t c : {2, 3, 4, 7, 8}) key += "," + std::string(csv.text(r, c));
    if (!costs.contains(key)) {
      auto cost = load_setup(cluster, csv.text(r, 2), csv.text(r, 3), csv.text(r, 4), options);
      if (!cost) ADD_FAILURE() << to_text(cost.errors());
      costs.emplace(key, cost.value());
    }
    const CollectiveCost& cost = costs.at(key);
    Point p{.series = std::string(csv.text(r, 0)),
            .op = std::string(csv.text(r, 5)),
            .device = cluster.device.name,
            .note = std::string(csv.text(r, 13)),
            .ranks = static_cast<int64_t>(csv.number(r, 9)),
            .nodes = static_cast<int64_t>(csv.number(r, 10)),
            .bytes = static_cast<int64_t>(csv.number(r, 11)),
            .measured_us = csv.number(r, 12),
            .estimate = {}};
    const int64_t devices = cluster.node.devices, per_node = p.ranks / p.nodes;
    if (p.op == "message") {
      // nccl-tests sendrecv is a ring of all ranks: across nodes one message leaves each node.
      p.estimate = cost.estimate_message(p.bytes, RankId{0}, RankId{static_cast<uint32_t>(p.nodes == 1 ? 1 : devices)});
    } else {
      std::vector<RankId> members;
      for (int64_t i = 0; i < p.ranks; ++i)
        members.push_back({static_cast<uint32_t>(i / per_node * devices + i % per_node)});
      GroupShape shape = cost.shape_of(members);
      shape.nic_share = 1;  // nothing else runs
      plan::CollectiveKind kind{};
      for (const auto k : {plan::CollectiveKind::all_reduce, plan::CollectiveKind::all_gather,
                           plan::CollectiveKind::reduce_scatter, plan::CollectiveKind::all_to_all})
        if (plan::to_text(k) == p.op) kind = k;
      p.estimate = cost.estimate(kind, plan::Reduction::sum, *parse_dtype(csv.text(r, 6)), p.bytes, shape);
    }
    points.push_back(std::move(p));
  }
  EXPECT_TRUE(csv.errors().empty()) << to_text(csv.errors());
  return points;
}

struct Quantiles {
  size_t count = 0;
  double median = 0, p90 = 0;
};

template <class Wanted>
Quantiles quantiles(const std::vector<Point>& points, Wanted wanted) {
  std::vector<double> errors;
  for (const Point& p : points)
    if (wanted(p)) errors.push_back(p.error());
  if (errors.empty()) return {};
  std::ranges::sort(errors);
  return {errors.size(), errors[errors.size() / 2], errors[errors.size() * 9 / 10]};
}

TEST(CollectiveMeasured, MedianErrors) {
  const std::vector<Point> points = read_points();
  ASSERT_GT(points.size(), 1000u);

  std::map<std::tuple<std::string, std::string, std::string>, std::vector<Point>> table;
  for (const Point& p : points)
    table[{p.op, fmt::format("{} x {}", p.device, p.nodes > 1 ? "n" : "1"), std::string(size_class(p.bytes))}]
        .push_back(p);
  fmt::print("{:15} {:22} {:12} {:>6} {:>8} {:>8}\n", "op", "hardware x nodes", "size", "points", "median", "p90");
  for (const auto& [key, rows] : table) {
    const Quantiles q = quantiles(rows, [](const Point&) { return true; });
    fmt::print("{:15} {:22} {:12} {:6} {:7.1f}% {:7.1f}%\n", std::get<0>(key), std::get<1>(key), std::get<2>(key),
               q.count, q.median * 100, q.p90 * 100);
  }
  const Quantiles large = quantiles(points, [](const Point& p) { return p.bytes >= 1 << 20; });
  const Quantiles small = quantiles(points, [](const Point& p) { return p.bytes < 1 << 20; });
  const Quantiles regular = quantiles(points, [](const Point& p) { return p.bytes < 1 << 20 && p.note == "-"; });
  fmt::print("all >= 1 MiB: {} points, median {:.1f} %, p90 {:.1f} %\n", large.count, large.median * 100,
             large.p90 * 100);
  fmt::print(
      "all < 1 MiB: {} points, median {:.1f} %, p90 {:.1f} %; not bound by the host: {} points, median {:.1f} %\n",
      small.count, small.median * 100, small.p90 * 100, regular.count, regular.median * 100);

  if (const char* path = std::getenv("WT_COLLECTIVE_POINTS")) {
    std::ofstream out(path);
    out << "series,op,device,ranks,nodes,bytes,measured,estimate,latency,algorithm,protocol,note\n";
    for (const Point& p : points)
      out << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", p.series, p.op, p.device, p.ranks, p.nodes, p.bytes,
                         p.measured_us, p.estimate.time.seconds() * 1e6, p.estimate.latency_seconds * 1e6,
                         to_text(p.estimate.algorithm), to_text(p.estimate.protocol), p.note);
    return;  // asked for points, perhaps with curves taken out: not a test
  }
  EXPECT_LE(large.median, 0.12);
  EXPECT_LE(large.p90, 0.50);
  EXPECT_LE(small.median, 0.35);
}

}  // namespace
}  // namespace wt::sim
