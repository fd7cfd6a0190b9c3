#include "core/lower/schedule_table.hpp"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>

namespace wt::lower {
namespace {

constexpr std::string_view kKey = "strategy.schedule_file";
constexpr std::string_view kLegal =
    "legal: stage, F (forward), B (backward), I (input gradient) or W (weight gradient), micro-batch: 0F3";

struct Cell {
  int64_t stage = 0;
  Slot slot;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

/// Nothing if the text is no pass; the chunk is left open.
std::optional<Cell> cell_of(std::string_view text) {
  Cell cell;
  const char* const end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, cell.stage);
  if (stage.ec != std::errc{} || stage.ptr == end) return std::nullopt;
  switch (*stage.ptr) {
    case 'F': cell.slot.pass = Pass::forward; break;
    case 'B': cell.slot.pass = Pass::backward; break;
    case 'I': cell.slot.pass = Pass::backward_input; break;
    case 'W': cell.slot.pass = Pass::backward_weight; break;
    default: return std::nullopt;
  }
  const auto micro_batch = std::from_chars(stage.ptr + 1, end, cell.slot.micro_batch);
  if (micro_batch.ec != std::errc{} || micro_batch.ptr != end) return std::nullopt;
  return cell;
}

class Table {
 public:
  Table(const ScheduleInput& in, plan::PlacementKind kind) : in_(in), place_{kind, in.pipeline, in.chunks} {}

  Result<Orders> read() {
    std::string_view rest = in_.file;
    for (int64_t line = 1; !rest.empty(); ++line) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      if (!trimmed(rest.substr(0, end)).empty()) row(line, rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (static_cast<int64_t>(orders_.size()) != in_.pipeline)
      add(fmt::format("has {} lines for {} ranks", orders_.size(), in_.pipeline), "legal: strategy.pipeline lines");
    if (faults_.empty()) complete();
    if (!faults_.empty()) return faults_;
    return orders_;
  }

 private:
  void add(std::string what, std::string_view hint) {
    faults_.push_back({std::string(kKey), std::move(what), std::string(hint)});
  }

  void row(int64_t line, std::string_view text) {
    const auto rank = static_cast<int64_t>(orders_.size());
    orders_.emplace_back();
    for (int64_t column = 1; !text.empty(); ++column) {
      const size_t end = std::min(text.find(','), text.size());
      const std::string_view word = trimmed(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      if (word.empty()) continue;
      auto cell = cell_of(word);
      const std::string where = fmt::format("line {}, cell {}: '{}'", line, column, word);
      if (!cell) {
        add(where + " is no pass", kLegal);
      } else if (cell->stage < 0 || cell->stage >= place_.stages() || cell->slot.micro_batch < 0 ||
                 cell->slot.micro_batch >= in_.micro_batches) {
        add(fmt::format("{}: there are {} stages and {} micro-batches", where, place_.stages(), in_.micro_batches),
            kLegal);
      } else if (const auto at = place_.slot(cell->stage); at.pp != rank) {
        add(fmt::format("{}: stage {} is on rank {}", where, cell->stage, at.pp),
            place_.kind == plan::PlacementKind::loop ? "legal: stage modulo strategy.pipeline is the line, from 0"
                                                     : "legal: the stages of a V");
      } else {
        cell->slot.chunk = static_cast<int32_t>(at.chunk);
        orders_.back().push_back(cell->slot);
      }
    }
  }

  /// Every pair runs F, then B or I and W.
  void complete() {
    for (size_t rank = 0; rank < orders_.size(); ++rank) {
      std::map<std::pair<int32_t, int32_t>, std::string> passes;
      for (const Slot& s : orders_[rank]) passes[{s.chunk, s.micro_batch}] += "FBIW"[static_cast<int>(s.pass)];
      for (int32_t chunk = 0; chunk < in_.chunks; ++chunk)
        for (int32_t i = 0; i < in_.micro_batches; ++i)
          if (const std::string& ran = passes[{chunk, i}]; ran != "FB" && ran != "FIW")
            add(fmt::format("stage {} runs '{}' on micro-batch {}", place_.stage({static_cast<int64_t>(rank), chunk}),
                            ran, i),
                "legal: F then B, or F then I then W");
    }
  }

  const ScheduleInput& in_;
  const plan::Placement place_;
  Orders orders_;
  Diagnostics faults_;
};

}  // namespace

Result<Orders> read_schedule_table(const ScheduleInput& in, plan::PlacementKind kind) { return Table(in, kind).read(); }

}  // namespace wt::lower
