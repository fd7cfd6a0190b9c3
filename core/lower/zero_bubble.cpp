#include "core/lower/zero_bubble.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/check.hpp"

namespace wt::lower {

Orders zero_bubble_orders(const ScheduleInput& in, int64_t extra) {
  const int64_t p = in.pipeline, m = in.micro_batches;
  WT_CHECK(extra >= 0 && (extra < p || extra == 0));
  Orders orders(static_cast<size_t>(p));
  for (int64_t rank = 0; rank < p; ++rank) {
    const int64_t below = p - 1 - rank;
    // Shared so that every rank holds warm_up + 1 + lag = p + extra at most.
    const int64_t ahead = p > 1 ? below * extra / (p - 1) : 0;
    const int64_t warm_up = std::min(m, below + ahead), lag = rank + (extra - ahead);
    std::vector<Slot>& slots = orders[static_cast<size_t>(rank)];
    slots.reserve(static_cast<size_t>(3 * m));
    int32_t forward = 0, weight = 0;
    while (forward < warm_up) slots.push_back({Pass::forward, 0, forward++});
    for (int32_t i = 0; i < m; ++i) {
      if (forward < m) slots.push_back({Pass::forward, 0, forward++});
      slots.push_back({Pass::backward_input, 0, i});
      if (i >= lag) slots.push_back({Pass::backward_weight, 0, weight++});
    }
    while (weight < m) slots.push_back({Pass::backward_weight, 0, weight++});
  }
  return orders;
}

Orders v_orders(const ScheduleInput& in, VPattern (*pattern)(int64_t, int64_t)) {
  constexpr int64_t kPeriod = 6;
  constexpr Slot kKinds[] = {
      {Pass::forward, 0, 0}, {Pass::forward, 1, 0}, {Pass::backward_input, 1, 0}, {Pass::backward_input, 0, 0}};
  Orders orders(static_cast<size_t>(in.pipeline));
  for (int64_t rank = 0; rank < in.pipeline; ++rank) {
    struct Placed {
      int64_t at;
      Slot slot;
    };
    std::vector<Placed> placed;
    const VPattern starts = pattern(rank, in.pipeline);
    for (int32_t i = 0; i < in.micro_batches; ++i)
      for (size_t k = 0; k < 4; ++k) {
        Slot slot = kKinds[k];
        slot.micro_batch = i;
        placed.push_back({starts.starts[k] + kPeriod * i, slot});
      }
    std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.at < b.at; });
    std::vector<Slot>& slots = orders[static_cast<size_t>(rank)];
    std::vector<Slot> waiting;
    size_t next_waiting = 0;
    for (size_t i = 0; i < placed.size(); ++i) {
      const Placed& now = placed[i];
      WT_CHECK(i == 0 || placed[i - 1].at != now.at, "two passes at place {}", now.at);
      for (int64_t gap = i == 0 ? 0 : now.at - placed[i - 1].at - 1; gap > 0 && next_waiting < waiting.size(); --gap)
        slots.push_back(waiting[next_waiting++]);
      slots.push_back(now.slot);
      if (now.slot.pass == Pass::backward_input)
        waiting.push_back({Pass::backward_weight, now.slot.chunk, now.slot.micro_batch});
    }
    while (next_waiting < waiting.size()) slots.push_back(waiting[next_waiting++]);
  }
  return orders;
}

}  // namespace wt::lower
