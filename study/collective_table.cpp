#include "study/collective_table.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "core/spec/names.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

/// Ranks of the machine that take part: the first `per_node` devices of each node.
std::vector<RankId> members_of(const ClusterSpec& cluster, const CollectiveQuestion& q) {
  const int64_t devices = cluster.node.devices, per_node = q.per_node > 0 ? q.per_node : devices;
  std::vector<RankId> out;
  for (int64_t r = 0; r < cluster.ranks() && static_cast<int64_t>(out.size()) < q.gpus; ++r)
    if (r % devices < per_node) out.push_back(RankId{static_cast<uint32_t>(r)});
  return out;
}

Diagnostics faults_of(const ClusterSpec& cluster, const CollectiveQuestion& q) {
  const int64_t devices = cluster.node.devices, per_node = q.per_node > 0 ? q.per_node : devices;
  Diagnostics out;
  if (per_node > devices)
    out.push_back({"--per-node", fmt::format("{} of nodes that have {} GPUs", per_node, devices),
                   fmt::format("legal: 1 to {}", devices)});
  const int64_t most = cluster.nodes * std::min(per_node, devices);
  if (q.gpus < 2 || q.gpus > most)
    out.push_back({"--gpus",
                   fmt::format("{} of a cluster of {} nodes with {} taking part", q.gpus, cluster.nodes, most),
                   fmt::format("legal: 2 to {}; --nodes makes the cluster larger", most)});
  return out;
}

std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t u = 0;
  while (u + 1 < std::size(kUnits) && bytes % 1024 == 0) {
    bytes /= 1024;
    ++u;
  }
  return fmt::format("{} {}", with_commas(bytes), kUnits[u]);
}

double microseconds(const sim::CollectiveEstimate& e) { return e.time.seconds() * 1e6; }

}  // namespace

const std::vector<TableOp>& table_ops() {
  static const std::vector<TableOp> all = {
      {"all_reduce", plan::CollectiveKind::all_reduce},         {"all_gather", plan::CollectiveKind::all_gather},
      {"reduce_scatter", plan::CollectiveKind::reduce_scatter}, {"alltoall", plan::CollectiveKind::all_to_all},
      {"broadcast", plan::CollectiveKind::broadcast},           {"sendrecv", std::nullopt}};
  return all;
}

double bus_factor(const TableOp& op, int64_t ranks) {
  const double n = static_cast<double>(ranks);
  if (!op.kind || *op.kind == plan::CollectiveKind::broadcast) return 1;
  return (*op.kind == plan::CollectiveKind::all_reduce ? 2 : 1) * (n - 1) / n;
}

Result<CollectiveTable> collective_table(const ClusterSpec& cluster, const CollectiveQuestion& q) {
  if (Diagnostics faults = faults_of(cluster, q); !faults.empty()) return faults;
  auto cost = sim::CollectiveCost::load(cluster, q.nccl);
  if (!cost) return cost.errors();
  const std::vector<RankId> members = members_of(cluster, q);
  CollectiveTable out;
  out.shape = cost.value().shape_of(members);
  // Alone on the machine: no sister group shares the cards.
  out.shape.nic_share = 1;
  for (const int64_t bytes : q.bytes) {
    CollectiveRow row;
    row.bytes = bytes;
    row.estimate = q.op.kind ? cost.value().estimate(*q.op.kind, plan::Reduction::sum, q.dtype, bytes, out.shape)
                             : cost.value().estimate_message(bytes, members.front(), members.back());
    const double seconds = row.estimate.time.seconds();
    row.algorithm_gb_s = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
    row.bus_gb_s = row.algorithm_gb_s * bus_factor(q.op, q.gpus);
    out.rows.push_back(row);
  }
  return out;
}

std::string print_collective_screen(const CollectiveTable& t, const ClusterSpec& cluster, const CollectiveQuestion& q) {
  std::string out =
      fmt::format("{} of {} on {} {} of {}, {} node{}\n\n", q.op.name, spelled(q.dtype), with_commas(q.gpus),
                  cluster.device.name, cluster.name, t.shape.nodes, t.shape.nodes == 1 ? "" : "s");
  report::Table table({"size", "time us", "algbw GB/s", "busbw GB/s", "algorithm", "protocol", "channels"});
  for (const CollectiveRow& r : t.rows)
    table.add({size_text(r.bytes), fmt::format("{:.1f}", microseconds(r.estimate)),
               fmt::format("{:.2f}", r.algorithm_gb_s), fmt::format("{:.2f}", r.bus_gb_s),
               std::string(sim::to_text(r.estimate.algorithm)), std::string(sim::to_text(r.estimate.protocol)),
               std::to_string(r.estimate.channels)});
  out += table.text();
  out += "\n  sizes and busbw as nccl-tests counts them; GB is 10^9 bytes; nothing else uses the links\n";
  return out;
}

std::string print_collective_json(const CollectiveTable& t, const ClusterSpec& cluster, const CollectiveQuestion& q) {
  Json j{{"schema_version", 1}, {"op", q.op.name},        {"dtype", spelled(q.dtype)},
         {"gpus", q.gpus},      {"nodes", t.shape.nodes}, {"cluster", cluster.name}};
  j["rows"] = Json::array();
  for (const CollectiveRow& r : t.rows)
    j["rows"].push_back(Json{{"bytes", r.bytes},
                             {"time_us", microseconds(r.estimate)},
                             {"algbw_gb_s", r.algorithm_gb_s},
                             {"busbw_gb_s", r.bus_gb_s},
                             {"algorithm", sim::to_text(r.estimate.algorithm)},
                             {"protocol", sim::to_text(r.estimate.protocol)},
                             {"channels", r.estimate.channels}});
  return j.dump(2) + "\n";
}

std::string print_collective_csv(const CollectiveTable& t) {
  std::string out = "bytes,time_us,algbw_gb_s,busbw_gb_s,algorithm,protocol,channels\n";
  for (const CollectiveRow& r : t.rows)
    out += fmt::format("{},{},{},{},{},{},{}\n", r.bytes, microseconds(r.estimate), r.algorithm_gb_s, r.bus_gb_s,
                       sim::to_text(r.estimate.algorithm), sim::to_text(r.estimate.protocol), r.estimate.channels);
  return out;
}

}  // namespace wt::study
