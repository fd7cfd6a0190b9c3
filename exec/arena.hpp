// A memory space laid out before it exists: replays reservations and releases and gives each a place. Knows order between
// ops by vector clocks over the streams of one rank, nothing of buffers.
// Invariant: a place is given again only to an op whose clock is past the op that released it.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "core/plan/plan.hpp"

namespace wt::exec {

/// How many ops of each stream are over when an op starts.
struct Clock {
  std::array<uint32_t, plan::kStreams> over{};

  void merge(const Clock&);
  bool covers(const Clock& needed) const;
  bool operator==(const Clock&) const = default;
};

class Arena {
 public:
  /// Offset of `bytes` for an op that starts at `now`: the smallest free run that it may use, else fresh memory.
  int64_t reserve(int64_t bytes, const Clock& now);
  /// Free for ops that start when `after` is over.
  void release(int64_t offset, int64_t bytes, const Clock& after);
  /// Everything issued is over: what is free is free for all.
  void settle();
  int64_t bytes() const { return end_; }

 private:
  struct Free {
    int64_t bytes = 0;
    Clock after;
  };
  std::map<int64_t, Free> free_;  // by offset
  int64_t end_ = 0;
};

}  // namespace wt::exec
