// A Diff as one screen, Markdown, JSON and CSV: all from the same tables, in their order.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
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

/// Rows that say the same of different ranks, stages, layers or buckets: their words differ in numbers only, and both
/// sides are within kNear of each other. One row alone is a group of one.
struct Group {
  std::vector<const DiffRow*> rows;
  const DiffRow* furthest = nullptr;  // of all, apart
};

constexpr double kNear = 0.02;

bool near(const std::optional<double>& x, const std::optional<double>& y) {
  if (!x || !y) return x.has_value() == y.has_value();
  return std::fabs(*x - *y) <= kNear * std::max(std::fabs(*x), std::fabs(*y));
}

const std::string& words_of(const DiffRow& r) { return r.words.empty() ? r.key : r.words; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

constexpr char kNumber = '\x01';  // stands for a number in a shape: no words have it

/// "stage 3, forward chunk 0" as its words with kNumber in place of the numbers, and those.
struct Shape {
  std::string words;
  std::vector<int64_t> numbers;
};

Shape shape_of(std::string_view words) {
  Shape out;
  for (size_t i = 0; i < words.size();) {
    size_t end = i;
    while (end < words.size() && is_digit(words[end])) ++end;
    if (end == i) {
      out.words += words[i++];
      continue;
    }
    out.words += kNumber;
    out.numbers.push_back(parse_int(words.substr(i, end - i)).value_or(0));
    i = end;
  }
  return out;
}

/// The words of a group: where the rows differ in a number, its least and most ("rank 0-1023 (1,024 rows)").
std::string words_of(const Group& g) {
  if (g.rows.size() == 1) return words_of(*g.rows[0]);
  const Shape shape = shape_of(words_of(*g.rows[0]));
  std::vector<int64_t> least = shape.numbers, most = shape.numbers;
  for (const DiffRow* r : g.rows) {
    const std::vector<int64_t> numbers = shape_of(words_of(*r)).numbers;
    for (size_t k = 0; k < numbers.size(); ++k)
      least[k] = std::min(least[k], numbers[k]), most[k] = std::max(most[k], numbers[k]);
  }
  std::string out;
  size_t k = 0;
  for (const char c : shape.words) {
    if (c != kNumber) {
      out += c;
      continue;
    }
    out += least[k] == most[k] ? fmt::format("{}", least[k]) : fmt::format("{}-{}", least[k], most[k]);
    ++k;
  }
  return fmt::format("{} ({} rows)", out, with_commas(static_cast<int64_t>(g.rows.size())));
}

/// "3.2 GiB", or "3.1 GiB - 3.2 GiB" of a group.
std::string range_text(DiffUnit unit, const Group& g, const std::optional<double> DiffRow::*side) {
  const std::optional<double>& first = g.rows[0]->*side;
  if (!first) return "-";
  double least = *first, most = *first;
  for (const DiffRow* r : g.rows) least = std::min(least, *(r->*side)), most = std::max(most, *(r->*side));
  const std::string low = value_text(unit, least), high = value_text(unit, most);
  return low == high ? low : low + " - " + high;
}

std::vector<Group> groups_of(const DiffTable& t, const DiffListing& listing) {
  std::vector<Group> out;
  std::map<std::string, std::vector<size_t>> by_shape;
  for (const DiffRow& r : t.rows) {
    Group* into = nullptr;
    auto& candidates = by_shape[listing.full ? std::string() : shape_of(words_of(r)).words];
    if (!listing.full)
      for (const size_t k : candidates)
        if (near(out[k].rows[0]->a, r.a) && near(out[k].rows[0]->b, r.b)) into = &out[k];
    if (!into) {
      candidates.push_back(out.size());
      into = &out.emplace_back();
    }
    into->rows.push_back(&r);
    if (!into->furthest || weight(r) > weight(*into->furthest)) into->furthest = &r;
  }
  return out;
}

struct Shown {
  std::string title;
  report::Table table;
  std::vector<const DiffRow*> rows;  // the furthest apart of each group shown, in order
};

Shown shown(const DiffTable& t, const DiffListing& listing, bool notes) {
  std::vector<Group> list = groups_of(t, listing);
  std::string title = t.title;
  if (is_long(t)) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Group& x, const Group& y) { return weight(*x.furthest) > weight(*y.furthest); });
    if (!listing.full && list.size() > listing.rows) {
      title += fmt::format(": the {} of {} furthest apart", listing.rows, list.size());
      list.resize(listing.rows);
    }
  }
  std::vector<std::string> header = {"", "A", "B", "A - B", "of B"};
  if (notes) header.emplace_back("");
  Shown out{title, report::Table(header), {}};
  for (const Group& g : list) {
    const DiffRow& r = *g.furthest;
    std::vector<std::string> row = {words_of(g), range_text(t.unit, g, &DiffRow::a), range_text(t.unit, g, &DiffRow::b),
                                    r.a && r.b ? value_text(t.unit, r.difference()) : "", relative_text(r)};
    if (notes) row.push_back(r.note);
    out.table.add(std::move(row));
    out.rows.push_back(&r);
  }
  return out;
}

/// Notes that differ in numbers only, in one line with how many they are.
std::vector<std::string> grouped_notes(const std::vector<std::string>& notes, const DiffListing& listing) {
  if (listing.full) return notes;
  std::vector<std::pair<std::string, size_t>> found;  // the first of a shape, how many
  std::map<std::string, size_t> index;
  for (const std::string& n : notes) {
    const auto [at, fresh] = index.try_emplace(shape_of(n).words, found.size());
    if (fresh)
      found.emplace_back(n, 1);
    else
      ++found[at->second].second;
  }
  std::vector<std::string> out;
  for (const auto& [note, count] : found)
    out.push_back(count == 1 ? note : fmt::format("{} (and {} more like it)", note, count - 1));
  return out;
}

std::string side_line(const char* letter, const DiffSide& s) {
  const std::string plan = s.plan_digest == 0 ? "" : fmt::format("; plan {:016x}", s.plan_digest);
  return fmt::format("{}  {}: {}{}", letter, s.name, s.description, plan);
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

std::string print_diff_screen(const Diff& d, const DiffListing& listing) {
  std::string out = fmt::format("{}\n{}\n", side_line("A", d.a), side_line("B", d.b));
  if (!d.keys.empty()) {
    report::Table keys({"what the jobs say", "A", "B"});
    for (const KeyDifference& k : d.keys) keys.add({k.key, k.a, k.b});
    out += fmt::format("\n{}", keys.text());
  }
  for (const DiffTable& t : d.tables) {
    if (t.rows.empty()) continue;
    const Shown s = shown(t, listing, false);
    out += fmt::format("\n{}\n{}", s.title, s.table.text());
    if (t.key != "ops") continue;
    // The op's worst place does not fit beside five columns.
    constexpr size_t kNamed = 3;
    for (size_t i = 0; i < std::min(kNamed, s.rows.size()); ++i)
      out += fmt::format("    {}: {}\n", s.rows[i]->words, s.rows[i]->note);
  }
  if (!d.notes.empty()) out += "\nNotes\n";
  for (const std::string& n : grouped_notes(d.notes, listing)) out += fmt::format("  - {}\n", n);
  return out;
}

std::string print_diff_markdown(const Diff& d, const DiffListing& listing) {
  std::string out =
      fmt::format("## {} and {}\n\n- {}\n- {}\n", d.a.name, d.b.name, side_line("A", d.a), side_line("B", d.b));
  if (!d.keys.empty()) {
    report::Table keys({"key", "A", "B"});
    for (const KeyDifference& k : d.keys) keys.add({k.key, k.a, k.b});
    out += fmt::format("\n{}", keys.markdown());
  }
  for (const DiffTable& t : d.tables) {
    if (t.rows.empty()) continue;
    const Shown s = shown(t, listing, is_long(t));
    out += fmt::format("\n### {}\n\n{}", s.title, s.table.markdown());
  }
  if (!d.notes.empty()) out += "\n";
  for (const std::string& n : grouped_notes(d.notes, listing)) out += fmt::format("- {}\n", n);
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
