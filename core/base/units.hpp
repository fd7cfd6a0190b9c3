// Strong quantities: the only file where a raw number and a unit meet.
// Not a general units library: just what plans, costs and reports exchange.
// Invariant: simulated time is an integer count of picoseconds, so that sums do not depend on their order
// and a run gives the same bits on every machine. GB is 10^9 bytes, GiB is 2^30.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace wt {

/// Instant or duration in signed picoseconds (range +-106 days).
class Time {
 public:
  constexpr Time() = default;
  static constexpr Time ps(int64_t n) { return Time(n); }
  static constexpr Time ns(int64_t n) { return Time(n * 1000); }
  static constexpr Time us(int64_t n) { return Time(n * 1000000); }
  /// Rounds to the nearest picosecond; CHECKs on NaN and on a value outside the range.
  static Time from_seconds(double s);

  constexpr int64_t count_ps() const { return ps_; }
  constexpr double seconds() const { return static_cast<double>(ps_) * 1e-12; }

  friend constexpr Time operator+(Time a, Time b) { return Time(a.ps_ + b.ps_); }
  friend constexpr Time operator-(Time a, Time b) { return Time(a.ps_ - b.ps_); }
  constexpr Time& operator+=(Time b) {
    ps_ += b.ps_;
    return *this;
  }
  constexpr Time& operator-=(Time b) {
    ps_ -= b.ps_;
    return *this;
  }
  constexpr auto operator<=>(const Time&) const = default;

 private:
  explicit constexpr Time(int64_t n) : ps_(n) {}
  int64_t ps_ = 0;
};

struct Bytes {
  int64_t n = 0;
  constexpr double gib() const { return static_cast<double>(n) / 1073741824.0; }
  constexpr auto operator<=>(const Bytes&) const = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.n + b.n}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.n - b.n}; }
};

/// Floating-point operations, a multiply-add counted as two.
struct Flops {
  double n = 0;
  constexpr auto operator<=>(const Flops&) const = default;
};

struct BytesPerSecond {
  double n = 0;
  constexpr auto operator<=>(const BytesPerSecond&) const = default;
};

struct FlopsPerSecond {
  double n = 0;
  constexpr auto operator<=>(const FlopsPerSecond&) const = default;
};

/// "12.3 ms", "1.20 s", "950 ns": three significant digits, unit always printed.
std::string to_text(Time t);
/// "12.39 GiB", "512 MiB", "17 B".
std::string to_text(Bytes b);

}  // namespace wt
