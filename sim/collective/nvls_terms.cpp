#include "sim/collective/nvls_terms.hpp"

#include <algorithm>
#include <cmath>

namespace wt::sim {

bool nvls_possible(const Situation& s) {
  return s.switch_can_reduce && s.c->nvls_efficiency > 0 && static_cast<double>(s.per_node) >= s.c->nvls_min_ranks;
}

NvlsHeads nvls_heads(const Situation& s) {
  constexpr double kUsable =
      0.98;  // the search leaves the fastest speed where a port would be full to the last per cent
  NvlsHeads h{.rate = s.c->speed_intra.back(), .heads = std::min<int64_t>(s.per_node, 8)};
  for (const double speed : s.c->speed_intra)
    if (speed * static_cast<double>(h.heads) <= s.link * kUsable) {
      h.rate = speed;
      break;
    }
  return h;
}

double nvls_rate(const Situation& s) {
  const auto n = static_cast<double>(s.per_node);
  const double share = s.c->nvls_share * std::max(0.5, 1 - s.c->nvls_share_doubling * std::max(0.0, std::log2(n / 8)));
  return share * s.link / (1 + 1 / n);
}

}  // namespace wt::sim
