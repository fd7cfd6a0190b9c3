#include "core/base/units.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/base/check.hpp"

namespace wt {

Time Time::from_seconds(double s) {
  const double ps = std::round(s * 1e12);
  WT_CHECK(ps > -9.2e18 && ps < 9.2e18, "time {} s is out of range", s);
  return Time(static_cast<int64_t>(ps));
}

namespace {
// The bounds are where rounding carries: 9.996 is "10.0", 999.6 ns is "1.00 us".
std::string three_digits(double v, const char* unit) {
  const double a = std::fabs(v);
  const int decimals = a >= 99.95 ? 0 : a >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", v, decimals, unit);
}
}  // namespace

std::string to_text(Time t) {
  const double ps = static_cast<double>(t.count_ps());
  const double a = std::fabs(ps);
  if (a == 0) return "0 s";
  if (a < 1e3) return fmt::format("{:.0f} ps", ps);
  if (a < 999.5e3) return three_digits(ps / 1e3, "ns");
  if (a < 999.5e6) return three_digits(ps / 1e6, "us");
  if (a < 999.5e9) return three_digits(ps / 1e9, "ms");
  return three_digits(ps / 1e12, "s");
}

std::string to_text(Bytes b) {
  constexpr double kKiB = 1024, kMiB = kKiB * 1024, kCarries = 1023.95;  // prints as 1024.0
  const double n = static_cast<double>(b.n);
  const double a = std::fabs(n);
  if (a < 1024) return fmt::format("{} B", b.n);
  if (a < kCarries * kKiB) return fmt::format("{:.1f} KiB", n / kKiB);
  if (a < kCarries * kMiB) return fmt::format("{:.1f} MiB", n / kMiB);
  return fmt::format("{:.2f} GiB", b.gib());
}

}  // namespace wt
