// 1F1B (PipeDream-flush): rank r runs p - 1 - r forwards ahead, then a forward and a backward in turn, then
// the backwards that are left. At most p - r micro-batches are in flight, whatever m; the bubble is that of
// GPipe.
//
//   p = 3, m = 4      forward i, (i) backward i; a backward is drawn as long as a forward
//   rank 0    0  1  2  .  . (0) 3 (1) . (2) . (3)
//   rank 1    .  0  1  . (0) 2 (1) 3 (2) . (3)
//   rank 2    .  .  0 (0) 1 (1) 2 (2) 3 (3)
#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.hpp"
#include "core/lower/schedule.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  WT_CHECK(in.pipeline >= 1 && in.chunks >= 1 && in.micro_batches >= 1);
  if (in.chunks != 1)
    return Diagnostic{"strategy.virtual_stages",
                      fmt::format("is {}, but strategy.schedule 1f1b runs one chunk on each rank", in.chunks),
                      "legal: strategy.virtual_stages 1, or strategy.schedule interleaved"};
  const auto m = static_cast<int32_t>(in.micro_batches);
  Orders orders(static_cast<size_t>(in.pipeline));
  for (int64_t rank = 0; rank < in.pipeline; ++rank) {
    // Pairs: of one rank alone, whose forwards are one ahead; between stages that needs interleaving.
    const bool pairs = in.pairs && in.pipeline == 1;
    const auto warm_up = static_cast<int32_t>(std::min<int64_t>(in.pipeline - rank - 1 + pairs, m));
    std::vector<Slot>& slots = orders[static_cast<size_t>(rank)];
    slots.reserve(static_cast<size_t>(2 * in.micro_batches));
    for (int32_t i = 0; i < warm_up; ++i) slots.push_back({Pass::forward, 0, i});
    for (int32_t i = warm_up; i < m; ++i) {
      slots.push_back({Pass::forward, 0, i, pairs});
      slots.push_back({Pass::backward, 0, i - warm_up});
    }
    for (int32_t i = m - warm_up; i < m; ++i) slots.push_back({Pass::backward, 0, i});
  }
  return orders;
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t rank) {
  return std::min(in.micro_batches, in.pipeline - rank + (in.pairs && in.pipeline == 1));
}

}  // namespace

extern const Schedule schedules_1f1b;
const Schedule schedules_1f1b{
    .name = "1f1b",
    .cites =
        "Narayanan et al. 2021 (arXiv 2006.09503); Megatron-LM "
        "forward_backward_pipelining_without_interleaving",
    .placement = plan::PlacementKind::loop,
    .pairs = true,
    .overlaps_p2p = false,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
