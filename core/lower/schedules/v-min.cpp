// V-Min: as V-Half, with every micro-batch through the V as fast as it goes: about a third of the memory of 1F1B, for two
// thirds of its bubble, and more when forward and backward take unequal times.
//
// Not reproduced: the two passes of sail-sg's scheduler that move single passes earlier where memory does not grow.
#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

VPattern pattern(int64_t r, int64_t p) {
  const int64_t q = p % 3 == 0 ? 2 : 0;  // keeps the places of a pattern apart
  return {{r, 2 * p - r - 1, 2 * p + q + r, 4 * p + q - r - 1}};
}

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "v-min", 2)) return *refused;
  return v_orders(in, pattern);
}

}  // namespace

extern const Schedule schedules_v_min;
const Schedule schedules_v_min = on_a_v(
    "v-min",
    "Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362); sail-sg zero-bubble v1f1b.py",
    order);

}  // namespace wt::lower
