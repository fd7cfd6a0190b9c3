// windtunnel validate: predictions beside published runs, every row, and the errors in sum.
#include <fmt/format.h>

#include <sstream>

#include "apps/command.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "study/validate.hpp"

namespace wt::apps {

namespace {

struct Options {
  std::vector<std::string> files;
  std::string group, tier, ids, job;
  unsigned threads = 0;
  bool json = false, markdown = false, bands = false;
};

/// The jobs that a row stands for, to be run one by one.
int print_jobs(const std::vector<study::CaseFile>& files, const study::ValidateData& data, const std::string& id) {
  for (const study::CaseFile& file : files)
    for (const study::Case& row : file.cases) {
      if (row.id != id) continue;
      const study::Mapping mapping = study::map_case(row, data);
      std::string text;
      for (const std::string& a : mapping.assumptions) text += fmt::format("# {}\n", a);
      if (!mapping.skip.empty()) text += fmt::format("# skipped: {}\n", mapping.skip);
      for (const study::Candidate& c : mapping.candidates) {
        if (mapping.candidates.size() > 1) text += fmt::format("---\n# {}\n", c.label);
        text += c.job;
      }
      return write_out(text);
    }
  return fail({{"--job", fmt::format("no row has the id '{}'", id), ""}}, kBadInput);
}

int validate(const Options& o) {
  Diagnostics faults;
  std::vector<study::CaseFile> files;
  for (const std::string& path : o.files) {
    auto f = study::read_cases(path);
    if (f)
      files.push_back(std::move(f.value()));
    else
      faults.insert(faults.end(), f.errors().begin(), f.errors().end());
  }
  study::ValidateOptions options;
  options.group = o.group;
  options.tier = o.tier;
  options.threads = o.threads;
  if (!o.ids.empty()) {
    auto text = read_file(o.ids);
    if (!text) {
      faults.insert(faults.end(), text.errors().begin(), text.errors().end());
    } else if (!is_utf8(text.value()) || text.value().find('\0') != std::string::npos) {
      faults.push_back({o.ids, "not UTF-8 text", "one id a line"});
    } else {
      std::istringstream words(text.value());
      for (std::string id; words >> id;) options.ids.insert(id);
      if (options.ids.empty()) faults.push_back({o.ids, "names no row", "one id a line"});
    }
  }
  if (!faults.empty()) return fail(faults, kBadInput);
  auto data = study::ValidateData::load();
  if (!data) return fail(data.errors(), kBadInput);
  if (!o.job.empty()) return print_jobs(files, data.value(), o.job);

  options.progress = progress_on_terminal("rows");
  options.stop = stop_on_interrupt();
  auto v = study::validate(files, data.value(), study::predict_by_simulation(), options);
  if (!v) return fail(v.errors(), kBadInput);
  const int written = write_out(o.json       ? study::print_json(v.value())
                                : o.markdown ? study::print_markdown(v.value())
                                : o.bands    ? study::print_bands(v.value())
                                             : study::print_table(v.value()));
  const auto left = v.value().skipped_for.find("interrupted");
  if (written != kOk || left == v.value().skipped_for.end()) return written;
  return fail({{"validate",
                fmt::format("interrupted: {} of {} rows were not predicted and the summary lacks them", left->second,
                            v.value().rows.size()),
                ""}},
              kMachineFault);
}

const Register registration(60, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("validate", "predicted against published runs, every row, bad rows included");
  app->add_option("FILES", o->files, "YAML files of published runs (docs/validation.md)")
      ->required()
      ->type_name("FILE");
  app->add_option("--group", o->group, "only rows of this group")->type_name("NAME");
  app->add_option("--tier", o->tier, "only rows of this tier (A, B, C, D)")->type_name("TIER");
  app->add_option("--ids", o->ids, "only the rows whose ids this file lists, one a line")->type_name("FILE");
  app->add_option("--threads", o->threads, "rows predicted at once (default: one for each core)")
      ->check(count_to(1024))
      ->type_name("N");
  auto* json = app->add_flag("--json", o->json, "rows and summary as JSON");
  auto* markdown = app->add_flag("--markdown", o->markdown, "the page docs/validation.md")->excludes(json);
  app->add_flag("--bands", o->bands, "the table data/validate/error_bands.csv: the band that `simulate` prints")
      ->excludes(json)
      ->excludes(markdown);
  app->add_option("--job", o->job, "print the jobs that this row stands for, as files for `simulate`, and stop")
      ->type_name("ID");
  app->footer(
      "Examples:\n"
      "  windtunnel validate published_runs.yaml --tier A\n"
      "  windtunnel validate published_runs.yaml published_oom.yaml --json\n"
      "  windtunnel validate published_runs.yaml --job korthikanti-gpt22-full");
  app->callback([o, &exit] { exit = validate(*o); });
});

}  // namespace

}  // namespace wt::apps
