// One command of the program: a file <name>_command.cpp registers itself, no other file is edited. What commands share:
// exit codes, how errors are told, how output is written, the options that name a job.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::apps {

/// product.md: 0 fine; 1 our fault; 2 the user's input; 3 does not fit or illegal strategy; 4 a machine fault.
enum Exit : int { kOk = 0, kOurFault = 1, kBadInput = 2, kDoesNotFit = 3, kMachineFault = 4 };

struct Command {
  int place = 0;                                         // order in --help
  std::function<void(CLI::App& parent, int& exit)> add;  // makes the subcommand; its callback sets `exit`
};

/// Sorted by place.
std::vector<Command> commands();

struct Register {
  Register(int place, std::function<void(CLI::App& parent, int& exit)> add);
};

/// Every fault on a line of stderr; returns `code`.
int fail(const Diagnostics& errors, int code);

/// To stdout, whole. A reader that has gone (`| head`) is no fault; a full disk is: kMachineFault.
int write_out(std::string_view text);

/// From here on Ctrl-C sets the flag instead of ending the program: what is done is still printed.
const std::atomic<bool>* stop_on_interrupt();
/// Tells "12 of 40 rows" on one line of stderr, every so many; empty where stderr is no terminal.
std::function<void(size_t done, size_t all)> progress_on_terminal(std::string things, size_t every = 1);

/// Checks of numbers on the command line, as strict as the readers of files: whole text, in range, no NaN.
CLI::Validator number_between(double least, double most);
CLI::Validator whole_between(int64_t least, int64_t most);
CLI::Validator count_to(int64_t most);  // whole, from 1

/// "16..1024" doubles and ends with its last; "64,128,500" is taken as it is. `number` reads one, or nothing.
std::optional<std::vector<int64_t>> read_sizes(std::string_view text,
                                               std::optional<int64_t> (*number)(std::string_view));

/// "windtunnel simulate job.yaml --json", for traces.
const std::string& command_line();
/// The words behind the program's name, as they came.
const std::vector<std::string>& command_words();
void set_command_line(int argc, char** argv);

/// JOB, --set, --cluster, --nodes.
struct JobOptions {
  std::string path;
  std::vector<std::string> set;
  std::string cluster;
  int64_t nodes = 0;

  void add_to(CLI::App& app, bool required = true);
  /// --cluster and --nodes first, then --set in order.
  Result<JobSpec> load() const;
};

/// "h100" -> the device of that name, else the only or first one whose name starts so, largest memory last.
Result<DeviceSpec> find_device(const std::string& name);

}  // namespace wt::apps
