#include "study/validate_map.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <regex>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/lower/schedule.hpp"
#include "core/spec/data_dir.hpp"

namespace wt::study {

struct ValidateData::Impl {
  YAML::Node clusters, frameworks, memory_kinds;
};

namespace {

// ------------------------------------------------------------------------------------------------------- words

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// Lower case, every run of punctuation one blank, a blank at both ends.
std::string plain(std::string_view text) {
  std::string out = " ";
  for (const char raw : text) {
    const auto c = static_cast<unsigned char>(raw);
    if (std::isalnum(c))
      out += static_cast<char>(std::tolower(c));
    else if (out.back() != ' ')
      out += ' ';
  }
  if (out.back() != ' ') out += ' ';
  return out;
}

bool has(std::string_view text, std::string_view piece) { return lower(text).find(lower(piece)) != std::string::npos; }

/// A list in a data file, or its single value.
std::vector<std::string> texts(const YAML::Node& node) {
  std::vector<std::string> out;
  if (!node.IsDefined() || node.IsNull()) return out;
  if (node.IsScalar()) return {node.Scalar()};
  for (const auto& item : node) out.push_back(item.Scalar());
  return out;
}

std::string text_of(const YAML::Node& map, const char* key) {
  const YAML::Node value = map[key];
  return value.IsDefined() && value.IsScalar() ? value.Scalar() : "";
}

void merge(YAML::Node into, const YAML::Node& from) {
  for (const auto& entry : from) {
    const std::string key = entry.first.Scalar();
    if (entry.second.IsMap() && into[key].IsDefined() && into[key].IsMap())
      merge(into[key], entry.second);
    else
      into[key] = YAML::Clone(entry.second);
  }
}

std::string print(const YAML::Node& node) {
  YAML::Emitter out;
  out << node;
  return std::string(out.c_str()) + "\n";
}

std::string inline_text(YAML::Node node) {
  node = YAML::Clone(node);
  node.SetStyle(YAML::EmitterStyle::Flow);
  YAML::Emitter out;
  out << node;
  return out.c_str();
}

// ---------------------------------------------------------------------------------------------------- hardware

/// The `cluster` of a job without its network, or why there is none.
YAML::Node find_gpu(const Case& row, const YAML::Node& table, std::string& skip) {
  for (const YAML::Node& entry : table["gpus"]) {
    const auto all_in = [](const std::string& text, const std::vector<std::string>& words) {
      return std::all_of(words.begin(), words.end(), [&](const std::string& w) { return has(text, w); });
    };
    if (!all_in(row.gpu, texts(entry["words"])) || !all_in(row.inter, texts(entry["inter"]))) continue;
    if (entry["skip"].IsDefined()) {
      skip = entry["skip"].Scalar();
      return {};
    }
    return YAML::Clone(entry["cluster"]);
  }
  skip = fmt::format("GPU '{}' is not in data/validate/clusters.yaml", row.gpu);
  return {};
}

/// Networks that the row may have had; empty: that of the built-in cluster.
std::vector<YAML::Node> find_fabrics(const Case& row, const YAML::Node& table, int64_t gpus_per_node,
                                     std::vector<std::string>& assumptions) {
  if (row.inter.empty() || lower(row.inter) == "none") {
    assumptions.push_back("network not given: that of the built-in cluster");
    return {};
  }
  for (const YAML::Node& entry : table["fabrics"]) {
    const std::vector<std::string> words = texts(entry["words"]);
    if (!std::all_of(words.begin(), words.end(), [&](const std::string& w) { return has(row.inter, w); })) continue;
    if (entry["fabric"].IsDefined()) return {YAML::Clone(entry["fabric"])};
    std::vector<YAML::Node> plausible;
    for (const YAML::Node& fabric : entry["plausible"]) plausible.push_back(YAML::Clone(fabric));
    assumptions.push_back(fmt::format("network '{}': {} plausible ones tried", row.inter, plausible.size()));
    return plausible;
  }
  const auto nics = parse_nics(row.inter, gpus_per_node);
  std::string kind;
  for (const YAML::Node& entry : table["kinds"]) {
    if (!kind.empty()) break;
    const std::vector<std::string> words = texts(entry["words"]);
    if (std::all_of(words.begin(), words.end(), [&](const std::string& w) { return contains_words(row.inter, w); }))
      kind = text_of(entry, "kind");
  }
  if (!nics || kind.empty()) {
    assumptions.push_back(fmt::format("network '{}' not understood: that of the built-in cluster", row.inter));
    return {};
  }
  for (const char* doubt : {"assumed", "not stated", "class", "default", "not verified", "?"})
    if (has(row.inter, doubt)) {
      assumptions.push_back(fmt::format("network is not from the source: '{}'", row.inter));
      break;
    }
  YAML::Node fabric;
  fabric["kind"] = kind;
  fabric["nics_per_node"] = nics->nics_per_node;
  fabric["nic_bandwidth"] = fmt::format("{} Gb/s", nics->gigabits);
  return {fabric};
}

// ------------------------------------------------------------------------------------------------------- rules

bool condition_holds(const Case& row, const std::string& key, const YAML::Node& wanted) {
  const std::pair<const char*, const std::string*> fields[] = {
      {"framework", &row.framework}, {"precision", &row.precision},
      {"overlap", &row.overlap},     {"model", &row.model},
      {"recompute", &row.recompute}, {"gpu", &row.gpu},
      {"schedule", &row.schedule},   {"attention_kernel", &row.attention_kernel},
      {"where", &row.where},         {"notes", &row.notes}};
  for (const auto& [name, field] : fields)
    if (key == name) {
      const std::vector<std::string> pieces = texts(wanted);
      return std::any_of(pieces.begin(), pieces.end(), [&said = *field](const std::string& p) { return has(said, p); });
    }
  if (key == "fsdp") return wanted.as<bool>() == row.fsdp.value_or(false);
  if (key == "zero_stage") {
    const std::vector<std::string> stages = texts(wanted);
    return std::find(stages.begin(), stages.end(), fmt::format("{}", row.zero_stage.value_or(0))) != stages.end();
  }
  return false;
}

bool rule_holds(const Case& row, const YAML::Node& rule) {
  if (!rule["when"].IsDefined()) return true;
  for (const auto& condition : rule["when"])
    if (!condition_holds(row, condition.first.Scalar(), condition.second)) return false;
  return true;
}

/// What a row says against its own source's evidence, put right and named.
Case corrected(Case row, const YAML::Node& table, std::vector<std::string>& assumptions) {
  for (const YAML::Node& rule : table["corrections"]) {
    if (!rule_holds(row, rule)) continue;
    const auto name = [&](std::string_view key, const std::string& value) {
      assumptions.push_back(fmt::format("{} corrected to {}: {}", key, value, text_of(rule, "source")));
    };
    if (const std::string flash = text_of(rule["correct"], "flash_attention");
        !flash.empty() && flash != row.flash_attention) {
      row.flash_attention = flash;
      name("flash_attention", flash);
    }
    for (const auto& [key, member] : {std::pair{"gpus", &Case::gpus},
                                      {"tp", &Case::tp},
                                      {"pp", &Case::pp},
                                      {"vpp", &Case::vpp},
                                      {"micro", &Case::micro}}) {
      const std::string text = text_of(rule["correct"], key);
      const auto value = parse_int(text);
      if (!value || row.*member == *value) continue;
      row.*member = *value;
      row.dp = row.grad_accum = std::nullopt;  // what is left of the GPUs and of the batch
      name(key, text);
    }
  }
  return row;
}

/// Applies the rules in order to `job`; returns the reason of a rule that refuses the row.
std::string apply_rules(const Case& row, const YAML::Node& table, YAML::Node job,
                        std::vector<std::string>& assumptions) {
  std::string names;
  for (const YAML::Node& rule : table["rules"]) {
    if (!rule_holds(row, rule)) continue;
    if (rule["skip"].IsDefined()) return rule["skip"].Scalar();
    merge(job, rule["set"]);
    names += (names.empty() ? "" : ", ") + text_of(rule, "name");
  }
  assumptions.push_back("framework rules: " + names);
  return "";
}

// ------------------------------------------------------------------------------------------------- what is open

/// One thing that the row leaves open: how to write each of its values into a job.
struct Choice {
  std::string name;
  std::vector<std::string> values;
  std::function<void(YAML::Node job, const std::string& value)> apply;
};

enum class Recompute { none, selective, full, every_second, unknown, other };

Recompute recompute_of(const std::string& words) {
  const std::string w = lower(words);
  if (w.empty() || w.starts_with("unknown")) return Recompute::unknown;
  if (w.starts_with("none") || w == "false" || w == "no") return Recompute::none;
  if (w.starts_with("full")) return Recompute::full;
  if (w.find("every 2nd layer") != std::string::npos) return Recompute::every_second;
  if (w == "selective" || w.find("core_attn") != std::string::npos) return Recompute::selective;
  return Recompute::other;
}

/// Keeps what a rule says of checkpoints where there are any.
void set_recompute(YAML::Node job, const std::string& kind) {
  const std::string early = text_of(job["strategy"]["recompute"], "early_stop");
  job["strategy"]["recompute"] = YAML::Node();
  job["strategy"]["recompute"]["kind"] = kind;
  if (kind == "full" && !early.empty()) job["strategy"]["recompute"]["early_stop"] = early;
}

/// Flags that have no effect in the candidate, as the frameworks treat them: switched off, not refused.
void drop_idle_flags(YAML::Node strategy, int64_t data) {
  const std::string kind = text_of(strategy, "data_parallel");
  if (!strategy["sequence_parallel"].as<bool>()) strategy["tensor_overlap"] = strategy["keep_gathered"] = false;
  if (data == 1 || kind == "zero1") strategy["overlap_grad_reduce"] = false;
  if (kind != "fsdp" && kind != "fsdp2") strategy.remove("fsdp");
  if (kind != "zero3") strategy.remove("zero");
  if (data == 1 || kind != "distributed_optimizer" || text_of(strategy, "overlap_grad_reduce") != "true")
    strategy["overlap_param_gather"] = false;
}

/// Powers of two that divide what one replica gets of the global batch.
std::vector<std::string> plausible_micro_batches(int64_t per_replica) {
  std::vector<std::string> out;
  for (int64_t b = 1; b <= 16 && b <= per_replica; b *= 2)
    if (per_replica % b == 0) out.push_back(fmt::format("{}", b));
  return out;
}

std::vector<std::string> plausible_virtual_stages(int64_t layers, int64_t pipeline, bool must_interleave) {
  std::vector<std::string> all;
  if (layers % pipeline != 0) return {"1"};
  for (int64_t v = must_interleave ? 2 : 1; v <= layers / pipeline; ++v)
    if (layers / pipeline % v == 0) all.push_back(fmt::format("{}", v));
  if (all.empty()) all.push_back("1");
  if (all.size() > 3) all = {all.front(), all[all.size() / 2], all.back()};
  return all;
}

/// "bf16", "fp16" or "fp8": the dtype of products; "" where none of these is meant.
std::string precision_of(const std::string& words) {
  const std::string w = lower(words);
  for (const char* name : {"bf16", "fp16", "fp8"})
    if (w.starts_with(name)) return w.starts_with("fp8") || w.find("fp8") == std::string::npos ? name : "";
  return "";
}

/// How the words after "fp8" scale a tensor; Transformer Engine's own default is delayed scaling.
std::string fp8_recipe_of(const Case& row, std::vector<std::string>& assumptions) {
  const std::string w = lower(row.precision);
  for (const char* block : {"mxfp8", "block"})
    if (w.find(block) != std::string::npos) return "block";
  for (const char* dynamic : {"current", "tensorwise", "rowwise", "float8 linear"})
    if (w.find(dynamic) != std::string::npos) return "current";
  assumptions.push_back("fp8 recipe not given: delayed scaling");
  return "delayed";
}

/// What of a row's experts and latent attention cannot be run.
std::string experts_not_built(const Case& row) {
  if (!row.moe && row.ep.value_or(1) > 1) return "the experts are not published";
  if (row.mla && precision_of(row.precision) == "fp8") return "fp8 products of latent attention are not built yet";
  if (!row.moe) return "";
  if (row.moe->experts < 1 || row.moe->top_k < 1 || row.moe->ffn_hidden < 1) return "the experts are not published";
  if (row.fsdp.value_or(false) || row.zero_stage.value_or(0) >= 2) return "experts in sharded units are not built yet";
  return "";
}

/// Nodes of a job of several NVLink domains are placed in equal segments, each inside one domain: as many as divide them
/// (Megatron-Bridge scripts/performance/utils/executors.py, slurm_executor: --segment).
int64_t segment_of(int64_t nodes, int64_t most) {
  int64_t segment = std::max<int64_t>(1, most);
  while (nodes % segment != 0) --segment;
  return segment;
}

/// The rows that no engine of this version can run, by what they need.
std::string not_built(const Case& row) {
  if (!row.fault.empty()) return row.fault;
  if (row.tier == "D") return "tier D: not simulatable";
  if (!row.layers || !row.hidden || !row.heads || !row.vocab || !row.seq_len)
    return "the model's shape is not published";
  if (const std::string experts = experts_not_built(row); !experts.empty()) return experts;
  if (row.mtp_layers > 0) return "multi-token prediction is not built yet";
  if ((row.fsdp.value_or(false) || row.zero_stage.value_or(0) >= 2) && row.pp.value_or(1) > 1)
    return "sharded weights on pipeline stages are not built yet";
  if (row.cp.value_or(1) > 1 && (row.fsdp.value_or(false) || row.zero_stage.value_or(0) >= 2))
    return "sharded weights with context parallelism are not built yet";
  if (precision_of(row.precision).empty()) return fmt::format("precision '{}' is not built yet", row.precision);
  if (!row.task.empty() && row.task != "pretrain" && row.task != "sft")
    return fmt::format("task '{}' is not built yet", row.task);
  const std::string offload = lower(row.offload);
  if (!offload.empty() && offload != "none" && offload != "unknown")
    return fmt::format("offload ('{}') is not built yet", row.offload);
  if (recompute_of(row.recompute) == Recompute::other)
    return fmt::format("recompute '{}' is not built yet", row.recompute);
  return "";
}

/// The registry's name of the schedule that the words mean; "" if it has none.
std::string schedule_of(const Case& row) {
  const std::string w = lower(row.schedule);
  const bool interleaved = row.vpp.value_or(1) > 1 || w.find("interleaved") != std::string::npos;
  if (w.empty() || w.starts_with("none") || w.starts_with("1f1b")) return interleaved ? "interleaved" : "1f1b";
  if (w.starts_with("gpipe")) return "gpipe";
  // sail-sg's names for ZB-H1 and ZB-H2 (arXiv 2401.10241) and their V schedules; Primus runs the same code.
  static const std::pair<std::string_view, const char*> kNames[] = {
      {"zb-1p", "zb-h1"}, {"zb-2p", "zb-h2"}, {"zbb", "zb-h1"}, {"zbv", "zb-v"}};
  const std::string exact = w.substr(0, w.find(' '));
  for (const auto& [said, name] : kNames)
    if (exact == said) return name;
  return lower::find_schedule(exact) ? exact : "";
}

YAML::Node model_of(const Case& row, std::vector<std::string>& assumptions) {
  YAML::Node m;
  const int64_t heads = *row.heads;
  m["name"] = row.model.empty() ? row.id : row.model;
  m["layers"] = *row.layers;
  m["hidden"] = *row.hidden;
  const bool gated = row.gated_mlp.value_or(false);
  if (row.ffn_hidden)
    m["ffn_hidden"] = *row.ffn_hidden;
  else {
    m["ffn_hidden"] = 4 * *row.hidden;
    assumptions.push_back("ffn_hidden not given: 4 x hidden");
  }
  m["heads"] = heads;
  m["kv_heads"] = row.kv_heads.value_or(heads);
  m["head_dim"] = row.head_dim.value_or(*row.hidden / heads);
  if (row.mla) {
    m["kv_heads"] = heads;
    m["head_dim"] = row.mla->qk_nope_head_dim + row.mla->qk_rope_head_dim;
    m["mla"]["q_lora_rank"] = row.mla->q_lora_rank;
    m["mla"]["kv_lora_rank"] = row.mla->kv_lora_rank;
    m["mla"]["qk_nope_head_dim"] = row.mla->qk_nope_head_dim;
    m["mla"]["qk_rope_head_dim"] = row.mla->qk_rope_head_dim;
    m["mla"]["v_head_dim"] = row.mla->v_head_dim;
  }
  if (row.moe) {
    m["moe"]["experts"] = row.moe->experts;
    m["moe"]["top_k"] = row.moe->top_k;
    m["moe"]["ffn_hidden"] = row.moe->ffn_hidden;
    m["moe"]["shared_ffn_hidden"] = row.moe->shared_ffn_hidden;
    m["moe"]["first_dense_layers"] = row.moe->first_dense_layers;
    m["moe"]["layer_period"] = row.moe->layer_period;
  }
  m["vocab"] = *row.vocab;
  m["max_context"] = *row.seq_len;
  m["gated_mlp"] = gated;
  m["activation"] = gated ? "silu" : "gelu";
  m["norm"] = gated ? "rms_norm" : "layer_norm";
  m["position"] = has(row.attention, "alibi") ? "alibi" : gated || has(row.attention, "rotary") ? "rotary" : "learned";
  m["tied_embeddings"] = row.tied_embeddings.value_or(!gated);
  for (const char* key : {"attention_bias", "output_bias", "mlp_bias"}) m[key] = !gated;
  if (has(row.attention, "parallel residual")) m["parallel_block"] = true;
  if (has(row.attention, "bidirectional")) m["causal"] = false;
  return m;
}

/// Layers that do not divide over the stages: Megatron and DeepSpeed then count the embedding and the head as layers.
void split_layers(const Case& row, YAML::Node strategy, int64_t stages, bool balanced,
                  std::vector<std::string>& assumptions) {
  const int64_t layers = *row.layers;
  const int64_t pipeline = strategy["pipeline"].as<int64_t>();
  if (layers % stages == 0) return;
  if ((layers + 2) % stages == 0) {
    strategy["account_for_embedding"] = true;
    strategy["account_for_loss"] = true;
    assumptions.push_back(
        fmt::format("{} layers on {} stages: embedding and head count as a layer each", layers, stages));
  } else if ((layers + 1) % stages == 0) {
    strategy["account_for_embedding"] = true;
    assumptions.push_back(fmt::format("{} layers on {} stages: the embedding counts as a layer", layers, stages));
  } else if (balanced && stages == pipeline && pipeline > 2) {
    const int64_t most = (layers + 2 + pipeline - 1) / pipeline, first = most - 1,
                  last = layers - first - (pipeline - 2) * most;
    if (last < 1) return;
    strategy["first_stage_layers"] = first;
    strategy["last_stage_layers"] = last;
    assumptions.push_back(
        fmt::format("{} layers on {} stages: {} each, {} first, {} last (DeepSpeed's balanced partition)", layers,
                    stages, most, first, last));
  }
}

}  // namespace

bool contains_words(std::string_view text, std::string_view words) {
  return plain(text).find(plain(words)) != std::string::npos;
}

std::optional<NicPhrase> parse_nics(std::string_view phrase, int64_t gpus_per_node) {
  // Bytes to bits before case is lost, terabits to gigabits.
  std::string text = std::regex_replace(std::string(phrase), std::regex("GB/s"), "gigabyte");
  text = lower(text);
  std::smatch match;
  const std::string unit = "(?:gb/s|gbps|gbit/s|gbe|g\\b)";
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*x\\s*(?:[a-z0-9-]*[a-z][a-z0-9-]*\\s+)*(\\d+)\\s*" + unit)))
    return NicPhrase{std::stoll(match[1]), std::stod(match[2])};
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*x\\s*(?:cx-?\\d\\s+)?(edr|hdr|ndr|xdr)(\\d*)"))) {
    const double port = match[3].length()   ? std::stod(match[3])
                        : match[2] == "edr" ? 100
                        : match[2] == "hdr" ? 200
                        : match[2] == "ndr" ? 400
                                            : 800;
    return NicPhrase{std::stoll(match[1]), port};
  }
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*" + unit + "[^,;]*per gpu")))
    return NicPhrase{gpus_per_node, std::stod(match[1])};
  if (std::regex_search(text, match, std::regex("(\\d+(?:\\.\\d+)?)\\s*(gb/s|gbps|gbit/s|tb/s|tbps)[^,;]*per node"))) {
    const double total = std::stod(match[1]) * (match[2].str().starts_with("t") ? 1000 : 1);
    const int64_t nics = total > 800 ? 8 : 4;  // no node carries eight NICs below 100 Gb/s
    return NicPhrase{nics, total / static_cast<double>(nics)};
  }
  return std::nullopt;
}

Result<ValidateData> ValidateData::load(const std::string& directory) {
  auto impl = std::make_shared<Impl>();
  Diagnostics errors;
  const auto read = [&](const char* name, const char* list, YAML::Node& into) {
    const std::string path = directory.empty() ? find_data("data/validate", name) : directory + "/" + name + ".yaml";
    if (path.empty()) {
      errors.push_back({fmt::format("data/validate/{}.yaml", name), "not found", "set WINDTUNNEL_DATA"});
      return;
    }
    auto text = read_file(path);
    if (!text) {
      errors.insert(errors.end(), text.errors().begin(), text.errors().end());
      return;
    }
    try {
      into = YAML::Load(text.value());
      if (!into.IsMap() || !into[list].IsDefined() || !into[list].IsSequence())
        errors.push_back({path, fmt::format("has no list '{}'", list), ""});
    } catch (const YAML::Exception& e) {
      errors.push_back({fmt::format("{}:{}:{}", path, e.mark.line + 1, e.mark.column + 1), e.msg, ""});
    }
  };
  read("clusters", "gpus", impl->clusters);
  read("frameworks", "rules", impl->frameworks);
  read("memory_kinds", "kinds", impl->memory_kinds);
  if (!errors.empty()) return errors;
  ValidateData data;
  data.impl_ = std::move(impl);
  return data;
}

MemoryKind memory_kind_of(const Case& row, const ValidateData& data) {
  const YAML::Node& table = data.impl().memory_kinds;
  YAML::Node found;
  found.reset(table["default"]);
  for (const YAML::Node& entry : table["kinds"]) {
    const auto agrees = [&](const char* key, const std::string& field) {
      return !entry[key].IsDefined() || has(field, entry[key].Scalar());
    };
    if (agrees("where", row.where) && agrees("title", row.title) && agrees("framework", row.framework)) {
      found.reset(entry);  // an assignment would write the entry over the table's default
      break;
    }
  }
  MemoryKind kind;
  if (!found.IsDefined() || !found.IsMap()) return kind;
  kind.kind = text_of(found, "kind");
  kind.unit_gib = text_of(found, "unit") == "GB" ? 1e9 / 1073741824.0 : 1;
  return kind;
}

namespace {

Mapping map_checked(const Case& published, const ValidateData::Impl& data) {
  Mapping out;
  const Case row = corrected(published, data.frameworks, out.assumptions);
  out.skip = not_built(row);
  if (!out.skip.empty()) return out;

  if (row.task == "sft")
    out.assumptions.push_back("supervised fine-tuning of all weights: as pre-training, sequences full");

  // --- degrees: one unknown follows from the others
  std::optional<int64_t> tp = row.tp, pp = row.pp, dp = row.dp;
  if (!row.gpus) {
    out.skip = "the number of GPUs is not published";
    return out;
  }
  const int unknown = !tp + !pp + !dp;
  if (unknown > 1) {
    out.skip = "two or more parallel degrees are not published";
    return out;
  }
  const int64_t cp = row.cp.value_or(1);
  const int64_t product = tp.value_or(1) * pp.value_or(1) * dp.value_or(1) * cp;
  if (*row.gpus % product != 0 || (unknown == 0 && product != *row.gpus)) {
    out.skip = fmt::format("tp x pp x dp{} = {} does not give {} GPUs", cp > 1 ? " x cp" : "", product, *row.gpus);
    return out;
  }
  for (auto [degree, name] : {std::pair{&tp, "tp"}, {&pp, "pp"}, {&dp, "dp"}})
    if (!*degree) {
      *degree = *row.gpus / product;
      out.assumptions.push_back(fmt::format("{} not given: {} is what is left of {} GPUs", name, **degree, *row.gpus));
    }

  // --- cluster
  const YAML::Node gpu = find_gpu(row, data.clusters, out.skip);
  if (!out.skip.empty()) return out;
  const int64_t per_node = std::min(row.gpus_per_node.value_or(8), *row.gpus);
  if (*row.gpus % per_node != 0) {
    out.skip = fmt::format("{} GPUs do not fill nodes of {}", *row.gpus, per_node);
    return out;
  }
  const int64_t nodes = *row.gpus / per_node;
  std::vector<YAML::Node> fabrics;
  if (nodes > 1 && *row.gpus > row.nvlink_domain.value_or(0))
    fabrics = find_fabrics(row, data.clusters, row.gpus_per_node.value_or(8), out.assumptions);

  // --- the job
  YAML::Node job;
  job["name"] = row.id;
  job["model"] = model_of(row, out.assumptions);
  job["cluster"] = gpu;
  job["cluster"]["nodes"] = nodes;
  job["cluster"]["node"]["devices"] = per_node;
  if (fabrics.size() == 1) job["cluster"]["fabric"] = fabrics.front();
  if (const int64_t whole = row.nvlink_domain.value_or(0); whole > per_node && *row.gpus > whole) {
    const int64_t segment = segment_of(nodes, whole / per_node);
    job["cluster"]["node"]["scale_up"]["domain"] = segment * per_node;
    out.assumptions.push_back(fmt::format("placed in segments of {} nodes, each in one NVLink domain", segment));
  }
  YAML::Node strategy, training;
  strategy["tensor"] = *tp;
  strategy["pipeline"] = *pp;
  if (cp > 1) strategy["context"] = cp;
  strategy["sequence_parallel"] = row.sp.value_or(false) && *tp > 1;
  if (row.moe) {
    strategy["expert"] = row.ep.value_or(1);
    const int64_t stage = *row.gpus / *pp, each = row.ep.value_or(1);
    if (row.etp) {
      strategy["experts"]["tensor"] = *row.etp;
    } else if (*tp > 1 && stage % (each * *tp) != 0) {
      strategy["experts"]["tensor"] = 1;
      out.assumptions.push_back("experts are not cut: their tensor degree is not given, and tp would not fit");
    }
    if (*tp > 1 && !row.sp.value_or(false)) {
      strategy["sequence_parallel"] = true;
      out.assumptions.push_back("sequence parallelism: Megatron trains experts with tensor parallelism only with it");
    }
    out.assumptions.push_back("every expert gets as many tokens as any other");
  }
  training["seq_len"] = *row.seq_len;
  training["precision"] = precision_of(row.precision);
  if (training["precision"].Scalar() == "fp8") training["fp8_recipe"] = fp8_recipe_of(row, out.assumptions);
  job["strategy"] = strategy;
  job["training"] = training;
  out.skip = apply_rules(row, data.frameworks, job, out.assumptions);
  if (!out.skip.empty()) return out;

  // --- what only the row decides
  const std::string zero = fmt::format("{}", row.zero_stage.value_or(0));
  YAML::Node by_stage;
  if (strategy["data_parallel"].IsMap()) {
    by_stage = YAML::Clone(strategy["data_parallel"]);
    strategy["data_parallel"] = by_stage[zero].IsDefined() ? by_stage[zero].Scalar() : "megatron";
  }
  // A shard group smaller than the data-parallel ranks: copies of the model, each cut within its group.
  const std::string kind = text_of(strategy, "data_parallel");
  if ((kind == "fsdp" || kind == "fsdp2") && !row.hybrid_shard.empty() &&
      row.hybrid_shard.find_first_not_of("0123456789") == std::string::npos) {
    const int64_t group = std::stoll(row.hybrid_shard.substr(0, 9));
    if (group > 1 && group < *dp) {
      strategy["fsdp"]["sharding"] = "hybrid_shard";
      strategy["fsdp"]["shard_size"] = group;
    }
  }
  if (text_of(strategy, "gradient_dtype") == "compute")
    strategy["gradient_dtype"] = training["precision"].Scalar() == "fp16" ? "fp16" : "bf16";
  const bool balanced = text_of(strategy, "partition") == "balanced";
  strategy.remove("partition");
  if (lower(row.flash_attention) == "true")
    strategy["attention"] = "flash";
  else if (lower(row.flash_attention) == "false")
    strategy["attention"] = "unfused";
  else
    out.assumptions.push_back(fmt::format("attention kernel not given: {}", text_of(strategy, "attention")));
  const std::string schedule = schedule_of(row);
  if (schedule.empty()) {
    out.skip = fmt::format("schedule '{}' is not built yet", row.schedule);
    return out;
  }
  strategy["schedule"] = schedule == "interleaved" ? "1f1b" : schedule;
  const bool on_a_v = lower::find_schedule(schedule)->placement == plan::PlacementKind::zigzag;

  std::vector<Choice> open;
  if (on_a_v) {
    strategy["virtual_stages"] = 2;
  } else if (*pp > 1 && (!row.vpp || row.unknown("vpp"))) {
    const bool says_interleaved = has(row.schedule, "interleaved") || has(row.schedule, "interleaving");
    if (says_interleaved || row.unknown("vpp"))
      open.push_back({"virtual_stages", plausible_virtual_stages(*row.layers, *pp, schedule == "interleaved"),
                      [](YAML::Node j, const std::string& v) {
                        j["strategy"]["virtual_stages"] = v;
                        j["strategy"]["schedule"] = v == "1" ? "1f1b" : "interleaved";
                      }});
  } else if (*pp > 1 && row.vpp.value_or(1) > 1) {
    strategy["virtual_stages"] = *row.vpp;
    strategy["schedule"] = "interleaved";
  }
  split_layers(row, strategy, *pp * (row.vpp && *pp > 1 ? *row.vpp : 1), balanced, out.assumptions);

  std::optional<int64_t> micro = row.micro, global = row.global;
  if (!micro && global && row.grad_accum && *global % (*dp * *row.grad_accum) == 0)
    micro = *global / (*dp * *row.grad_accum);
  if (!global && micro && row.grad_accum) global = *micro * *dp * *row.grad_accum;
  std::vector<int64_t> globals;
  if (global)
    globals = {*global};
  else {
    for (const int64_t rounds : {2, 4, 8}) globals.push_back(*dp * *pp * rounds * micro.value_or(1));
    out.assumptions.push_back("global batch not given: 2, 4 and 8 micro-batches for each stage tried");
  }
  if (!micro) {
    const int64_t per_replica = globals.front() / *dp;
    open.push_back({"micro_batch", global ? plausible_micro_batches(per_replica) : std::vector<std::string>{"1", "2"},
                    [](YAML::Node j, const std::string& v) { j["training"]["micro_batch"] = v; }});
  } else {
    training["micro_batch"] = *micro;
  }
  const bool flash = text_of(strategy, "attention") == "flash";
  switch (recompute_of(row.recompute)) {
    case Recompute::none: set_recompute(job, "none"); break;
    case Recompute::selective: set_recompute(job, "selective"); break;
    case Recompute::full: set_recompute(job, "full"); break;
    case Recompute::every_second:
      set_recompute(job, "full");
      job["strategy"]["recompute"]["method"] = "block";
      job["strategy"]["recompute"]["layers"] = std::max<int64_t>(1, *row.layers / 2);
      out.assumptions.push_back("every 2nd layer recomputed: planned as the first half of them");
      break;
    default:
      open.push_back(
          {"recompute",
           flash ? std::vector<std::string>{"none", "full"} : std::vector<std::string>{"none", "selective", "full"},
           set_recompute});
  }
  if (row.unknown("zero_stage") && *dp > 1 && by_stage.IsMap())
    open.push_back({"zero_stage", {"0", "1"}, [by_stage](YAML::Node j, const std::string& v) {
                      const YAML::Node& stages = by_stage;
                      if (stages[v].IsDefined()) j["strategy"]["data_parallel"] = stages[v].Scalar();
                    }});
  if (fabrics.size() > 1) {
    std::vector<std::string> values;
    for (const YAML::Node& fabric : fabrics) values.push_back(inline_text(fabric));
    open.push_back(
        {"fabric", values, [](YAML::Node j, const std::string& v) { j["cluster"]["fabric"] = YAML::Load(v); }});
  }
  if (row.unknown("vocab")) out.assumptions.push_back(fmt::format("vocabulary not in the source: {}", *row.vocab));

  for (const Choice& choice : open)
    if (choice.values.empty()) {
      out.skip = fmt::format("no plausible {}", choice.name);
      return out;
    } else {
      out.assumptions.push_back(fmt::format("{} not given: {} tried", choice.name, fmt::join(choice.values, ", ")));
    }

  // --- every combination
  std::vector<size_t> digit(open.size(), 0);
  for (bool more = true; more;) {
    for (const int64_t g : globals) {
      YAML::Node one = YAML::Clone(job);
      std::string label;
      for (size_t i = 0; i < open.size(); ++i) {
        open[i].apply(one, open[i].values[digit[i]]);
        label += fmt::format("{}{} {}", label.empty() ? "" : ", ", open[i].name, open[i].values[digit[i]]);
      }
      if (globals.size() > 1) label += fmt::format("{}global_batch {}", label.empty() ? "" : ", ", g);
      one["training"]["global_batch"] = g;
      drop_idle_flags(one["strategy"], *dp);
      out.candidates.push_back({label, print(one), g});
    }
    more = false;
    for (size_t i = 0; i < open.size() && !more; ++i) {
      if (++digit[i] < open[i].values.size())
        more = true;
      else
        digit[i] = 0;
    }
  }
  return out;
}

}  // namespace

Mapping map_case(const Case& row, const ValidateData& data) {
  try {
    return map_checked(row, data.impl());
  } catch (const YAML::Exception& e) {  // a table of data/validate with the wrong shape
    Mapping out;
    out.skip = std::string("data/validate: ") + e.what();
    return out;
  }
}

}  // namespace wt::study
