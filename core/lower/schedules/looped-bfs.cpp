// Looped breadth-first: every chunk runs all micro-batches before the next chunk begins, so that each chunk's weights are
// gathered, and its gradients reduced, once a step (what sharded data parallelism on pipeline stages wants). The bubble is
// that of interleaved 1F1B, (p - 1)(F + B) / v; everything is in flight at the peak.
//
//   p = 2, v = 2, m = 3     0..2 forward of chunk 0, a..c of chunk 1; (.) the backward of the same
//   rank 0   0 1 2 a b c . . (c)(b)(a)(2)(1)(0)
//   rank 1   . 0 1 2 a b c (c)(b)(a)(2)(1)(0)
//
// Backwards run in the reverse order of the forwards, as PyTorch's ScheduleLoopedBFS does.
#include <fmt/format.h>

#include "core/base/check.hpp"
#include "core/lower/schedule.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  WT_CHECK(in.pipeline >= 1 && in.chunks >= 1 && in.micro_batches >= 1);
  if (in.pipeline == 1)
    return Diagnostic{"strategy.pipeline", "is 1, but strategy.schedule looped-bfs needs several ranks",
                      "legal: strategy.pipeline 2 or more, or strategy.schedule 1f1b"};
  if (in.chunks > 1 && in.micro_batches < in.pipeline)
    return Diagnostic{"training.global_batch",
                      fmt::format("gives {} micro-batches, fewer than strategy.pipeline {}: a chunk would wait for the "
                                  "one before it",
                                  in.micro_batches, in.pipeline),
                      fmt::format("legal: {} micro-batches or more", in.pipeline)};
  std::vector<Slot> one;
  one.reserve(static_cast<size_t>(2 * in.micro_batches * in.chunks));
  for (int32_t chunk = 0; chunk < in.chunks; ++chunk)
    for (int32_t i = 0; i < in.micro_batches; ++i) one.push_back({Pass::forward, chunk, i});
  for (size_t i = one.size(); i-- > 0;) one.push_back({Pass::backward, one[i].chunk, one[i].micro_batch});
  return Orders(static_cast<size_t>(in.pipeline), one);
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t) { return in.micro_batches * in.chunks; }

}  // namespace

extern const Schedule schedules_looped_bfs;
const Schedule schedules_looped_bfs{
    .name = "looped-bfs",
    .cites = "Lamy-Poirier 2022, Breadth-First Pipeline Parallelism (arXiv 2211.05953); PyTorch ScheduleLoopedBFS",
    .placement = plan::PlacementKind::loop,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
