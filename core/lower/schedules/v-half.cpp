// V-Half: two chunks of a V on each rank (r and 2 p - 1 - r of 2 p stages), so that early and late stages share a rank and
// with it what they hold: about half of the memory of 1F1B, for about half of its bubble. A pattern of six places, one
// pass each, repeats for each micro-batch; weight gradients take the two that are left.
//
// Not reproduced: the two passes of sail-sg's scheduler that move single passes earlier where memory does not grow.
#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

VPattern pattern(int64_t r, int64_t p) {
  const int64_t q = p % 2 == 0 ? 3 : 0;  // keeps the places of a pattern apart
  return {{2 * r, 3 * p - r - 2, 3 * p + q + 2 * r - 1, 6 * p + q - r - 2}};
}

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "v-half", 2)) return *refused;
  return v_orders(in, pattern);
}

}  // namespace

extern const Schedule schedules_v_half;
const Schedule schedules_v_half = on_a_v(
    "v-half",
    "Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362); sail-sg zero-bubble v1f1b.py",
    order);

}  // namespace wt::lower
