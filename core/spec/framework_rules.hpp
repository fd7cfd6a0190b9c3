// data/validate/frameworks.yaml and its one interpreter: which rules hold for a run that is described in words, and what
// they set together. Jobs with the key `framework` (frameworks.hpp) and published runs (study/validate) ask here.
// Knows no job and no row. Invariant: rules apply in the order of the file, a later one replaces what an earlier one set.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/tree.hpp"

namespace wt {

inline constexpr std::string_view kFrameworkRulesFile = "data/validate/frameworks.yaml";

/// What the conditions of the rules look into.
struct RunDescription {
  std::map<std::string, std::string> words;  // by condition: framework, precision, overlap, gpu, ...; case is ignored
  int64_t zero_stage = 0;
  bool fsdp = false;
};

/// What the rules that hold for a run set together.
struct FrameworkDefaults {
  std::string skip;                // why such runs cannot be planned; then the rest is empty
  tree::Node set;                  // sections cluster, strategy, training; data_parallel may be a map by ZeRO stage
  std::vector<std::string> rules;  // their names
  std::set<std::string> asked;     // the conditions that they looked at: nothing else of the description matters
};

/// The file with its lists `names` and `rules`, read once in a process. Errors: not found, not YAML, without its lists.
Result<std::shared_ptr<const tree::Node>> framework_rules();

/// Every condition of the rule's `when` holds; a list of a condition means any of them.
bool rule_holds(const RunDescription&, const tree::Node& rule);
FrameworkDefaults framework_defaults(const tree::Node& rules, const RunDescription&);

/// The text of a key, "" where there is none.
std::string scalar_of(const tree::Node& map, std::string_view key);
/// Puts the entries of `from` over those of `into`, section by section.
void merge_over(tree::Node& into, const tree::Node& from);

}  // namespace wt
