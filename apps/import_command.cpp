// windtunnel import: other people's configurations in, a job file and a report of every key out.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/file.hpp"
#include "core/lower/lower.hpp"
#include "import/import.hpp"

namespace wt::apps {

namespace {

struct ImportWords {
  std::vector<std::string> files, vars;
  import::Options options;
  std::string out;
  bool list = false, all = false, json = false;
};

int list_formats() {
  std::string out;
  for (const import::Format* f : import::all_formats())
    out += fmt::format("  {:<20} {}: {}\n", f->name, f->title, f->takes);
  return write_out(out);
}

bool take_vars(ImportWords& w, Diagnostics& errors) {
  for (const std::string& text : w.vars) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      errors.push_back({"--var", fmt::format("'{}' is not of the form NAME=VALUE", text), "such as --var TP=8"});
    else
      w.options.vars[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return errors.empty();
}

/// What lowering says of the job, in the user's words: a job that no framework would run is still written.
int judge(const import::Imported& in) {
  const auto plan = lower::lower(*in.job);
  return plan ? kOk : fail(import::in_users_words(plan.errors(), in.report), kDoesNotFit);
}

int import_command(ImportWords& w) {
  if (w.list) return list_formats();
  Diagnostics errors;
  if (w.files.empty()) errors.push_back({"import", "no file", "windtunnel import FILE... [--model M] [--cluster C]"});
  std::vector<import::File> files;
  for (const std::string& name : w.files) {
    auto text = read_file(name, import::kMostBytes);
    if (text)
      files.push_back({name, std::move(text.value())});
    else
      errors.insert(errors.end(), text.errors().begin(), text.errors().end());
  }
  if (!take_vars(w, errors)) return fail(errors, kBadInput);
  const import::Imported in = import::import_files(files, w.options);
  if (w.json) {
    if (const int code = write_out(import::print_json(in.report, in.errors, in.yaml)); code != kOk) return code;
  } else if (const int code = write_out(import::print(in.report, !w.all)); code != kOk) {
    return code;
  }
  if (!in.errors.empty()) return fail(in.errors, kBadInput);
  if (!in.job)
    return fail({{"import", "the files do not make a whole job", "see 'Needed, and not in the files'"}}, kBadInput);
  if (!w.out.empty()) {
    if (const auto wrote = write_file_atomically(w.out, in.yaml); !wrote) return fail(wrote.errors(), kMachineFault);
  }
  if (!w.json) {
    const std::string next =
        w.out.empty() ? fmt::format("\n{}\nWrite it with -o job.yaml, then: windtunnel simulate job.yaml\n", in.yaml)
                      : fmt::format("\nWrote {0}. Next: windtunnel simulate {0}\n", w.out);
    if (const int code = write_out(next); code != kOk) return code;
  }
  return judge(in);
}

const Register registration(60, [](CLI::App& parent, int& exit) {
  auto w = std::make_shared<ImportWords>();
  CLI::App* app = parent.add_subcommand("import", "read configurations of training frameworks as one job");
  app->add_option("FILE", w->files, "configurations, launch scripts, logs, hostfiles: together one job")
      ->type_name("FILE");
  app->add_option("--model", w->options.model, "the model, where the files do not say it")->type_name("NAME|FILE");
  app->add_option("--cluster", w->options.cluster, "the cluster: no configuration says it")->type_name("NAME|FILE");
  app->add_option("--nodes", w->options.nodes, "number of nodes")->check(count_to(int64_t{1} << 24))->type_name("N");
  app->add_option("--gpus", w->options.gpus, "number of ranks in all")
      ->check(count_to(int64_t{1} << 24))
      ->type_name("N");
  app->add_option("--set", w->options.set, "a key of the job: training.seq_len=4096; may repeat")
      ->expected(1)
      ->take_all()
      ->type_name("KEY=VALUE");
  app->add_option("--var", w->vars, "a variable of a script or template: TP=8; may repeat")
      ->expected(1)
      ->take_all()
      ->type_name("NAME=VALUE");
  app->add_option("--format", w->options.format, "read every FILE as this format")->type_name("NAME");
  app->add_option("-o,--output", w->out, "write the job here")->type_name("FILE");
  app->add_flag("--all", w->all, "list the ignored keys too");
  app->add_flag("--json", w->json, "the report as JSON");
  app->add_flag("--list", w->list, "the formats that can be read");
  app->footer(
      "Examples:\n"
      "  windtunnel import ds_config.json --model llama3-8b --cluster dgx-h100 --nodes 2 --set training.seq_len=4096 "
      "\\\n"
      "                    --set training.micro_batch=1 --set training.precision=bf16 -o job.yaml\n"
      "  windtunnel import pretrain.sh hostfile --var SEQ_LEN=8192 --cluster dgx-h100 -o job.yaml");
  app->callback([w, &exit] { exit = import_command(*w); });
});

}  // namespace

}  // namespace wt::apps
