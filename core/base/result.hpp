// Result<T>: a value, or one or more diagnostics; never both, never neither.
// User input -> Result with *all* faults found. Our bug -> WT_CHECK. A machine fault -> Status too, with rank,
// op and call in `where`. No exception crosses a folder; no library calls exit.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/check.hpp"

namespace wt {

struct Diagnostic {
  std::string where;  // "job.yaml:12:5: strategy.tensor" or "rank 3, op 41 (recv fwd mb 2)"
  std::string what;   // "unknown key 'bandwith'"
  std::string hint;   // "did you mean 'bandwidth'?"; the legal values; may be empty
};
using Diagnostics = std::vector<Diagnostic>;

/// One line per diagnostic: "where: what (hint)".
std::string to_text(const Diagnostics& errors);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T v) : s_(std::in_place_index<0>, std::move(v)) {}
  Result(Diagnostics d) : s_(std::in_place_index<1>, std::move(d)) { WT_CHECK(!std::get<1>(s_).empty()); }
  Result(Diagnostic d) : s_(std::in_place_index<1>, Diagnostics{std::move(d)}) {}

  bool ok() const { return s_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() {
    WT_CHECK(ok(), "{}", to_text(std::get<1>(s_)));
    return std::get<0>(s_);
  }
  const T& value() const {
    WT_CHECK(ok(), "{}", to_text(std::get<1>(s_)));
    return std::get<0>(s_);
  }
  const Diagnostics& errors() const {
    WT_CHECK(!ok());
    return std::get<1>(s_);
  }

 private:
  std::variant<T, Diagnostics> s_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() { return Unit{}; }

/// A value from `errors` if any, else ok.
inline Status status_of(Diagnostics errors) {
  if (errors.empty()) return Unit{};
  return errors;
}

}  // namespace wt
