// windtunnel plan: what every rank would do, as text; its digest; its size.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/command.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/report/report.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  bool digest = false, json = false;
};

std::string as_json(const JobSpec& job, const plan::Plan& p, uint64_t digest) {
  using Json = nlohmann::ordered_json;
  Json j;
  j["schema_version"] = 1;
  j["plan_digest"] = fmt::format("{:016x}", digest);
  j["job"] = p.name;
  j["ranks"] = p.mesh.ranks();
  for (const plan::Axis& a : p.mesh.axes) j["mesh"].push_back({{"axis", a.name}, {"size", a.size}});
  j["micro_batches"] = p.micro_batches;
  j["blocks"] = p.blocks.size();
  j["buffers"] = p.buffers.size();
  j["programs"] = Json::array();
  for (const plan::Program& g : p.programs) {
    int64_t ops = 0;
    if (!g.steps.empty())
      for (const plan::Invocation& i : g.steps[0].order) ops += p.block(i.block).op_instances();
    Json parts = Json::array();
    for (size_t c = 0; c < g.chunks.size(); ++c) {
      const plan::Part& part = p.parts[g.chunks[c].v];
      parts.push_back({{"part", part.name}, {"layers", part.layers}, {"parameters", part.parameters}});
    }
    j["programs"].push_back({{"name", g.name},
                             {"invocations", g.steps.empty() ? 0 : g.steps[0].order.size()},
                             {"ops", ops},
                             {"chunks", parts}});
  }
  const report::MemoryReport m = report::memory_report(job, p);
  j["memory"] = Json::array();
  for (const report::StageMemory& s : m.stages)
    j["memory"].push_back({{"stage", s.stage},
                           {"peak_gib", s.peak.gib()},
                           {"reserved_gib", s.reserved.gib()},
                           {"peak_phase", s.peak_phase}});
  j["fits"] = m.fits;
  j["assumptions"] = p.assumptions;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int plan_command(const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto plan = lower::lower(job.value());
  if (!plan) return fail(plan.errors(), kDoesNotFit);
  if (auto valid = plan::validate(plan.value()); !valid) return fail(valid.errors(), kOurFault);
  const uint64_t digest = plan::digest(plan.value());
  if (o.digest) return write_out(fmt::format("{:016x}\n", digest));
  if (o.json) return write_out(as_json(job.value(), plan.value(), digest));
  return write_out(plan::print(plan.value()));
}

const Register registration(20, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("plan", "print what every rank does, in which order, with which buffers");
  o->job.add_to(*app);
  auto* digest = app->add_flag("--digest", o->digest, "only the digest that names the plan in traces");
  app->add_flag("--json", o->json, "size, programs and memory as JSON")->excludes(digest);
  app->footer("Example:\n  windtunnel plan examples/tiny-gpt.yaml --set strategy.pipeline=4 | less");
  app->callback([o, &exit] { exit = plan_command(*o); });
});

}  // namespace

}  // namespace wt::apps
