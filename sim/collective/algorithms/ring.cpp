// Ring: every byte passes every rank; the latency grows with the ranks, the bandwidth does not fall with them.
//   all-reduce   2 (n-1) steps of S/n   time = latency + 2 (n-1)/n * S / B
//   all-gather, reduce-scatter   n-1 steps of S/n;   broadcast   S through the chain, pipelined
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;

bool available(const Situation& s, Protocol p) {
  return s.kind != CollectiveKind::all_to_all && !s.shifts() && protocol_available(s, p);
}

/// GB/s that pass each rank ("bus bandwidth") with Simple.
double ring_rate(const Situation& s) {
  if (!s.real) return static_cast<double>(s.ring.channels) * (s.nodes <= 2 ? s.ring.intra : s.ring.inter);
  if (s.nodes == 1) {
    // At the start of each loop of 2 (n-1) steps the ring is not yet full.
    const double steps = static_cast<double>(s.steps());
    return s.ring_in_node * (s.sums() ? steps / (steps + s.c->ring_fill) : 1);
  }
  double net = s.net / s.leaf_slowdown;
  if (!s.sums()) net = std::min(net, s.c->ring_net_gather * s.c->ring_net_channels * s.c->gather_share(s.nodes));
  return s.per_node == 1 ? net : std::min(net, s.ring_across);
}

Terms terms(const Situation& s, Protocol p, double bytes) {
  double rate = ring_rate(s);
  const auto channels = static_cast<double>(s.ring.channels);
  if (p == Protocol::ll)
    rate = std::min(s.c->limit[NcclConstants::ll][s.span()], rate * 0.5);  // 4 B of data, 4 B of flag
  if (p == Protocol::ll128) rate = std::min(rate * 0.92, channels * s.c->limit[NcclConstants::ring_ll128][s.span()]);
  Terms t{.latency_us = s.base_us(Algorithm::ring, p),
          .gbps = rate * static_cast<double>(s.ranks) / static_cast<double>(s.steps())};
  const double intra = s.intra_us(Algorithm::ring, p);
  if (s.kind == CollectiveKind::broadcast) {
    t.latency_us += s.nodes > 1 ? s.inter_us(Algorithm::ring, p) : intra;
    return t;
  }
  const double overhead = s.nodes > 1 ? s.c->net_overhead_us * (p == Protocol::simple ? 3 : 1) : 0;
  const int64_t crossings = s.nodes > 1 ? (s.sums() ? 2 : 1) * (s.nodes - 1) : 0;
  t.latency_us += static_cast<double>(s.steps() - crossings) * std::max(intra, overhead) +
                  static_cast<double>(crossings) * s.inter_us(Algorithm::ring, p);
  if (p == Protocol::simple && s.nodes > 1 && s.sums() && bytes >= 64 * channels * static_cast<double>(s.ranks))
    t.latency_us *= s.c->ring_plateau;
  return t;
}

int64_t blocks(const Situation& s) {
  const bool wide = s.nodes > 1 && s.ring.channels <= 8 && s.c->generation >= NcclConstants::hopper &&
                    s.c->generation <= NcclConstants::blackwell;
  return std::min<int64_t>(64, s.ring.channels * (wide ? 4 : 2));
}

}  // namespace

extern const AlgorithmModel algorithms_ring;
const AlgorithmModel algorithms_ring{
    .id = Algorithm::ring,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
