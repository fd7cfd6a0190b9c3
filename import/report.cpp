#include "import/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace wt::import {

namespace {

constexpr std::array kFates = {Fate::taken,       Fate::defaulted, Fate::ignored,
                               Fate::not_carried, Fate::unknown,   Fate::missing};

std::string_view title(Fate f) {
  switch (f) {
    case Fate::taken: return "Taken";
    case Fate::defaulted: return "Not in the files: what the framework does then";
    case Fate::ignored: return "Ignored: no effect on a plan";
    case Fate::not_carried: return "NOT carried: has an effect that the job does not say";
    case Fate::unknown: return "Unknown keys";
    case Fate::missing: return "Needed, and not in the files";
  }
  return "";
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 48;
  std::string out(text.substr(0, kMost));
  std::replace(out.begin(), out.end(), '\n', ' ');
  return text.size() > kMost ? out + "..." : out;
}

/// The columns of one line, of which the last takes what it needs.
std::array<std::string, 4> columns(const Line& l) {
  const std::string target = l.to.empty() ? "" : l.value.empty() ? l.to : fmt::format("{}: {}", l.to, l.value);
  switch (l.fate) {
    case Fate::taken:
      return {l.from.where, fmt::format("{} = {}", l.from.key, shown(l.written)), "-> " + target, l.why};
    case Fate::defaulted:
    case Fate::missing: return {target, l.why, "", ""};
    default: return {l.from.where, fmt::format("{} = {}", l.from.key, shown(l.written)), l.why, ""};
  }
}

std::string table(const std::vector<const Line*>& lines) {
  std::vector<std::array<std::string, 4>> rows;
  std::array<size_t, 4> width{};
  constexpr size_t kWidest = 56;
  for (const Line* l : lines) {
    rows.push_back(columns(*l));
    for (size_t c = 0; c < width.size(); ++c) width[c] = std::min(kWidest, std::max(width[c], rows.back()[c].size()));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c)
      if (width[c] > 0) line += fmt::format(" {:<{}}", row[c], width[c] + (c + 1 < row.size() ? 1 : 0));
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace

std::string_view to_text(Fate f) {
  switch (f) {
    case Fate::taken: return "taken";
    case Fate::defaulted: return "defaulted";
    case Fate::ignored: return "ignored";
    case Fate::not_carried: return "not_carried";
    case Fate::unknown: return "unknown";
    case Fate::missing: return "missing";
  }
  return "?";
}

std::vector<const Line*> Report::of(Fate fate) const {
  std::vector<const Line*> out;
  for (const Line& l : lines)
    if (l.fate == fate) out.push_back(&l);
  return out;
}

const Line* Report::decided(std::string_view key) const {
  for (auto l = lines.rbegin(); l != lines.rend(); ++l)
    if ((l->fate == Fate::taken || l->fate == Fate::defaulted) && l->to == key) return &*l;
  return nullptr;
}

std::string print(const Report& report, bool brief) {
  std::string out;
  for (const Report::File& f : report.files)
    out += fmt::format("{}: {}{}\n", f.name, f.format, f.defaults.empty() ? "" : "; defaults of " + f.defaults);
  for (const Fate fate : kFates) {
    const auto lines = report.of(fate);
    if (lines.empty()) continue;
    if (brief && fate == Fate::ignored) {
      out += fmt::format("\n{}: {} keys (--all lists them)\n", title(fate), lines.size());
      continue;
    }
    out += fmt::format("\n{}\n{}", title(fate), table(lines));
  }
  if (!report.notes.empty()) out += "\nNotes\n";
  for (const std::string& n : report.notes) out += fmt::format("  {}\n", n);
  return out;
}

std::string print_json(const Report& report, const Diagnostics& errors, std::string_view job_yaml) {
  using Json = nlohmann::ordered_json;
  Json j;
  j["schema_version"] = 1;
  j["files"] = Json::array();
  for (const Report::File& f : report.files)
    j["files"].push_back({{"name", f.name}, {"format", f.format}, {"defaults_of", f.defaults}});
  for (const Fate fate : kFates) {
    Json& list = j[std::string(to_text(fate))] = Json::array();
    for (const Line* l : report.of(fate))
      list.push_back({{"where", l->from.where},
                      {"key", l->from.key},
                      {"written", l->written},
                      {"to", l->to},
                      {"value", l->value},
                      {"why", l->why}});
  }
  j["notes"] = report.notes;
  j["errors"] = Json::array();
  for (const Diagnostic& d : errors) j["errors"].push_back({{"where", d.where}, {"what", d.what}, {"hint", d.hint}});
  j["job"] = job_yaml.empty() ? Json(nullptr) : Json(std::string(job_yaml));
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Diagnostics in_users_words(const Diagnostics& errors, const Report& report) {
  Diagnostics out;
  for (Diagnostic d : errors) {
    const size_t start = d.where.rfind(' ') == std::string::npos ? 0 : d.where.rfind(' ') + 1;
    const Line* line = report.decided(std::string_view(d.where).substr(start));
    if (line && line->fate == Fate::taken)
      d.where = fmt::format("{}: {} = {} ({})", line->from.where, line->from.key, shown(line->written), line->to);
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace wt::import
