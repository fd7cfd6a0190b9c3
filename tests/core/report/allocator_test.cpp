// The caching allocator against hand-counted segments.
#include "core/report/allocator.hpp"

#include <gtest/gtest.h>

namespace wt::report {
namespace {

constexpr int64_t kMib = 1 << 20;

TEST(Allocator, SegmentsBySize) {
  CachingAllocator a;
  a.reserve(100);  // small pool: 2 MiB
  EXPECT_EQ(a.reserved(), 2 * kMib);
  a.reserve(kMib);
  EXPECT_EQ(a.reserved(), 2 * kMib);  // beside it
  a.reserve(kMib);
  EXPECT_EQ(a.reserved(), 4 * kMib);
  a.reserve(3 * kMib);  // large pool: 20 MiB
  EXPECT_EQ(a.reserved(), 24 * kMib);
}

TEST(Allocator, LargeOnesAreRoundedAndServedAgain) {
  CachingAllocator a;
  const auto x = a.reserve(100 * kMib + 1);
  EXPECT_EQ(a.reserved(), 102 * kMib);
  a.release(x);
  const auto y = a.reserve(60 * kMib);  // splits what is cached
  const auto z = a.reserve(42 * kMib);
  EXPECT_EQ(a.reserved(), 102 * kMib);
  a.release(y);
  a.release(z);
  a.reserve(102 * kMib);  // neighbours merged
  EXPECT_EQ(a.reserved(), 102 * kMib);
}

TEST(Allocator, ABigRequestCannotUseSmallHoles) {
  CachingAllocator a;
  std::vector<CachingAllocator::Handle> held;
  for (int i = 0; i < 10; ++i) held.push_back(a.reserve(50 * kMib));
  for (auto h : held) a.release(h);
  a.reserve(400 * kMib);
  EXPECT_EQ(a.reserved(), 900 * kMib);
  EXPECT_EQ(a.peak(), 900 * kMib);
}

TEST(Allocator, TheLimitReturnsWhatIsCached) {
  CachingAllocator a(600 * kMib);
  const auto x = a.reserve(500 * kMib);
  a.release(x);
  const auto y = a.reserve(550 * kMib);
  EXPECT_EQ(a.retries(), 1);
  EXPECT_EQ(a.reserved(), 550 * kMib);
  EXPECT_FALSE(a.failed());
  a.reserve(100 * kMib);
  EXPECT_TRUE(a.failed());
  a.release(y);
}

}  // namespace
}  // namespace wt::report
