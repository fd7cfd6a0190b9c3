// The command line, thin: parses words, calls the libraries, prints. Commands register themselves (command.hpp).
#include <algorithm>
#include <csignal>

#include "apps/command.hpp"
#include "core/base/text.hpp"

namespace {

/// "no command 'simulat'; did you mean 'simulate'?" where the words begin with one that is no command; else nothing.
std::string unknown_command(const CLI::App& app) {
  const std::vector<std::string>& words = wt::apps::command_words();
  const auto word = std::find_if(words.begin(), words.end(), [](const std::string& w) { return !w.starts_with('-'); });
  if (word == words.end() || word->empty()) return "";
  std::vector<std::string> names;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(c->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string nearest = wt::suggest(*word, views);
  return "no command '" + *word + "'" + (nearest.empty() ? "" : "; " + nearest);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is seen as EPIPE by write_out, not as a killed process
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file that may not grow: a failed write, not a killed process
  wt::apps::set_command_line(argc, argv);
  CLI::App app{
      "Windtunnel predicts what a cluster does with a large-model training job, before it is bought.\n"
      "Names of built-in models and clusters are accepted where a file is; every number can be overridden with --set."};
  app.name("windtunnel");
  app.set_version_flag("--version", "windtunnel " WT_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  app.failure_message([](const CLI::App* at, const CLI::Error& e) {
    // At the command that was called, if one was: its --help has what was meant.
    const auto called = at->get_subcommands();
    const std::string command = called.empty() ? "" : " " + called.front()->get_name();
    const std::string unknown = called.empty() ? unknown_command(*at) : "";
    return "windtunnel: " + (unknown.empty() ? std::string(e.what()) : unknown) + "\nRun `windtunnel" + command +
           " --help` for what it takes.\n";
  });
  app.footer(
      "Examples:\n"
      "  windtunnel simulate examples/llama3-70b-1024-h100.yaml\n"
      "  windtunnel simulate job.yaml --set strategy.tensor=4 --nodes 64 --json\n"
      "  windtunnel audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40\n"
      "Exit codes: 0 fine; 1 our fault; 2 your input; 3 does not fit or illegal strategy; 4 a machine fault.");
  int exit = wt::apps::kOk;
  for (const wt::apps::Command& c : wt::apps::commands()) c.add(app, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? wt::apps::kOk : wt::apps::kBadInput;
  } catch (const std::exception& e) {
    return wt::apps::fail({{"internal", e.what(), "please report this"}}, wt::apps::kOurFault);
  }
  return exit;
}
