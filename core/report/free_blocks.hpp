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

/// Small numbers, with the lowest at hand: a bit each, and a bit for each word of them that is not zero. Without branches
/// on what is in it: those are as good as random, and a wrong guess costs more than all the rest.
class NumberSet {
 public:
  static constexpr uint32_t kNone = ~0u;
  void assign(uint32_t n, bool in) {
    if (n / 64 >= words_.size()) grow(n);
    set(words_[n / 64], n, in);
    set(summary_[n / 4096], n / 64, words_[n / 64] != 0);
  }
  /// The lowest of all, of `from` and above; kNone if there is none.
  uint32_t first() const { return summary_.empty() ? kNone : first_from(0, summary_[0]); }
  uint32_t next(uint32_t from) const {
    uint32_t word = from / 64;
    if (word >= words_.size()) return kNone;
    if (const uint64_t bits = words_[word] & ~uint64_t{0} << from % 64; bits != 0)
      return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    if (++word >= words_.size()) return kNone;
    return first_from(word / 64, summary_[word / 64] & ~uint64_t{0} << word % 64);
  }

 private:
  static void set(uint64_t& word, uint32_t n, bool in) {
    word = (word & ~(uint64_t{1} << n % 64)) | uint64_t{in} << n % 64;
  }
  void grow(uint32_t n);
  /// The lowest of the words that `marked` and the summaries behind it name.
  uint32_t first_from(uint32_t summary, uint64_t marked) const {
    while (marked == 0) {
      if (++summary >= summary_.size()) return kNone;
      marked = summary_[summary];
    }
    const uint32_t word = summary * 64 + static_cast<uint32_t>(std::countr_zero(marked));
    return word * 64 + static_cast<uint32_t>(std::countr_zero(words_[word]));
  }
  std::vector<uint64_t> words_, summary_;
};

class FreeBlocks {
 public:
  static constexpr uint32_t kNone = NumberSet::kNone;
  using Class = uint32_t;  // of blocks of one size

  Class class_of(int64_t size) {
    const Class known = table_[place(size)];
    return known != kNone ? known : make_class(size);
  }
  void insert(Class id, uint32_t block) {
    OfSize& c = classes_[id];
    c.blocks.assign(block, true);
    ++c.count;
    occupied_.assign(c.rank, true);
  }
  /// It must be there.
  void erase(Class id, uint32_t block) {
    OfSize& c = classes_[id];
    c.blocks.assign(block, false);
    --c.count;
    occupied_.assign(c.rank, c.count > 0);
  }
  /// kNone: no block is large enough. It stays.
  uint32_t best_fit(Class id) const {
    const uint32_t rank = occupied_.next(classes_[id].rank);
    return rank == kNone ? kNone : classes_[order_[rank]].blocks.first();
  }
  /// No block is left; the sizes that were met stay known.
  void clear();
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
    uint32_t rank = 0, count = 0;
    NumberSet blocks;
  };
  Class make_class(int64_t size);
  /// Where the class of a size is in the table, or would be.
  size_t place(int64_t size) const {
    auto at = static_cast<size_t>(static_cast<uint64_t>(size) * 0x9e3779b97f4a7c15u >> shift_);  // Fibonacci hashing
    while (table_[at] != kNone && classes_[table_[at]].size != size) at = (at + 1) & (table_.size() - 1);
    return at;
  }

  std::vector<OfSize> classes_;  // in the order in which they were met
  std::vector<Class> order_;     // by size
  NumberSet occupied_;           // ranks of classes that are not empty
  unsigned shift_ = 56;          // 64 - log2 of the table's size
  std::vector<Class> table_ =
      std::vector<Class>(256, kNone);  // by hash of size, open addressing, at most a quarter full
};

}  // namespace wt::report
