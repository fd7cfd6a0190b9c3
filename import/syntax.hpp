// Text of a foreign file -> tree, by its syntax: YAML, JSON as Python frameworks read it, TOML.
// Not a judge of what the keys mean. Bounds in size, depth and nodes are those of core/spec/tree.hpp.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/spec/tree.hpp"
#include "import/format.hpp"

namespace wt::import {

struct Parsed {
  std::unique_ptr<tree::Node> tree;  // null: no tree syntax, or faults
  Foreign::Syntax syntax = Foreign::Syntax::text;
  Diagnostics faults;
  std::vector<tree::Duplicate> duplicates;  // JSON
  bool relaxed = false;                     // JSON with comments or trailing commas, which strict readers refuse
};

/// By the name's ending, else by the first character that is not blank.
Parsed parse_foreign(const std::string& name, std::string_view text);

/// Comments (#, //, /* */) and commas before a closing bracket become blanks, so that places stay; strings are kept.
/// `changed` tells whether there were any.
std::string strict_json(std::string_view text, bool& changed);

Result<tree::Node> parse_toml(std::string_view text, std::shared_ptr<const tree::Source> source);

}  // namespace wt::import
