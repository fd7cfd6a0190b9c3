// Pairwise all-to-all: grouped sends and receives, one round for each distance. Inside the node and across nodes run at the
// same time; the slower side counts. S is the buffer of one rank:
//   inside   S (p-1)/n over the device's link        across   S (n-p)/n over the rank's share of the NICs
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;

bool available(const Situation& s, Protocol p) { return s.kind == CollectiveKind::all_to_all && p == Protocol::simple; }

Terms terms(const Situation& s, Protocol, double) {
  const auto n = static_cast<double>(s.ranks), p = static_cast<double>(s.per_node);
  const double local = (p - 1) / n, remote = (n - p) / n;
  Terms t{.latency_us = s.c->message_us + (p - 1) * s.c->alltoall_local_us};
  double per_byte = s.per_node > 1 ? local / (s.c->alltoall_share * s.link) : 0;
  if (s.nodes > 1) {
    t.latency_us += s.c->message_net_us + s.net_latency_us + (n - p) * s.c->alltoall_remote_us;
    per_byte = std::max(per_byte, remote * s.leaf_slowdown / (s.net * s.c->alltoall_net / s.c->net_efficiency / p));
  }
  t.gbps = 1 / per_byte;
  return t;
}

int64_t blocks(const Situation& s) { return std::min<int64_t>(64, std::max<int64_t>(16, s.ring.channels * 2)); }

}  // namespace

extern const AlgorithmModel algorithms_pairwise;
const AlgorithmModel algorithms_pairwise{
    .id = Algorithm::pairwise,
    .cites = "NVIDIA/nccl v2.30.7 src/enqueue.cc (grouped send and receive)",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
