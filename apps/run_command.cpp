// windtunnel run: the job's plan on real devices, real training: a table of steps with loss, time and tokens/s, the median,
// and on request the trace that `simulate` writes too. Ranks are threads of this process.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/command.hpp"
#include "core/base/atomic_file.hpp"
#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "core/trace/export.hpp"
#include "core/trace/file.hpp"
#include "exec/comm/inproc.hpp"
#include "exec/device/thread_pool.hpp"
#include "exec/execute.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  std::string ranks = "inproc", data = "pattern", trace, floats;
  int64_t steps = 10, warmup = 2;
  int threads = 1;
  double timeout = 60;
  bool json = false;
  exec::LearningRate rate;
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
  return exec::byte_tokens(data, p.seed, vocabulary, p.sequence);
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
                    const exec::RunSummary& r, const std::vector<std::string>& warnings) {
  using Json = nlohmann::ordered_json;
  const auto tokens = static_cast<double>(tokens_of(p));
  Json j;
  j["schema_version"] = 1;
  j["plan_digest"] = fmt::format("{:016x}", plan::digest(p));
  j["job"] = job.name;
  j["ranks"] = p.mesh.ranks();
  j["device"] = device;
  j["communicator"] = o.ranks;
  j["threads_per_rank"] = o.threads;
  j["median_step_time_s"] = r.median.seconds();
  j["tokens_per_s"] = tokens / r.median.seconds();
  j["clock_uncertainty_s"] = r.clock_uncertainty.seconds();
  j["steps"] = Json::array();
  for (size_t i = 0; i < r.steps.size(); ++i) {
    const exec::StepOutcome& s = r.steps[i];
    j["steps"].push_back({{"step", s.step},
                          {"measured", static_cast<int64_t>(i) >= o.warmup},
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

std::vector<std::string> warnings_of(const JobSpec& job, const plan::Plan& p, const Options& o) {
  std::vector<std::string> out = job.warnings;
  const auto cores = static_cast<int64_t>(exec::usable_cores().size());
  if (const int64_t threads = p.mesh.ranks() * o.threads; threads > cores)
    out.push_back(fmt::format("{} ranks of {} thread{} on {} core{}: the times mean nothing", p.mesh.ranks(), o.threads,
                              o.threads > 1 ? "s" : "", cores, cores > 1 ? "s" : ""));
  return out;
}

int run(const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto lowered = lower::lower(job.value());
  if (!lowered) return fail(lowered.errors(), kDoesNotFit);
  const plan::Plan& p = lowered.value();
  if (auto valid = plan::validate(p); !valid) return fail(valid.errors(), kOurFault);
  const auto tokens = open_data(o.data, p);
  if (!tokens) return fail(tokens.errors(), kBadInput);

  exec::RunOptions run;
  run.warmup = o.warmup;
  run.steps = o.steps;
  run.execute.tokens = tokens.value().get();
  run.execute.learning_rate = o.rate;
  run.execute.script.floats = parse_dtype(o.floats);
  if (const Status fits = exec::executable(p, run.execute.script); !fits) return fail(fits.errors(), kDoesNotFit);
  const auto memory_needed = exec::reserved_by_all(p, run.execute.script);
  if (!memory_needed) return fail(memory_needed.errors(), kDoesNotFit);
  if (const Bytes free = exec::available_memory(); free.n > 0 && memory_needed.value() > free)
    return fail({{"run",
                  fmt::format("{} ranks need {}, this machine has {} free", with_commas(p.mesh.ranks()),
                              to_text(memory_needed.value()), to_text(free)),
                  "fewer ranks, a smaller model or smaller micro-batches"}},
                kMachineFault);
  TraceFile file;
  if (const int code = file.open(o.trace, p); code != kOk) return code;
  run.sink = file.sink();

  exec::InprocOptions inproc;
  inproc.threads_per_rank = o.threads;
  inproc.timeout = std::chrono::milliseconds(std::llround(o.timeout * 1000));
  auto machines = exec::open_inproc(p.mesh.ranks(), inproc);
  const std::string device = machines[0].device->description();
  const std::vector<std::string> warnings = warnings_of(job.value(), p, o);

  const int64_t batch = tokens_of(p);
  int printed = kOk;
  if (!o.json) {
    std::string head = fmt::format("{}: {} rank{} as threads, each {}\n{}; {} tokens a step; plan {:016x}\n\n",
                                   job.value().name, p.mesh.ranks(), p.mesh.ranks() > 1 ? "s" : "", device,
                                   tokens.value()->description(), with_commas(batch), plan::digest(p));
    printed = write_out(head + table_head());
    run.on_step = [&](const exec::StepOutcome& s, bool measured) {
      if (printed == kOk) printed = write_out(table_row(s, measured, batch));
    };
  }
  const auto result = exec::run_ranks(p, machines, run);
  if (!result) return fail(result.errors(), kMachineFault);
  const exec::RunSummary& r = result.value();
  if (!o.trace.empty()) {
    trace::Meta meta = exec::trace_meta(p, r);
    meta.cluster = fmt::format("{} ranks as threads, each {}", p.mesh.ranks(), device);
    meta.code_version = WT_VERSION;
    meta.command = command_line();
    if (const Status s = file.finish(meta, p); !s) return fail(s.errors(), kMachineFault);
  }
  if (o.json) return write_out(as_json(job.value(), p, o, device, r, warnings));
  const exec::ArenaUse& memory = r.arenas[static_cast<size_t>(plan::Space::device)];
  std::string tail = fmt::format(
      "\nmedian  {}, {} tokens/s ({} steps after {} of warm-up)\nmemory  {} at the peak of rank 0 as planned, {} with "
      "what alignment and overlap cost\n",
      to_text(r.median), with_commas(std::llround(static_cast<double>(batch) / r.median.seconds())), o.steps, o.warmup,
      to_text(Bytes{memory.peak}), to_text(Bytes{memory.bytes}));
  for (const std::string& w : warnings) tail += "warning: " + w + "\n";
  return printed == kOk ? write_out(tail) : printed;
}

const Register registration(15, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("run", "execute the plan on real devices and train: loss, time, trace");
  o->job.add_to(*app);
  app->add_option("--ranks", o->ranks, "what the ranks are: inproc (threads of this process)")
      ->check(CLI::IsMember({"inproc"}))
      ->type_name("KIND");
  app->add_option("--steps", o->steps, "measured steps")->check(CLI::PositiveNumber)->type_name("N");
  app->add_option("--warmup", o->warmup, "steps before them")->check(CLI::NonNegativeNumber)->type_name("N");
  app->add_option("--threads", o->threads, "threads of a rank that share a kernel, each pinned to a core")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app->add_option("--data", o->data,
                  "what is trained on: pattern (a made-up language), random, or a file, byte by byte")
      ->type_name("WORD|FILE");
  app->add_option("--rate", o->rate.peak, "learning rate after warm-up")->check(CLI::PositiveNumber)->type_name("X");
  app->add_option("--rate-floor", o->rate.floor, "learning rate at the end of the cosine")
      ->check(CLI::NonNegativeNumber)
      ->type_name("X");
  app->add_option("--rate-warmup", o->rate.warmup, "steps over which the learning rate rises")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  app->add_option("--rate-steps", o->rate.total, "steps after which it has fallen to the floor; 0: it stays")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  app->add_option("--floats", o->floats, "all floating-point storage in this type in place of the plan's")
      ->check(CLI::IsMember({"f64", "f32"}))
      ->type_name("TYPE");
  app->add_option("--timeout", o->timeout, "seconds that a rank may wait for another")
      ->check(CLI::PositiveNumber)
      ->type_name("S");
  app->add_option("--trace", o->trace,
                  "write the timeline: .wttrace (native), .pftrace (ui.perfetto.dev), .json or .json.gz")
      ->type_name("FILE");
  app->add_flag("--json", o->json, "steps and median as JSON (stable keys with units)");
  app->footer(
      "Examples:\n"
      "  windtunnel run examples/small-gpt-2-cpu.yaml\n"
      "  windtunnel run examples/small-gpt-2-cpu.yaml --set strategy.tensor=2 --steps 20 --trace measured.wttrace\n"
      "Exit code 4: a rank failed, was stuck past the timeout, or had too little memory.");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
