// Looped breadth-first: the chunks of a rank one after the other, each over all micro-batches, forward and then backward.
// A chunk's weights are needed once in each direction, which suits sharded weights; every micro-batch is in flight at the
// peak, as in GPipe, and the bubble is that of interleaving.
//
//   p = 2, v = 2, m = 3      0..2 forward of chunk 0, a..c of chunk 1; (.) the backward of the same
//   rank 0    0  1  2  a  b  c  . (a)(b)(c)(0)(1)(2)
//   rank 1    .  0  1  2  a  b  c (a)(b)(c)(0)(1)(2)
#include "core/lower/schedule.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  if (in.chunks == 1 || in.pipeline == 1)
    return Diagnostic{in.chunks == 1 ? "strategy.virtual_stages" : "strategy.pipeline",
                      "is 1, but strategy.schedule bfs loops over several chunks on several ranks",
                      "legal: 2 or more, or strategy.schedule gpipe"};
  if (in.micro_batches < in.pipeline)
    return Diagnostic{"training.global_batch", "gives fewer micro-batches than strategy.pipeline: a loop must fill it",
                      "legal: as many micro-batches as stages, or more"};
  std::vector<Slot> one;
  one.reserve(static_cast<size_t>(2 * in.chunks * in.micro_batches));
  for (int64_t k = 0; k < 2 * in.chunks; ++k)
    for (int32_t i = 0; i < in.micro_batches; ++i) {
      const bool forward = k < in.chunks;
      one.push_back(
          {forward ? Pass::forward : Pass::backward, static_cast<int32_t>(forward ? k : 2 * in.chunks - 1 - k), i});
    }
  return Orders(static_cast<size_t>(in.pipeline), one);
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t) { return in.micro_batches * in.chunks; }

}  // namespace

extern const Schedule schedules_bfs;
const Schedule schedules_bfs{
    .name = "bfs",
    .cites = "Lamy-Poirier 2023, Breadth-First Pipeline Parallelism (arXiv 2211.05953); PyTorch ScheduleLoopedBFS",
    .placement = plan::PlacementKind::loop,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
