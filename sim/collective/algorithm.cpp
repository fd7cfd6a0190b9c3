#include "sim/collective/algorithm.hpp"

#include <bit>

namespace wt::sim {

using plan::CollectiveKind;

int64_t Situation::steps() const {
  switch (kind) {
    case CollectiveKind::all_reduce: return 2 * (ranks - 1);
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter: return ranks - 1;
    case CollectiveKind::broadcast:
    case CollectiveKind::all_to_all: return ranks;
    case CollectiveKind::shift_up:
    case CollectiveKind::shift_down: return 1;
  }
  return ranks;
}

double Situation::hop_us(Algorithm a, NcclConstants::Part part, Protocol p) const {
  return c->latency[static_cast<size_t>(a)][part][static_cast<size_t>(p)];
}

double Situation::inter_us(Algorithm a, Protocol p) const {
  const double constant = hop_us(per_node == 1 ? Algorithm::tree : a, NcclConstants::net, p);
  return constant + net_latency_us * (!real && p == Protocol::simple ? 2 : 1);
}

bool protocol_available(const Situation& s, Protocol p) {
  if (p == Protocol::simple) return true;
  if (s.nodes > 1 && !(p == Protocol::ll ? s.c->net_ll : s.c->net_ll128)) return false;
  if (p == Protocol::ll) return true;
  const bool path = s.per_node == 1 || s.nvlink;
  return path || s.c->generation == NcclConstants::hopper || s.c->generation == NcclConstants::blackwell;
}

int64_t log2_floor(int64_t n) { return std::bit_width(static_cast<uint64_t>(n)) - 1; }

}  // namespace wt::sim
