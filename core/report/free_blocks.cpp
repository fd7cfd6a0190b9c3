#include "core/report/free_blocks.hpp"

#include <algorithm>

namespace wt::report {

void NumberSet::grow(uint32_t n) {
  words_.resize(n / 64 + 1);
  summary_.resize(n / 4096 + 1);
}

/// The lowest of the words that `marked` and the summaries behind it name.
uint32_t NumberSet::first_from(uint32_t s, uint64_t marked) const {
  while (marked == 0) {
    if (++s >= summary_.size()) return kNone;
    marked = summary_[s];
  }
  const uint32_t word = s * 64 + static_cast<uint32_t>(std::countr_zero(marked));
  return word * 64 + static_cast<uint32_t>(std::countr_zero(words_[word]));
}

uint32_t NumberSet::first() const { return summary_.empty() ? kNone : first_from(0, summary_[0]); }

uint32_t NumberSet::next(uint32_t from) const {
  uint32_t word = from / 64;
  if (word >= words_.size()) return kNone;
  if (const uint64_t bits = words_[word] & ~uint64_t{0} << from % 64; bits != 0)
    return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  if (++word >= words_.size()) return kNone;
  return first_from(word / 64, summary_[word / 64] & ~uint64_t{0} << word % 64);
}

FreeBlocks::Class FreeBlocks::make_class(int64_t size) {
  const auto id = static_cast<Class>(classes_.size());
  classes_.push_back({size, 0, 0, {}});
  if (4 * classes_.size() > table_.size()) {
    table_.assign(2 * table_.size(), kNone);
    --shift_;
    for (Class c = 0; c < id; ++c) table_[place(classes_[c].size)] = c;
  }
  table_[place(size)] = id;
  const auto at = std::lower_bound(order_.begin(), order_.end(), size,
                                   [&](Class c, int64_t wanted) { return classes_[c].size < wanted; });
  auto rank = static_cast<uint32_t>(at - order_.begin());
  order_.insert(at, id);
  for (; rank < order_.size(); ++rank) {  // those behind it move up by one
    OfSize& c = classes_[order_[rank]];
    c.rank = rank;
    occupied_.assign(rank, c.count > 0);
  }
  return id;
}

void FreeBlocks::insert(Class id, uint32_t block) {
  OfSize& c = classes_[id];
  c.blocks.assign(block, true);
  ++c.count;
  occupied_.assign(c.rank, true);
}

void FreeBlocks::erase(Class id, uint32_t block) {
  OfSize& c = classes_[id];
  c.blocks.assign(block, false);
  --c.count;
  occupied_.assign(c.rank, c.count > 0);
}

uint32_t FreeBlocks::best_fit(Class id) const {
  const uint32_t rank = occupied_.next(classes_[id].rank);
  return rank == kNone ? kNone : classes_[order_[rank]].blocks.first();
}

}  // namespace wt::report
