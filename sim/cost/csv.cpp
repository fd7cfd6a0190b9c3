#include "sim/cost/csv.hpp"

#include <fmt/ranges.h>
#include <charconv>

#include <algorithm>
#include <cmath>

#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace wt::sim {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

/// Adds the cells of the line; how many.
size_t split(std::string_view line, std::vector<std::string_view>& cells) {
  const size_t before = cells.size();
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(trim(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return cells.size() - before;
}

}  // namespace

Result<Csv> Csv::read(const std::string& path, std::span<const std::string_view> columns) {
  Csv csv;
  csv.path_ = path;
  auto content = read_file(path, int64_t{1} << 24);
  if (!content) return content.errors();
  csv.content_ = std::move(content.value());
  csv.content_.reserve(64);  // beyond the small-string buffer: moving the Csv keeps the characters where they are
  csv.columns_.assign(columns.begin(), columns.end());
  bool header = false;
  int number = 0;
  const std::string_view all = csv.content_;
  const auto where = [&] { return fmt::format("{}:{}", path, number); };  // of a fault only: there are 10^3 lines
  const auto lines = static_cast<size_t>(std::count(all.begin(), all.end(), '\n'));
  csv.lines_.reserve(lines);
  csv.cells_.reserve(lines * columns.size());
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = trim(all.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const size_t first = csv.cells_.size(), count = split(line, csv.cells_);
    const auto cells = std::span(csv.cells_).subspan(first);
    if (!header) {
      header = true;
      if (!std::ranges::equal(cells, csv.columns_))
        return Diagnostic{where(), fmt::format("header '{}'", line),
                          fmt::format("expected '{}'", fmt::join(columns, ","))};
      csv.cells_.clear();
      continue;
    }
    if (count != columns.size()) {
      csv.errors_.push_back({where(), fmt::format("{} cells", count),
                             fmt::format("expected {}: {}", columns.size(), fmt::join(columns, ","))});
      csv.cells_.resize(first);
      continue;
    }
    for (size_t i = 0; i < count; ++i)
      if (cells[i].empty()) csv.errors_.push_back({fmt::format("{}: {}", where(), columns[i]), "empty cell", ""});
    csv.lines_.push_back(number);
  }
  if (!header) return Diagnostic{path, "no header", fmt::format("expected '{}'", fmt::join(columns, ","))};
  return csv;
}

void Csv::fail(size_t row, size_t column, std::string what, std::string hint) {
  errors_.push_back({fmt::format("{}:{}: {}", path_, lines_[row], columns_[column]), std::move(what), std::move(hint)});
}

double Csv::number(size_t row, size_t column) {
  const std::string_view cell = text(row, column);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size() || !std::isfinite(value)) {
    if (!cell.empty()) fail(row, column, fmt::format("'{}' is not a number", cell));
    return 0;
  }
  return value;
}

size_t Csv::choice(size_t row, size_t column, std::span<const std::string_view> legal) {
  const std::string_view cell = text(row, column);
  for (size_t i = 0; i < legal.size(); ++i)
    if (legal[i] == cell) return i;
  if (!cell.empty()) fail(row, column, fmt::format("unknown value '{}'", cell), suggest(cell, legal));
  return 0;
}

}  // namespace wt::sim
