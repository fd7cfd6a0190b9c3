// windtunnel export: a job in the syntax of a training framework, with what that syntax cannot say.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "import/export.hpp"

namespace wt::apps {

namespace {

struct ExportWords {
  JobOptions job;
  std::string to, out;
};

int export_command(const ExportWords& w) {
  const auto job = w.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  const import::Exporter* exporter = import::find_exporter(w.to);
  if (!exporter) {
    std::vector<std::string_view> names;
    for (const import::Exporter* e : import::all_exporters()) names.push_back(e->name);
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
  CLI::App* app = parent.add_subcommand("export", "write a job in the syntax of a training framework");
  w->job.add_to(*app);
  app->add_option("--to", w->to, "megatron, deepspeed, torchtitan or fsdp")->required()->type_name("FRAMEWORK");
  app->add_option("-o,--output", w->out, "write it here")->type_name("FILE");
  app->footer("Example:\n  windtunnel export job.yaml --to megatron -o pretrain.sh");
  app->callback([w, &exit] { exit = export_command(*w); });
});

}  // namespace

}  // namespace wt::apps
