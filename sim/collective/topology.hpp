// How a group lies on the machine, turned into what an algorithm needs: hops, channels that NCCL's search would find, and
// the rates that the links of the group really reach. Not a simulation of links: every rate is that of a group alone, or
// of a group whose like-shaped sisters run beside it (GroupShape::nic_share).
#pragma once

#include "core/spec/specs.hpp"
#include "sim/collective/algorithm.hpp"

namespace wt::sim {

/// What joins `ranks` devices of one node (or NVLink domain).
struct InNode {
  bool nvlink = false;     // else PCIe or host memory
  double nominal = 0;      // GB/s of one device to the others, one direction
  double tuner = 0;        // the same as NCCL counts it
  double ring = 0;         // GB/s of a large ring
  double ring_across = 0;  // of the part of a ring that lies in this node
  double pair = 0;         // GB/s of one large message between two of them
};
InNode in_node(const ClusterSpec&, const NcclConstants&, int64_t ranks);

/// `real`: false for the tuner's view.
Situation situation_of(const ClusterSpec&, const NcclConstants&, plan::CollectiveKind, const GroupShape&, bool real);

/// NCCL's search (ncclTopoCompute) in short: speeds downward, the one whose channels carry most, but none below half of the
/// best so far; then channels are split in two (`duplicate_from`); then the speed is raised as far as the links allow, that
/// of a tree only inside the node.
Graph search_graph(const NcclConstants&, double node_gbps, int64_t nics, double nic_gbps, int64_t nodes, bool tree);

}  // namespace wt::sim
