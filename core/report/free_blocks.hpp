// The free blocks of a pool, asked for the best fit: the smallest size that is large enough, of these the lowest number.
// Not an allocator (core/report/allocator.hpp). A replay asks 10^5 times and meets a few hundred sizes, so every size has
// a class with a bit for each block, and the classes in order of size a bit for each that is not empty: nothing is
// searched and nothing moves but when a size is met for the first time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace wt::report {

/// Small numbers, with the lowest at hand: a bit each, and a bit for each word of them that is not zero.
class NumberSet {
 public:
  static constexpr uint32_t kNone = ~0u;
  bool empty() const { return count_ == 0; }
  void insert(uint32_t n) {
    if (n / 64 >= words_.size()) grow(n);
    words_[n / 64] |= bit(n);
    summary_[n / 4096] |= bit(n / 64);
    ++count_;
  }
  void erase(uint32_t n) {
    if ((words_[n / 64] &= ~bit(n)) == 0) summary_[n / 4096] &= ~bit(n / 64);
    --count_;
  }
  /// The lowest of `from` and above; kNone if there is none.
  uint32_t next(uint32_t from) const;
  void clear();

 private:
  static uint64_t bit(uint32_t n) { return uint64_t{1} << n % 64; }
  void grow(uint32_t n);
  std::vector<uint64_t> words_, summary_;
  uint32_t count_ = 0;
};

class FreeBlocks {
 public:
  static constexpr uint32_t kNone = NumberSet::kNone;
  using Class = uint32_t;  // of blocks of one size

  FreeBlocks() : table_(256, kNone) {}

  Class insert(int64_t size, uint32_t block);
  /// It must be there; the class that `insert` gave.
  void erase(Class, uint32_t block);
  /// kNone: no block is large enough. It stays.
  uint32_t best_fit(int64_t size);
  /// Takes out the blocks for which `f(block)` is true; asked in order of size, then number.
  template <class F>
  void erase_if(F&& f) {
    for (const Class c : order_)
      for (uint32_t b = classes_[c].blocks.next(0); b != kNone; b = classes_[c].blocks.next(b + 1))
        if (f(b)) erase(c, b);
  }

 private:
  struct OfSize {
    int64_t size = 0;
    uint32_t rank = 0;
    NumberSet blocks;
  };
  Class class_of(int64_t size) {
    const Class known = table_[place(size)];
    return known != kNone ? known : make_class(size);
  }
  Class make_class(int64_t size);
  size_t place(int64_t size) const;

  std::vector<OfSize> classes_;  // in the order in which they were met
  std::vector<Class> order_;     // by size
  NumberSet occupied_;           // ranks of classes that are not empty
  std::vector<Class> table_;     // by hash of size, open addressing, at most a quarter full
};

}  // namespace wt::report
