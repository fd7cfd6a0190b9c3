// NVLSTree: NVLS inside each node, a double binary tree between the same-index heads of the nodes.
#include <algorithm>

#include "sim/collective/nvls_terms.hpp"

namespace wt::sim {
namespace {

bool available(const Situation& s, Protocol p) {
  return s.sums() && p == Protocol::simple && s.nodes > 1 && nvls_possible(s);
}

Terms terms(const Situation& s, Protocol p, double) {
  Terms t{.latency_us =
              s.c->nvls_base_us + 2 * static_cast<double>(log2_floor(s.nodes)) * s.inter_us(Algorithm::nvls_tree, p),
          .gbps = 0};
  const bool two = s.nodes == 2;
  if (s.real) {
    t.gbps = std::min({nvls_rate(s), s.c->nvls_tree_gbps, s.net / s.leaf_slowdown * (two ? 1 : 0.5)});
    return t;
  }
  const NvlsHeads h = nvls_heads(s);
  // Each head has its share of the NICs.
  double inter = s.c->speed_inter.back();
  for (const double speed : s.c->speed_inter)
    if (speed * static_cast<double>(h.heads) <= s.nics_nominal) {
      inter = speed;
      break;
    }
  const double one = std::min({2 * h.rate * s.c->nvls_efficiency * (7.0 / 8.0), inter * (two ? 2 : 1),
                               s.c->limit[NcclConstants::nvls_tree][s.span()]});
  t.gbps = static_cast<double>(h.heads) * one * static_cast<double>(s.ranks) / static_cast<double>(s.steps());
  return t;
}

int64_t blocks(const Situation& s) { return static_cast<int64_t>(s.c->nvls_channels); }

}  // namespace

extern const AlgorithmModel algorithms_nvls_tree;
const AlgorithmModel algorithms_nvls_tree{
    .id = Algorithm::nvls_tree,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
