// An event-level run of a schedule's order, written without the engine: each rank runs its slots in turn, a slot starts when
// its rank is free and its data has arrived; a message takes `hop` and holds nothing up. What the schedules promise, and
// what the simulator says of their plans, is held to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/lower/schedule.hpp"

namespace wt::lower {

struct Lengths {
  double forward = 1, input = 1, weight = 1, hop = 0;
  double of(Pass pass) const {
    switch (pass) {
      case Pass::forward: return forward;
      case Pass::backward: return input + weight;
      case Pass::backward_input: return input;
      case Pass::backward_weight: return weight;
    }
    return 0;
  }
};

struct Ran {
  double makespan = 0;
  double longest_span = 0;  // of a rank, from its first pass to its last
  double work = 0;          // of one rank
};

/// Each rank runs its slots in order; one starts when the rank is free and its data has arrived.
inline Ran run(const Schedule& s, const ScheduleInput& in, const Lengths& t) {
  const Orders orders = s.order(in).value();
  const plan::Placement place{s.placement, in.pipeline, in.chunks};
  std::map<std::tuple<bool, int64_t, int64_t>, std::pair<double, size_t>> over;  // backward, stage, micro-batch
  std::vector<size_t> next(orders.size(), 0);
  std::vector<double> free_at(orders.size(), 0), first(orders.size(), -1);
  Ran out;
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < orders.size(); ++r)
      for (; next[r] < orders[r].size(); ++next[r]) {
        const Slot& slot = orders[r][next[r]];
        const int64_t stage = place.stage({static_cast<int64_t>(r), slot.chunk});
        double start = free_at[r];
        bool ready = true;
        const auto need = [&](bool backward, int64_t from) {
          if (from < 0 || from >= place.stages()) return;
          const auto found = over.find({backward, from, slot.micro_batch});
          if (found == over.end()) return void(ready = false);
          start = std::max(start, found->second.first + (found->second.second == r ? 0 : t.hop));
        };
        if (slot.pass == Pass::forward) {
          need(false, stage - 1);
        } else if (slot.pass == Pass::backward_weight) {
          need(true, stage);
        } else {
          need(false, stage);
          need(true, stage + 1);
        }
        if (!ready) break;
        free_at[r] = start + t.of(slot.pass);
        if (first[r] < 0) first[r] = start;
        if (r == 0) out.work += t.of(slot.pass);
        if (slot.pass != Pass::backward_weight)
          over[{slot.pass != Pass::forward, stage, slot.micro_batch}] = {free_at[r], r};
        progress = true;
      }
  }
  for (size_t r = 0; r < orders.size(); ++r) {
    EXPECT_EQ(next[r], orders[r].size()) << s.name << " rank " << r;
    out.makespan = std::max(out.makespan, free_at[r]);
    out.longest_span = std::max(out.longest_span, free_at[r] - first[r]);
  }
  return out;
}

}  // namespace wt::lower
