#include "core/report/free_blocks.hpp"

#include <algorithm>

namespace wt::report {

void NumberSet::grow(uint32_t n) {
  words_.resize(n / 64 + 1);
  summary_.resize(n / 4096 + 1);
}

void NumberSet::clear() {
  std::fill(words_.begin(), words_.end(), 0);
  std::fill(summary_.begin(), summary_.end(), 0);
  count_ = 0;
}

uint32_t NumberSet::next(uint32_t from) const {
  uint32_t word = from / 64;
  if (word >= words_.size()) return kNone;
  uint64_t bits = words_[word] & ~uint64_t{0} << from % 64;
  if (bits == 0) {
    uint32_t s = ++word / 64;
    if (s >= summary_.size()) return kNone;
    uint64_t marked = summary_[s] & ~uint64_t{0} << word % 64;
    while (marked == 0) {
      if (++s == summary_.size()) return kNone;
      marked = summary_[s];
    }
    word = s * 64 + static_cast<uint32_t>(std::countr_zero(marked));
    bits = words_[word];
  }
  return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
}

/// Where the class of a size is in the table, or would be.
size_t FreeBlocks::place(int64_t size) const {
  const size_t mask = table_.size() - 1;
  const auto shift = static_cast<unsigned>(64 - std::countr_zero(table_.size()));
  size_t at = static_cast<size_t>(static_cast<uint64_t>(size) * 0x9e3779b97f4a7c15u >> shift);  // Fibonacci hashing
  while (table_[at] != kNone && classes_[table_[at]].size != size) at = (at + 1) & mask;
  return at;
}

FreeBlocks::Class FreeBlocks::make_class(int64_t size) {
  const auto id = static_cast<Class>(classes_.size());
  classes_.push_back({size, 0, {}});
  if (4 * classes_.size() > table_.size()) {
    table_.assign(2 * table_.size(), kNone);
    for (Class c = 0; c < id; ++c) table_[place(classes_[c].size)] = c;
  }
  table_[place(size)] = id;
  const auto at = std::lower_bound(order_.begin(), order_.end(), size,
                                   [&](Class c, int64_t wanted) { return classes_[c].size < wanted; });
  order_.insert(at, id);
  occupied_.clear();
  for (uint32_t rank = 0; rank < order_.size(); ++rank) {
    OfSize& c = classes_[order_[rank]];
    c.rank = rank;
    if (!c.blocks.empty()) occupied_.insert(rank);
  }
  return id;
}

FreeBlocks::Class FreeBlocks::insert(int64_t size, uint32_t block) {
  const Class id = class_of(size);
  OfSize& c = classes_[id];
  if (c.blocks.empty()) occupied_.insert(c.rank);
  c.blocks.insert(block);
  return id;
}

void FreeBlocks::erase(Class id, uint32_t block) {
  OfSize& c = classes_[id];
  c.blocks.erase(block);
  if (c.blocks.empty()) occupied_.erase(c.rank);
}

uint32_t FreeBlocks::best_fit(int64_t size) {
  const uint32_t rank = occupied_.next(classes_[class_of(size)].rank);
  return rank == kNone ? kNone : classes_[order_[rank]].blocks.next(0);
}

}  // namespace wt::report
