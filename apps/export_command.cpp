// windtunnel export: a job in the syntax of a training framework, with what that syntax cannot say; or its plan with
// simulated times as Chakra execution traces, for other simulators.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/trace/export_chakra.hpp"
#include "import/export.hpp"
#include "study/run_job.hpp"

namespace wt::apps {

namespace {

struct ExportWords {
  JobOptions job;
  std::string to, out;
  std::vector<uint32_t> ranks;
};

constexpr std::string_view kChakra = "chakra";

int export_chakra(const ExportWords& w, const JobSpec& job) {
  if (w.out.empty())
    return fail({{"--output", "is needed: a file for each rank is written", "-o traces/job"}}, kBadInput);
  study::RunOptions options;
  options.keep_trace = true;
  const auto run = study::run_job(job, options);
  if (!run) return fail(run.errors(), kDoesNotFit);
  const auto wrote = trace::write_chakra(w.out, *run.value().trace, run.value().plan, w.ranks);
  if (!wrote) return fail(wrote.errors(), kBadInput);
  return write_out(fmt::format(
      "Wrote {} files {}.RANK.et, {} nodes, and {}.comm_group.json: Chakra execution traces of one step as simulated.\n"
      "Not carried: times below a microsecond, storage, and slots of buffers beyond the waits that they make.\n",
      wrote.value().files, w.out, with_commas(wrote.value().nodes), w.out));
}

int export_command(const ExportWords& w) {
  const auto job = w.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  if (w.to == kChakra) return export_chakra(w, job.value());
  if (!w.ranks.empty()) return fail({{"--ranks", "is of --to chakra", ""}}, kBadInput);
  const import::Exporter* exporter = import::find_exporter(w.to);
  if (!exporter) {
    std::vector<std::string_view> names;
    for (const import::Exporter* e : import::all_exporters()) names.push_back(e->name);
    names.push_back(kChakra);
    return fail({{"--to", fmt::format("no framework '{}'", w.to), fmt::format("legal: {}", fmt::join(names, ", "))}},
                kBadInput);
  }
  const auto exported = import::export_job(job.value(), *exporter);
  if (!exported) return fail(exported.errors(), kDoesNotFit);
  const import::Exported& e = exported.value();
  std::string said = fmt::format("{}.\n", exporter->title);
  if (!exporter->carries_model) said += "Not in this file: the model; it is in the script.\n";
  said +=
      "Not in a job, so not written: learning rate and its schedule; the framework's defaults hold until you set "
      "them.\n";
  if (!e.beside.empty()) said += fmt::format("Arguments of the script or engine: {}\n", fmt::join(e.beside, ", "));
  if (e.not_carried.empty()) said += "Everything else is carried: importing it gives this job.\n";
  for (const std::string& n : e.not_carried) said += fmt::format("Not carried: {}\n", n);
  if (w.out.empty()) {
    if (const int code = write_out(e.text); code != kOk) return code;
    fmt::print(stderr, "{}", said);
    return kOk;
  }
  if (const auto wrote = write_file_atomically(w.out, e.text); !wrote) return fail(wrote.errors(), kMachineFault);
  return write_out(fmt::format("Wrote {}: {}", w.out, said));
}

const Register registration(61, [](CLI::App& parent, int& exit) {
  auto w = std::make_shared<ExportWords>();
  CLI::App* app = parent.add_subcommand(
      "export", "write a job in the syntax of a training framework, or as Chakra execution traces");
  w->job.add_to(*app);
  app->add_option("--to", w->to, "megatron, deepspeed, torchtitan, fsdp or chakra")->required()->type_name("FRAMEWORK");
  app->add_option("-o,--output", w->out, "write it here; chakra: FILE.RANK.et")->type_name("FILE");
  app->add_option("--ranks", w->ranks, "chakra: these alone, separated by commas")->delimiter(',')->type_name("LIST");
  app->footer(
      "Examples:\n"
      "  windtunnel export job.yaml --to megatron -o pretrain.sh\n"
      "  windtunnel export job.yaml --to chakra -o traces/job    one execution trace for each rank, as simulated");
  app->callback([w, &exit] { exit = export_command(*w); });
});

}  // namespace

}  // namespace wt::apps
