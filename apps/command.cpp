#include "apps/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "core/base/text.hpp"
#include "core/lower/check.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/key_places.hpp"
#include "core/spec/read.hpp"
#include "study/scale.hpp"

namespace wt::apps {

namespace {
std::vector<Command>& registered() {
  static std::vector<Command> list;  // filled before main
  return list;
}
constexpr int64_t kMostNodes = int64_t{1} << 24;  // as cluster.nodes in a file

std::vector<std::string>& words() {
  static std::vector<std::string> list;
  return list;
}
std::string& command_line_text() {
  static std::string text;
  return text;
}
/// `load` makes overrides of --cluster and --nodes: told in the words that were written.
struct Shorthand {
  std::string override_text, written;
};
std::vector<Shorthand>& shorthands() {
  static std::vector<Shorthand> list;
  return list;
}
std::string as_written(std::string where) {
  for (const Shorthand& s : shorthands()) {
    const size_t n = s.override_text.size();
    if (where.starts_with(s.override_text) && (where.size() == n || where[n] == ':'))
      return s.written + where.substr(n);
  }
  return where;
}

/// Of the job that load() read last: a command has one. fail() gives what lowering says of a key its file and line.
KeyPlaces& places_of_job() {
  static KeyPlaces places;
  return places;
}
}  // namespace

Register::Register(int place, std::function<void(CLI::App&, int&)> add) {
  registered().push_back({place, std::move(add)});
}

std::vector<Command> commands() {
  std::vector<Command> list = registered();
  std::stable_sort(list.begin(), list.end(), [](const Command& a, const Command& b) { return a.place < b.place; });
  return list;
}

int fail(const Diagnostics& errors, int code) {
  for (Diagnostic& e : places_of_job().placed(errors)) {
    e.where = as_written(std::move(e.where));
    std::string line = to_text(Diagnostics{e});
    if (line.empty() || line.back() != '\n') line += '\n';
    fmt::print(stderr, "windtunnel: {}", line);
  }
  return code;
}

int write_out(std::string_view text) {
  const bool wrote = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (wrote || errno == EPIPE) return kOk;
  return fail({{"standard output", fmt::format("cannot write: {}", std::strerror(errno)), ""}}, kMachineFault);
}

CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const auto x = parse_double(text);
        return x && *x >= least && *x <= most
                   ? std::string()
                   : fmt::format("'{}' is not a number from {:g} to {:g}", text, least, most);
      },
      "");
}

CLI::Validator whole_between(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const auto n = parse_int(text);
        return n && *n >= least && *n <= most
                   ? std::string()
                   : fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
      },
      "");
}

CLI::Validator count_to(int64_t most) { return whole_between(1, most); }

std::optional<std::vector<int64_t>> read_sizes(std::string_view text,
                                               std::optional<int64_t> (*number)(std::string_view)) {
  if (const size_t dots = text.find(".."); dots != text.npos) {
    const auto first = number(text.substr(0, dots)), last = number(text.substr(dots + 2));
    if (!first || !last || *first > *last) return {};
    return study::doubling(*first, *last);
  }
  std::vector<int64_t> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const auto n = number(text.substr(at, end - at));
    if (!n) return {};
    out.push_back(*n);
    at = end + 1;
  }
  return out;
}

const std::string& command_line() { return command_line_text(); }
const std::vector<std::string>& command_words() { return words(); }

void set_command_line(int argc, char** argv) {
  std::string text = "windtunnel";
  words().assign(argv + 1, argv + argc);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool plain = !word.empty() && word.find_first_of(" \t\"'\\$") == std::string_view::npos;
    text += plain ? fmt::format(" {}", word) : fmt::format(" '{}'", word);
  }
  command_line_text() = std::move(text);
}

void JobOptions::add_to(CLI::App& app, bool required) {
  auto* job = app.add_option("JOB", path, "job file (YAML): model, cluster, strategy, training")->type_name("FILE");
  if (required) job->required();
  app.add_option("--set", set,
                 "replace a key: strategy.tensor=4, training.global_batch=512, cluster.nodes=16; may repeat")
      ->expected(1)
      ->take_all()
      ->type_name("KEY=VALUE");
  app.add_option("--cluster", cluster, "another cluster: a built-in name (see `windtunnel clusters`) or a file")
      ->type_name("NAME|FILE");
  app.add_option("--nodes", nodes, "number of nodes")->check(count_to(kMostNodes))->type_name("N");
}

const std::atomic<bool>* stop_on_interrupt() {
  static std::atomic<bool> interrupted{false};
  std::signal(SIGINT, [](int) { interrupted = true; });
  return &interrupted;
}

std::function<void(size_t done, size_t all)> progress_on_terminal(std::string things, size_t every) {
  if (!isatty(STDERR_FILENO)) return {};
  return [things = std::move(things), every](size_t done, size_t all) {
    if (done % every == 0 || done == all)
      fmt::print(stderr, "\r{} of {} {}{}", done, all, things, done == all ? "\n" : "");
  };
}

namespace {

/// What is illegal whatever the keys that could not be read were meant to say: told beside the faults of those.
Diagnostics illegal_all_the_same(const std::string& path, const std::vector<std::string>& overrides) {
  std::optional<Diagnostics> common;
  size_t asked = 0;
  for (const std::vector<std::string>& correction : places_of_job().corrections()) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), correction.begin(), correction.end());
    const auto job = read_job(path, all);
    if (!job) continue;
    const Diagnostics faults = lower::check_job(job.value());
    ++asked;
    const auto still = [&](const Diagnostic& d) {
      return std::any_of(faults.begin(), faults.end(),
                         [&](const Diagnostic& f) { return f.where == d.where && f.what == d.what; });
    };
    if (!common)
      common = faults;
    else
      std::erase_if(*common, [&](const Diagnostic& d) { return !still(d); });
  }
  return asked > 1 ? *common : Diagnostics{};  // one value alone does not show what hangs on it
}

}  // namespace

Result<JobSpec> JobOptions::load() const {
  std::vector<std::string> overrides;
  const auto shorthand = [&](std::string text, std::string written) {
    shorthands().push_back({"--set " + text, std::move(written)});
    overrides.push_back(std::move(text));
  };
  if (!cluster.empty()) shorthand("cluster=" + cluster, "--cluster " + cluster);
  if (nodes > 0) shorthand(fmt::format("cluster.nodes={}", nodes), fmt::format("--nodes {}", nodes));
  overrides.insert(overrides.end(), set.begin(), set.end());
  auto job = read_job(path, overrides, places_of_job());
  if (job) return job;
  Diagnostics faults = job.errors();
  const Diagnostics more = illegal_all_the_same(path, overrides);
  faults.insert(faults.end(), more.begin(), more.end());
  return faults;
}

Result<DeviceSpec> find_device(const std::string& name) {
  const std::vector<std::string> all = list_devices();
  std::string wanted;
  for (char c : name) wanted += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (std::find(all.begin(), all.end(), wanted) != all.end()) return read_device(wanted);
  // The SXM form is what is meant by "h100".
  std::optional<std::string> best;
  for (const std::string& candidate : all) {
    if (!candidate.starts_with(wanted) || wanted.empty()) continue;
    if (candidate.size() > wanted.size() && std::isalnum(static_cast<unsigned char>(candidate[wanted.size()])))
      continue;
    const bool sxm = candidate.find("sxm") != std::string::npos;
    const bool best_sxm = best && best->find("sxm") != std::string::npos;
    if (!best || (sxm && !best_sxm)) best = candidate;
  }
  if (best) return read_device(*best);
  if (name.find('/') != std::string::npos || name.find('.') != std::string::npos) return read_device(name);
  const std::vector<std::string_view> views(all.begin(), all.end());
  return Diagnostic{"--gpu", fmt::format("no device '{}'", name), suggest(wanted, views)};
}

}  // namespace wt::apps
