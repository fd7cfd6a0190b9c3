#include "study/validate_terms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "core/lower/schedule.hpp"
#include "study/validate_words.hpp"

namespace wt::study {
namespace {

/// What of a row's experts and latent attention cannot be run.
std::string experts_not_built(const Case& row) {
  if (!row.moe && row.ep.value_or(1) > 1) return "the experts are not published";
  if (!row.moe) return "";
  if (row.moe->experts < 1 || row.moe->top_k < 1 || row.moe->ffn_hidden < 1) return "the experts are not published";
  const bool units = row.fsdp.value_or(false) || row.zero_stage.value_or(0) >= 2;
  const bool apart = row.ep.value_or(1) > 1 || row.moe->first_dense_layers > 0 || row.moe->layer_period > 1;
  if (units && !apart && has(row.framework, "DeepEP"))
    return "experts go by DeepEP, which shares them over ranks, and over how many is not published";
  if (units && apart) return "experts of their own group in sharded units are not built yet";
  return "";
}

}  // namespace

namespace {

/// torchtitan saves the results of attention and of products, every second one of them apart, and recomputes the rest: norms,
/// activations, and of the products the output projection and one of the two that are gated (planned as kept).
constexpr std::string_view kPerOp = "layernorm act";

/// The parts of a layer that "selective (a, b)" or "selective: a, b" lists, in a job's words; "" if one is not known.
std::string parts_named(const std::string& words) {
  static const std::pair<std::string_view, std::string_view> kWords[] = {{"core_attn", "core_attn"},
                                                                         {"layernorm", "layernorm"},
                                                                         {"norm", "layernorm"},
                                                                         {"rmsnorm", "layernorm"},
                                                                         {"mla_up_proj", "mla_up_proj"},
                                                                         {"mla up-proj", "mla_up_proj"},
                                                                         {"mlp", "mlp"},
                                                                         {"moe", "moe"},
                                                                         {"moe_act", "moe_act"},
                                                                         {"act", "act"},
                                                                         {"recompute gelu", "act"},
                                                                         {"shared_experts", "shared_experts"},
                                                                         {"per-op sac", kPerOp}};
  const size_t open = words.find_first_of("(:");
  if (!words.starts_with("selective") || open == std::string::npos) return "";
  std::string_view rest(words);
  rest = rest.substr(open + 1, words.back() == ')' ? words.size() - open - 2 : std::string::npos);
  std::string out;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    const auto* const row = std::ranges::find(kWords, word, &std::pair<std::string_view, std::string_view>::first);
    if (row == std::end(kWords)) return "";
    out += out.empty() ? "" : " ";
    out += row->second;
  }
  return out;
}

}  // namespace

Recompute recompute_of(const std::string& words) {
  const std::string w = lower(words);
  if (w.empty() || w.starts_with("unknown")) return Recompute::unknown;
  if (w.starts_with("none") || w == "false" || w == "no") return Recompute::none;
  if (w.starts_with("full")) return Recompute::full;
  if (w.find("every 2nd layer") != std::string::npos) return Recompute::every_second;
  if (w == "selective" || w.find("core_attn") != std::string::npos) return Recompute::selective;
  return parts_named(w).empty() ? Recompute::other : Recompute::parts;
}

std::string recomputed_parts(const Case& row) {
  const std::string parts = parts_named(lower(row.recompute));
  // Reduce-scatters are on torchtitan's list of ops to save: with tensor parallelism the output projection is one.
  return parts == kPerOp && row.tp.value_or(1) == 1 ? parts + " residual" : parts;
}

std::string precision_of(const std::string& words) {
  const std::string w = lower(words);
  for (const char* name : {"bf16", "fp16", "fp8"})
    if (w.starts_with(name)) return w.starts_with("fp8") || w.find("fp8") == std::string::npos ? name : "";
  return "";
}

std::string fp8_recipe_of(const Case& row, std::vector<std::string>& assumptions) {
  const std::string w = lower(row.precision);
  for (const char* block : {"mxfp8", "block"})
    if (w.find(block) != std::string::npos) return "block";
  for (const char* dynamic : {"current", "tensorwise", "rowwise", "float8 linear"})
    if (w.find(dynamic) != std::string::npos) return "current";
  assumptions.push_back("fp8 recipe not given: delayed scaling");
  return "delayed";
}

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

int64_t offloaded_layers(const Case& row) {
  const std::string w = lower(row.offload);
  static const std::regex kLayers("(\\d+) layers");
  std::smatch match;
  const bool said = w.find("activations") != std::string::npos && std::regex_search(w, match, kLayers);
  return said ? std::stoll(match[1].str().substr(0, 9)) : 0;
}

std::string not_built(const Case& row) {
  if (!row.fault.empty()) return row.fault;
  if (row.tier == "D") return "tier D: not simulatable";
  if (!row.layers || !row.hidden || !row.heads || !row.vocab || !row.seq_len)
    return "the model's shape is not published";
  if (const std::string experts = experts_not_built(row); !experts.empty()) return experts;
  if (precision_of(row.precision).empty()) return fmt::format("precision '{}' is not built yet", row.precision);
  if (!row.task.empty() && row.task != "pretrain" && row.task != "sft" && row.task != "lora")
    return fmt::format("task '{}' is not built yet", row.task);
  if (const std::string offload = lower(row.offload); !offload.empty() && offload != "none" && offload != "unknown") {
    if (offload.find("activations") == std::string::npos)
      return fmt::format("offload ('{}') is not built yet", row.offload);
    if (offloaded_layers(row) == 0)
      return fmt::format("the number of layers whose activations are offloaded is not published ('{}')", row.offload);
  }
  return "";
}

}  // namespace wt::study
