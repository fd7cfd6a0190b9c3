// Best fit against a sorted set of (size, number), which is what it stands for.
#include "core/report/free_blocks.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace wt::report {
namespace {

TEST(FreeBlocks, BestFitIsThatOfASortedSet) {
  std::mt19937 random(7);
  auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  FreeBlocks blocks;
  std::set<std::pair<int64_t, uint32_t>> sorted;
  std::map<uint32_t, FreeBlocks::Class> classes;  // of the blocks that are there
  for (int round = 0; round < 60000; ++round) {
    const bool few = round / 10000 % 2 == 1;  // the set grows, then empties, three times
    const int64_t size = 512 * int64_t{1 + below(round < 20000 ? 40 : 700)};
    const uint32_t block = below(round < 20000 ? 300 : 9000);
    if (!few && !classes.contains(block)) {
      blocks.insert(classes[block] = blocks.class_of(size), block);
      sorted.insert({size, block});
    }
    const auto fit = sorted.lower_bound({size, 0});
    ASSERT_EQ(blocks.best_fit(blocks.class_of(size)), fit == sorted.end() ? FreeBlocks::kNone : fit->second)
        << "round " << round;
    if (fit == sorted.end() || (!few && below(3) == 0)) continue;
    blocks.erase(classes.at(fit->second), fit->second);
    classes.erase(fit->second);
    sorted.erase(fit);
  }
}

TEST(FreeBlocks, EraseIfAsksInOrder) {
  FreeBlocks blocks;
  for (const auto& [size, block] : {std::pair{1024, 5u}, {512, 9u}, {1024, 4100u}, {512, 2u}})
    blocks.insert(blocks.class_of(size), block);
  std::vector<uint32_t> asked;
  blocks.erase_if([&](uint32_t b) {
    asked.push_back(b);
    return b == 2 || b == 5;
  });
  EXPECT_EQ(asked, (std::vector<uint32_t>{2, 9, 5, 4100}));
  EXPECT_EQ(blocks.best_fit(blocks.class_of(1)), 9u);
  EXPECT_EQ(blocks.best_fit(blocks.class_of(513)), 4100u);
  EXPECT_EQ(blocks.best_fit(blocks.class_of(1025)), FreeBlocks::kNone);
}

}  // namespace
}  // namespace wt::report
