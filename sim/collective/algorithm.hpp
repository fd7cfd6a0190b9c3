// One collective algorithm as NCCL's tuner sees it and as it really runs: two terms, latency and bandwidth. One file per
// algorithm in algorithms/; the table is made from the file names. No choice between algorithms is made here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/plan/plan.hpp"
#include "sim/collective/collective_cost.hpp"
#include "sim/collective/nccl_constants.hpp"

namespace wt::sim {

/// What NCCL's search finds for one pattern: channels and the GB/s of one channel inside a node and across nodes.
struct Graph {
  int64_t channels = 1;
  double intra = 0, inter = 0;
};

/// One collective on one group. A "node" is what NVLink joins: an NVLink domain that spans hosts is one node.
struct Situation {
  const NcclConstants* c = nullptr;
  plan::CollectiveKind kind = plan::CollectiveKind::all_reduce;
  bool switch_can_reduce = false;  // the switch has the arithmetic and knows this reduction of this dtype
  bool nvlink = false;             // hops inside a node go over NVLink (or xGMI), not over PCIe
  bool collnet = false;
  int64_t ranks = 1, nodes = 1, per_node = 1;
  int64_t copies = 0;         // of an all-to-all: plan::Collective::copies
  bool real = false;          // rates that transfers reach; false: what the tuner believes
  double net_latency_us = 0;  // of one crossing, over the constant of the tuner; Simple pays it twice when not real
  Graph ring, tree;
  double link = 0;  // GB/s of a device to the others of its group in the node: nominal when real, else NCCL's
  double ring_in_node = 0, ring_across = 0;  // real: GB/s of a large ring inside a node, of its part in a node
  double pair = 0;                           // real: GB/s of one message to a neighbour in the node
  double message_net = 0;                    // real: GB/s of one message to another node, which takes one NIC
  double net = 0;                            // real: GB/s of the NICs that the group uses in one node, one direction
  double nics_nominal = 0;   // GB/s of the NICs next to the group in one node, as the search counts them
  double leaf_slowdown = 1;  // real: factor on what crosses nodes for oversubscribed uplinks

  size_t span() const { return span_of(nodes); }
  bool sums() const { return kind == plan::CollectiveKind::all_reduce; }
  bool shifts() const { return kind == plan::CollectiveKind::shift_up || kind == plan::CollectiveKind::shift_down; }
  /// 2 (n - 1) for all-reduce, n - 1 for all-gather and reduce-scatter, n for broadcast, 1 for a shift.
  int64_t steps() const;
  double hop_us(Algorithm, NcclConstants::Part, Protocol) const;
  double base_us(Algorithm a, Protocol p) const { return hop_us(a, NcclConstants::base, p); }
  double intra_us(Algorithm a, Protocol p) const {
    return hop_us(a, nvlink ? NcclConstants::nvlink : NcclConstants::pci, p);
  }
  /// One crossing; with one rank in each node the latencies of the tree hold for every algorithm.
  double inter_us(Algorithm a, Protocol p) const;
};

/// time = latency + bytes / bandwidth
struct Terms {
  double latency_us = 0;
  double gbps = 0;
  double us(double bytes) const { return latency_us + bytes / (gbps * 1e3); }
};

struct AlgorithmModel {
  Algorithm id;
  std::string_view cites;
  bool (*available)(const Situation&, Protocol);
  Terms (*terms)(const Situation&, Protocol, double bytes);
  /// Blocks that it takes from the device at large size.
  int64_t (*blocks)(const Situation&);
};

/// Generated from the file names; each file defines `extern const AlgorithmModel algorithms_<stem>`.
std::span<const AlgorithmModel* const> all_algorithms();

/// Whether the protocol may be used at all: LL128 needs NVLink inside the node (or Hopper) and a fabric that keeps order.
bool protocol_available(const Situation&, Protocol);

/// floor(log2(n)), n >= 1.
int64_t log2_floor(int64_t n);

}  // namespace wt::sim
