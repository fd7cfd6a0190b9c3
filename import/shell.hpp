// A shell script as far as it is literal: variables, arrays, arithmetic and defaults are resolved, conditions whose sides
// are known are decided, `eval` and `bash -c` of known text are followed. Nothing is run.
// Not a shell: what depends on the machine ($(nproc), $1, a loop) stays open and keeps its name, so that whoever needs the
// value can say what is missing. Bounded: words, recursion and the length of a value.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace wt::import {

struct ShellWord {
  std::string text;  // an open part stands as written: "$(nproc)"
  int line = 0;
  std::vector<std::string> open;  // what kept it from being known: "$1", "$(nproc)", "TP (set in a loop, line 12)"
};

struct ShellCommand {
  std::vector<ShellWord> words;  // without leading assignments
  int line = 0;
  bool conditional = false;  // stands under a condition that is not known
};

struct HereDocument {
  ShellWord text;  // expanded
  int line = 0;
};

struct ShellScript {
  std::vector<ShellCommand> commands;
  std::vector<HereDocument> documents;
  std::map<std::string, std::vector<ShellWord>> variables;  // at the end
  std::vector<ShellWord> directives;                        // "#SBATCH --nodes=4" -> "--nodes=4"
  std::vector<std::string> sourced;                         // files that it reads and that are not here
  std::vector<std::string> notes;
};

/// `given` are variables of the command line (--var); they win over assignments.
ShellScript read_shell(std::string_view text, const std::map<std::string, std::string>& given);

/// + - * / % ** and parentheses over whole numbers; nothing where a name is in it, or on overflow or division by zero.
bool shell_arithmetic(std::string_view text, long long& out);

}  // namespace wt::import
