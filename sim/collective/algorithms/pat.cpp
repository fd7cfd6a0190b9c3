// PAT: binomial trees of parallel aggregated transfers for all-gather and reduce-scatter with one rank in each node.
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;

bool available(const Situation& s, Protocol p) {
  const bool kind = s.kind == CollectiveKind::all_gather || s.kind == CollectiveKind::reduce_scatter;
  return kind && p == Protocol::simple && s.nodes > 1 && s.per_node == 1 && s.ranks == s.nodes &&
         s.c->generation != NcclConstants::cdna;
}

Terms terms(const Situation& s, Protocol p, double) {
  const double latency = s.base_us(Algorithm::pat, p) +
                         static_cast<double>(log2_floor(s.nodes)) * s.inter_us(Algorithm::pat, p) / 3.5 +
                         2.8 * static_cast<double>(s.ranks);
  const double rate = s.real ? s.net / s.leaf_slowdown : static_cast<double>(s.ring.channels) * s.ring.inter;
  return {latency, rate * 0.75};
}

int64_t blocks(const Situation& s) { return std::min<int64_t>(64, s.ring.channels * 2); }

}  // namespace

extern const AlgorithmModel algorithms_pat;
const AlgorithmModel algorithms_pat{
    .id = Algorithm::pat,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
