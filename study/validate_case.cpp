#include "study/validate_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/spec/tree.hpp"

namespace wt::study {
namespace {

using tree::Node;

constexpr tree::Limits kLimits{.nodes = 10'000'000, .bytes = int64_t{64} << 20};
constexpr int64_t kLargestCount = int64_t{1} << 40;  // of anything in a row: layers, ranks, tokens

/// How sources say that they do not say.
bool is_unknown_word(const Node& node) {
  static const std::set<std::string> kWords = {"unknown", "n/a", "na", "none", "?", "not stated", "not given", "auto"};
  return node.is_scalar() && kWords.contains(node.text);
}

bool is_null(const Node* node) {
  return !node || node->kind == Node::Kind::null || (node->is_scalar() && (node->text == "null" || node->text == "~"));
}

/// Lists of words ("recompute: [norm, act]") as one text.
std::string text_of(const Node* node) {
  if (is_null(node)) return "";
  if (node->is_scalar()) return node->text;
  if (node->is_map()) return "{...}";
  std::string out;
  for (const Node& item : node->items) out += (out.empty() ? "" : ", ") + (item.is_scalar() ? item.text : "...");
  return out;
}

/// Reads one map of a row: every key that is asked for is ticked off, the rest is reported as unknown.
class Section {
 public:
  Section(Case& row, const Node* node, std::string path) : row_(row), node_(node), path_(std::move(path)) {
    if (is_null(node_))
      node_ = nullptr;
    else if (!node_->is_map())
      fault(*node_, "is not a map");
  }

  std::string text(const char* key) { return text_of(get(key)); }

  std::optional<int64_t> count(const char* key, int64_t least = 1) {
    const Node* value = get(key);
    if (is_null(value) || is_unknown_word(*value)) return std::nullopt;
    const auto n = value->is_scalar() ? parse_int(value->text) : std::nullopt;
    if (!n || *n < least || *n > kLargestCount) {
      fault(*value, fmt::format("{}: '{}' is not a whole number of {} or more", key, text_of(value), least));
      return std::nullopt;
    }
    return n;
  }

  std::optional<double> number(const char* key) {
    const Node* value = get(key);
    if (is_null(value) || is_unknown_word(*value)) return std::nullopt;
    const auto x = value->is_scalar() ? parse_double(value->text) : std::nullopt;
    if (!x || *x <= 0) {
      fault(*value, fmt::format("{}: '{}' is not a number above 0", key, text_of(value)));
      return std::nullopt;
    }
    return x;
  }

  /// "unknown" and other words are no answer.
  std::optional<bool> flag(const char* key) {
    const std::string word = text(key);
    if (word == "true" || word == "True" || word == "yes") return true;
    if (word == "false" || word == "False" || word == "no") return false;
    return std::nullopt;
  }

  bool present(const char* key) {
    const Node* value = get(key);
    return !is_null(value) && text_of(value) != "false";
  }

  /// Null when the row does not have it.
  const Node* get(const char* key) {
    known_.insert(key);
    const tree::Entry* entry = node_ ? node_->find(key) : nullptr;
    return entry ? &entry->value : nullptr;
  }

  void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

  void report_unknown(std::map<std::string, int>& unknown) const {
    if (!node_) return;
    for (const tree::Entry& entry : node_->entries)
      if (!known_.contains(entry.key))
        unknown.try_emplace(path_.empty() ? entry.key : path_ + "." + entry.key, entry.place.line);
  }

 private:
  void fault(const Node& at, const std::string& what) {
    if (row_.fault.empty())
      row_.fault = fmt::format("line {}: {}{}", at.place.line, path_.empty() ? "" : path_ + ".", what);
  }

  Case& row_;
  const Node* node_;
  std::string path_;
  std::set<std::string> known_;
};

void read_measured(Section& section, Case& row) {
  static constexpr const char* kKeys[] = {"step_time_s",
                                          "step_time_s_derived",
                                          "tokens_per_s",
                                          "tokens_per_s_per_gpu",
                                          "tokens_per_s_per_gpu_derived",
                                          "samples_per_s",
                                          "samples_per_s_per_gpu",
                                          "tflops_per_gpu",
                                          "tflops_without_cp",
                                          "mfu",
                                          "hfu",
                                          "memory_gb",
                                          "memory_gb_activations",
                                          "memory_gb_model_states"};
  for (const char* key : kKeys)
    if (const auto x = section.number(key)) row.measured[key] = *x;
  const Node* derived = section.get("derived");
  if (is_null(derived)) return;
  Section inner(row, derived, "measured.derived");
  for (const char* key : {"step_time_s_if_full", "step_time_s_if_causal"})
    if (const auto x = inner.number(key)) row.measured[std::string("derived.") + key] = *x;
}

MoeSpec read_experts(Section& section) {
  MoeSpec m;
  m.experts = section.count("experts").value_or(0);
  m.top_k = section.count("topk").value_or(0);
  m.ffn_hidden = section.count("expert_ffn").value_or(0);
  m.first_dense_layers = section.count("dense_layers", 0).value_or(0);
  m.layer_period = section.flag("dense_every_other").value_or(false) ? 2 : 1;
  const int64_t shared = section.count("shared", 0).value_or(0);  // so many of the width of one expert
  m.shared_ffn_hidden = section.count("shared_ffn", 0).value_or(shared * m.ffn_hidden);
  return m;
}

Case read_row(const Node& node, std::map<std::string, int>& unknown) {
  Case row;
  row.line = node.place.line;
  Section top(row, &node, "");
  row.id = top.text("id");
  row.group = top.text("group");
  row.tier = top.text("tier");
  row.cluster = top.text("cluster");
  row.task = top.text("task");
  row.notes = top.text("notes");
  top.ignore({"confidence", "n_params"});

  Section source(row, top.get("source"), "source");
  row.title = source.text("title");
  row.where = source.text("where");
  row.year = source.count("year").value_or(0);

  Section model(row, top.get("model"), "model");
  row.model = model.text("name");
  row.attention = model.text("attention");
  row.layers = model.count("layers");
  row.hidden = model.count("hidden");
  row.ffn_hidden = model.count("ffn_hidden");
  row.heads = model.count("heads");
  row.kv_heads = model.count("kv_heads");
  row.head_dim = model.count("head_dim");
  row.vocab = model.count("vocab");
  row.seq_len = model.count("seq_len");
  row.gated_mlp = model.flag("gated_mlp");
  row.tied_embeddings = model.flag("tied_embeddings");
  Section moe(row, model.present("moe") ? model.get("moe") : nullptr, "model.moe"),
      mla(row, model.present("mla") ? model.get("mla") : nullptr, "model.mla");
  if (model.present("moe")) row.moe = read_experts(moe);
  if (model.present("mla")) {
    MlaSpec m;
    m.q_lora_rank = mla.count("q_lora").value_or(0);
    m.kv_lora_rank = mla.count("kv_lora").value_or(0);
    m.qk_nope_head_dim = mla.count("qk_nope").value_or(0);
    m.qk_rope_head_dim = mla.count("qk_rope").value_or(0);
    m.v_head_dim = mla.count("v_head").value_or(0);
    row.mla = m;
  }
  row.mtp_layers = model.count("mtp_layers", 0).value_or(0);

  Section hardware(row, top.get("hardware"), "hardware");
  row.gpu = hardware.text("gpu");
  row.intra = hardware.text("intra");
  row.inter = hardware.text("inter");
  row.gpus = hardware.count("gpus_total");
  row.gpus_per_node = hardware.count("gpus_per_node");
  row.nvlink_domain = hardware.count("nvlink_domain");
  row.memory_gb = hardware.number("mem_gb");
  row.power_limit_w = hardware.number("power_limit_w");
  row.memory_bandwidth_tb_s = hardware.number("hbm_tb_s");
  hardware.ignore({"peak_bf16", "peak_fp8", "peak_fp4"});

  Section parallel(row, top.get("parallel"), "parallel");
  row.tp = parallel.count("tp");
  row.pp = parallel.count("pp");
  row.dp = parallel.count("dp");
  row.cp = parallel.count("cp");
  row.ep = parallel.count("ep");
  row.etp = parallel.count("etp");
  row.vpp = parallel.count("vpp");
  row.zero_stage = parallel.count("zero_stage", 0);
  row.sp = parallel.flag("sp");
  row.fsdp = parallel.flag("fsdp");
  row.schedule = parallel.text("schedule");
  row.hybrid_shard = parallel.text("hybrid_shard");

  Section batch(row, top.get("batch"), "batch");
  row.micro = batch.count("micro");
  row.global = batch.count("global");
  if (const auto steps = batch.number("grad_accum");
      steps && *steps == std::floor(*steps) && *steps <= static_cast<double>(kLargestCount))
    row.grad_accum = static_cast<int64_t>(*steps);

  row.precision = top.text("precision");
  row.recompute = top.text("recompute");
  row.offload = top.text("offload");
  row.framework = top.text("framework");
  row.overlap = top.text("overlap");
  row.flash_attention = top.text("flash_attention");
  row.attention_kernel = top.text("attention_kernel");
  row.flops_convention = top.text("flops_convention");
  row.result = top.text("result");

  Section measured(row, top.get("measured"), "measured");
  read_measured(measured, row);

  Section check(row, top.get("check"), "check");
  row.matched = check.text("matched");
  check.ignore({"status", "model_tflop_per_token", "achieved_model_tflops_full", "achieved_model_tflops_causal",
                "mfu_full", "ratio", "explanation", "issues", "circular"});

  if (const Node* fields = top.get("unknown_fields"))
    for (const Node& field : fields->items) row.unknown_fields.push_back(text_of(&field));

  if (row.cluster.empty()) row.cluster = row.id;
  for (const Section* s : {&top, &source, &model, &moe, &mla, &hardware, &parallel, &batch, &measured, &check})
    s->report_unknown(unknown);
  return row;
}

}  // namespace

bool Case::unknown(std::string_view field) const {
  return std::find(unknown_fields.begin(), unknown_fields.end(), field) != unknown_fields.end();
}

Result<CaseFile> parse_cases(const std::string& text, const std::string& label) {
  CaseFile file;
  file.path = label;
  const auto source = std::make_shared<const tree::Source>(tree::Source{label, "", false});
  const auto root = tree::parse_yaml(text, source, kLimits);
  if (!root) return root.errors();
  if (root.value().kind != Node::Kind::list)
    return Diagnostic{label + ":1", "is not a list of runs",
                      "each run is '- id: ...' with the fields of published_runs.yaml"};
  Diagnostics errors;
  std::map<std::string, int> ids, unknown;
  for (const Node& node : root.value().items) {
    const tree::Entry* id = node.find("id");
    if (!id || is_null(&id->value) || !id->value.is_scalar()) {
      errors.push_back({tree::to_text(node.place, ""), node.is_map() ? "a run without an id" : "is not a run",
                        "each run is a map with an id of its own"});
      continue;
    }
    Case row = read_row(node, unknown);
    const auto [first, is_new] = ids.try_emplace(row.id, row.line);
    if (!is_new)
      errors.push_back({tree::to_text(node.place, ""),
                        fmt::format("id '{}' is taken by the run of line {}", row.id, first->second), ""});
    file.cases.push_back(std::move(row));
  }
  for (const auto& [key, line] : unknown)
    file.warnings.push_back(fmt::format("{}:{}: key '{}' is not known and has no effect", label, line, key));
  if (!errors.empty()) return errors;
  return file;
}

Result<CaseFile> read_cases(const std::string& path) {
  auto text = read_file(path, kLimits.bytes);
  if (!text) return text.errors();
  return parse_cases(text.value(), path);
}

}  // namespace wt::study
