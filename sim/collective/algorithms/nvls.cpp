// NVLS: the NVLink switch reduces and multicasts (NVSwitch 3 and later, Hopper and later), inside one NVLink domain.
// Only for sums and maxima that the switch knows; frameworks that reduce with the average of floats lose it.
#include <algorithm>

#include "sim/collective/nvls_terms.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;

bool available(const Situation& s, Protocol p) {
  const bool kind = s.sums() || s.kind == CollectiveKind::all_gather || s.kind == CollectiveKind::reduce_scatter;
  return kind && p == Protocol::simple && s.nodes == 1 && nvls_possible(s);
}

Terms terms(const Situation& s, Protocol, double) {
  const auto n = static_cast<double>(s.ranks);
  Terms t{.latency_us = s.c->nvls_base_us, .gbps = 0};
  if (s.real) {
    t.gbps =
        nvls_rate(s) * (s.sums() ? 1 : 0.5 * (1 + 1 / n));  // all-gather: stores are as wide, one direction is idle
    return t;
  }
  const NvlsHeads h = nvls_heads(s);
  const double one = h.rate * s.c->nvls_efficiency * (15.0 / 16.0);
  const auto heads = static_cast<double>(h.heads);
  t.gbps = s.sums() ? heads * 2 * one * n / static_cast<double>(s.steps()) : heads * one * (n - 1) / n;
  return t;
}

int64_t blocks(const Situation& s) { return static_cast<int64_t>(s.c->nvls_channels); }

}  // namespace

extern const AlgorithmModel algorithms_nvls;
const AlgorithmModel algorithms_nvls{
    .id = Algorithm::nvls,
    .cites = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc, src/transport/nvls.cc",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
