// What the host decides between steps.
#include "exec/training.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>

#include "core/base/file.hpp"

namespace wt::exec {
namespace {

TEST(LearningRate, WarmsUpAndFallsAsACosine) {
  const LearningRate r{.peak = 1, .floor = 0.1, .warmup = 4, .total = 24};
  EXPECT_DOUBLE_EQ(r.at(0), 0.25);
  EXPECT_DOUBLE_EQ(r.at(3), 1);
  EXPECT_DOUBLE_EQ(r.at(4), 1);
  EXPECT_DOUBLE_EQ(r.at(14), 0.55);  // half way
  EXPECT_DOUBLE_EQ(r.at(9), 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(r.at(24), 0.1);
  EXPECT_DOUBLE_EQ(r.at(1000), 0.1);
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 3}).at(12345), 3);
}

TEST(LossScale, HalvesOnInfinitiesAndGrowsAfterGoodSteps) {
  LossScale s;
  s.after(true);
  EXPECT_EQ(s.scale, 32768);
  for (int i = 0; i < 1999; ++i) s.after(false);
  EXPECT_EQ(s.scale, 32768);
  s.after(false);
  EXPECT_EQ(s.scale, 65536);
  EXPECT_EQ(s.good_steps, 0);
  for (int i = 0; i < 100; ++i) s.after(true);
  EXPECT_EQ(s.scale, 1);
}

TEST(Tokens, FollowFromSeedStepAndNumberAlone) {
  for (const auto& source : {random_tokens(7, 50), pattern_tokens(7, 50)}) {
    std::vector<int32_t> a(33), b(33), c(33);
    source->sample(3, 11, a);
    source->sample(3, 12, c);
    source->sample(3, 11, b);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, c);
    source->sample(4, 11, c);
    EXPECT_NE(a, c);
    for (const int32_t t : a) EXPECT_TRUE(t >= 0 && t < 50);
    EXPECT_GT(std::set<int32_t>(a.begin(), a.end()).size(), 5u);
  }
}

TEST(Tokens, OfAFileAreItsBytes) {
  const std::string path = testing::TempDir() + "/bytes.txt";
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>('A' + i % 26);
  ASSERT_TRUE(write_file_atomically(path, text).ok());
  const auto source = byte_tokens(path, 1, 256, 16);
  ASSERT_TRUE(source.ok());
  std::set<int32_t> starts;
  for (int64_t n = 0; n < 300; ++n) {
    std::vector<int32_t> tokens(17);
    source.value()->sample(0, n, tokens);
    for (size_t i = 1; i < tokens.size(); ++i) ASSERT_EQ((tokens[i] - tokens[i - 1] + 26) % 26, 1);
    starts.insert(tokens[0]);
  }
  EXPECT_EQ(starts.size(), 26u);
  EXPECT_FALSE(byte_tokens(path, 1, 256, 200).ok());  // shorter than a sample and its label
  EXPECT_TRUE(byte_tokens(path, 1, 256, 199).ok());
  const auto small = byte_tokens(path, 1, 80, 16);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(to_text(small.errors()).find("byte 90 at offset 25 is beyond the vocabulary of 80"), std::string::npos)
      << to_text(small.errors());
  EXPECT_FALSE(byte_tokens(path + ".none", 1, 256, 16).ok());
}

}  // namespace
}  // namespace wt::exec
