#include "core/spec/framework_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <mutex>

#include "core/base/file.hpp"
#include "core/spec/data_dir.hpp"

namespace wt {

using tree::Entry;
using tree::Node;

namespace {

std::vector<std::string> texts(const Node& node) {
  std::vector<std::string> out;
  if (node.is_scalar()) out.push_back(node.text);
  for (const Node& item : node.items)
    if (item.is_scalar()) out.push_back(item.text);
  return out;
}

bool has_piece(std::string_view text, std::string_view piece) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return std::search(text.begin(), text.end(), piece.begin(), piece.end(), same) != text.end();
}

bool holds(const RunDescription& run, const Entry& condition) {
  const std::vector<std::string> wanted = texts(condition.value);
  const auto any = [&](auto test) { return std::any_of(wanted.begin(), wanted.end(), test); };
  if (condition.key == "zero_stage")
    return any([&](const std::string& w) { return w == fmt::format("{}", run.zero_stage); });
  if (condition.key == "fsdp") return any([&](const std::string& w) { return (w == "true") == run.fsdp; });
  const auto said = run.words.find(condition.key);
  if (said == run.words.end()) return false;  // nobody said it: a condition on it never holds
  if (condition.key == "job") return any([&](const std::string& w) { return said->second == w; });
  return any([&](const std::string& w) { return has_piece(said->second, w); });
}

Result<std::shared_ptr<const Node>> load(const std::string& path) {
  Result<std::string> text = read_file(path, tree::kMaxBytes);
  if (!text.ok()) return text.errors();
  const auto source = std::make_shared<const tree::Source>(tree::Source{std::string(kFrameworkRulesFile), "", false});
  Result<Node> root = tree::parse_yaml(text.value(), source);
  if (!root.ok()) return root.errors();
  if (!root.value().is_map() || !root.value().find("names") || !root.value().find("rules"))
    return Diagnostic{path, "has no list 'names' or 'rules'", ""};
  return std::make_shared<const Node>(std::move(root.value()));
}

}  // namespace

std::string scalar_of(const Node& map, std::string_view key) {
  const Entry* e = map.find(key);
  return e && e->value.is_scalar() ? e->value.text : "";
}

void merge_over(Node& into, const Node& from) {
  for (const Entry& e : from.entries) {
    Entry* mine = into.find(e.key);
    if (mine && mine->value.is_map() && e.value.is_map())
      merge_over(mine->value, e.value);
    else
      into.set(e.key, e.value, e.place);
  }
}

Result<std::shared_ptr<const Node>> framework_rules() {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Node>> read;
  const std::string path = find_data("data/validate", "frameworks");
  if (path.empty()) return Diagnostic{std::string(kFrameworkRulesFile), "not found", "set WINDTUNNEL_DATA"};
  const std::lock_guard lock(mutex);
  if (const auto known = read.find(path); known != read.end()) return known->second;
  auto rules = load(path);
  if (rules.ok()) read[path] = rules.value();
  return rules;
}

bool rule_holds(const RunDescription& run, const Node& rule) {
  const Entry* when = rule.find("when");
  return !when || std::all_of(when->value.entries.begin(), when->value.entries.end(),
                              [&](const Entry& condition) { return holds(run, condition); });
}

FrameworkDefaults framework_defaults(const Node& rules, const RunDescription& run) {
  FrameworkDefaults out;
  out.set.kind = Node::Kind::map;
  const Entry* list = rules.find("rules");
  if (!list) return out;
  for (const Node& rule : list->value.items) {
    if (!rule.is_map() || !rule_holds(run, rule)) continue;
    if (rule.find("skip")) {
      FrameworkDefaults refused;
      refused.skip = scalar_of(rule, "skip");
      return refused;
    }
    if (const Entry* set = rule.find("set")) merge_over(out.set, set->value);
    out.rules.push_back(scalar_of(rule, "name"));
    if (const Entry* when = rule.find("when"))
      for (const Entry& condition : when->value.entries) out.asked.insert(condition.key);
  }
  return out;
}

}  // namespace wt
