#include "sim/collective/nccl_constants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/spec/names.hpp"
#include "sim/cost/csv.hpp"

namespace wt::sim {
namespace {

constexpr std::string_view kAlgorithmNames[] = {"ring", "tree", "nvls", "nvls_tree", "collnet", "pat", "pairwise"};
constexpr std::string_view kProtocolNames[] = {"ll", "ll128", "simple"};
constexpr std::string_view kPartNames[] = {"base", "nvlink", "pci", "net"};
constexpr std::string_view kLimitNames[] = {"ll", "ring_ll128", "tree_ll128", "tree", "nvls_tree"};
constexpr std::string_view kGenerationNames[] = {"volta", "ampere", "hopper", "blackwell", "cdna"};
constexpr std::string_view kSpanNames[] = {"one", "two", "more"};

size_t generation_of(GpuGeneration g) {
  switch (g) {
    case GpuGeneration::volta:
    case GpuGeneration::turing: return NcclConstants::volta;
    case GpuGeneration::ampere:
    case GpuGeneration::ada:
    case GpuGeneration::other: return NcclConstants::ampere;
    case GpuGeneration::hopper: return NcclConstants::hopper;
    case GpuGeneration::blackwell: return NcclConstants::blackwell;
    case GpuGeneration::cdna2:
    case GpuGeneration::cdna3:
    case GpuGeneration::cdna4: return NcclConstants::cdna;
  }
  return NcclConstants::ampere;
}

struct Key {
  std::string_view name;
  double* value;
};

/// Rows `key,value`; each key of `keys` must come once among the rows that `mine` accepts.
template <class Mine>
void read_keys(Csv& csv, size_t key_column, std::span<const Key> keys, Mine mine) {
  std::vector<std::string_view> names;
  for (const Key& key : keys) names.push_back(key.name);
  std::vector<bool> seen(keys.size());
  for (size_t row = 0; row < csv.rows(); ++row) {
    if (!mine(row)) continue;
    const size_t key = csv.choice(row, key_column, names);
    *keys[key].value = csv.number(row, key_column + 1);
    if (seen[key]) csv.fail(row, key_column, fmt::format("'{}' again", names[key]));
    seen[key] = true;
  }
  for (size_t i = 0; i < keys.size() && csv.errors().empty() && csv.rows() > 0; ++i)
    if (!seen[i]) csv.fail(csv.rows() - 1, key_column, fmt::format("no row '{}'", names[i]));
}

class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)) {}

  template <class F>
  void file(const char* name, std::initializer_list<std::string_view> columns, F&& f) {
    auto csv = Csv::read(folder_ + name, std::span(columns.begin(), columns.size()));
    if (csv) f(csv.value());
    const Diagnostics& found = csv ? csv.value().errors() : csv.errors();
    errors.insert(errors.end(), found.begin(), found.end());
  }

  Diagnostics errors;

 private:
  std::string folder_;
};

}  // namespace

std::string_view to_text(Algorithm a) { return kAlgorithmNames[static_cast<size_t>(a)]; }
std::string_view to_text(Protocol p) { return kProtocolNames[static_cast<size_t>(p)]; }

Result<NcclConstants> NcclConstants::read(const ClusterSpec& cluster, const std::string& data) {
  NcclConstants c;
  c.generation = generation_of(cluster.device.generation);
  const auto generation = kGenerationNames[c.generation];
  const std::string_view cpu = cluster.node.cpu_vendor;
  Reader in(data);

  in.file("/nccl/latency.csv", {"algorithm", "part", "ll", "ll128", "simple"}, [&](Csv& csv) {
    for (size_t r = 0; r < csv.rows(); ++r) {
      auto& row = c.latency[csv.choice(r, 0, kAlgorithmNames)][csv.choice(r, 1, kPartNames)];
      for (size_t p = 0; p < kProtocols; ++p) row[p] = csv.number(r, 2 + p);
    }
  });
  in.file("/nccl/limits.csv", {"limit", "generation", "one_node", "two_nodes", "more_nodes"}, [&](Csv& csv) {
    for (size_t r = 0; r < csv.rows(); ++r) {
      const size_t l = csv.choice(r, 0, kLimitNames), g = csv.choice(r, 1, kGenerationNames);
      for (size_t span = 0; span < 3; ++span) {
        const size_t wanted = l != ll || span == 0 ? c.generation : cpu == "amd" ? ampere : volta;
        const double value = csv.number(r, 2 + span);
        if (g == wanted) c.limit[l][span] = value;
      }
    }
  });
  in.file("/nccl/speeds.csv", {"generation", "place", "speed"}, [&](Csv& csv) {
    static constexpr std::string_view places[] = {"intra", "inter"};
    for (size_t r = 0; r < csv.rows(); ++r)
      if (csv.choice(r, 0, kGenerationNames) == c.generation)
        (csv.choice(r, 1, places) == 0 ? c.speed_intra : c.speed_inter).push_back(csv.number(r, 2));
  });
  in.file("/nccl/tree_correction.csv", {"log2_bytes", "ll", "ll128", "simple"}, [&](Csv& csv) {
    if (csv.rows() != c.tree_correction.size()) return csv.fail(0, 0, "24 rows are needed");
    for (size_t r = 0; r < csv.rows(); ++r)
      for (size_t p = 0; p < kProtocols; ++p) c.tree_correction[r][p] = csv.number(r, 1 + p);
  });
  in.file("/nccl/mesh.csv", {"ranks", "rings"}, [&](Csv& csv) {
    for (size_t r = 0; r < csv.rows(); ++r) {
      const double ranks = csv.number(r, 0);
      if (ranks < 2 || ranks > 8)
        csv.fail(r, 0, "outside 2 to 8");
      else
        c.cube_rings[static_cast<size_t>(ranks)] = static_cast<int64_t>(csv.number(r, 1));
    }
  });
  in.file("/nccl/generation.csv", {"generation", "key", "value", "source"}, [&](Csv& csv) {
    const Key keys[] = {{"link_gbps", &c.link_gbps},
                        {"link_nominal", &c.link_nominal},
                        {"duplicate_from", &c.duplicate_from},
                        {"ring_plateau", &c.ring_plateau},
                        {"nvls_efficiency", &c.nvls_efficiency},
                        {"nvls_min_ranks", &c.nvls_min_ranks},
                        {"nvls_channels", &c.nvls_channels},
                        {"ring_share", &c.ring_share},
                        {"ring_share_across", &c.ring_share_across},
                        {"ring_fill", &c.ring_fill},
                        {"nvls_share", &c.nvls_share},
                        {"nvls_share_doubling", &c.nvls_share_doubling},
                        {"nvls_tree_gbps", &c.nvls_tree_gbps},
                        {"pair_share", &c.pair_share},
                        {"alltoall_share", &c.alltoall_share},
                        {"alltoall_net", &c.alltoall_net},
                        {"message_net", &c.message_net},
                        {"message_us", &c.message_us}};
    read_keys(csv, 1, keys, [&](size_t r) { return csv.text(r, 0) == generation; });
  });
  in.file("/nccl/constants.csv", {"key", "value", "source"}, [&](Csv& csv) {
    double intel = 0, amd = 0, other = 0;
    const Key keys[] = {{"nvls_base_us", &c.nvls_base_us},
                        {"net_overhead_intel_us", &intel},
                        {"net_overhead_amd_us", &amd},
                        {"net_overhead_other_us", &other},
                        {"pcie_tuner_share", &c.pcie_tuner_share},
                        {"pcie_share", &c.pcie_share},
                        {"ring_net_gather", &c.ring_net_gather},
                        {"ring_net_channels", &c.ring_net_channels},
                        {"socket_share", &c.socket_share},
                        {"alltoall_local_us", &c.alltoall_local_us},
                        {"alltoall_remote_us", &c.alltoall_remote_us},
                        {"message_net_us", &c.message_net_us},
                        {"message_simple_us", &c.message_simple_us},
                        {"flex_local", &c.flex_local},
                        {"flex_net", &c.flex_net},
                        {"flex_blocks", &c.flex_blocks}};
    read_keys(csv, 0, keys, [](size_t) { return true; });
    c.net_overhead_us = cpu == "intel" ? intel : cpu == "amd" ? amd : other;
  });
  in.file("/nccl/gather_nodes.csv", {"nodes", "share"}, [&](Csv& csv) {
    for (size_t r = 0; r < csv.rows(); ++r) c.gather_nodes.emplace_back(csv.number(r, 0), csv.number(r, 1));
  });
  in.file("/nccl/execution.csv", {"algorithm", "protocol", "generation", "span", "log2_load", "ratio", "source"},
          [&](Csv& csv) {
            for (size_t r = 0; r < csv.rows(); ++r) {
              const size_t a = csv.choice(r, 0, kAlgorithmNames), p = csv.choice(r, 1, kProtocolNames);
              if (csv.choice(r, 2, kGenerationNames) != c.generation) continue;
              auto& curve = c.execution[a][p][csv.choice(r, 3, kSpanNames)];
              if (csv.number(r, 4) != kFirstLoad + static_cast<double>(curve.size()))
                csv.fail(r, 4, fmt::format("the loads of a curve run from {} in steps of 1", kFirstLoad));
              if (csv.number(r, 5) <= 0) csv.fail(r, 5, "a ratio is above 0");
              curve.push_back(csv.number(r, 5));
            }
          });
  in.file("/fabrics.csv", {"kind", "efficiency", "latency", "declared_latency", "ll", "ll128", "source"},
          [&](Csv& csv) {
            if (cluster.fabric.kind == FabricKind::none) return;
            const std::string_view kind = to_text(cluster.fabric.kind);
            for (size_t r = 0; r < csv.rows(); ++r) {
              if (csv.text(r, 0) != kind) continue;
              c.net_efficiency = csv.number(r, 1);
              c.net_latency_us = csv.number(r, 2);
              c.net_declared_us = csv.number(r, 3);
              c.net_ll = csv.number(r, 4) != 0;
              c.net_ll128 = csv.number(r, 5) != 0;
              return;
            }
            csv.fail(0, 0, fmt::format("no row '{}'", kind));
          });
  if (!in.errors.empty()) return in.errors;

  if (cluster.fabric.nic_efficiency > 0) c.net_efficiency = cluster.fabric.nic_efficiency;
  if (cluster.fabric.alltoall_efficiency > 0) c.alltoall_net = cluster.fabric.alltoall_efficiency;
  if (cluster.fabric.latency > Time()) c.net_latency_us = cluster.fabric.latency.seconds() * 1e6;
  return c;
}

double NcclConstants::execution_ratio(Algorithm a, Protocol p, size_t span, double latency_us,
                                      double transfer_us) const {
  const auto& spans = execution[static_cast<size_t>(a)][static_cast<size_t>(p)];
  const std::vector<double>* curve = nullptr;
  for (size_t s = span; !curve && s < 3; --s)  // a wider span without data takes the next narrower one
    if (!spans[s].empty()) curve = &spans[s];
  for (size_t s = span; !curve && s < 3; ++s)
    if (!spans[s].empty()) curve = &spans[s];
  if (!curve) return 1;
  if (latency_us <= 0) return curve->back();
  // Linear between powers of two of the load; frexp keeps log2 out (its last bit differs between libraries).
  int exponent = 0;
  const double mantissa =
      std::frexp(transfer_us / latency_us, &exponent);  // load = mantissa * 2^exponent, 0.5 <= m < 1
  const double x = exponent - 1 + (2 * mantissa - 1) - kFirstLoad;
  const double last = static_cast<double>(curve->size()) - 1;
  if (!(x > 0)) return curve->front();
  if (x >= last) return curve->back();
  const auto i = static_cast<size_t>(x);
  return (*curve)[i] + ((*curve)[i + 1] - (*curve)[i]) * (x - static_cast<double>(i));
}

double NcclConstants::gather_share(int64_t nodes) const {
  const auto n = static_cast<double>(nodes);
  if (gather_nodes.empty() || n <= gather_nodes.front().first) return 1;
  for (size_t i = 1; i < gather_nodes.size(); ++i) {
    const auto [n0, s0] = gather_nodes[i - 1];
    const auto [n1, s1] = gather_nodes[i];
    if (n <= n1) return s0 + (s1 - s0) * (n - n0) / (n1 - n0);
  }
  return gather_nodes.back().second;
}

}  // namespace wt::sim
