#include "study/validate_case.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace wt::study {
namespace {

constexpr int64_t kLimitBytes = int64_t{64} << 20;
constexpr int64_t kLargestCount = int64_t{1} << 40;  // of anything in a row: layers, ranks, tokens

int line_of(const YAML::Node& node) { return node.Mark().line + 1; }

bool is_null(const YAML::Node& node) {
  return !node.IsDefined() || node.IsNull() || (node.IsScalar() && (node.Scalar() == "null" || node.Scalar() == "~"));
}

/// How sources say that they do not say.
bool is_unknown_word(const YAML::Node& node) {
  static const std::set<std::string> kWords = {"unknown", "n/a", "na", "none", "?", "not stated", "not given", "auto"};
  return node.IsScalar() && kWords.contains(node.Scalar());
}

/// Lists of words ("recompute: [norm, act]") as one text.
std::string text_of(const YAML::Node& node) {
  if (is_null(node)) return "";
  if (node.IsScalar()) return node.Scalar();
  if (node.IsMap()) return "{...}";
  std::string out;
  for (const auto& item : node)
    out += (out.empty() ? "" : ", ") + (item.IsScalar() ? item.Scalar() : std::string("..."));
  return out;
}

/// Reads one map of a row: every key that is asked for is ticked off, the rest is reported as unknown.
class Section {
 public:
  Section(Case& row, const YAML::Node& node, std::string path) : row_(row), node_(node), path_(std::move(path)) {
    if (!is_null(node_) && !node_.IsMap()) fault(node_, "is not a map");
  }

  std::string text(const char* key) { return text_of(get(key)); }

  std::optional<int64_t> count(const char* key, int64_t least = 1) {
    const YAML::Node value = get(key);
    if (is_null(value) || is_unknown_word(value)) return std::nullopt;
    const auto n = value.IsScalar() ? parse_int(value.Scalar()) : std::nullopt;
    if (!n || *n < least || *n > kLargestCount) {
      fault(value, fmt::format("{}: '{}' is not a whole number of {} or more", key, text_of(value), least));
      return std::nullopt;
    }
    return n;
  }

  std::optional<double> number(const char* key) {
    const YAML::Node value = get(key);
    if (is_null(value) || is_unknown_word(value)) return std::nullopt;
    const auto x = value.IsScalar() ? parse_double(value.Scalar()) : std::nullopt;
    if (!x || *x <= 0) {
      fault(value, fmt::format("{}: '{}' is not a number above 0", key, text_of(value)));
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
    const YAML::Node value = get(key);
    return !is_null(value) && text_of(value) != "false";
  }

  YAML::Node get(const char* key) {
    known_.insert(key);
    if (!node_.IsDefined() || !node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
    const YAML::Node& constant = node_;
    return constant[key];
  }

  void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

  void report_unknown(std::map<std::string, int>& unknown) const {
    if (!node_.IsDefined() || !node_.IsMap()) return;
    for (const auto& entry : node_) {
      const std::string key = text_of(entry.first);
      if (!known_.contains(key)) unknown.try_emplace(path_.empty() ? key : path_ + "." + key, line_of(entry.first));
    }
  }

 private:
  void fault(const YAML::Node& at, const std::string& what) {
    if (row_.fault.empty())
      row_.fault = fmt::format("line {}: {}{}", line_of(at), path_.empty() ? "" : path_ + ".", what);
  }

  Case& row_;
  YAML::Node node_;
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
  const YAML::Node derived = section.get("derived");
  if (is_null(derived)) return;
  Section inner(row, derived, "measured.derived");
  for (const char* key : {"step_time_s_if_full", "step_time_s_if_causal"})
    if (const auto x = inner.number(key)) row.measured[std::string("derived.") + key] = *x;
}

Case read_row(const YAML::Node& node, std::map<std::string, int>& unknown) {
  Case row;
  row.line = line_of(node);
  Section top(row, node, "");
  row.id = top.text("id");
  row.group = top.text("group");
  row.tier = top.text("tier");
  row.cluster = top.text("cluster");
  row.task = top.text("task");
  top.ignore({"confidence", "notes", "n_params"});

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
  row.moe = model.present("moe");
  row.mla = model.present("mla");
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
  if (const auto steps = batch.number("grad_accum"); steps && *steps == std::floor(*steps))
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

  const YAML::Node fields = top.get("unknown_fields");
  if (!is_null(fields) && fields.IsSequence())
    for (const auto& field : fields) row.unknown_fields.push_back(text_of(field));

  if (row.cluster.empty()) row.cluster = row.id;
  for (const Section* s : {&top, &source, &model, &hardware, &parallel, &batch, &measured, &check})
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
  Diagnostics errors;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsSequence())
      return Diagnostic{label + ":1", "is not a list of runs",
                        "each run is '- id: ...' with the fields of published_runs.yaml"};
    std::map<std::string, int> ids, unknown;
    for (const YAML::Node& node : root) {
      const int line = line_of(node);
      if (!node.IsMap() || is_null(node["id"]) || !node["id"].IsScalar()) {
        errors.push_back({fmt::format("{}:{}", label, line), node.IsMap() ? "a run without an id" : "is not a run",
                          "each run is a map with an id of its own"});
        continue;
      }
      Case row = read_row(node, unknown);
      const auto [first, is_new] = ids.try_emplace(row.id, line);
      if (!is_new)
        errors.push_back({fmt::format("{}:{}", label, line),
                          fmt::format("id '{}' is taken by the run of line {}", row.id, first->second), ""});
      file.cases.push_back(std::move(row));
    }
    for (const auto& [key, line] : unknown)
      file.warnings.push_back(fmt::format("{}:{}: key '{}' is not known and has no effect", label, line, key));
  } catch (const YAML::Exception& e) {
    return Diagnostic{fmt::format("{}:{}:{}", label, e.mark.line + 1, e.mark.column + 1), e.msg, ""};
  }
  if (!errors.empty()) return errors;
  return file;
}

Result<CaseFile> read_cases(const std::string& path) {
  auto text = read_file(path, kLimitBytes);
  if (!text) return text.errors();
  return parse_cases(text.value(), path);
}

}  // namespace wt::study
