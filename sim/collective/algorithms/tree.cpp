// Double binary tree over nodes, chain inside a node: all-reduce as reduce up, broadcast down, each tree half of the data.
// The latency grows with log2 of the nodes. An inner node sends and receives twice what a leaf does, but is a leaf of the
// other tree: with more than two nodes each NIC moves 2 S in each direction, with two nodes S.
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

bool available(const Situation& s, Protocol p) { return s.sums() && protocol_available(s, p); }

Terms terms(const Situation& s, Protocol p, double bytes) {
  const NcclConstants& c = *s.c;
  const auto channels = static_cast<double>(s.tree.channels);
  double rate = channels * (s.nodes <= 2 ? s.tree.intra : s.tree.inter);
  rate = std::min(rate * 0.92, channels * c.limit[NcclConstants::tree][s.span()]);
  if (p == Protocol::ll) rate = std::min(rate / 3.8, c.limit[NcclConstants::ll][s.span()]);
  if (p == Protocol::ll128)
    rate = std::min(rate * (s.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                    channels * c.limit[NcclConstants::tree_ll128][s.span()]);
  double gbps = rate * 0.5;
  if (s.real) {
    double possible = s.per_node > 1 ? (s.nodes > 1 ? s.ring_across : s.ring_in_node) * 0.5 : s.net;
    if (s.nodes > 1) possible = std::min(possible, s.net / s.leaf_slowdown * (s.nodes == 2 ? 1.0 : 0.5));
    possible = std::min(possible, channels * c.limit[NcclConstants::tree][s.span()] * 0.5);
    const double wire = p == Protocol::ll ? 0.5 : p == Protocol::ll128 ? 0.9375 : 1;
    gbps = p == Protocol::simple ? possible : std::min(gbps, possible * wire);
  } else if (const int64_t row = log2_floor(std::max<int64_t>(1, static_cast<int64_t>(bytes) >> 6));
             bytes >= 64 && row < static_cast<int64_t>(c.tree_correction.size()) - 1) {
    gbps *= c.tree_correction[static_cast<size_t>(row)][static_cast<size_t>(p)];
  }
  const double hops = static_cast<double>(s.per_node - 1) * s.intra_us(Algorithm::tree, p) +
                      static_cast<double>(log2_floor(s.nodes)) * s.inter_us(Algorithm::tree, p);
  return {.latency_us = s.base_us(Algorithm::tree, p) + 2 * hops, .gbps = gbps};
}

int64_t blocks(const Situation& s) { return std::min<int64_t>(64, s.tree.channels * 2); }

}  // namespace

extern const AlgorithmModel algorithms_tree;
const AlgorithmModel algorithms_tree{
    .id = Algorithm::tree,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc; Sanders, Speck, Traff 2009 (two-tree)",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
