#include "core/report/allocator.hpp"

#include <algorithm>

#include "core/base/check.hpp"

namespace wt::report {

namespace {
constexpr int64_t kMinBlock = 512, kSmall = 1 << 20, kSmallSegment = 2 << 20, kLargeSegment = 20 << 20,
                  kOwnSegment = 10 << 20, kRound = 2 << 20,
                  kLargest = int64_t{1} << 40;  // no device has as much: what is larger fails like this
int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
}  // namespace

uint32_t CachingAllocator::make(Block b) {
  if (unused_.empty()) {
    blocks_.push_back(b);
    return static_cast<uint32_t>(blocks_.size() - 1);
  }
  const uint32_t id = unused_.back();
  unused_.pop_back();
  blocks_[id] = b;
  return id;
}

void CachingAllocator::return_cached() {
  ++retries_;
  for (FreeBlocks& pool : free_)
    pool.erase_if([&](uint32_t id) {
      const Block& b = blocks_[id];
      if (b.previous != kNone || b.next != kNone) return false;
      reserved_ -= b.size;
      unused_.push_back(id);
      return true;
    });
}

void CachingAllocator::restart(int64_t limit) {
  limit_ = limit;
  reserved_ = peak_ = retries_ = 0;
  failed_ = false;
  blocks_.clear();
  unused_.clear();
  for (FreeBlocks& pool : free_) pool.clear();
}

CachingAllocator::Handle CachingAllocator::reserve(int64_t bytes) {
  const int64_t size = std::clamp(round_up(bytes, kMinBlock), kMinBlock, kLargest);
  const bool small = size <= kSmall;
  FreeBlocks& pool = free_[small];
  const FreeBlocks::Class wanted = pool.class_of(size);
  uint32_t id = pool.best_fit(wanted);
  if (id != kNone) {
    pool.erase(blocks_[id].size_class, id);
  } else {
    const int64_t segment = small ? kSmallSegment : size < kOwnSegment ? kLargeSegment : round_up(size, kRound);
    if (reserved_ + segment > limit_) return_cached();
    failed_ |= reserved_ + segment > limit_;
    reserved_ += segment;
    peak_ = std::max(peak_, reserved_);
    id = make({segment, kNone, kNone, pool.class_of(segment), true, small});
  }
  const int64_t left = blocks_[id].size - size;
  if (small ? left >= kMinBlock : left > kSmall) {
    const uint32_t rest = make({left, id, blocks_[id].next, pool.class_of(left), true, small});
    if (blocks_[id].next != kNone) blocks_[blocks_[id].next].previous = rest;
    blocks_[id].next = rest;
    blocks_[id].size = size;
    blocks_[id].size_class = wanted;
    pool.insert(blocks_[rest].size_class, rest);
  }
  blocks_[id].free = false;
  return id;
}

void CachingAllocator::release(Handle id) {
  WT_CHECK(id < blocks_.size() && !blocks_[id].free, "block {} released twice", id);
  FreeBlocks& pool = free_[blocks_[id].small];
  bool merged = false;
  auto absorb = [&](uint32_t into, uint32_t other) {  // `other` follows `into`
    blocks_[into].size += blocks_[other].size;
    merged = true;
    blocks_[into].next = blocks_[other].next;
    if (blocks_[other].next != kNone) blocks_[blocks_[other].next].previous = into;
    blocks_[other].free = true;
    unused_.push_back(other);
  };
  const uint32_t next = blocks_[id].next, previous = blocks_[id].previous;
  if (next != kNone && blocks_[next].free) {
    pool.erase(blocks_[next].size_class, next);
    absorb(id, next);
  }
  if (previous != kNone && blocks_[previous].free) {
    pool.erase(blocks_[previous].size_class, previous);
    absorb(previous, id);
    id = previous;
  }
  blocks_[id].free = true;
  if (merged) blocks_[id].size_class = pool.class_of(blocks_[id].size);
  pool.insert(blocks_[id].size_class, id);
}

}  // namespace wt::report
