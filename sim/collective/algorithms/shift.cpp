// Shift along the ring of a group: one message from each member to its neighbour, all at the same time (nccl-tests'
// sendrecv). Across nodes one message of each ring leaves a node: it takes one NIC, and rings of sister groups share them.
#include <algorithm>

#include "sim/collective/algorithm.hpp"

namespace wt::sim {
namespace {

bool available(const Situation& s, Protocol p) { return s.shifts() && p == Protocol::simple; }

Terms terms(const Situation& s, Protocol, double bytes) {
  Terms t{.latency_us = s.c->message_us, .gbps = s.real ? s.pair : s.link};
  if (s.nodes > 1) {
    const double simple = std::clamp((bytes - 8192) / (65536 - 8192), 0.0, 1.0);  // fence and credit, as of a message
    t.latency_us += s.c->message_net_us + s.net_latency_us + s.c->message_simple_us * simple;
    const double net = std::min(s.real ? s.message_net : s.net, s.net) / s.leaf_slowdown;
    t.gbps = s.per_node > 1 ? std::min(t.gbps, net) : net;
  }
  return t;
}

int64_t blocks(const Situation& s) { return s.nodes > 1 && s.per_node == 1 ? 2 : 16; }

}  // namespace

extern const AlgorithmModel algorithms_shift;
const AlgorithmModel algorithms_shift{
    .id = Algorithm::pairwise,
    .cites = "NVIDIA/nccl v2.30.7 src/enqueue.cc (grouped send and receive); nccl-tests sendrecv",
    .available = available,
    .terms = terms,
    .blocks = blocks,
};

}  // namespace wt::sim
