// Storage types bit by bit, and the element functions beside the library's in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "exec/kernels/math.hpp"

namespace wt::exec {
namespace {

template <class T, class Bits>
void every_value_survives(int count) {
  for (int i = 0; i < count; ++i) {
    const T x{static_cast<Bits>(i)};
    const float value = widen(x);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(widen(Narrow<T>::of(value))));
    else
      EXPECT_EQ(Narrow<T>::of(value).bits, x.bits) << i;
  }
}

TEST(Element, NarrowUndoesWiden) {
  every_value_survives<Bf16, uint16_t>(65536);
  every_value_survives<F16, uint16_t>(65536);
  every_value_survives<F8, uint8_t>(256);
}

/// Between neighbours the nearer one wins, and of two equally near the one with an even last bit.
template <class T, class Bits>
void rounds_to_even(int finite) {
  for (int i = 0; i + 1 < finite; ++i) {
    const float low = widen(T{static_cast<Bits>(i)}), high = widen(T{static_cast<Bits>(i + 1)}),
                middle = low / 2 + high / 2;
    EXPECT_EQ(Narrow<T>::of(middle).bits, i % 2 == 0 ? i : i + 1) << i;
    EXPECT_EQ(Narrow<T>::of(std::nextafter(middle, low)).bits, i) << i;
    EXPECT_EQ(Narrow<T>::of(std::nextafter(middle, high)).bits, i + 1) << i;
    EXPECT_EQ(widen(Narrow<T>::of(-middle)), -widen(Narrow<T>::of(middle)));
  }
}

TEST(Element, NarrowRoundsToNearestEven) {
  rounds_to_even<Bf16, uint16_t>(0x7f80);
  rounds_to_even<F16, uint16_t>(0x7c00);
  rounds_to_even<F8, uint8_t>(0x7f);
}

TEST(Element, TooLargeAndNotANumber) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(widen(Narrow<Bf16>::of(infinity)), infinity);
  EXPECT_EQ(widen(Narrow<F16>::of(65519.0f)), 65504.0f);
  EXPECT_EQ(widen(Narrow<F16>::of(65520.0f)), infinity);
  EXPECT_EQ(widen(Narrow<F16>::of(-infinity)), -infinity);
  EXPECT_EQ(widen(Narrow<F8>::of(1e9f)), 448.0f);
  EXPECT_EQ(widen(Narrow<F8>::of(-infinity)), -448.0f);
  EXPECT_TRUE(std::isnan(widen(Narrow<Bf16>::of(nan))));
  EXPECT_TRUE(std::isnan(widen(Narrow<F16>::of(nan))));
  EXPECT_TRUE(std::isnan(widen(Narrow<F8>::of(nan))));
}

TEST(Math, ExponentialIsWithinTwoUlp) {
  for (float x = -87.0f; x < 88.0f; x += 0.00371f) {
    const double want = std::exp(double{x});
    EXPECT_LE(std::abs(exponential(x) - want), 2 * std::ldexp(want, -23)) << x;
  }
  EXPECT_EQ(exponential(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exponential(-200.0f), 0.0f);
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, ErrorFunctionIsWithinSixUlp) {
  for (float x = -6.0f; x < 6.0f; x += 0.000377f)
    EXPECT_LE(std::abs(error_function(x) - std::erf(double{x})), 6 * std::ldexp(std::abs(std::erf(double{x})), -23))
        << x;
}

TEST(Math, SlopesAreDerivatives) {
  const double step = 1e-6;
  for (double x = -5.00001; x < 5; x += 0.0137) {
    EXPECT_NEAR(gelu(x).slope, (gelu(x + step).value - gelu(x - step).value) / (2 * step), 1e-8);
    EXPECT_NEAR(silu(x).slope, (silu(x + step).value - silu(x - step).value) / (2 * step), 1e-8);
    EXPECT_NEAR(relu(x).slope, (relu(x + step).value - relu(x - step).value) / (2 * step), 1e-8);
  }
}

TEST(Math, UniformFillsItsRangeEvenly) {
  int bins[16] = {};
  for (uint64_t i = 0; i < 16000; ++i) {
    const float u = uniform(99, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++bins[static_cast<int>(u * 16)];
  }
  for (const int n : bins) EXPECT_NEAR(n, 1000, 5 * std::sqrt(1000.0 * 15 / 16));
}

}  // namespace
}  // namespace wt::exec
