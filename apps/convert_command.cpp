// windtunnel convert: a native trace to a format that other programs draw.
#include <filesystem>

#include "apps/command.hpp"
#include "core/plan/plan_io.hpp"
#include "core/trace/export.hpp"
#include "core/trace/file.hpp"

namespace wt::apps {

namespace {

int convert(const std::string& from, const std::string& to) {
  std::error_code none;  // a file that is not there yet is no other name of one that is
  if (std::filesystem::equivalent(from, to, none) && !none)
    return fail({{to, "is the trace itself, which would be overwritten", "give another file"}}, kBadInput);
  auto trace = trace::read_trace(from);
  if (!trace) return fail(trace.errors(), kBadInput);
  auto plan = plan::parse_plan(trace.value().plan_text, from + ": plan");
  if (!plan) return fail(plan.errors(), kBadInput);
  if (auto format = trace::format_of(to); !format) return fail(format.errors(), kBadInput);
  if (auto s = trace::write_as(to, trace.value(), plan.value()); !s) return fail(s.errors(), kMachineFault);
  return kOk;
}

const Register registration(70, [](CLI::App& parent, int& exit) {
  CLI::App* app =
      parent.add_subcommand("convert", "a .wttrace to .pftrace (ui.perfetto.dev) or .json[.gz] (chrome://tracing)");
  auto words = std::make_shared<std::pair<std::string, std::string>>();
  app->add_option("TRACE", words->first, "native trace")->required()->type_name("FILE");
  app->add_option("OUT", words->second, "file to write; its ending names the format")->required()->type_name("FILE");
  app->footer("Example:\n  windtunnel convert step.wttrace step.pftrace");
  app->callback([words, &exit] { exit = convert(words->first, words->second); });
});

}  // namespace

}  // namespace wt::apps
