// windtunnel run: the job's plan on real devices, real training: a table of steps with loss, time and tokens/s, the median,
// and on request the trace that `simulate` writes too.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "apps/command.hpp"
#include "apps/elastic.hpp"
#include "apps/ranks.hpp"
#include "core/base/atomic_file.hpp"
#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "core/trace/export.hpp"
#include "core/trace/file.hpp"
#include "exec/checkpoint/run_checkpoints.hpp"
#include "exec/device/cpu.hpp"
#include "exec/device/thread_pool.hpp"
#include "exec/execute.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  std::string ranks, device = "cpu", data = "pattern", trace, floats;
  int64_t steps = 10, warmup = 2;
  int threads = 1;
  double timeout = 60;
  bool json = false;
  exec::LearningRate rate;
  exec::CheckpointOptions checkpoint;
  bool elastic = false;
  ElasticOptions elasticity;

  bool mpi() const { return ranks == "mpi"; }
  bool cuda() const { return device == "cuda"; }
};

/// The file of --trace, opened before the work so that a path that cannot be written is known at once.
struct TraceFile {
  std::optional<trace::Format> format;
  std::unique_ptr<trace::FileSink> native;
  std::optional<AtomicFile> exported;
  trace::MemorySink memory;  // what is exported is first kept whole

  trace::Sink* sink() {
    if (!format) return nullptr;
    return native ? static_cast<trace::Sink*>(native.get()) : &memory;
  }

  int open(const std::string& path, const plan::Plan& p) {
    if (path.empty()) return kOk;
    const auto f = trace::format_of(path);
    if (!f) return fail(f.errors(), kBadInput);
    format = f.value();
    if (*format == trace::Format::native) {
      auto file = trace::FileSink::create(path, plan::print(p));
      if (!file) return fail(file.errors(), kMachineFault);
      native = std::move(file.value());
    } else {
      auto file = AtomicFile::create(path);
      if (!file) return fail(file.errors(), kMachineFault);
      exported.emplace(std::move(file.value()));
    }
    return kOk;
  }

  Status finish(const trace::Meta& meta, const plan::Plan& p) {
    if (native) return native->finish(meta);
    if (!exported) return ok_status();
    trace::export_trace(*exported, *format, memory.take(meta, plan::print(p)), p);
    return exported->commit();
  }
};

Result<std::unique_ptr<exec::TokenSource>> open_data(const std::string& data, const plan::Plan& p) {
  const int64_t vocabulary = plan::vocabulary_of(p);
  if (data == "pattern") return exec::pattern_tokens(p.seed, vocabulary);
  if (data == "random") return exec::random_tokens(p.seed, vocabulary);
  return exec::byte_tokens(data, p.seed, vocabulary, p.sequence, plan::tokens_ahead(p));
}

int64_t tokens_of(const plan::Plan& p) { return p.micro_batches * p.micro_batch_size * p.sequence * p.mesh.size("dp"); }

std::string table_head() {
  return fmt::format("{:>6} {:>10} {:>10} {:>10} {:>10} {:>12}\n", "step", "loss", "norm", "rate", "time", "tokens/s");
}

std::string table_row(const exec::StepOutcome& s, bool measured, int64_t tokens) {
  std::string note = measured ? "" : "  warm-up";
  if (s.skipped) note += "  skipped: a gradient was infinite, the loss scale halves";
  return fmt::format("{:>6} {:>10.5f} {:>10} {:>10.3g} {:>10} {:>12}{}\n", s.step, s.loss,
                     s.gradient_norm > 0 ? fmt::format("{:.4g}", s.gradient_norm) : "-", s.learning_rate,
                     to_text(s.time), with_commas(std::llround(static_cast<double>(tokens) / s.time.seconds())), note);
}

std::string as_json(const JobSpec& job, const plan::Plan& p, const Options& o, const std::string& device,
                    std::string_view communicator, const exec::RunSummary& r,
                    const std::vector<std::string>& warnings) {
  using Json = nlohmann::ordered_json;
  const auto tokens = static_cast<double>(tokens_of(p));
  Json j;
  j["schema_version"] = 1;
  j["plan_digest"] = fmt::format("{:016x}", plan::digest(p));
  j["job"] = job.name;
  j["ranks"] = p.mesh.ranks();
  j["device"] = device;
  j["communicator"] = communicator;
  j["threads_per_rank"] = o.threads;
  j["median_step_time_s"] = r.median.seconds();
  j["tokens_per_s"] = tokens / r.median.seconds();
  j["clock_uncertainty_s"] = r.clock_uncertainty.seconds();
  j["steps"] = Json::array();
  for (size_t i = 0; i < r.steps.size(); ++i) {
    const exec::StepOutcome& s = r.steps[i];
    j["steps"].push_back({{"step", s.step},
                          {"measured", static_cast<int64_t>(i) >= r.warmups},
                          {"loss", s.loss},
                          {"gradient_norm", s.gradient_norm},
                          {"learning_rate", s.learning_rate},
                          {"loss_scale", s.loss_scale},
                          {"skipped", s.skipped},
                          {"step_time_s", s.time.seconds()}});
  }
  const exec::ArenaUse& memory = r.arenas[static_cast<size_t>(plan::Space::device)];
  j["memory"] = {{"rank", 0}, {"peak_gib", Bytes{memory.peak}.gib()}, {"arena_gib", Bytes{memory.bytes}.gib()}};
  j["warnings"] = warnings;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<std::string> warnings_of(const JobSpec& job, const Options& o, int64_t here) {
  std::vector<std::string> out = job.warnings;
  if (o.cuda()) return out;
  // A launcher may have bound this process to some of the machine's cores: the others' ranks have the rest.
  const int64_t cores = o.mpi() ? ::sysconf(_SC_NPROCESSORS_ONLN) : static_cast<int64_t>(exec::usable_cores().size());
  if (const int64_t threads = here * o.threads; threads > cores)
    out.push_back(fmt::format("{} ranks of {} thread{} on {} core{}: the times mean nothing", here, o.threads,
                              o.threads > 1 ? "s" : "", cores, cores > 1 ? "s" : ""));
  return out;
}

/// Ranks of a job may be many processes that find the same fault: rank 0 tells it. What goes wrong on one rank while it
/// runs is told by that rank too, for rank 0 may be the one that cannot.
struct Teller {
  uint32_t rank = 0;
  int operator()(const Diagnostics& errors, int code) const { return rank == 0 ? fail(errors, code) : code; }
  int of_run(const Diagnostics& errors) const {
    const bool mine = errors[0].where.starts_with(fmt::format("rank {},", rank));
    return rank == 0 || mine ? fail(errors, kMachineFault) : kMachineFault;
  }
};

/// The spans that every rank measured, step by step, into the sink of rank 0.
Status collect_spans(exec::Communicator& c, const trace::Trace& mine, trace::Sink* to, uint32_t steps) {
  for (uint32_t step = 0; step < steps; ++step) {
    std::string_view bytes;
    for (const trace::RankSpans& r : mine.ranks)
      if (r.step == step) bytes = {reinterpret_cast<const char*>(r.spans.data()), r.spans.size() * sizeof(trace::Span)};
    const auto all = c.gather(bytes);
    if (!all) return all.errors();
    for (uint32_t rank = 0; to && rank < all.value().size(); ++rank) {
      const std::string& theirs = all.value()[rank];
      std::vector<trace::Span> spans(theirs.size() / sizeof(trace::Span));
      std::memcpy(spans.data(), theirs.data(), spans.size() * sizeof(trace::Span));
      to->spans(rank, step, spans);
    }
  }
  return ok_status();
}

int run(const Options& o, const Ranks& at) {
  const Teller told{at.rank()};
  const bool speaks = told.rank == 0;
  auto job = o.job.load();
  if (!job) return told(job.errors(), kBadInput);
  auto lowered = lower::lower(job.value());
  if (!lowered) return told(lowered.errors(), kDoesNotFit);
  const plan::Plan& p = lowered.value();
  if (auto valid = plan::validate(p); !valid) return told(valid.errors(), kOurFault);
  const auto tokens = open_data(o.data, p);
  if (!tokens) return told(tokens.errors(), kBadInput);
  const int64_t ranks_planned = p.mesh.ranks(), ranks_started = at.size(ranks_planned);
  if (ranks_started != ranks_planned)
    return told({{"run", fmt::format("the plan is for {} ranks, {} were started", ranks_planned, ranks_started),
                  fmt::format("mpirun -np {}, or another cluster or strategy", ranks_planned)}},
                kBadInput);

  exec::RunOptions run;
  run.warmup = o.warmup;
  run.steps = o.steps;
  run.execute.tokens = tokens.value().get();
  run.execute.learning_rate = o.rate;
  run.execute.script.floats = parse_dtype(o.floats);
  if (const Status fits = exec::executable(p, run.execute.script); !fits) return told(fits.errors(), kDoesNotFit);
  const auto memory_needed = exec::reserved_by_all(p, run.execute.script);
  if (!memory_needed) return told(memory_needed.errors(), kDoesNotFit);
  const int64_t here = at.here(ranks_planned);
  const Bytes needed{memory_needed.value().n / ranks_planned * here};
  if (const Bytes free = exec::available_memory(); !o.cuda() && free.n > 0 && needed > free)
    return told(
        {{"run",
          fmt::format("{} ranks need {}, this machine has {} free", with_commas(here), to_text(needed), to_text(free)),
          "fewer ranks, a smaller model or smaller micro-batches"}},
        kMachineFault);
  TraceFile file;
  int opened = speaks ? file.open(o.trace, p) : kOk;
  trace::MemorySink mine;  // of one process among several
  run.sink = o.trace.empty() ? nullptr : at.processes() ? &mine : file.sink();

  auto opened_machines = open_machines(
      at, ranks_planned, {o.cuda(), o.threads, std::chrono::milliseconds(std::llround(o.timeout * 1000))});
  if (!opened_machines) return told(opened_machines.errors(), kMachineFault);
  std::vector<exec::Machine> machines = std::move(opened_machines.value());
  if (at.processes()) {
    const double codes[] = {static_cast<double>(opened)};
    const auto worst = machines[0].communicator->reduce(codes, plan::Reduction::max);
    if (!worst) return told.of_run(worst.errors());
    opened = static_cast<int>(worst.value()[0]);
  }
  if (opened != kOk) return opened;
  const std::string device = machines[0].device->description();
  const std::vector<std::string> warnings = warnings_of(job.value(), o, here);

  const int64_t batch = tokens_of(p);
  const std::string ranks = fmt::format("{} rank{} as {}", p.mesh.ranks(), p.mesh.ranks() > 1 ? "s" : "",
                                        at.processes() ? "processes" : "threads");
  std::string head = fmt::format("{}: {}, each {}\n{}; {} tokens a step; plan {:016x}\n", job.value().name, ranks,
                                 device, tokens.value()->description(), with_commas(batch), plan::digest(p));
  int printed = kOk;
  if (!o.json)
    run.on_step = [&](const exec::StepOutcome& s, bool measured) {
      if (printed == kOk) printed = write_out(table_row(s, measured, batch));
    };

  std::deque<exec::RunCheckpoints> checkpoints;
  for (size_t r = 0; r < machines.size(); ++r) checkpoints.emplace_back(o.checkpoint);
  auto of = [&](const exec::Executor& e) -> exec::RunCheckpoints& {
    return checkpoints[at.processes() ? 0 : e.script().rank.v];
  };
  run.begin = [&](exec::Executor& e) -> Status {
    auto loaded = of(e).begin(e);
    if (!loaded) return loaded.errors();
    if (e.script().rank.v != 0) return ok_status();
    if (loaded.value())
      for (const Diagnostic& d : loaded.value()->passed_over) fail({d}, kOk);
    if (o.json) return ok_status();
    if (loaded.value())
      head += fmt::format("going on from step {} of {}\n", loaded.value()->progress.step, loaded.value()->path);
    printed = write_out(head + "\n" + table_head());
    return ok_status();
  };
  run.stepped = [&](exec::Executor& e) { return of(e).stepped(e); };
  run.end = [&](exec::Executor& e) { return of(e).end(e); };

  const auto result = at.processes() ? exec::run_rank(p, machines[0], run) : exec::run_ranks(p, machines, run);
  if (!result) return told.of_run(result.errors());
  const exec::RunSummary& r = result.value();
  if (at.processes() && run.sink) {
    const auto steps = static_cast<uint32_t>(static_cast<int64_t>(r.steps.size()) - r.warmups);
    if (const Status s = collect_spans(*machines[0].communicator, mine.take({}, ""), file.sink(), steps); !s)
      return told.of_run(s.errors());
  }
  if (!speaks) return kOk;
  if (!o.trace.empty()) {
    trace::Meta meta = exec::trace_meta(p, r);
    meta.cluster = fmt::format("{}, each {}", ranks, device);
    meta.code_version = WT_VERSION;
    meta.command = command_line();
    if (const Status s = file.finish(meta, p); !s) return fail(s.errors(), kMachineFault);
  }
  if (o.json) return write_out(as_json(job.value(), p, o, device, machines[0].communicator->kind(), r, warnings));
  const exec::ArenaUse& memory = r.arenas[static_cast<size_t>(plan::Space::device)];
  std::string tail = fmt::format(
      "\nmedian  {}, {} tokens/s ({} steps after {} of warm-up)\nmemory  {} at the peak of rank 0 as planned, {} with "
      "what alignment and overlap cost\n",
      to_text(r.median), with_commas(std::llround(static_cast<double>(batch) / r.median.seconds())),
      static_cast<int64_t>(r.steps.size()) - r.warmups, r.warmups, to_text(Bytes{memory.peak}),
      to_text(Bytes{memory.bytes}));
  if (r.steps.empty()) tail = "\nnothing was left to do\n";
  for (const std::string& w : warnings) tail += "warning: " + w + "\n";
  return printed == kOk ? write_out(tail) : printed;
}

/// The words of this start for so many ranks: the user's own, and what makes the plan one for them.
std::optional<std::vector<std::string>> words_for(const Options& o, int64_t ranks) {
  std::vector<std::string> words;
  for (size_t i = 0; i < command_words().size(); ++i) {
    const std::string& w = command_words()[i];
    if (w == "--elastic") continue;
    const bool mine = w.starts_with("--restarts") || w.starts_with("--launcher") || w.starts_with("--ranks");
    if (mine && w.find('=') == std::string::npos) ++i;
    if (!mine) words.push_back(w);
  }
  words.insert(words.end(), {"--ranks", "mpi"});
  if (!o.checkpoint.resume) words.emplace_back("--resume");

  auto job = o.job.load();
  if (!job) return std::nullopt;
  const StrategySpec& s = job.value().strategy;
  const int64_t model = s.tensor * s.pipeline * s.context, devices = job.value().cluster.node.devices;
  if (ranks % model != 0) return std::nullopt;
  const bool whole_nodes = ranks % devices == 0;
  const std::string sets[] = {fmt::format("cluster.nodes={}", whole_nodes ? ranks / devices : 1),
                              fmt::format("cluster.node.devices={}", whole_nodes ? devices : ranks),
                              fmt::format("strategy.data={}", ranks / model)};
  JobOptions smaller = o.job;
  for (const std::string& set : sets) {
    smaller.set.push_back(set);
    words.insert(words.end(), {"--set", set});
  }
  job = smaller.load();
  if (!job) return std::nullopt;
  const auto plan = lower::lower(job.value());
  if (!plan || plan.value().mesh.ranks() != ranks) return std::nullopt;
  return words;
}

int start(Options o) {
  if (o.elastic) {
    if (o.checkpoint.root.empty())
      return fail({{"--elastic", "needs a place to go on from", "--checkpoint FOLDER"}}, kBadInput);
    auto job = o.job.load();
    if (!job) return fail(job.errors(), kBadInput);
    auto plan = lower::lower(job.value());
    if (!plan) return fail(plan.errors(), kDoesNotFit);
    o.elasticity.ranks = plan.value().mesh.ranks();
    o.elasticity.root = o.checkpoint.root;
    o.elasticity.words = [&o](int64_t ranks) { return words_for(o, ranks); };
    return run_elastic(o.elasticity);
  }
  if (o.checkpoint.root.empty() && (o.checkpoint.every > 0 || o.checkpoint.resume || o.checkpoint.asynchronous))
    return fail({{"run", "which checkpoints?", "--checkpoint FOLDER"}}, kBadInput);
  const bool by_torchrun = std::getenv("RANK") && std::getenv("WORLD_SIZE") && std::getenv("MASTER_ADDR");
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (o.ranks.empty()) o.ranks = exec::started_by_mpi() ? "mpi" : o.cuda() && by_torchrun ? "torchrun" : "";
  if (o.ranks.empty() && tasks && std::atoll(tasks) > 1)
    return fail(
        {{"run",
          fmt::format("srun started {} tasks that do not know of each other; each would run the whole job", tasks),
          "srun --mpi=pmix makes them ranks of one job; --ranks inproc if that is meant"}},
        kBadInput);
  if (o.ranks.empty()) o.ranks = "inproc";
  if (o.ranks == "torchrun") {
    if (!o.cuda())
      return fail({{"--ranks torchrun", "is for --device cuda", "CPU ranks: mpirun -np N windtunnel run"}}, kBadInput);
    auto place = exec::rendezvous_from_environment();
    if (!place) return fail(place.errors(), kBadInput);
    return run(o, {nullptr, place.value()});
  }
  if (!o.mpi()) return run(o, {});
  auto session = exec::MpiSession::open(nullptr, nullptr);
  if (!session) return fail(session.errors(), kMachineFault);
  mark_rank(session.value().rank().v);
  const int code = run(o, {&session.value(), {}});
  mark_end();
  // Ranks that hang or were stopped would be waited for.
  if (code == kMachineFault) session.value().end_all(code);
  return code;
}

const Register registration(15, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  constexpr int64_t kMost = int64_t{1} << 31;  // steps
  constexpr double kLeast = 1e-12;             // of what must not be zero
  CLI::App* app = parent.add_subcommand("run", "execute the plan on real devices and train: loss, time, trace");
  o->job.add_to(*app);
  app->add_option("--ranks", o->ranks,
                  "what the ranks are: inproc (threads of this process), mpi (processes that mpirun or srun started) "
                  "or torchrun "
                  "(processes that find RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; --device cuda); the default "
                  "is what this "
                  "process finds itself to be")
      ->check(CLI::IsMember({"inproc", "mpi", "torchrun"}))
      ->type_name("KIND");
  app->add_option("--device", o->device, "cpu, or cuda: a GPU for each rank, NCCL between them")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("KIND");
  app->add_option("--steps", o->steps, "measured steps")->check(count_to(kMost))->type_name("N");
  app->add_option("--warmup", o->warmup, "steps before them")->check(whole_between(0, kMost))->type_name("N");
  app->add_option("--threads", o->threads, "threads of a rank that share a kernel, each pinned to a core")
      ->check(count_to(1024))
      ->type_name("N");
  app->add_option("--data", o->data,
                  "what is trained on: pattern (a made-up language), random, or a file, byte by byte")
      ->type_name("WORD|FILE");
  app->add_option("--rate", o->rate.peak, "learning rate after warm-up")
      ->check(number_between(kLeast, 1e6))
      ->type_name("X");
  app->add_option("--rate-floor", o->rate.floor, "learning rate at the end of the cosine")
      ->check(number_between(0, 1e6))
      ->type_name("X");
  app->add_option("--rate-warmup", o->rate.warmup, "steps over which the learning rate rises")
      ->check(whole_between(0, kMost))
      ->type_name("N");
  app->add_option("--rate-steps", o->rate.total, "steps after which it has fallen to the floor; 0: it stays")
      ->check(whole_between(0, kMost))
      ->type_name("N");
  app->add_option("--floats", o->floats, "all floating-point storage in this type in place of the plan's")
      ->check(CLI::IsMember({"f64", "f32"}))
      ->type_name("TYPE");
  app->add_option("--timeout", o->timeout, "seconds that a rank may wait for another")
      ->check(number_between(kLeast, 1e7))
      ->type_name("S");
  app->add_option("--trace", o->trace,
                  "write the timeline: .wttrace (native), .pftrace (ui.perfetto.dev), .json or .json.gz")
      ->type_name("FILE");
  app->add_option("--checkpoint", o->checkpoint.root, "folder of checkpoints; the state after the last step is saved")
      ->type_name("FOLDER");
  app->add_option("--checkpoint-every", o->checkpoint.every, "steps between checkpoints while the run goes on")
      ->check(count_to(kMost))
      ->type_name("N");
  app->add_option("--checkpoint-keep", o->checkpoint.keep, "newest checkpoints that stay")
      ->check(count_to(1 << 20))
      ->type_name("N");
  app->add_flag("--checkpoint-async", o->checkpoint.asynchronous, "write them while the training goes on");
  app->add_flag("--resume", o->checkpoint.resume,
                "go on from the newest good checkpoint, on this or another mesh; --steps counts from the first start");
  app->add_flag("--elastic", o->elastic,
                "start the ranks through the launcher, and again on those that are left when some die");
  app->add_option("--restarts", o->elasticity.restarts, "how often at most")
      ->check(whole_between(0, 1 << 20))
      ->type_name("N");
  app->add_option("--launcher", o->elasticity.launcher, "mpirun or srun, with words of its own")->type_name("WORDS");
  app->add_flag("--json", o->json, "steps and median as JSON (stable keys with units)");
  app->footer(
      "Examples:\n"
      "  windtunnel run examples/small-gpt-2-cpu.yaml\n"
      "  windtunnel run examples/small-gpt-2-cpu.yaml --set strategy.tensor=2 --steps 20 --trace measured.wttrace\n"
      "  mpirun -np 2 windtunnel run examples/small-gpt-2-cpu.yaml\n"
      "  torchrun --no-python --nproc-per-node 8 windtunnel run job.yaml --device cuda\n"
      "  windtunnel run job.yaml --elastic --checkpoint ckpt --checkpoint-every 10 --steps 1000\n"
      "Exit code 4: a rank failed, was stuck past the timeout, had too little memory or no GPU.");
  app->callback([o, &exit] { exit = start(*o); });
});

}  // namespace

}  // namespace wt::apps
