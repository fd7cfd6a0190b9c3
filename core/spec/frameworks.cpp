#include "core/spec/frameworks.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "core/spec/framework_rules.hpp"

namespace wt {

using tree::Entry;
using tree::Node;

namespace {

/// The text of section.key in the job; "" where it says nothing.
std::string said(const Node& job, std::string_view section, std::string_view key) {
  const Entry* e = job.find(section);
  return e && e->value.is_map() ? scalar_of(e->value, key) : "";
}

/// bf16, fp16, fp8 or fp32: the dtype of the job's products.
std::string precision_of(const Node& job) {
  const std::string precision = said(job, "training", "precision"), compute = said(job, "training", "compute_dtype");
  return !compute.empty() ? compute : !precision.empty() ? precision : "bf16";
}

/// "none", "selective" or "full"; "" where the job says nothing.
std::string recompute_of(const Node& job) {
  const Entry* strategy = job.find("strategy");
  const Entry* e = strategy && strategy->value.is_map() ? strategy->value.find("recompute") : nullptr;
  if (!e) return "";
  return e->value.is_map() ? scalar_of(e->value, "kind") : e->value.text;
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
    return mine.empty() ? scalar_of(defaults, key) : mine;
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
    if (scalar_of(strategy, "gradient_copies") == "flat_step") remove(strategy, "gradient_copies");
  if (effective(training, "training", "loss") == "full_vocabulary") remove(training, "fused_loss");
  if (kind != "megatron" && kind != "ddp" && kind != "distributed_optimizer") remove(training, "fp8_params");
  if (recompute_of(job) != "full") remove(strategy, "recompute");  // how the blocks are recomputed
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

/// A run that the job names, described by its framework's words and by the job itself.
RunDescription named_run(const Node& job, const std::string& name, const Node& entry) {
  RunDescription run;
  run.words["job"] = name;
  run.words["framework"] = scalar_of(entry, "words");
  run.words["precision"] = precision_of(job);
  if (const std::string recompute = recompute_of(job); !recompute.empty()) run.words["recompute"] = recompute;
  const std::string kind = said(job, "strategy", "data_parallel");
  run.fsdp = kind.empty() ? scalar_of(entry, "fsdp") == "true" : kind == "fsdp" || kind == "fsdp2";
  run.zero_stage = kind == "zero3"                                      ? 3
                   : kind == "zero2"                                    ? 2
                   : kind == "zero1" || kind == "distributed_optimizer" ? 1
                                                                        : 0;
  return run;
}

constexpr std::array<std::string_view, 12> kDescription = {"words",     "precision", "overlap",  "model",
                                                           "recompute", "gpu",       "schedule", "attention_kernel",
                                                           "where",     "notes",     "fsdp",     "zero_stage"};

/// A run that the job describes itself: what it does not say there is not known of it.
RunDescription described_run(const Node& job, const Node& given, Faults& faults) {
  RunDescription run;
  run.words["precision"] = precision_of(job);
  if (const std::string recompute = recompute_of(job); !recompute.empty()) run.words["recompute"] = recompute;
  for (const Entry& e : given.entries) {
    const std::string path = "framework." + e.key.substr(0, 60);
    if (std::find(kDescription.begin(), kDescription.end(), e.key) == kDescription.end()) {
      faults.push_back({e.place, path, "unknown key", suggest(e.key, kDescription)});
    } else if (!e.value.is_scalar()) {
      faults.push_back({e.value.place, path, "is not a text", ""});
    } else if (e.key == "fsdp") {
      if (e.value.text != "true" && e.value.text != "false")
        faults.push_back({e.value.place, path, "is neither true nor false", ""});
      run.fsdp = e.value.text == "true";
    } else if (e.key == "zero_stage") {
      if (e.value.text.size() != 1 || e.value.text < "0" || e.value.text > "3")
        faults.push_back({e.value.place, path, "is not a stage of ZeRO", "legal: 0, 1, 2, 3"});
      else
        run.zero_stage = e.value.text[0] - '0';
    } else {
      run.words[e.key == "words" ? "framework" : e.key] = e.value.text;
    }
  }
  if (!given.find("words"))
    faults.push_back(
        {given.place, "framework", "missing key 'words'", "how the framework is called, with its version"});
  return run;
}

/// What the job says of its framework; nothing where it says it wrongly.
std::optional<RunDescription> run_of(const Node& job, const Entry& asked, const Node& rules, Faults& faults) {
  const Node& value = asked.value;
  if (value.is_map()) {
    const size_t before = faults.size();
    RunDescription run = described_run(job, value, faults);
    return faults.size() == before ? std::optional(std::move(run)) : std::nullopt;
  }
  const Node& names = rules.find("names")->value;
  const Entry* known = value.is_scalar() ? names.find(value.text) : nullptr;
  if (known) return named_run(job, known->key, known->value);
  std::vector<std::string_view> legal;
  for (const Entry& e : names.entries) legal.push_back(e.key);
  const std::string word = value.is_scalar() ? value.text.substr(0, 60) : "";
  faults.push_back({value.place, "framework",
                    word.empty() ? "is not a name" : fmt::format("unknown framework '{}'", word),
                    suggest(word, legal)});
  return std::nullopt;
}

/// Lays `values` under the section of that name; a section that is a name stays as it is.
void fill_section(Node& job, const char* section, const Node& values, std::string& noted) {
  if (values.entries.empty()) return;
  if (!job.find(section)) {
    if (std::string_view(section) != "strategy") return;  // its absence is a fault
    Node empty;
    empty.kind = Node::Kind::map;
    empty.place = job.place;
    job.set(section, std::move(empty), job.place);
  }
  Node& mine = job.find(section)->value;
  if (!mine.is_map()) return;
  if (Entry* e = mine.find("recompute"); e && e->value.is_scalar()) {  // "full" is short for a section with that kind
    Node spelled_out;
    spelled_out.kind = Node::Kind::map;
    spelled_out.place = e->value.place;
    spelled_out.set("kind", e->value, e->place);
    e->value = std::move(spelled_out);
  }
  fill(mine, values, section, noted);
}

}  // namespace

void apply_framework(Node& job, Faults& faults, Diagnostics& errors, std::vector<std::string>& assumptions) {
  const Entry* asked = job.find("framework");
  if (!asked) return;
  const auto rules = framework_rules();
  if (!rules.ok()) {
    errors.insert(errors.end(), rules.errors().begin(), rules.errors().end());
    return;
  }
  const std::optional<RunDescription> run = run_of(job, *asked, *rules.value(), faults);
  if (!run) return;
  FrameworkDefaults defaults = framework_defaults(*rules.value(), *run);
  if (!defaults.skip.empty()) {
    faults.push_back({asked->value.place, "framework", defaults.skip, ""});
    return;
  }

  const auto section = [&](std::string_view name) {
    Node none;
    none.kind = Node::Kind::map;
    const Entry* e = defaults.set.find(name);
    return e ? e->value : none;
  };
  Node strategy = section("strategy"), training = section("training");
  choose_stage(strategy, run->zero_stage);
  if (Entry* e = strategy.find("gradient_dtype"); e && e->value.text == "compute") {
    const std::string precision = precision_of(job);
    e->value.text = precision == "fp8" ? "bf16" : precision;
  }
  drop_idle(strategy, training, job);
  const std::string name = asked->value.is_map() ? run->words.at("framework") : asked->value.text;
  std::string noted;
  fill_section(job, "strategy", strategy, noted);
  fill_section(job, "training", training, noted);
  fill_section(job, "cluster", section("cluster"), noted);
  assumptions.push_back(fmt::format("framework {}, where the job says nothing: {} ({}: {})", name,
                                    noted.empty() ? "nothing left open" : noted, kFrameworkRulesFile,
                                    fmt::join(defaults.rules, "; ")));
}

}  // namespace wt
