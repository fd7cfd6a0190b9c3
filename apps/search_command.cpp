// windtunnel search: the best legal strategies of a job, the front of time against memory and GPUs, and why the others
// were rejected. Ctrl-C leaves the best so far; with --results a killed search goes on where it was.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/atomic_file.hpp"
#include "core/lower/schedule.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"
#include "study/search_print.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  std::vector<int64_t> nodes, tensor, pipeline, chunks, context, expert, micro_batch;
  std::vector<std::string> schedules, data_parallel, recompute;
  int64_t largest_micro_batch = 8, threads = 0, rows = 10;
  double price = 0, deadline = 0;
  std::string results, out;
  bool json = false, csv = false, markdown = false;
};

template <class E>
void replace(std::vector<E>& values, const std::vector<std::string>& words) {
  if (words.empty()) return;
  values.clear();
  for (const std::string& word : words)
    for (const auto& named : names_of(E{}))
      if (named.name == word) values.push_back(named.value);
}
template <class T>
void replace_plain(std::vector<T>& values, const std::vector<T>& given) {
  if (!given.empty()) values = given;
}

study::SearchSpace space_of(const JobSpec& job, const Options& o) {
  study::SearchSpace space = study::default_space(job, o.largest_micro_batch);
  replace_plain(space.nodes, o.nodes);
  replace_plain(space.tensor, o.tensor);
  replace_plain(space.pipeline, o.pipeline);
  replace_plain(space.virtual_stages, o.chunks);
  replace_plain(space.context, o.context);
  replace_plain(space.expert, o.expert);
  replace_plain(space.micro_batch, o.micro_batch);
  replace_plain(space.schedules, o.schedules);
  replace(space.data_parallel, o.data_parallel);
  replace(space.recompute, o.recompute);
  return space;
}

int run(const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  if (o.deadline > 0 && job.value().training.total_tokens <= 0)
    return fail({{"--deadline-days", "needs the length of the run", "--set training.total_tokens=15e12"}}, kBadInput);
  std::optional<AtomicFile> file;
  if (!o.out.empty()) {
    auto made = AtomicFile::create(o.out);
    if (!made) return fail(made.errors(), kMachineFault);
    file.emplace(std::move(made.value()));
  }
  if (!o.results.empty())  // left as it is: only whether it can be written
    if (const auto results = AtomicFile::create(o.results); !results) return fail(results.errors(), kMachineFault);
  study::SearchOptions options;
  options.threads = static_cast<unsigned>(o.threads);
  options.results = o.results;
  options.stop = stop_on_interrupt();
  options.exact_rows = o.csv ? SIZE_MAX : static_cast<size_t>(o.rows);  // CSV has every row
  options.progress = progress_on_terminal("strategies", 16);
  auto result = study::search(job.value(), space_of(job.value(), o), options);
  if (!result) return fail(result.errors(), kBadInput);
  const study::SearchResult& r = result.value();
  const study::SearchQuestion question{job.value(), static_cast<size_t>(o.rows), o.price, o.deadline};
  const int written = write_out(o.json       ? study::print_search_json(r, question)
                                : o.csv      ? study::print_search_csv(r, question)
                                : o.markdown ? study::print_search_markdown(r, question)
                                             : study::print_search_screen(r, question));
  if (written != kOk) return written;
  if (!r.complete) {
    const size_t left = r.candidates.size() - r.outcomes.size();
    return fail({{"search", fmt::format("interrupted: {} of {} strategies were not tried", left, r.candidates.size()),
                  o.results.empty() ? "with --results a search goes on where it was" : "run it again to go on"}},
                kMachineFault);
  }
  if (r.ranking.empty()) return kDoesNotFit;
  if (file) {
    file->write(print_job(study::job_of(job.value(), r.candidates[r.outcomes[r.ranking.front()].candidate])));
    if (const Status s = file->commit(); !s) return fail(s.errors(), kMachineFault);
  }
  return kOk;
}

template <class E>
std::vector<std::string> words_of() {
  std::vector<std::string> out;
  for (const auto& named : names_of(E{})) out.emplace_back(named.name);
  return out;
}

const Register registration(40, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("search", "the best legal strategies: fastest, least memory, fewest GPUs");
  o->job.add_to(*app);
  const auto numbers = [&](const char* name, std::vector<int64_t>& to, const char* text) {
    app->add_option(name, to, text)->delimiter(',')->check(count_to(int64_t{1} << 20))->type_name("N,N...");
  };
  numbers("--try-nodes", o->nodes, "numbers of nodes to try (default: the job's)");
  numbers("--tensor", o->tensor, "tensor degrees (default: all that divide the heads, within one NVLink domain)");
  numbers("--pipeline", o->pipeline, "pipeline degrees (default: all that divide the layers)");
  numbers("--chunks", o->chunks, "virtual stages (default: all that divide the layers of a stage)");
  numbers("--context", o->context, "context degrees (default: the job's)");
  numbers("--expert", o->expert, "expert degrees (default: the job's)");
  numbers("--micro-batch", o->micro_batch, "micro-batch sizes (default: all up to --largest-micro-batch)");
  app->add_option("--largest-micro-batch", o->largest_micro_batch, "largest micro-batch that is tried")
      ->check(count_to(65536))
      ->type_name("N")
      ->capture_default_str();
  std::vector<std::string> schedules;
  for (const lower::Schedule* s : lower::all_schedules()) schedules.emplace_back(s->name);
  const auto words = [&](const char* name, std::vector<std::string>& to, std::vector<std::string> legal,
                         const char* text) {
    app->add_option(name, to, text)->delimiter(',')->check(CLI::IsMember(std::move(legal)))->type_name("NAME,...");
  };
  words("--schedule", o->schedules, schedules, "pipeline schedules (default: 1f1b, interleaved)");
  words("--data-parallel", o->data_parallel, words_of<DataParallel>(),
        "kinds (default: the job's and distributed_optimizer)");
  words("--recompute", o->recompute, words_of<RecomputeKind>(), "kinds (default: all)");
  app->add_option("--deadline-days", o->deadline, "also: the fewest GPUs of --try-nodes that end the run by then")
      ->check(number_between(1e-3, 1e5))
      ->type_name("DAYS");
  app->add_option("--price", o->price, "of a GPU-hour: adds the cost of the run")
      ->check(number_between(0, 1e6))
      ->type_name("MONEY");
  app->add_option("--rows", o->rows, "rows of each table")
      ->check(count_to(100000))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--threads", o->threads, "strategies simulated at once (default: one for each core)")
      ->check(count_to(1024))
      ->type_name("N");
  app->add_option("--results", o->results, "append every result to FILE; a search that was killed goes on from it")
      ->type_name("FILE");
  app->add_option("-o,--output", o->out, "write the fastest as a job")->type_name("JOB.yaml");
  auto* json = app->add_flag("--json", o->json, "best, front and rejections as JSON");
  auto* csv = app->add_flag("--csv", o->csv, "every strategy that runs, a row each");
  auto* markdown = app->add_flag("--markdown", o->markdown, "tables for a proposal");
  csv->excludes(json);
  markdown->excludes(json)->excludes(csv);
  app->footer(
      "Examples:\n"
      "  windtunnel search examples/llama3-70b-1024-h100.yaml\n"
      "  windtunnel search job.yaml --try-nodes 16,32,64,128 --deadline-days 60 --price 2.5\n"
      "  windtunnel search job.yaml --data-parallel fsdp2,distributed_optimizer -o best.yaml\n"
      "Exit code 3: no strategy of the space runs.");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
