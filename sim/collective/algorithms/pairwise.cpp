// Pairwise all-to-all: grouped sends and receives, one round for each distance. Inside the node and across nodes run at the
// same time; the slower side counts. S is the buffer of one rank:
//   inside   S (p-1)/n over the device's link        across   S (n-p)/n over the rank's share of the NICs
// Rows of which k are copies of one (plan::Collective::copies) go by kernels that know (DeepEP, HybridEP): a row goes once to
// each other node where a copy is wanted, to the device of the same place, and from there once to each rank of that node.
// With destinations drawn evenly, m (1 - (1 - 1/m)^k) of m are wanted (with replacement: of 128 experts and k = 8 within 1 %):
//   across   S/k (N-1) (1 - (1 - 1/N)^k)              inside   S/k n (1 - (1 - 1/n)^k) (p-1)/p
#include <algorithm>
#include <cmath>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;

bool available(const Situation& s, Protocol p) { return s.kind == CollectiveKind::all_to_all && p == Protocol::simple; }

/// Share of `m` places to which at least one of k copies goes.
double wanted(double m, double k) { return 1 - std::pow(1 - 1 / m, k); }

Terms terms(const Situation& s, Protocol, double) {
  const auto n = static_cast<double>(s.ranks), p = static_cast<double>(s.per_node), k = static_cast<double>(s.copies);
  const auto nodes = static_cast<double>(s.nodes);
  const bool flex = s.copies > 0;
  const double local = flex ? n / k * wanted(n, k) * (p - 1) / p : (p - 1) / n;
  const double remote = flex ? (nodes - 1) / k * wanted(nodes, k) : (n - p) / n;
  Terms t{.latency_us = s.c->message_us + (p - 1) * s.c->alltoall_local_us};
  double per_byte = s.per_node > 1 ? local / ((flex ? s.c->flex_local : s.c->alltoall_share) * s.link) : 0;
  if (s.nodes > 1) {
    // The NICs as they are, of which each kind of transport reaches its share.
    const double nics = s.net / s.c->net_efficiency * (flex ? s.c->flex_net : s.c->alltoall_net);
    t.latency_us += s.c->message_net_us + s.net_latency_us + (flex ? nodes - 1 : n - p) * s.c->alltoall_remote_us;
    per_byte = std::max(per_byte, remote * s.leaf_slowdown / (nics / p));
  }
  t.gbps = 1 / per_byte;
  return t;
}

int64_t blocks(const Situation& s) {
  if (s.copies > 0) return static_cast<int64_t>(s.c->flex_blocks);
  return std::min<int64_t>(64, std::max<int64_t>(16, s.ring.channels * 2));
}

}  // namespace

extern const AlgorithmModel algorithms_pairwise;
const AlgorithmModel algorithms_pairwise{
    .id = Algorithm::pairwise,
    .cites =
        "NVIDIA/nccl v2.30.7 src/enqueue.cc (grouped send and receive); deepseek-ai/DeepEP README (normal kernels)",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
