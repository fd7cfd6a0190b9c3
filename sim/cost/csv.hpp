// Strict reader of the small tables in data/kernels: comma separated, '#' starts a comment line, the first other line
// names the columns. No quotes, no empty cells. Every fault names file, line and column.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"

namespace wt::sim {

class Csv {
 public:
  /// Reads `path`; the header must be exactly `columns`.
  static Result<Csv> read(const std::string& path, std::span<const std::string_view> columns);

  size_t rows() const { return lines_.size(); }
  std::string_view text(size_t row, size_t column) const { return cells_[row * columns_.size() + column]; }
  /// A finite number; anything else is added to the errors and gives 0.
  double number(size_t row, size_t column);
  /// Index of the cell in `legal`; anything else is added to the errors and gives 0.
  size_t choice(size_t row, size_t column, std::span<const std::string_view> legal);
  void fail(size_t row, size_t column, std::string what, std::string hint = {});
  Diagnostics& errors() { return errors_; }

 private:
  std::string path_, content_;
  std::vector<std::string_view> columns_, cells_;  // cells point into content_, which is never moved (see read)
  std::vector<int> lines_;
  Diagnostics errors_;
};

}  // namespace wt::sim
