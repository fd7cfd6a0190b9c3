// GPipe: all forwards of the step, then all backwards. Every micro-batch of the step is in flight at the
// peak.
//
//   p = 3, m = 4      forward i, (i) backward i; a backward is drawn as long as a forward
//   rank 0    0  1  2  3  .  .  .  . (0)(1)(2)(3)
//   rank 1    .  0  1  2  3  .  . (0)(1)(2)(3)
//   rank 2    .  .  0  1  2  3 (0)(1)(2)(3)
//
// Backwards run in the order of the forwards, as PyTorch's ScheduleGPipe and Megatron's flush do.
#include <fmt/format.h>

#include "core/base/check.hpp"
#include "core/lower/schedule.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  WT_CHECK(in.pipeline >= 1 && in.chunks >= 1 && in.micro_batches >= 1);
  if (in.chunks != 1)
    return Diagnostic{"strategy.virtual_stages",
                      fmt::format("is {}, but strategy.schedule gpipe runs one chunk on each rank", in.chunks),
                      "legal: strategy.virtual_stages 1, or strategy.schedule interleaved"};
  std::vector<Slot> one;
  one.reserve(static_cast<size_t>(2 * in.micro_batches));
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (int32_t i = 0; i < in.micro_batches; ++i) one.push_back({pass, 0, i});
  return Orders(static_cast<size_t>(in.pipeline), one);
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t) { return in.micro_batches; }

}  // namespace

extern const Schedule schedules_gpipe;
const Schedule schedules_gpipe{
    .name = "gpipe",
    .cites = "Huang et al. 2019, GPipe (arXiv 1811.06965)",
    .placement = plan::PlacementKind::loop,
    .overlaps_p2p = false,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
