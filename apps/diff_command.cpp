// windtunnel diff: two traces of one plan op by op (predicted beside measured), two jobs term by term, or a profiler's trace
// of somebody's framework beside either by class and phase. A job beside a trace is simulated first: every rank where the
// trace is ours.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"
#include "core/trace/file.hpp"
#include "import/kineto.hpp"
#include "study/diff.hpp"

namespace wt::apps {

namespace {

struct Options {
  std::string a;
  std::vector<std::string> b;  // several: profiles of the ranks of one run
  std::vector<std::string> set, set_a, set_b;
  bool json = false, csv = false, markdown = false, full = false;
  int64_t warm_up = 0;
  int64_t rows = 10;
};

/// A file of either kind, loaded as far as the other side asks for.
struct Loaded {
  std::string name;
  std::optional<JobSpec> job;
  std::optional<study::JobResult> result;  // of a job
  std::optional<trace::Trace> trace;
  std::optional<plan::Plan> plan;  // of a trace
  std::optional<trace::Profile> profile;

  bool is_job() const { return job.has_value(); }
  study::TraceSide side() const {
    return is_job() ? study::TraceSide{name, &*result->trace, &result->plan} : study::TraceSide{name, &*trace, &*plan};
  }
};

int load(Loaded& l, const std::vector<std::string>& paths, const std::vector<std::string>& set,
         const std::vector<std::string>& more) {
  const std::string& path = paths[0];
  l.name = path;
  const bool profile = import::looks_like_profile(path);
  if (profile || path.ends_with(".wttrace"))
    if (!more.empty())
      return fail({{path, "is a trace: nothing can be set in it", "--set-a and --set-b are of jobs"}}, kBadInput);
  if (profile) {
    auto p = import::read_kineto(paths);
    if (!p) return fail(p.errors(), kBadInput);
    l.profile = std::move(p.value());
    if (paths.size() > 1) l.name += fmt::format(" and {} more", paths.size() - 1);
    return kOk;
  }
  if (paths.size() > 1)
    return fail(
        {{paths[1], "one too many: only profiles (.json, .json.gz) of several ranks are one side together", ""}},
        kBadInput);
  if (path.ends_with(".wttrace")) {
    auto t = trace::read_trace(path);
    if (!t) return fail(t.errors(), kBadInput);
    l.trace = std::move(t.value());
    auto p = plan::parse_plan(l.trace->plan_text, path + ": plan");
    if (!p) return fail(p.errors(), kBadInput);
    l.plan = std::move(p.value());
    return kOk;
  }
  std::vector<std::string> overrides = set;
  overrides.insert(overrides.end(), more.begin(), more.end());
  auto job = read_job(path, overrides);
  if (!job) return fail(job.errors(), kBadInput);
  l.job = std::move(job.value());
  for (const std::string& o : more) l.name += " " + o;
  return kOk;
}

int simulate(Loaded& l, bool keep_trace, bool all_ranks) {
  auto plan = lower::lower(*l.job);
  if (!plan) return fail(plan.errors(), kDoesNotFit);
  study::RunOptions options;
  options.all_ranks = all_ranks;
  options.keep_trace = keep_trace;
  auto result = study::run_job(*l.job, std::move(plan.value()), options);
  if (!result) return fail(result.errors(), kOurFault);
  l.result = std::move(result.value());
  return kOk;
}

/// A side as a profile of the other's ranks.
Result<trace::Profile> profile_of(Loaded& l, const std::vector<uint32_t>& ranks) {
  if (l.profile) return std::move(*l.profile);
  return study::profile_of(l.side(), ranks);
}

Result<study::Diff> by_class(Loaded& a, Loaded& b, const study::DiffOptions& options) {
  const std::vector<uint32_t> ranks = a.profile ? a.profile->ranks : b.profile->ranks;
  auto pa = profile_of(a, ranks);
  if (!pa) return pa.errors();
  auto pb = profile_of(b, ranks);
  if (!pb) return pb.errors();
  return study::diff_profiles(a.name, pa.value(), b.name, pb.value(), options);
}

int diff(const Options& o) {
  Loaded a, b;
  const int code_a = load(a, {o.a}, o.set, o.set_a), code_b = load(b, o.b, o.set, o.set_b);
  if (code_a != kOk || code_b != kOk) return std::max(code_a, code_b);
  const bool jobs = a.is_job() && b.is_job();
  const bool profiles = a.profile || b.profile;
  for (Loaded* l : {&a, &b})
    if (l->is_job())
      if (const int code = simulate(*l, !jobs, !jobs && !profiles); code != kOk) return code;
  std::optional<study::Diff> result;
  if (jobs) {
    result = study::diff_jobs(a.name, *a.result, b.name, *b.result);
  } else {
    auto traces = profiles ? by_class(a, b, {o.warm_up}) : study::diff_traces(a.side(), b.side(), {o.warm_up});
    if (!traces) return fail(traces.errors(), kBadInput);
    result = std::move(traces.value());
  }
  const study::DiffListing listing{static_cast<size_t>(o.rows), o.full};
  return write_out(o.json       ? study::print_diff_json(*result)
                   : o.csv      ? study::print_diff_csv(*result)
                   : o.markdown ? study::print_diff_markdown(*result, listing)
                                : study::print_diff_screen(*result, listing));
}

const Register registration(30, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "diff", "two traces of one plan op by op, two jobs, or a profile of a framework beside either");
  app->add_option("A", o->a,
                  "a trace (.wttrace), a job or a profile (.json, .json.gz); the prediction, where there is one")
      ->required();
  app->add_option("B", o->b, "the same; differences are relative to it. Several profiles: of the ranks of one run")
      ->required();
  auto set = [&](const char* name, std::vector<std::string>& to, const char* text) {
    app->add_option(name, to, text)->expected(1)->take_all()->type_name("KEY=VALUE");
  };
  set("--set", o->set, "replace a key of every job; may repeat");
  set("--set-a", o->set_a, "replace a key of job A");
  set("--set-b", o->set_b, "replace a key of job B");
  app->add_option("--warm-up", o->warm_up,
                  "first steps of a measured trace that are left out, beside the warm-up of the run itself")
      ->check(whole_between(0, int64_t{1} << 31))
      ->type_name("N");
  app->add_option("--rows", o->rows, "rows that are shown of the long tables")
      ->check(count_to(1 << 20))
      ->type_name("N");
  app->add_flag("--full", o->full, "every row of every table; else rows that are nearly alike are shown as one");
  auto* json = app->add_flag("--json", o->json, "everything as JSON (stable keys with units)");
  auto* csv = app->add_flag("--csv", o->csv, "a row for each compared value");
  auto* markdown = app->add_flag("--markdown", o->markdown, "tables for a report");
  csv->excludes(json);
  markdown->excludes(json)->excludes(csv);
  app->footer(
      "Examples:\n"
      "  windtunnel diff predicted.wttrace measured.wttrace\n"
      "  windtunnel diff job.yaml measured.wttrace               the job is simulated first\n"
      "  windtunnel diff job.yaml job.yaml --set-b strategy.tensor=4\n"
      "  windtunnel diff predicted.wttrace rank0.json.gz rank8.json.gz    traces of PyTorch's profiler, by class and "
      "phase\n"
      "Differences are A - B, relative to B: with a measurement as B, the error of the prediction.");
  app->callback([o, &exit] { exit = diff(*o); });
});

}  // namespace

}  // namespace wt::apps
