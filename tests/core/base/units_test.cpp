// Time rounds to the nearest picosecond and refuses what it cannot hold; quantities print with three digits and a unit.
#include "core/base/units.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

namespace wt {
namespace {

TEST(Time, RoundsToTheNearestPicosecond) {
  EXPECT_EQ(Time::from_seconds(1.4e-12), Time::ps(1));
  EXPECT_EQ(Time::from_seconds(1.6e-12), Time::ps(2));
  EXPECT_EQ(Time::from_seconds(-1.6e-12), Time::ps(-2));
  EXPECT_EQ(Time::from_seconds(0.4e-12), Time());
  EXPECT_EQ(Time::from_seconds(1.0), Time::us(1'000'000));
  EXPECT_EQ(Time::us(3), Time::ns(3000));
}

TEST(Time, RefusesWhatItCannotHold) {
  EXPECT_DEATH(Time::from_seconds(std::nan("")), "out of range");
  EXPECT_DEATH(Time::from_seconds(std::numeric_limits<double>::infinity()), "out of range");
  EXPECT_DEATH(Time::from_seconds(-1e7), "out of range");
  EXPECT_EQ(Time::from_seconds(9.0e6).count_ps(), 9'000'000'000'000'000'000);
}

RC_GTEST_PROP(Time, GoesThroughSecondsUnchanged, ()) {
  const auto ps = *rc::gen::inRange<int64_t>(-(int64_t{1} << 50), int64_t{1} << 50);  // exact in a double
  RC_ASSERT(Time::from_seconds(Time::ps(ps).seconds()) == Time::ps(ps));
}

RC_GTEST_PROP(Time, SumsDoNotDependOnOrder, (int32_t a, int32_t b, int32_t c)) {
  const Time x = Time::ns(a), y = Time::ps(b), z = Time::us(c);
  RC_ASSERT((x + y) + z == x + (y + z));
  RC_ASSERT(x + y - y == x);
}

TEST(ToText, PicksTheUnitOfATime) {
  EXPECT_EQ(to_text(Time()), "0 s");
  EXPECT_EQ(to_text(Time::ps(17)), "17 ps");
  EXPECT_EQ(to_text(Time::ps(999)), "999 ps");
  EXPECT_EQ(to_text(Time::ns(1)), "1.00 ns");
  EXPECT_EQ(to_text(Time::ps(12'340)), "12.3 ns");
  EXPECT_EQ(to_text(Time::us(950)), "950 us");
  EXPECT_EQ(to_text(Time::us(12'345)), "12.3 ms");
  EXPECT_EQ(to_text(Time::from_seconds(1.2)), "1.20 s");
  EXPECT_EQ(to_text(Time::from_seconds(86400)), "86400 s");
  EXPECT_EQ(to_text(Time::us(-1500)), "-1.50 ms");
}

// 999.9996 ms must not be printed as "1000 ms": rounding may carry into the next unit or the next digit.
TEST(ToText, CarriesWhenRoundingReachesTheNextStep) {
  EXPECT_EQ(to_text(Time::ps(999'999)), "1.00 us");
  EXPECT_EQ(to_text(Time::ps(999'999'999)), "1.00 ms");
  EXPECT_EQ(to_text(Time::ps(999'999'999'999)), "1.00 s");
  EXPECT_EQ(to_text(Time::ps(9'999)), "10.0 ns");
  EXPECT_EQ(to_text(Time::ps(99'960)), "100 ns");
}

TEST(ToText, PrintsBytesInBinaryUnits) {
  EXPECT_EQ(to_text(Bytes{0}), "0 B");
  EXPECT_EQ(to_text(Bytes{1023}), "1023 B");
  EXPECT_EQ(to_text(Bytes{1024}), "1.0 KiB");
  EXPECT_EQ(to_text(Bytes{512 << 20}), "512.0 MiB");
  EXPECT_EQ(to_text(Bytes{int64_t{80} << 30}), "80.00 GiB");
  EXPECT_EQ(to_text(Bytes{-2048}), "-2.0 KiB");
  EXPECT_EQ(to_text(Bytes{(1 << 20) - 1}), "1.0 MiB");
}

}  // namespace
}  // namespace wt
