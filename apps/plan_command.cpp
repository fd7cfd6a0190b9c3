// windtunnel plan: the plan of a job as text, or just its digest.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  bool digest = false;
};

int plan(const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto plan = lower::lower(job.value());
  if (!plan) return fail(plan.errors(), kDoesNotFit);
  if (auto valid = plan::validate(plan.value()); !valid) return fail(valid.errors(), kOurFault);
  if (o.digest) return write_out(fmt::format("{:016x}\n", plan::digest(plan.value())));
  return write_out(plan::print(plan.value()));
}

const Register registration(20, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("plan", "print what every rank does, in which order, with which buffers");
  o->job.add_to(*app);
  app->add_flag("--digest", o->digest, "only the digest that names the plan in traces");
  app->callback([o, &exit] { exit = plan(*o); });
});

}  // namespace

}  // namespace wt::apps
