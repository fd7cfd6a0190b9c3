// Calls of named constructors in a Python file, as far as their arguments are literal: `plugin = GeminiPlugin(tp_size=2)`.
// Not an interpreter: what the program computes stays an expression, and its names are asked for.
// Invariant: reads any bytes in linear time; strings and comments are never taken for code.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wt::import {

struct PythonArgument {
  std::string key;   // "" of a positional one
  std::string text;  // the expression, blanks trimmed
  int line = 0;
};

struct PythonCall {
  std::string name;  // the last part: GeminiPlugin of colossalai.booster.plugin.GeminiPlugin
  int line = 0;
  std::vector<PythonArgument> arguments;
  bool conditional = false;         // below an if, elif, else or a loop
  std::vector<std::string> branch;  // words that `==` of the ifs around it compares with, inner first: "gemini"

  const PythonArgument* find(std::string_view key) const;
};

/// Every call of one of `names`, in the order of the file; what stands in its arguments is not looked into.
std::vector<PythonCall> python_calls(std::string_view text, std::span<const std::string_view> names);

/// What `name` stands for, or nothing: an expression that is not literal.
using PythonNames = std::function<std::optional<std::string>(std::string_view name)>;

/// True, 12, 2**16, "bf16" (without its quotes), torch.bfloat16 and other names with a dot and a capital or `torch.` (as
/// they are), not x, x > 1, x == "y"; names through `names`. Nothing where it is none of these; `open` then says which name.
std::optional<std::string> python_value(std::string_view expression, const PythonNames& names, std::string& open);

/// `name = expression` at the begin of a line, where there is one such line only.
std::optional<std::string> python_constant(std::string_view text, std::string_view name);

}  // namespace wt::import
