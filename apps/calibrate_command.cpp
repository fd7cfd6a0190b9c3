// windtunnel calibrate: measures this machine with the ranks that a run would have and writes the cluster spec by which
// simulate predicts that run.
#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "apps/command.hpp"
#include "core/base/atomic_file.hpp"
#include "core/spec/read.hpp"
#include "exec/calibrate/calibrate.hpp"
#include "exec/comm/inproc.hpp"
#include "exec/comm/mpi.hpp"
#include "exec/device/thread_pool.hpp"

namespace wt::apps {

namespace {

struct Options {
  std::string out, name = "calibrated", precision = "fp32", scratch = "/tmp";
  int64_t ranks = 0;  // 0: one a core, or those that MPI started
  int threads = 1;
  bool quick = false;
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

/// Threads of this process, or this process as one of several.
exec::Ranks ranks_of(const Options& o, exec::MpiSession* session) {
  exec::Ranks r;
  if (session) {
    r.size = session->size();
    r.per_host = session->ranks_here();
    r.open = [session, threads = o.threads](exec::CpuKernel kernel) -> Result<std::vector<exec::Machine>> {
      exec::MpiOptions options;
      options.threads_per_rank = threads;
      options.kernel = std::move(kernel);
      auto machine = session->machine(options);
      if (!machine) return machine.errors();
      std::vector<exec::Machine> one;
      one.push_back(std::move(machine.value()));
      return one;
    };
    return r;
  }
  const auto cores = static_cast<int64_t>(exec::usable_cores().size());
  r.size = r.per_host = o.ranks > 0 ? o.ranks : std::max<int64_t>(1, cores / o.threads);
  r.open = [size = r.size, threads = o.threads](exec::CpuKernel kernel) -> Result<std::vector<exec::Machine>> {
    exec::InprocOptions options;
    options.threads_per_rank = threads;
    options.kernel = std::move(kernel);
    return exec::open_inproc(size, options);
  };
  return r;
}

int calibrate(const Options& o, exec::MpiSession* session) {
  const bool speaks = !session || session->rank().v == 0;
  const auto told = [&](const Diagnostics& errors, int code) { return speaks ? fail(errors, code) : code; };
  const exec::Ranks ranks = ranks_of(o, session);
  std::optional<AtomicFile> file;
  if (speaks) {  // a path that cannot be written is known before the work
    auto opened = AtomicFile::create(o.out);
    if (!opened) return fail(opened.errors(), kMachineFault);
    file.emplace(std::move(opened.value()));
  }
  exec::CalibrateOptions options;
  options.name = o.name;
  options.precision = *parse_dtype(o.precision);
  options.extent = o.quick ? exec::Extent::quick : exec::Extent::full;
  options.scratch = o.scratch;
  options.source =
      fmt::format("windtunnel calibrate {}; {} rank{} as {} on {} host{}, {} thread{} each; {}", WT_VERSION, ranks.size,
                  ranks.size > 1 ? "s" : "", session ? "processes" : "threads", ranks.hosts(),
                  ranks.hosts() > 1 ? "s" : "", o.threads, o.threads > 1 ? "s" : "", today());
  const auto done = exec::calibrate(ranks, options);
  if (!done) return told(done.errors(), kMachineFault);
  if (!speaks) return kOk;
  const std::string text =
      "# Measured, not made up: windtunnel calibrate wrote this file. Times are what a step sees.\n" +
      print_cluster(done.value().cluster);
  const auto read = parse_cluster(text, o.out);
  if (!read) return fail(read.errors(), kOurFault);
  file->write(text);
  if (const Status s = file->commit(); !s) return fail(s.errors(), kMachineFault);
  return write_out(fmt::format("{}\nwritten to {}\n", exec::print_residuals(done.value()), o.out));
}

int start(const Options& o) {
  if (!exec::started_by_mpi()) return calibrate(o, nullptr);
  auto session = exec::MpiSession::open(nullptr, nullptr);
  if (!session) return fail(session.errors(), kMachineFault);
  const int code = calibrate(o, &session.value());
  if (code == kMachineFault) session.value().end_all(code);
  return code;
}

const Register registration(16, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app =
      parent.add_subcommand("calibrate", "measure this machine and write the cluster spec that predicts its runs");
  app->add_option("OUT", o->out, "the cluster spec to write")->required()->type_name("FILE");
  app->add_option("--ranks", o->ranks,
                  "threads of this process that take part, each a device; the default is one a core")
      ->check(count_to(1024))
      ->type_name("N");
  app->add_option("--threads", o->threads, "threads of a rank that share a kernel, as for run")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app->add_option("--precision", o->precision, "of weights and products")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->type_name("TYPE");
  app->add_option("--name", o->name, "of the cluster in the file")->type_name("WORD");
  app->add_option("--scratch", o->scratch, "folder on the disk that is timed")->type_name("FOLDER");
  app->add_flag("--quick", o->quick, "few points: a first look");
  app->footer(
      "Examples:\n"
      "  windtunnel calibrate calibrated.yaml --ranks 2\n"
      "  mpirun -np 2 windtunnel calibrate calibrated.yaml\n"
      "  windtunnel simulate job.yaml --cluster calibrated.yaml\n"
      "All ranks measure at once, with the kernels and the transfers of run: calibrate as you will run.\n"
      "Exit code 4: a rank failed, or the file or the scratch folder cannot be written.");
  app->callback([o, &exit] { exit = start(*o); });
});

}  // namespace

}  // namespace wt::apps
