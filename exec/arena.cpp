#include "exec/arena.hpp"

#include <algorithm>

#include "core/base/check.hpp"

namespace wt::exec {

void Clock::merge(const Clock& other) {
  for (size_t s = 0; s < over.size(); ++s) over[s] = std::max(over[s], other.over[s]);
}

bool Clock::covers(const Clock& needed) const {
  for (size_t s = 0; s < over.size(); ++s)
    if (over[s] < needed.over[s]) return false;
  return true;
}

int64_t Arena::reserve(int64_t bytes, const Clock& now) {
  // A run: free pieces that touch and that the op may use.
  struct Run {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  Run best, last;
  auto consider = [&](const Run& run) {
    if (run.size() >= bytes && (best.size() == 0 || run.size() < best.size())) best = run;
  };
  Run run;
  for (const auto& [offset, piece] : free_) {
    if (!now.covers(piece.after)) continue;
    if (offset != run.end) {
      consider(run);
      run.begin = offset;
    }
    run.end = offset + piece.bytes;
  }
  consider(run);
  if (run.size() > 0 && run.end == end_) last = run;
  if (best.size() == 0) {
    best = last.size() > 0 ? last : Run{end_, end_};
    if (best.begin + bytes > best.end) {
      if (best.end < best.begin + bytes) free_[best.end] = {best.begin + bytes - best.end, {}};
      best.end = end_ = best.begin + bytes;
    }
  }
  int64_t left = bytes;
  for (auto it = free_.find(best.begin); left > 0; it = free_.erase(it)) {
    WT_CHECK(it != free_.end());
    const auto [offset, piece] = *it;
    if (piece.bytes > left) {
      free_.erase(it);
      free_[offset + left] = {piece.bytes - left, piece.after};
      break;
    }
    left -= piece.bytes;
  }
  return best.begin;
}

void Arena::release(int64_t offset, int64_t bytes, const Clock& after) {
  if (bytes == 0) return;
  auto [it, fresh] = free_.emplace(offset, Free{bytes, after});
  WT_CHECK(fresh, "released twice at {}", offset);
  if (const auto next = std::next(it);
      next != free_.end() && next->first == offset + bytes && next->second.after == after) {
    it->second.bytes += next->second.bytes;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (const auto before = std::prev(it);
      before->first + before->second.bytes == offset && before->second.after == after) {
    before->second.bytes += it->second.bytes;
    free_.erase(it);
  }
}

void Arena::settle() {
  std::map<int64_t, Free> pieces;
  std::swap(pieces, free_);
  for (const auto& [offset, piece] : pieces) release(offset, piece.bytes, {});
}

}  // namespace wt::exec
