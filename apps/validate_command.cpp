// windtunnel validate: predictions beside published runs, every row, and the errors in sum.
#include <unistd.h>

#include <csignal>
#include <sstream>

#include "apps/command.hpp"
#include "core/base/file.hpp"
#include "study/run_job.hpp"
#include "study/validate.hpp"

namespace wt::apps {

namespace {

std::atomic<bool> interrupted{false};

struct Options {
  std::vector<std::string> files;
  std::string group, tier, ids;
  unsigned threads = 0;
  bool json = false, markdown = false;
};

Result<study::Prediction> predict(const JobSpec& job) {
  auto run = study::run_job(job);
  if (!run) return run.errors();
  const auto& r = run.value();
  const auto& memory = r.report.memory;
  study::Prediction p;
  p.step_time_s = r.report.step_time.seconds();
  p.fits = memory.fits;
  p.context_gib = job.cluster.device.context_memory.gib();
  if (!memory.stages.empty()) {
    p.peak_gib = memory.stages[memory.peak_stage].peak.gib();
    p.reserved_gib = memory.stages[memory.peak_stage].reserved.gib();
  }
  const auto& t = r.report.time;
  p.time_s = {
      {"compute", t.compute}, {"tensor", t.exposed_tensor}, {"data", t.exposed_data}, {"pipeline", t.exposed_pipeline},
      {"bubble", t.bubble},   {"optimizer", t.optimizer},   {"host", t.host},         {"other", t.other}};
  return p;
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
    } else {
      std::istringstream words(text.value());
      for (std::string id; words >> id;) options.ids.insert(id);
      if (options.ids.empty()) faults.push_back({o.ids, "names no row", "one id a line"});
    }
  }
  if (!faults.empty()) return fail(faults, kBadInput);
  auto data = study::ValidateData::load();
  if (!data) return fail(data.errors(), kBadInput);

  if (isatty(STDERR_FILENO))
    options.progress = [](size_t done, size_t total) {
      fmt::print(stderr, "\r{} of {} rows{}", done, total, done == total ? "\n" : "");
    };
  std::signal(SIGINT, [](int) { interrupted = true; });  // the rows that are done are still printed
  options.stop = &interrupted;
  auto v = study::validate(files, data.value(), predict, options);
  if (!v) return fail(v.errors(), kBadInput);
  return write_out(o.json       ? study::print_json(v.value())
                   : o.markdown ? study::print_markdown(v.value())
                                : study::print_table(v.value()));
}

const Register registration(60, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("validate", "predicted against published runs, every row, bad rows included");
  app->add_option("FILES", o->files, "YAML files of published runs (docs/validation.md)")
      ->required()
      ->type_name("FILE");
  app->add_option("--group", o->group, "only rows of this group");
  app->add_option("--tier", o->tier, "only rows of this tier (A, B, C, D)");
  app->add_option("--ids", o->ids, "only the rows whose ids this file lists, one a line")->type_name("FILE");
  app->add_option("--threads", o->threads, "rows predicted at once (default: one for each core)");
  auto* json = app->add_flag("--json", o->json, "rows and summary as JSON");
  app->add_flag("--markdown", o->markdown, "the page docs/validation.md")->excludes(json);
  app->callback([o, &exit] { exit = validate(*o); });
});

}  // namespace

}  // namespace wt::apps
