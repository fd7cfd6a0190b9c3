// ZB-H1 (ZB-1p): 1F1B whose backward is two passes. The input gradient goes on to the stage before at once; weight
// gradients fill what would be the bubble at the end. Rank r runs p - 1 - r forwards ahead and lets r weight gradients
// wait, so every rank holds p micro-batches, as rank 0 of 1F1B. Of passes of equal length a third of 1F1B's bubble is left.
//
//   p = 3, m = 4      forward i, (i) input gradient, [i] weight gradient
//   rank 0    0  1  2  .  . (0)[0] 3 (1)[1](2)[2](3)[3]
//   rank 1    .  0  1  . (0) 2 (1)[0] 3 (2)[1](3)[2][3]
//   rank 2    .  .  0 (0) 1 (1) 2 (2)[0] 3 (3)[1][2][3]
#include <algorithm>

#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "zb-h1", 1)) return *refused;
  return zero_bubble_orders(in, 0);
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t) { return std::min(in.micro_batches, in.pipeline); }

}  // namespace

extern const Schedule schedules_zb_h1;
const Schedule schedules_zb_h1{
    .name = "zb-h1",
    .cites = "Qi et al. 2024, Zero Bubble Pipeline Parallelism (arXiv 2401.10241), figure 3",
    .placement = plan::PlacementKind::loop,
    .splits_backward = true,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
