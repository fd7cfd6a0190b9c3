// ZB-V: two chunks of a V on each rank (r and 2 p - 1 - r of 2 p stages), no bubble between a rank's first and last pass
// when passes are of equal length, in the memory of 1F1B.
//
// The order of PyTorch's ScheduleZBVZeroBubble: forwards of chunk 0, forwards of both, then chunk 1 forward, input and
// weight gradient until the first gradient of chunk 0 is there; a steady rhythm of all six; input gradients first at the
// end, then the weight gradients that are left. Fewer than 2 p - 1 micro-batches leave out what they do not have.
#include <algorithm>
#include <map>
#include <utility>

#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "zb-v", 2)) return *refused;
  const int64_t p = in.pipeline, m = std::max(in.micro_batches, 2 * p - 1);
  Orders orders(static_cast<size_t>(p));
  for (int64_t rank = 0; rank < p; ++rank) {
    std::vector<Slot>& slots = orders[static_cast<size_t>(rank)];
    std::map<std::pair<Pass, int32_t>, int32_t> count;
    auto add = [&](Pass pass, int32_t chunk) {
      const int32_t i = count[{pass, chunk}]++;
      if (i < in.micro_batches) slots.push_back({pass, chunk, i});
    };
    auto forward = [&](int32_t chunk) { add(Pass::forward, chunk); };
    auto input = [&](int32_t chunk) { add(Pass::backward_input, chunk); };
    auto weight = [&](int32_t chunk) { add(Pass::backward_weight, chunk); };
    auto done = [&](Pass pass, int32_t chunk) { return count[{pass, chunk}]; };
    for (int64_t i = 0; i < 2 * (p - rank) - 1; ++i) forward(0);
    for (int64_t i = 0; i < rank; ++i) forward(1), forward(0);
    for (int64_t i = 0; i < p - rank; ++i) forward(1), input(1), weight(1);
    while (done(Pass::forward, 0) < m || done(Pass::forward, 1) < done(Pass::forward, 0)) {
      if (done(Pass::forward, 0) < m) forward(0);
      input(0), weight(0);
      forward(1), input(1), weight(1);
    }
    for (int64_t i = 0; i < rank; ++i) input(0), input(1);
    for (int64_t i = 0; i < p - rank; ++i) input(0), weight(0);
    while (done(Pass::backward_weight, 1) < done(Pass::backward_input, 1)) weight(1);
    while (done(Pass::backward_weight, 0) < done(Pass::backward_input, 0)) weight(0);
  }
  return orders;
}

}  // namespace

extern const Schedule schedules_zb_v;
const Schedule schedules_zb_v = on_a_v(
    "zb-v",
    "Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362); PyTorch ScheduleZBVZeroBubble",
    order);

}  // namespace wt::lower
