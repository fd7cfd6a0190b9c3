// CollNet (direct): the switches of the network reduce (InfiniBand SHARP). NCCL leaves it off unless asked.
// Each NIC sends S and receives the sums.
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

bool available(const Situation& s, Protocol p) {
  return s.collnet && s.sums() && p == Protocol::simple && s.nodes > 1 && s.switch_can_reduce;
}

Terms terms(const Situation& s, Protocol p, double) {
  const auto peers = static_cast<double>(s.per_node - 1);
  const double latency = 2 * (std::min(1.0, peers) * s.intra_us(Algorithm::collnet, p) + peers * 0.4) +
                         s.hop_us(Algorithm::collnet, NcclConstants::net, p) + s.net_latency_us;
  if (s.real) return {latency, s.net / s.leaf_slowdown * 0.5 * 1.03};  // 96 ranks: 387 GB/s against 360 to 375 without
  const auto channels = static_cast<double>(s.tree.channels);
  const double factor = static_cast<double>(s.per_node) / channels;
  const double rate = channels * s.tree.intra / (factor - (factor - 1) / 2);
  return {latency, rate * (s.c->generation >= NcclConstants::hopper ? 0.85 : 1) * 0.5};
}

int64_t blocks(const Situation& s) { return std::min<int64_t>(64, s.tree.channels * 2); }

}  // namespace

extern const AlgorithmModel algorithms_collnet;
const AlgorithmModel algorithms_collnet{
    .id = Algorithm::collnet,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc; CoreWeave H100 with SHARP, 96 ranks",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
