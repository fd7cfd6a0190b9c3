// windtunnel sensitivity: what each resource is worth to a job, and the least network that keeps its speed.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "study/sensitivity.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  study::SensitivityOptions study;
  int64_t threads = 0;
  bool json = false, csv = false;
};

int run(Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  o.study.threads = static_cast<unsigned>(o.threads);
  o.study.stop = stop_on_interrupt();
  auto result = study::sensitivity(job.value(), o.study);
  if (!result) return fail(result.errors(), kDoesNotFit);
  const int written = write_out(o.json  ? study::print_sensitivity_json(result.value())
                                : o.csv ? study::print_sensitivity_csv(result.value())
                                        : study::print_sensitivity_screen(result.value(), job.value()));
  if (written != kOk || result.value().complete) return written;
  return fail({{"sensitivity", "interrupted: what is missing was not tried", ""}}, kMachineFault);
}

const Register registration(43, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("sensitivity", "what each resource is worth; the least network that will do");
  o->job.add_to(*app);
  app->add_option("--factors", o->study.factors, "multiples of each number that are tried")
      ->delimiter(',')
      ->check(number_between(1e-3, 1e3))
      ->type_name("X,X...")
      ->capture_default_str();
  app->add_option("--keep", o->study.keep, "share of the speed that the least amount must keep")
      ->check(number_between(0.01, 0.999))
      ->type_name("SHARE")
      ->capture_default_str();
  app->add_option("--threads", o->threads, "simulations at once (default: one for each core)")
      ->check(count_to(1024))
      ->type_name("N");
  auto* json = app->add_flag("--json", o->json, "every resource as JSON");
  app->add_flag("--csv", o->csv, "a row for each resource and factor")->excludes(json);
  app->footer(
      "Examples:\n"
      "  windtunnel sensitivity examples/llama3-70b-1024-h100.yaml\n"
      "  windtunnel sensitivity job.yaml --factors 0.1,0.5,2 --keep 0.95");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
