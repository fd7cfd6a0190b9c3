#include "core/spec/quantity.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "core/base/text.hpp"

namespace wt {
namespace {

struct UnitName {
  std::string_view name;
  double factor;
  bool print = true;  // false: read, never written
};

constexpr double kKi = 1024.0, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi, kPi = kTi * kKi;

// Largest first within what is printed: print_quantity takes the first that reads back equal.
constexpr UnitName kBytes[] = {{"PiB", kPi}, {"TiB", kTi}, {"GiB", kGi}, {"MiB", kMi},
                               {"KiB", kKi}, {"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9},
                               {"MB", 1e6},  {"kB", 1e3},  {"B", 1},     {"KB", 1e3, false}};
constexpr UnitName kRates[] = {{"PB/s", 1e15},
                               {"TB/s", 1e12},
                               {"GB/s", 1e9},
                               {"MB/s", 1e6},
                               {"kB/s", 1e3},
                               {"B/s", 1},
                               {"TiB/s", kTi, false},
                               {"GiB/s", kGi, false},
                               {"MiB/s", kMi, false},
                               {"Tb/s", 1e12 / 8, false},
                               {"Gb/s", 1e9 / 8, false},
                               {"Mb/s", 1e6 / 8, false},
                               {"Tbit/s", 1e12 / 8, false},
                               {"Gbit/s", 1e9 / 8, false},
                               {"Mbit/s", 1e6 / 8, false}};
constexpr UnitName kFlops[] = {{"PFLOP/s", 1e15},       {"TFLOP/s", 1e12},     {"GFLOP/s", 1e9},
                               {"MFLOP/s", 1e6},        {"FLOP/s", 1},         {"PFLOPS", 1e15, false},
                               {"TFLOPS", 1e12, false}, {"GFLOPS", 1e9, false}};
constexpr UnitName kTimes[] = {{"h", 3600},  {"min", 60},  {"s", 1},      {"ms", 1e-3},
                               {"us", 1e-6}, {"ns", 1e-9}, {"ps", 1e-12}, {"µs", 1e-6, false}};
constexpr UnitName kFrequencies[] = {{"GHz", 1e9}, {"MHz", 1e6}, {"kHz", 1e3}, {"Hz", 1}};
constexpr UnitName kPowers[] = {{"MW", 1e6}, {"kW", 1e3}, {"W", 1}};

std::span<const UnitName> units_of(Quantity kind) {
  switch (kind) {
    case Quantity::bytes: return kBytes;
    case Quantity::bytes_per_second: return kRates;
    case Quantity::flops_per_second: return kFlops;
    case Quantity::time: return kTimes;
    case Quantity::frequency: return kFrequencies;
    case Quantity::power: return kPowers;
  }
  return {};
}

std::string legal_units(Quantity kind) {
  std::string out = "units:";
  for (const UnitName& u : units_of(kind)) out += fmt::format(" {}", u.name);
  return out;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  return text.size() <= kShown ? fmt::format("'{}'", text) : fmt::format("'{}...'", text.substr(0, kShown));
}

std::string unit_hint(Quantity kind, std::string_view written) {
  if (kind == Quantity::bytes_per_second && (lower(written) == "gbps" || lower(written) == "gb/s"))
    return "write 'GB/s' for bytes or 'Gb/s' for bits";
  if (kind == Quantity::bytes && written == "Gb") return "did you mean 'GB'?";
  for (const UnitName& u : units_of(kind))
    if (lower(u.name) == lower(written)) return fmt::format("did you mean '{}'?", u.name);
  return legal_units(kind);
}

}  // namespace

std::string_view example_of(Quantity kind) {
  switch (kind) {
    case Quantity::bytes: return "such as 80 GiB";
    case Quantity::bytes_per_second: return "such as 900 GB/s or 400 Gb/s";
    case Quantity::flops_per_second: return "such as 312 TFLOP/s";
    case Quantity::time: return "such as 2 us";
    case Quantity::frequency: return "such as 1.41 GHz";
    case Quantity::power: return "such as 700 W";
  }
  return "";
}

Result<double> parse_quantity(Quantity kind, std::string_view text) {
  const std::string_view all = trim(text);
  size_t digits = 0;
  while (digits < all.size() && (std::string_view("0123456789.+-").find(all[digits]) != std::string_view::npos ||
                                 // an exponent, not the first letter of a unit: "1e3 B" against "1 EB"
                                 ((all[digits] == 'e' || all[digits] == 'E') && digits + 1 < all.size() && digits > 0 &&
                                  std::string_view("0123456789+-").find(all[digits + 1]) != std::string_view::npos)))
    ++digits;
  const std::string_view number = all.substr(0, digits), unit = trim(all.substr(digits));
  const std::optional<double> value = parse_double(number);
  if (!value)
    return Diagnostic{"", fmt::format("{} is not a number with a unit", quoted(all)), std::string(example_of(kind))};
  if (unit.empty()) return Diagnostic{"", fmt::format("{} has no unit", quoted(all)), legal_units(kind)};
  for (const UnitName& u : units_of(kind)) {
    if (u.name != unit) continue;
    const double v = *value * u.factor;
    if (*value < 0) return Diagnostic{"", fmt::format("{} is negative", quoted(all)), ""};
    if (!std::isfinite(v)) return Diagnostic{"", fmt::format("{} is too large", quoted(all)), ""};
    return v;
  }
  return Diagnostic{"", fmt::format("{}: unknown unit {}", quoted(all), quoted(unit)), unit_hint(kind, unit)};
}

namespace {
/// "<whole number> <unit>" without a detour over doubles, which hold only 53 bits; nothing if it is not of that form
/// or does not fit.
std::optional<int64_t> whole(std::string_view text, std::span<const UnitName> units, double scale) {
  text = trim(text);
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<int64_t> n = parse_int(text.substr(0, digits));
  if (!n) return std::nullopt;
  for (const UnitName& u : units) {
    const double factor = u.factor * scale;
    if (u.name != trim(text.substr(digits)) || factor < 1) continue;
    int64_t product = 0;
    if (__builtin_mul_overflow(*n, static_cast<int64_t>(std::llround(factor)), &product)) return std::nullopt;
    return product;
  }
  return std::nullopt;
}
}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  Result<double> v = parse_quantity(Quantity::bytes, text);
  if (!v.ok()) return v.errors();
  constexpr double kLimit = 4e18;  // below 2^62: sums of two stay in range
  if (v.value() > kLimit) return Diagnostic{"", fmt::format("{} is too large", quoted(trim(text))), ""};
  if (const auto exact = whole(text, kBytes, 1)) return Bytes{*exact};
  return Bytes{static_cast<int64_t>(std::llround(v.value()))};
}

Result<BytesPerSecond> parse_bytes_per_second(std::string_view text) {
  Result<double> v = parse_quantity(Quantity::bytes_per_second, text);
  if (!v.ok()) return v.errors();
  return BytesPerSecond{v.value()};
}

Result<FlopsPerSecond> parse_flops_per_second(std::string_view text) {
  Result<double> v = parse_quantity(Quantity::flops_per_second, text);
  if (!v.ok()) return v.errors();
  return FlopsPerSecond{v.value()};
}

Result<Time> parse_time(std::string_view text) {
  Result<double> v = parse_quantity(Quantity::time, text);
  if (!v.ok()) return v.errors();
  constexpr double kLimit = 8.64e6;  // Time holds +-106 days
  if (v.value() > kLimit) return Diagnostic{"", fmt::format("{} is too large", quoted(trim(text))), "up to 100 days"};
  if (const auto exact = whole(text, kTimes, 1e12)) return Time::ps(*exact);
  return Time::from_seconds(v.value());
}

std::string print_quantity(Quantity kind, double value) {
  const auto units = units_of(kind);
  const UnitName* fallback = nullptr;
  for (const UnitName& u : units) {
    if (!u.print) continue;
    fallback = &u;
    if (value != 0 && value < u.factor) continue;
    if (value == 0) continue;
    std::string text = fmt::format("{}", value / u.factor);
    if (text.size() > 9 && u.factor != 1) continue;  // 0.30000000000000004: a smaller unit says it better
    const std::optional<double> back = parse_double(text);
    if (back && *back * u.factor == value) return fmt::format("{} {}", text, u.name);
  }
  return fmt::format("{} {}", value / fallback->factor, fallback->name);
}

std::string print(Bytes b) {
  const UnitName* best = nullptr;  // the one with the smallest count: 10^12 bytes are 1 TB, not 976562500 KiB
  for (const UnitName& u : kBytes) {
    if (u.print && b.n != 0 && b.n % static_cast<int64_t>(u.factor) == 0 && (!best || u.factor > best->factor))
      best = &u;
  }
  if (!best) return fmt::format("{} B", b.n);
  return fmt::format("{} {}", b.n / static_cast<int64_t>(best->factor), best->name);
}

std::string print(BytesPerSecond r) { return print_quantity(Quantity::bytes_per_second, r.n); }
std::string print(FlopsPerSecond r) { return print_quantity(Quantity::flops_per_second, r.n); }

std::string print(Time t) {
  const int64_t ps = t.count_ps();
  if (ps == 0) return "0 s";
  if (ps % 1000000000000 == 0) return fmt::format("{} s", ps / 1000000000000);
  if (ps % 1000000000 == 0) return fmt::format("{} ms", ps / 1000000000);
  if (ps % 1000000 == 0) return fmt::format("{} us", ps / 1000000);
  if (ps % 1000 == 0) return fmt::format("{} ns", ps / 1000);
  return fmt::format("{} ps", ps);
}

}  // namespace wt
