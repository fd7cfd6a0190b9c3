// CHECK: for our own bugs only, never for user input. Prints the condition and the values and aborts.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace wt {
[[noreturn]] void check_failed(std::string_view file, int line, std::string_view condition, std::string_view message);
}  // namespace wt

// WT_CHECK(cond) or WT_CHECK(cond, "format {}", value)
#define WT_CHECK(cond, ...)                                                         \
  do {                                                                              \
    if (!(cond)) [[unlikely]]                                                       \
      ::wt::check_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
