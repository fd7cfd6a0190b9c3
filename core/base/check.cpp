#include "core/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace wt {

void check_failed(std::string_view file, int line, std::string_view condition, std::string_view message) {
  fmt::print(stderr, "{}:{}: internal error: CHECK({}) failed{}{}\n", file, line, condition,
             message.empty() ? "" : ": ", message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace wt
