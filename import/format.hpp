// A foreign format: how to know a file of it, and how to read one into a draft. One file each in formats/; the table is
// made from the file names. Not the command: that is import.hpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/spec/tree.hpp"
#include "import/draft.hpp"

namespace wt::import {

/// A file as the recognisers see it: the text, and the tree where it is YAML or JSON.
struct Foreign {
  std::string name;  // path as the user wrote it
  std::string_view text;
  const tree::Node* tree = nullptr;  // of YAML, JSON or TOML; null: none of these, or faulty
  enum class Syntax : uint8_t { text, yaml, json, toml } syntax = Syntax::text;
  Diagnostics faults;                       // of the syntax that the name or the first bytes promise
  std::vector<tree::Duplicate> duplicates;  // JSON keys written twice
  bool relaxed = false;                     // JSON with comments or trailing commas

  std::string_view base() const {  // file name without folders
    const size_t slash = name.rfind('/');
    return slash == std::string::npos ? std::string_view(name) : std::string_view(name).substr(slash + 1);
  }
  bool has(std::string_view key) const { return tree && tree->is_map() && tree->find(key); }
};

struct Format {
  std::string_view name;   // the file's stem: of --format
  std::string_view title;  // "DeepSpeed JSON"
  std::string_view takes;  // one line for `windtunnel import --list`
  /// 0: not this; else how sure, the highest wins: 1 by a weak sign, 5 by keys only this format has, 9 certain.
  int (*recognise)(const Foreign&);
  void (*read)(const Foreign&, Draft&);
};

/// Generated from the file names; each file defines `extern const Format formats_<stem>`.
std::span<const Format* const> all_formats();

}  // namespace wt::import
