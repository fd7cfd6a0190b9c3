// Numbers with their unit written out: "900 GB/s", "2 us", "80 GiB". Parsing and printing, nothing else.
// A bare number is refused, bits (Gb/s) and bytes (GB/s) are told apart, GB is 10^9 and GiB is 2^30.
// Invariant: parse(print(x)) == x, bit for bit.
#pragma once

#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/base/units.hpp"

namespace wt {

enum class Quantity : uint8_t { bytes, bytes_per_second, flops_per_second, time, frequency, power };

/// In the base unit (bytes, B/s, FLOP/s, seconds, Hz, W); zero or more, finite. `where` of a diagnostic is empty.
Result<double> parse_quantity(Quantity kind, std::string_view text);

Result<Bytes> parse_bytes(std::string_view text);
Result<BytesPerSecond> parse_bytes_per_second(std::string_view text);
Result<FlopsPerSecond> parse_flops_per_second(std::string_view text);
Result<Time> parse_time(std::string_view text);

/// Shortest text that reads back equal, in the largest unit that allows it.
std::string print_quantity(Quantity kind, double value);
std::string print(Bytes b);
std::string print(BytesPerSecond r);
std::string print(FlopsPerSecond r);
std::string print(Time t);

/// "such as 900 GB/s or 400 Gb/s"
std::string_view example_of(Quantity kind);

}  // namespace wt
