// Text helpers that no library has: closest spelling, digests, safe number parsing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wt {

/// The candidate with the smallest edit distance to `word` if it is close enough to be a typing error
/// (distance <= max(1, length / 3)); nothing otherwise.
std::optional<std::string> closest(std::string_view word, std::span<const std::string_view> candidates);

/// "did you mean 'x'?" or "legal: a, b, c"; for the hint of a diagnostic.
std::string suggest(std::string_view word, std::span<const std::string_view> candidates);

/// 64-bit FNV-1a: names plans and traces; not cryptographic.
uint64_t fnv1a(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325ull);

/// Whole-string parses: nothing for trailing garbage, overflow, NaN or infinity.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

/// "1,024" style grouping for tables.
std::string with_commas(int64_t n);

std::string join(std::span<const std::string> parts, std::string_view separator);

/// True when the bytes are well-formed UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view bytes);

}  // namespace wt
