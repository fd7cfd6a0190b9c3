// Text helpers on any bytes: parsing numbers, spelling suggestions, UTF-8.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.hpp"
#include "core/base/text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto n = wt::parse_int(text)) {
    WT_CHECK(wt::parse_int(std::to_string(*n)) == n);
    WT_CHECK(!wt::with_commas(*n).empty());
  }
  if (const auto x = wt::parse_double(text)) WT_CHECK(std::isfinite(*x));
  const std::string_view words[] = {"bandwidth", "latency", "tensor"};
  WT_CHECK(!wt::suggest(text, words).empty());
  const bool valid = wt::is_utf8(text);
  WT_CHECK(wt::is_utf8(std::string(text) + "a") == valid);
  WT_CHECK(wt::fnv1a(text) == wt::fnv1a(std::string(text)));
  return 0;
}
