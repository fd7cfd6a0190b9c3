// The event queue and the clock. Total order: (time, phase, sequence number of schedule()), so equal input gives equal
// order everywhere; the 64-bit sequence number never wraps. Values in, values out: no globals, any number of engines.
// Costs: schedule and pop O(log n), cancel O(1) (a cancelled event leaves the heap when it reaches the top).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/check.hpp"
#include "core/base/units.hpp"

namespace wt::sim {

template <class Payload>
class EventEngine {
 public:
  struct Handle {
    uint32_t slot = UINT32_MAX;
    uint32_t generation = 0;
  };
  struct Event {
    Time at;
    uint8_t phase = 0;
    Payload payload;
  };

  Time now() const { return now_; }
  size_t pending() const { return pending_; }
  bool empty() const { return pending_ == 0; }
  /// Events popped so far.
  uint64_t popped() const { return popped_; }

  /// `at` must not lie before now().
  Handle schedule(Time at, uint8_t phase, Payload payload) {
    WT_CHECK(at >= now_, "event at {} ps, clock at {} ps", at.count_ps(), now_.count_ps());
    uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(slots_.size());
      slots_.push_back({});
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot].payload = std::move(payload);
    slots_[slot].live = true;
    heap_.push_back({at, sequence_++, slot, phase});
    std::push_heap(heap_.begin(), heap_.end(), later);
    ++pending_;
    return {slot, slots_[slot].generation};
  }

  /// False if the event has been popped or cancelled before.
  bool cancel(Handle h) {
    if (h.slot >= slots_.size()) return false;
    Slot& s = slots_[h.slot];
    if (s.generation != h.generation || !s.live) return false;
    s.live = false;
    --pending_;
    return true;
  }

  /// The next event; the clock moves to it.
  std::optional<Event> pop() {
    drop_cancelled();
    if (heap_.empty()) return std::nullopt;
    const Entry e = take_top();
    Event event{e.at, e.phase, std::move(slots_[e.slot].payload)};
    release(e.slot);
    --pending_;
    ++popped_;
    now_ = e.at;
    return event;
  }

  /// When the next event is due.
  std::optional<Time> next() {
    drop_cancelled();
    if (heap_.empty()) return std::nullopt;
    return heap_.front().at;
  }

 private:
  struct Entry {
    Time at;
    uint64_t sequence;
    uint32_t slot;
    uint8_t phase;
  };
  struct Slot {
    Payload payload{};
    uint32_t generation = 0;
    bool live = false;
  };

  static bool later(const Entry& a, const Entry& b) {
    if (a.at != b.at) return a.at > b.at;
    if (a.phase != b.phase) return a.phase > b.phase;
    return a.sequence > b.sequence;
  }
  Entry take_top() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Entry e = heap_.back();
    heap_.pop_back();
    return e;
  }
  void release(uint32_t slot) {
    slots_[slot].live = false;
    ++slots_[slot].generation;
    free_.push_back(slot);
  }
  void drop_cancelled() {
    while (!heap_.empty() && !slots_[heap_.front().slot].live) release(take_top().slot);
  }

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  Time now_;
  uint64_t sequence_ = 0, popped_ = 0;
  size_t pending_ = 0;
};

}  // namespace wt::sim
