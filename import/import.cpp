#include "import/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>

#include "core/base/text.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/read.hpp"
#include "import/syntax.hpp"

namespace wt::import {

namespace {

struct Opened {
  Parsed parsed;
  Foreign foreign;
  const Format* format = nullptr;
};

/// "configs/ds.json" -> "ds.json" where no other file has that name: reports have narrow columns.
void shorten(std::vector<File>& files) {
  std::map<std::string, int> uses;
  const auto base = [](const std::string& name) {
    return name.substr(name.rfind('/') == name.npos ? 0 : name.rfind('/') + 1);
  };
  for (const File& f : files) ++uses[base(f.name)];
  for (File& f : files)
    if (uses[base(f.name)] == 1 && !base(f.name).empty()) f.name = base(f.name);
}

std::string names_of_formats() {
  std::string out;
  for (const Format* f : all_formats()) out += fmt::format("{}{}", out.empty() ? "" : ", ", f->name);
  return out;
}

const Format* forced(const std::string& name, Draft& draft) {
  for (const Format* f : all_formats())
    if (f->name == name) return f;
  draft.error({"--format", name}, "no such format", "legal: " + names_of_formats());
  return nullptr;
}

void read_one(const File& file, Draft& draft, std::vector<std::unique_ptr<Opened>>& kept) {
  auto opened = std::make_unique<Opened>();
  opened->parsed = parse_foreign(file.name, file.text);
  Foreign& f = opened->foreign;
  f.name = file.name;
  f.text = file.text;
  f.tree = opened->parsed.tree.get();
  f.syntax = opened->parsed.syntax;
  f.faults = opened->parsed.faults;
  f.duplicates = opened->parsed.duplicates;
  f.relaxed = opened->parsed.relaxed;
  const Format* format = draft.options().format.empty() ? recognise(f) : forced(draft.options().format, draft);
  if (format) {
    format->read(f, draft);
  } else if (!f.faults.empty()) {
    draft.errors().insert(draft.errors().end(), f.faults.begin(), f.faults.end());
  } else if (draft.options().format.empty()) {
    draft.error({file.name, ""}, "is of no format that is known",
                "`windtunnel import --list` shows them; --format NAME reads it as one");
  }
  kept.push_back(std::move(opened));  // what resolves later points into the tree
}

/// For a comment of the job: file names and foreign keys may hold any byte.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return text;
}

/// " # origin" behind each line of a printed section that a foreign key decided.
std::string with_origins(const std::string& text, const std::string& section, const Report& report) {
  std::string out;
  std::vector<std::pair<size_t, std::string>> open = {{0, section}};  // indent, path
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t indent = line.find_first_not_of(' '), colon = line.find(':');
    if (indent != line.npos && colon != line.npos && line[indent] != '-') {
      while (open.size() > 1 && open.back().first >= indent) open.pop_back();
      const std::string path = fmt::format("{}.{}", open.back().second, line.substr(indent, colon - indent));
      open.push_back({indent, path});
      if (const Line* l = report.decided(path); l && line.size() > colon + 1)
        line = fmt::format(
            "{:<40} # {}", line,
            one_line(l->fate == Fate::taken ? fmt::format("{} {}", l->from.where, l->from.key) : "default: " + l->why));
    }
    out += line + "\n";
  }
  return out;
}

/// A reference where a built-in name says all; else the whole, as a job with a path would read otherwise elsewhere.
std::string print_parts(const JobSpec& job, const Options& options, const Report& report) {
  const bool own_model = std::any_of(report.lines.begin(), report.lines.end(),
                                     [](const Line& l) { return l.to.starts_with("model.") && l.to != "model.from"; });
  const bool own_cluster = std::any_of(report.lines.begin(), report.lines.end(), [](const Line& l) {
    return l.to.starts_with("cluster.") && l.to != "cluster.nodes";
  });
  std::string model = options.model;
  if (const Line* l = report.decided("model.from"); l && model.empty()) model = l->value;
  const bool built_in_model = !own_model && !model.empty() && !find_data("models", model).empty();
  const bool built_in_cluster = !own_cluster && !find_data("cluster_specs", options.cluster).empty();
  const auto indented = [](const std::string& text) {
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      out += fmt::format("  {}\n", text.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  };
  std::string out = "# Made by `windtunnel import` from";
  for (const Report::File& f : report.files) out += fmt::format(" {} ({})", one_line(f.name), one_line(f.format));
  out += ".\n";
  for (const Line* l : report.of(Fate::not_carried))
    out += fmt::format("# not carried: {} {} = {}: {}\n", one_line(l->from.where), one_line(l->from.key),
                       one_line(l->written.substr(0, 80)), one_line(l->why));
  out += built_in_model ? fmt::format("model: {}\n", model)
                        : "model:\n" + with_origins(indented(print_model(job.model)), "model", report);
  out += built_in_cluster ? fmt::format("cluster: {{from: {}, nodes: {}}}\n", options.cluster, job.cluster.nodes)
                          : "cluster:\n" + indented(print_cluster(job.cluster));
  out += "strategy:\n" + with_origins(indented(print_strategy(job.strategy)), "strategy", report);
  out += "training:\n" + with_origins(indented(print_training(job.training)), "training", report);
  return out;
}

/// What the job is called: the first file's name without its ending.
std::string job_file(const std::vector<File>& files) {
  std::string name = files.empty() ? "" : files[0].name;
  name = name.substr(name.rfind('/') == name.npos ? 0 : name.rfind('/') + 1);
  name = name.substr(0, name.find('.'));
  std::erase_if(name, [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_'; });
  return (name.empty() ? "imported" : name) + ".yaml";
}

/// "job.yaml:12:3: strategy.tensor" -> in the words of the file that said it.
Diagnostics reader_faults(const Diagnostics& errors, const Report& report, const std::string& file) {
  Diagnostics out;
  for (Diagnostic d : in_users_words(errors, report)) {
    if (d.where.starts_with(file + ":"))
      d.where = d.where.substr(d.where.find(' ') == d.where.npos ? 0 : d.where.find(' ') + 1);
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace

const Format* recognise(const Foreign& foreign) {
  const Format* best = nullptr;
  int most = 0;
  for (const Format* f : all_formats())
    if (const int sure = f->recognise(foreign); sure > most) {
      most = sure;
      best = f;
    }
  return best;
}

Imported import_files(const std::vector<File>& files, const Options& options) {
  Draft draft(options);
  std::vector<std::unique_ptr<Opened>> kept;
  std::vector<File> short_names = files;
  shorten(short_names);
  for (const File& file : short_names) read_one(file, draft, kept);
  Imported out;
  const std::string text = draft.finish();
  out.report = std::move(draft.report());
  out.errors = std::move(draft.errors());
  if (text.empty()) return out;
  const std::string name = job_file(files);
  auto job = parse_job(text, name);
  if (!job) {
    out.errors = reader_faults(job.errors(), out.report, name);
    return out;
  }
  for (const std::string& a : job.value().assumptions) out.report.notes.push_back(a);
  out.yaml = print_parts(job.value(), options, out.report);
  auto again = parse_job(out.yaml, name);
  WT_CHECK(again.ok(), "{}", to_text(again.errors()));
  out.job = std::move(again.value());
  return out;
}

}  // namespace wt::import
