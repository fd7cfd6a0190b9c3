// Cosines and sines of rotary embedding, computed in double once for a head size and the longest sequence seen, and kept for
// the process. Not the turning itself: RowKernels::turn. Invariant: a table that was given out does not change.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/kernels/rotary.hpp"

namespace wt::exec {

/// Of each position and pair, [positions, d / 2] each.
template <class A>
struct RotaryAngles {
  int64_t positions = 0;
  std::vector<A> cosine, sine;
};

template <class A>
std::shared_ptr<const RotaryAngles<A>> rotary_angles(int64_t positions, int64_t d) {
  static std::mutex mutex;
  static std::map<int64_t, std::shared_ptr<const RotaryAngles<A>>> tables;  // by head size
  const std::lock_guard lock(mutex);
  std::shared_ptr<const RotaryAngles<A>>& kept = tables[d];
  if (kept == nullptr || kept->positions < positions) {
    auto made = std::make_shared<RotaryAngles<A>>();
    made->positions = positions;
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t i = 0; i < d / 2; ++i) {
        const double angle = rotary_angle(p, i, d);
        made->cosine.push_back(static_cast<A>(std::cos(angle)));
        made->sine.push_back(static_cast<A>(std::sin(angle)));
      }
    kept = std::move(made);
  }
  return kept;
}

}  // namespace wt::exec
