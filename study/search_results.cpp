#include "study/search_results.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/base/file.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFates[] = {"simulated", "out_of_memory", "illegal", "failed"};

std::string header(const std::string& identity, size_t candidates) {
  return Json{{"windtunnel_search", 1}, {"job_and_space", identity}, {"candidates", candidates}}.dump() + "\n";
}

std::string line_of(const Outcome& o) {
  Json j{{"candidate", o.candidate}, {"fate", kFates[static_cast<size_t>(o.fate)]}};
  if (o.fate == Fate::simulated) {
    j["step_s"] = o.step_s;
    j["mfu"] = o.mfu;
    j["tokens_per_s"] = o.tokens_per_s;
  }
  if (o.fate == Fate::simulated || o.fate == Fate::out_of_memory) {
    j["reserved_gib"] = o.reserved_gib;
    j["fits"] = o.fits;
  }
  if (!o.reason.empty()) j["reason"] = o.reason;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Nothing where the line is no outcome of one of `candidates`.
std::optional<Outcome> outcome_of(std::string_view line, size_t candidates) {
  const Json j = Json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("candidate") || !j["candidate"].is_number_unsigned() || !j.contains("fate") ||
      !j["fate"].is_string())
    return {};
  Outcome o;
  o.candidate = j["candidate"].get<size_t>();
  const auto fate = std::find(std::begin(kFates), std::end(kFates), j["fate"].get<std::string>());
  if (o.candidate >= candidates || fate == std::end(kFates)) return {};
  o.fate = static_cast<Fate>(fate - std::begin(kFates));
  const auto number = [&](const char* key, double& to) {
    if (j.contains(key) && j[key].is_number()) to = j[key].get<double>();
  };
  const auto text = [&](const char* key, std::string& to) {
    if (j.contains(key) && j[key].is_string()) to = j[key].get<std::string>();
  };
  number("step_s", o.step_s);
  number("mfu", o.mfu);
  number("tokens_per_s", o.tokens_per_s);
  number("reserved_gib", o.reserved_gib);
  text("fits", o.fits);
  text("reason", o.reason);
  if (o.fate == Fate::simulated && !(o.step_s > 0)) return {};
  return o;
}

std::string system_fault(std::string_view what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

}  // namespace

Result<ResultsFile> ResultsFile::open(const std::string& path, const std::string& identity, size_t candidates) {
  ResultsFile out;
  out.path_ = path;
  const std::string head = header(identity, candidates);
  std::string content;
  if (::access(path.c_str(), F_OK) == 0) {
    auto read = read_file(path);
    if (!read) return read.errors();
    content = std::move(read.value());
  }
  const size_t whole = content.rfind('\n') == content.npos ? 0 : content.rfind('\n') + 1;  // behind the last whole line
  if (!content.empty() && content.compare(0, head.size(), head) != 0) {
    if (whole == 0 && head.starts_with(content)) {
      content.clear();  // killed while the first line was written
    } else {
      const bool ours = content.starts_with("{\"windtunnel_search\"");
      return Diagnostic{path + ":1",
                        ours ? "the results of another job, space or version of the program" : "not a results file",
                        "give another file, or remove this one"};
    }
  }
  size_t number = 1;
  for (size_t at = head.size(); at < whole && !content.empty();) {
    const size_t end = content.find('\n', at);
    ++number;
    auto outcome = outcome_of(std::string_view(content).substr(at, end - at), candidates);
    if (!outcome)
      return Diagnostic{fmt::format("{}:{}", path, number), "not a result of this search",
                        "remove the line: its candidate is simulated again"};
    out.done_.push_back(std::move(*outcome));
    at = end + 1;
  }
  if (content.empty()) {
    if (const Status written = write_file_atomically(path, head); !written) return written.errors();
  } else if (whole < content.size() && ::truncate(path.c_str(), static_cast<off_t>(whole)) != 0) {
    return Diagnostic{path, system_fault("cannot drop its cut last line"), ""};
  }
  out.file_.reset(std::fopen(path.c_str(), "a"));
  if (!out.file_) return Diagnostic{path, system_fault("cannot be written"), ""};
  return out;
}

void ResultsFile::append(const Outcome& outcome) {
  if (!fault_.empty()) return;
  const std::string line = line_of(outcome);
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
    fault_ = system_fault("cannot be written");
}

Status ResultsFile::status() const {
  if (!fault_.empty()) return Diagnostic{path_, fault_, ""};
  return ok_status();
}

}  // namespace wt::study
