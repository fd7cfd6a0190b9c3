// ZB-H2 (ZB-2p): as ZB-H1, with more forwards ahead, so that a rank is never idle between its first and its last pass when
// passes are of equal length. Rank r runs 2 (p - 1 - r) forwards ahead and lets 2 r weight gradients wait: 2 p - 1
// micro-batches in flight. strategy.max_in_flight between p and 2 p - 1 takes the middle way.
//
//   p = 3, m = 6      forward i, (i) input gradient, [i] weight gradient
//   rank 0    0  1  2  3  4 (0)[0] 5 (1)[1](2)[2](3)[3](4)[4](5)[5]
//   rank 1    .  0  1  2 (0) 3 (1) 4 (2)[0] 5 (3)[1](4)[2](5)[3][4][5]
//   rank 2    .  .  0 (0) 1 (1) 2 (2) 3 (3) 4 (4)[0] 5 (5)[1][2][3][4][5]
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "zb-h2", 1)) return *refused;
  const int64_t p = in.pipeline, most = 2 * p - 1;
  if (in.max_in_flight != 0 && in.max_in_flight < p)
    return Diagnostic{"strategy.max_in_flight",
                      fmt::format("is {}, fewer micro-batches than the {} stages", in.max_in_flight, p),
                      fmt::format("legal: {} to {}, or 0", p, most)};
  return zero_bubble_orders(in, (in.max_in_flight == 0 ? most : std::min(in.max_in_flight, most)) - p);
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t) {
  const int64_t most = 2 * in.pipeline - 1;
  return std::min({in.micro_batches, most, in.max_in_flight == 0 ? most : in.max_in_flight});
}

}  // namespace

extern const Schedule schedules_zb_h2;
const Schedule schedules_zb_h2{
    .name = "zb-h2",
    .cites = "Qi et al. 2024, Zero Bubble Pipeline Parallelism (arXiv 2401.10241), figure 3",
    .placement = plan::PlacementKind::loop,
    .splits_backward = true,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
