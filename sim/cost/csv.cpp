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

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(trim(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return cells;
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
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = trim(all.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const auto cells = split(line);
    const std::string where = fmt::format("{}:{}", path, number);
    if (!header) {
      header = true;
      if (cells != csv.columns_)
        return Diagnostic{where, fmt::format("header '{}'", line),
                          fmt::format("expected '{}'", fmt::join(columns, ","))};
      continue;
    }
    if (cells.size() != columns.size()) {
      csv.errors_.push_back({where, fmt::format("{} cells", cells.size()),
                             fmt::format("expected {}: {}", columns.size(), fmt::join(columns, ","))});
      continue;
    }
    for (size_t i = 0; i < cells.size(); ++i)
      if (cells[i].empty()) csv.errors_.push_back({fmt::format("{}: {}", where, columns[i]), "empty cell", ""});
    csv.cells_.insert(csv.cells_.end(), cells.begin(), cells.end());
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
