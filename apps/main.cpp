// The command line, thin: parses words, calls the libraries, prints. Commands register themselves (command.hpp).
#include <fmt/format.h>

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

/// Takes an option and its value out of the words: true where it is there.
bool drop_option(std::vector<std::string>& words, const std::string& name) {
  for (size_t i = 0; i < words.size(); ++i) {
    const bool joined = words[i].starts_with(name + "=");
    if (words[i] != name && !joined) continue;
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(at, at + (joined || i + 1 == words.size() ? 1 : 2));
    return true;
  }
  return false;
}

/// The parser stops at the first value that is refused: it is told, taken out, and the rest read for more of its kind.
void tell_other_values(CLI::App& app, const std::string& first) {
  std::vector<std::string> words = wt::apps::command_words();
  std::string told = first;
  words.emplace_back("--and-run-nothing");  // no option of any command: the parser ends with it, at the latest
  while (drop_option(words, told.substr(0, told.find(':')))) {
    try {
      app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::ValidationError& e) {
      told = e.what();
      wt::apps::fail({{"", told, ""}}, wt::apps::kBadInput);
    } catch (const CLI::ParseError&) { return; }  // no other such value
  }
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
  } catch (const CLI::ValidationError& e) {
    const std::string first = e.what();
    wt::apps::fail({{"", first, ""}}, wt::apps::kBadInput);
    const auto called = app.get_subcommands();
    const std::string command = called.empty() ? "" : " " + called.front()->get_name();
    tell_other_values(app, first);
    fmt::print(stderr, "Run `windtunnel{} --help` for what it takes.\n", command);
    return wt::apps::kBadInput;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? wt::apps::kOk : wt::apps::kBadInput;
  } catch (const std::exception& e) {
    return wt::apps::fail({{"internal", e.what(), "please report this"}}, wt::apps::kOurFault);
  }
  return exit;
}
