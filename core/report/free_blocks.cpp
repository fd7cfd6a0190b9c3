#include "core/report/free_blocks.hpp"

#include <algorithm>

namespace wt::report {

void NumberSet::grow(uint32_t n) {
  words_.resize(n / 64 + 1);
  summary_.resize(n / 4096 + 1);
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

void FreeBlocks::clear() {
  for (const Class c : order_) {
    for (uint32_t b = classes_[c].blocks.first(); b != kNone; b = classes_[c].blocks.first()) erase(c, b);
  }
}

}  // namespace wt::report
