#include "core/spec/frameworks.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/base/file.hpp"
#include "core/spec/data_dir.hpp"

namespace wt {

using tree::Entry;
using tree::Node;

namespace {

constexpr std::string_view kFile = "data/validate/frameworks.yaml";

/// What the conditions of the rules ask a job.
struct Facts {
  std::string name;   // as the job spells it
  std::string words;  // as published runs are described
  std::string precision;
  int64_t zero_stage = 0;
  bool fsdp = false;
};

std::string text_of(const Node& map, std::string_view key) {
  const Entry* e = map.find(key);
  return e && e->value.is_scalar() ? e->value.text : "";
}

/// The text of section.key in the job; "" where it says nothing.
std::string said(const Node& job, std::string_view section, std::string_view key) {
  const Entry* e = job.find(section);
  return e && e->value.is_map() ? text_of(e->value, key) : "";
}

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

/// Conditions on what only a published row has (its overlap words, its model, its GPU) never hold for a job: it says such
/// things in keys of its own.
bool holds(const Facts& facts, const Entry& condition) {
  const std::vector<std::string> wanted = texts(condition.value);
  const auto any = [&](auto test) { return std::any_of(wanted.begin(), wanted.end(), test); };
  if (condition.key == "framework") return any([&](const std::string& w) { return has_piece(facts.words, w); });
  if (condition.key == "precision") return any([&](const std::string& w) { return has_piece(facts.precision, w); });
  if (condition.key == "job") return any([&](const std::string& w) { return facts.name == w; });
  if (condition.key == "zero_stage")
    return any([&](const std::string& w) { return w == fmt::format("{}", facts.zero_stage); });
  if (condition.key == "fsdp") return any([&](const std::string& w) { return (w == "true") == facts.fsdp; });
  return false;
}

bool rule_holds(const Facts& facts, const Node& rule) {
  const Entry* when = rule.find("when");
  return !when || std::all_of(when->value.entries.begin(), when->value.entries.end(),
                              [&](const Entry& condition) { return holds(facts, condition); });
}

void merge(Node& into, const Node& from) {
  for (const Entry& e : from.entries) {
    Entry* mine = into.find(e.key);
    if (mine && mine->value.is_map() && e.value.is_map())
      merge(mine->value, e.value);
    else
      into.set(e.key, e.value, e.place);
  }
}

void remove(Node& map, std::string_view key) {
  std::erase_if(map.entries, [&](const Entry& e) { return e.key == key; });
}

/// By stage of ZeRO, in the words of a rule, or one value.
void choose_stage(Node& strategy, int64_t stage) {
  Entry* e = strategy.find("data_parallel");
  if (!e || !e->value.is_map()) return;
  const Entry* chosen = e->value.find(fmt::format("{}", stage));
  if (chosen)
    e->value = Node(chosen->value);
  else
    remove(strategy, "data_parallel");
}

/// What has no effect, or contradicts what the job says, is not part of the framework's defaults for this job.
void drop_idle(Node& strategy, Node& training, const Node& job) {
  const auto effective = [&](const Node& defaults, std::string_view section, std::string_view key) {
    const std::string mine = said(job, section, key);
    return mine.empty() ? text_of(defaults, key) : mine;
  };
  const std::string kind = effective(strategy, "strategy", "data_parallel");
  if (kind != "fsdp" && kind != "fsdp2") remove(strategy, "fsdp");
  if (kind != "zero3") remove(strategy, "zero");
  if (kind == "zero1") remove(strategy, "overlap_grad_reduce");
  if (kind != "distributed_optimizer" || effective(strategy, "strategy", "overlap_grad_reduce") != "true")
    remove(strategy, "overlap_param_gather");
  if (effective(strategy, "strategy", "sequence_parallel") != "true")
    for (const char* key : {"tensor_overlap", "keep_gathered"}) remove(strategy, key);
  if (kind != "megatron" || effective(strategy, "strategy", "gradient_dtype") == "fp32")
    if (text_of(strategy, "gradient_copies") == "flat_step") remove(strategy, "gradient_copies");
  if (effective(training, "training", "loss") == "full_vocabulary") remove(training, "fused_loss");
  remove(strategy, "partition");  // of published rows: how layers that do not divide are split
}

/// Keys of `defaults` that `mine` has not, noted as "strategy.gradient_dtype fp16".
void fill(Node& mine, const Node& defaults, const std::string& path, std::string& noted) {
  for (const Entry& e : defaults.entries) {
    const std::string key = path + "." + e.key;
    Entry* written = mine.find(e.key);
    if (e.value.is_map()) {
      if (!written) {
        Node section;
        section.kind = Node::Kind::map;
        section.place = e.value.place;
        mine.set(e.key, std::move(section), e.place);
        written = mine.find(e.key);
      }
      if (written->value.is_map()) fill(written->value, e.value, key, noted);
    } else if (!written) {
      mine.set(e.key, e.value, e.place);
      noted += fmt::format("{}{} {}", noted.empty() ? "" : ", ", key, e.value.text);
    }
  }
}

std::optional<Node> load_rules(Diagnostics& errors) {
  const std::string path = find_data("data/validate", "frameworks");
  if (path.empty()) {
    errors.push_back({std::string(kFile), "not found", "set WINDTUNNEL_DATA"});
    return std::nullopt;
  }
  Result<std::string> text = read_file(path, tree::kMaxBytes);
  if (!text.ok()) {
    errors.insert(errors.end(), text.errors().begin(), text.errors().end());
    return std::nullopt;
  }
  Result<Node> root =
      tree::parse_yaml(text.value(), std::make_shared<const tree::Source>(tree::Source{std::string(kFile), "", false}));
  if (!root.ok()) {
    errors.insert(errors.end(), root.errors().begin(), root.errors().end());
    return std::nullopt;
  }
  if (!root.value().is_map() || !root.value().find("names") || !root.value().find("rules")) {
    errors.push_back({path, "has no list 'names' or 'rules'", ""});
    return std::nullopt;
  }
  return std::move(root.value());
}

Facts facts_of(const Node& job, const std::string& name, const Node& entry) {
  Facts f;
  f.name = name;
  f.words = text_of(entry, "words");
  const std::string precision = said(job, "training", "precision"), compute = said(job, "training", "compute_dtype");
  f.precision = !compute.empty() ? compute : !precision.empty() ? precision : "bf16";
  const std::string kind = said(job, "strategy", "data_parallel");
  f.fsdp = kind.empty() ? text_of(entry, "fsdp") == "true" : kind == "fsdp" || kind == "fsdp2";
  f.zero_stage = kind == "zero3" ? 3 : kind == "zero2" ? 2 : kind == "zero1" || kind == "distributed_optimizer" ? 1 : 0;
  return f;
}

}  // namespace

void apply_framework(Node& job, Faults& faults, Diagnostics& errors, std::vector<std::string>& assumptions) {
  const Entry* asked = job.find("framework");
  if (!asked) return;
  std::optional<Node> rules = load_rules(errors);
  if (!rules) return;
  const Node& names = rules->find("names")->value;
  const Entry* known = asked->value.is_scalar() ? names.find(asked->value.text) : nullptr;
  if (!known) {
    std::vector<std::string_view> legal;
    for (const Entry& e : names.entries) legal.push_back(e.key);
    const std::string word = asked->value.is_scalar() ? asked->value.text.substr(0, 60) : "";
    faults.push_back({asked->value.place, "framework",
                      word.empty() ? "is not a name" : fmt::format("unknown framework '{}'", word),
                      suggest(word, legal)});
    return;
  }
  const std::string name = known->key;
  const Facts facts = facts_of(job, name, known->value);

  Node defaults;
  defaults.kind = Node::Kind::map;
  std::string used;
  for (const Node& rule : rules->find("rules")->value.items) {
    if (!rule.is_map() || !rule_holds(facts, rule)) continue;
    if (rule.find("skip")) {
      faults.push_back({asked->value.place, "framework", text_of(rule, "skip"), ""});
      return;
    }
    if (const Entry* set = rule.find("set")) merge(defaults, set->value);
    used += fmt::format("{}{}", used.empty() ? "" : "; ", text_of(rule, "name"));
  }
  std::string noted;
  Node none;
  none.kind = Node::Kind::map;
  const Entry* s = defaults.find("strategy");
  const Entry* t = defaults.find("training");
  Node strategy = s ? s->value : none, training = t ? t->value : none;
  choose_stage(strategy, facts.zero_stage);
  if (Entry* e = strategy.find("gradient_dtype"); e && e->value.text == "compute")
    e->value.text = facts.precision == "fp8" ? "bf16" : facts.precision;
  drop_idle(strategy, training, job);
  for (auto& [section, values] : {std::pair<const char*, Node&>{"strategy", strategy}, {"training", training}}) {
    if (!job.find(section)) {
      if (values.entries.empty() || std::string_view(section) == "training") continue;  // its absence is a fault
      Node empty = none;
      empty.place = job.place;
      job.set(section, std::move(empty), job.place);
    }
    if (Node& mine = job.find(section)->value; mine.is_map()) fill(mine, values, section, noted);
  }
  assumptions.push_back(fmt::format("framework {}, where the job says nothing: {} ({}: {})", name,
                                    noted.empty() ? "nothing left open" : noted, kFile, used));
}

}  // namespace wt
