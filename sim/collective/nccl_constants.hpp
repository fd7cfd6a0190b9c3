// The tables of data/nccl/ and data/fabrics.csv for one generation and one kind of fabric: what NCCL's tuner believes and
// what transfers really reach. Plain numbers in GB/s and microseconds; no formula.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "sim/collective/collective_cost.hpp"

namespace wt::sim {

inline constexpr size_t kAlgorithms = 7, kProtocols = 3;

/// Index of a table by nodes: 1, 2, more.
constexpr size_t span_of(int64_t nodes) { return nodes <= 1 ? 0 : nodes == 2 ? 1 : 2; }

struct NcclConstants {
  enum Part : size_t { base, nvlink, pci, net };
  enum Limit : size_t { ll, ring_ll128, tree_ll128, tree, nvls_tree };
  enum Generation : size_t { volta, ampere, hopper, blackwell, cdna };

  size_t generation = 0;
  std::array<std::array<std::array<double, kProtocols>, 4>, kAlgorithms> latency{};  // us, by Part
  std::array<std::array<double, 3>, 5> limit{};                                      // GB/s, by Limit and span
  std::vector<double> speed_intra, speed_inter;                                      // GB/s, fastest first
  std::array<std::array<double, kProtocols>, 24> tree_correction{};                  // row i: 64 B * 2^i
  std::array<int64_t, 9> cube_rings{};                                               // by ranks

  // generation.csv
  double link_gbps = 0, link_nominal = 0, duplicate_from = 0, ring_plateau = 0, nvls_efficiency = 0, nvls_min_ranks = 0,
         nvls_channels = 0, ring_share = 0, ring_share_across = 0, ring_fill = 0, nvls_share = 0,
         nvls_share_doubling = 0, nvls_tree_gbps = 0, pair_share = 0, alltoall_share = 0, alltoall_net = 0,
         message_net = 0, message_us = 0;
  // constants.csv
  double nvls_base_us = 0, net_overhead_us = 0, pcie_tuner_share = 0, pcie_share = 0, ring_net_gather = 0,
         ring_net_channels = 0, socket_share = 0, alltoall_local_us = 0, alltoall_remote_us = 0, message_net_us = 0,
         message_simple_us = 0, flex_local = 0, flex_net = 0, flex_blocks = 0;
  // fabrics.csv
  double net_efficiency = 1, net_latency_us = 0, net_declared_us = 0;
  bool net_ll = true, net_ll128 = true;

  /// What running adds to the terms of the tuner: factor on the time by log2(bandwidth term / latency term) from
  /// kFirstLoad in steps of one; empty: 1.
  static constexpr int kFirstLoad = -10;
  std::array<std::array<std::array<std::vector<double>, 3>, kProtocols>, kAlgorithms> execution;

  std::vector<std::pair<double, double>> gather_nodes;  // nodes, share

  static Result<NcclConstants> read(const ClusterSpec& cluster, const std::string& data);
  double execution_ratio(Algorithm, Protocol, size_t span, double latency_us, double transfer_us) const;
  /// Share of its rate that a ring all-gather over so many nodes keeps.
  double gather_share(int64_t nodes) const;
};

}  // namespace wt::sim
