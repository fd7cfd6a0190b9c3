// Expansion of a raw shell word into the words it stands for, with the variables known so far.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "import/shell.hpp"

namespace wt::import {

/// One variable: a text, or an array of them.
struct ShellValue {
  std::vector<ShellWord> words;  // one of a text
  bool array = false;
};
using ShellScope = std::map<std::string, ShellValue>;

/// `scope` may gain variables by ${A:=x}.
std::vector<ShellWord> expand_shell(std::string_view raw, int line, ShellScope& scope);
/// As within double quotes: one word, nothing split.
ShellWord expand_shell_text(std::string_view raw, int line, ShellScope& scope);

}  // namespace wt::import
