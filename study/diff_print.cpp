// A Diff as one screen, Markdown, JSON and CSV: all from the same tables, in their order.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "study/diff.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

std::string value_text(DiffUnit unit, double v) {
  switch (unit) {
    case DiffUnit::seconds: return to_text(Time::from_seconds(v));
    case DiffUnit::bytes: return to_text(Bytes{static_cast<int64_t>(std::llround(v))});
    case DiffUnit::share: return fmt::format("{:.1f} %", v * 100);
    case DiffUnit::count:
    case DiffUnit::per_second: return with_commas(std::llround(v));
    case DiffUnit::tflops: return fmt::format("{:.1f}", v);
  }
  return "";
}

std::string_view suffix_of(DiffUnit unit) {
  switch (unit) {
    case DiffUnit::seconds: return "_s";
    case DiffUnit::bytes: return "_bytes";
    case DiffUnit::share: return "";
    case DiffUnit::count: return "";
    case DiffUnit::per_second: return "_per_s";
    case DiffUnit::tflops: return "_tflops";
  }
  return "";
}

std::string_view name_of(DiffUnit unit) {
  switch (unit) {
    case DiffUnit::seconds: return "s";
    case DiffUnit::bytes: return "bytes";
    case DiffUnit::share: return "share";
    case DiffUnit::count: return "count";
    case DiffUnit::per_second: return "1/s";
    case DiffUnit::tflops: return "TFLOP/s";
  }
  return "";
}

std::string optional_text(DiffUnit unit, const std::optional<double>& v) { return v ? value_text(unit, *v) : "-"; }

std::string relative_text(const DiffRow& r) {
  const auto relative = r.relative();
  if (!relative) return "";
  return std::fabs(*relative) < 9.995 ? fmt::format("{:+.1f} %", *relative * 100)
                                      : fmt::format("{:+.0f} x", *relative + 1);
}

/// What weighs most first: the difference, or what only one side has.
double weight(const DiffRow& r) {
  return r.a && r.b ? std::fabs(*r.a - *r.b) : std::fabs(r.a.value_or(r.b.value_or(0)));
}

bool is_long(const DiffTable& t) { return t.key == "op_classes" || t.key == "ops"; }

struct Shown {
  std::string title;
  report::Table table;
};

Shown shown(const DiffTable& t, size_t rows, bool notes) {
  std::vector<const DiffRow*> list;
  for (const DiffRow& r : t.rows) list.push_back(&r);
  std::string title = t.title;
  if (is_long(t)) {
    std::stable_sort(list.begin(), list.end(),
                     [](const DiffRow* x, const DiffRow* y) { return weight(*x) > weight(*y); });
    if (list.size() > rows) {
      title += fmt::format(": the {} of {} furthest apart", rows, list.size());
      list.resize(rows);
    }
  }
  std::vector<std::string> header = {"", "A", "B", "A - B", "of B"};
  if (notes) header.emplace_back("");
  Shown out{title, report::Table(header)};
  for (const DiffRow* r : list) {
    const std::string& words = r->words.empty() ? r->key : r->words;
    std::vector<std::string> row = {words, optional_text(t.unit, r->a), optional_text(t.unit, r->b),
                                    r->a && r->b ? value_text(t.unit, r->difference()) : "", relative_text(*r)};
    if (notes) row.push_back(r->note);
    out.table.add(std::move(row));
  }
  return out;
}

std::string side_line(const char* letter, const DiffSide& s) {
  return fmt::format("{}  {}: {}; plan {:016x}", letter, s.name, s.description, s.plan_digest);
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

Json optional_json(const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); }

}  // namespace

std::optional<double> DiffRow::relative() const {
  if (!a || !b || *b == 0) return std::nullopt;
  return (*a - *b) / *b;
}

const DiffTable* Diff::table(std::string_view key) const {
  for (const DiffTable& t : tables)
    if (t.key == key) return &t;
  return nullptr;
}

std::string print_diff_screen(const Diff& d, size_t rows) {
  std::string out = fmt::format("{}\n{}\n", side_line("A", d.a), side_line("B", d.b));
  if (!d.keys.empty()) {
    report::Table keys({"what the jobs say", "A", "B"});
    for (const KeyDifference& k : d.keys) keys.add({k.key, k.a, k.b});
    out += fmt::format("\n{}", keys.text());
  }
  for (const DiffTable& t : d.tables) {
    if (t.rows.empty()) continue;
    const Shown s = shown(t, rows, false);
    out += fmt::format("\n{}\n{}", s.title, s.table.text());
    if (t.key != "ops") continue;
    // The op's worst place does not fit beside five columns.
    std::vector<const DiffRow*> worst;
    for (const DiffRow& r : t.rows) worst.push_back(&r);
    std::stable_sort(worst.begin(), worst.end(),
                     [](const DiffRow* x, const DiffRow* y) { return weight(*x) > weight(*y); });
    constexpr size_t kNamed = 3;
    for (size_t i = 0; i < std::min(kNamed, worst.size()); ++i)
      out += fmt::format("    {}: {}\n", worst[i]->words, worst[i]->note);
  }
  if (!d.notes.empty()) out += "\nNotes\n";
  for (const std::string& n : d.notes) out += fmt::format("  - {}\n", n);
  return out;
}

std::string print_diff_markdown(const Diff& d, size_t rows) {
  std::string out =
      fmt::format("## {} and {}\n\n- {}\n- {}\n", d.a.name, d.b.name, side_line("A", d.a), side_line("B", d.b));
  if (!d.keys.empty()) {
    report::Table keys({"key", "A", "B"});
    for (const KeyDifference& k : d.keys) keys.add({k.key, k.a, k.b});
    out += fmt::format("\n{}", keys.markdown());
  }
  for (const DiffTable& t : d.tables) {
    if (t.rows.empty()) continue;
    const Shown s = shown(t, rows, is_long(t));
    out += fmt::format("\n### {}\n\n{}", s.title, s.table.markdown());
  }
  if (!d.notes.empty()) out += "\n";
  for (const std::string& n : d.notes) out += fmt::format("- {}\n", n);
  return out;
}

std::string print_diff_json(const Diff& d) {
  auto side = [](const DiffSide& s) {
    return Json{
        {"name", s.name}, {"description", s.description}, {"plan_digest", fmt::format("{:016x}", s.plan_digest)}};
  };
  Json j;
  j["schema_version"] = report::kSchemaVersion;
  j["a"] = side(d.a);
  j["b"] = side(d.b);
  j["keys"] = Json::array();
  for (const KeyDifference& k : d.keys) j["keys"].push_back({{"key", k.key}, {"a", k.a}, {"b", k.b}});
  for (const DiffTable& t : d.tables) {
    Json list = Json::array();
    const std::string unit(suffix_of(t.unit));
    for (const DiffRow& r : t.rows) {
      Json row;
      row["key"] = r.key;
      row["a" + unit] = optional_json(r.a);
      row["b" + unit] = optional_json(r.b);
      row["difference" + unit] = r.a && r.b ? Json(r.difference()) : Json(nullptr);
      row["relative"] = optional_json(r.relative());
      if (!r.note.empty()) row["note"] = r.note;
      list.push_back(std::move(row));
    }
    j[t.key] = std::move(list);
  }
  j["notes"] = d.notes;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string print_diff_csv(const Diff& d) {
  std::string out = "table,key,unit,a,b,difference,relative,note\n";
  auto number = [](const std::optional<double>& v) { return v ? fmt::format("{:.9g}", *v) : std::string(); };
  for (const DiffTable& t : d.tables)
    for (const DiffRow& r : t.rows)
      out += fmt::format("{},{},{},{},{},{},{},{}\n", t.key, quoted(r.key), name_of(t.unit), number(r.a), number(r.b),
                         r.a && r.b ? number(r.difference()) : "", number(r.relative()), quoted(r.note));
  return out;
}

}  // namespace wt::study
