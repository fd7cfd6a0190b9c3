#include "core/base/result.hpp"

namespace wt {

std::string to_text(const Diagnostics& errors) {
  std::string out;
  for (const auto& e : errors) {
    if (!e.where.empty()) out += e.where + ": ";
    out += e.what;
    if (!e.hint.empty()) out += " (" + e.hint + ")";
    out += '\n';
  }
  return out;
}

}  // namespace wt
