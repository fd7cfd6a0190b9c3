// A config.json as a whole: which family it is of, the checks across its keys, and what of it has no effect here.
// Which keys a family has: hf_families.cpp.
#include "core/spec/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>

#include "core/base/edit_distance.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/spec/hf_families.hpp"
#include "core/spec/parameters.hpp"

namespace wt {

using namespace hf;

namespace {

// --------------------------------------------------------------------------------------------------- warnings

/// The family that `architectures` names, if it names one at all.
const Family* named_family(const Node& root) {
  const Entry* e = root.find("architectures");
  if (!e || e->value.kind != Node::Kind::list || e->value.items.empty() || !e->value.items[0].is_scalar())
    return nullptr;
  const std::string& name = e->value.items[0].text;
  for (const Family& f : families()) {
    const std::string prefix(f.class_name);
    for (const char* rest : {"For", "LMHead", "Model"})
      if (name.starts_with(prefix + rest)) return &f;
  }
  return nullptr;
}

void warn_layer_types(Config& c, const ModelSpec& m) {
  const Entry* e = c.find({"layer_types"});
  if (!e || e->value.kind != Node::Kind::list) return;
  int64_t layer = 0;
  bool as_read = static_cast<int64_t>(e->value.items.size()) == m.layers;
  for (const Node& n : e->value.items) {
    // transformers counts from 0: a period of 2 starts with a window, a full layer is every n-th.
    const bool windowed =
        m.sliding_window > 0 && (m.full_period > 0 ? (layer + 1) % m.full_period != 0 : layer % m.sliding_period == 0);
    as_read = as_read && (n.text == "sliding_attention") == windowed;
    ++layer;
  }
  if (!as_read) c.warn("layer_types: the pattern of windowed layers is not the one that is counted here");
}

/// Every key that some family reads. Known from reading an empty file with each of them.
const std::set<std::string_view>& keys_of_any_family() {
  static const std::set<std::string_view> keys = [] {
    std::set<std::string_view> all;
    Node empty;
    empty.kind = Node::Kind::map;
    for (const Family& f : families()) {
      Faults ignored;
      std::vector<std::string> unsaid;
      Config c(empty, ignored, unsaid);
      ModelSpec m;
      f.read(c, m);
      all.insert(c.used().begin(), c.used().end());
    }
    return all;
  }();
  return keys;
}

/// Null, false, 0, 1 and empty lists switch nothing on, whatever reads them.
bool switches_something_on(const Node& n) {
  if (n.is_map()) return true;
  if (n.kind == Node::Kind::list) return !n.items.empty();
  return n.is_scalar() && n.text != "false" && n.text != "0" && n.text != "1";
}

/// What a writer of `key` meant, were it misspelled: one slip in a short name, two in a long one.
std::string_view meant_by(std::string_view key, std::span<const std::string_view> names) {
  constexpr size_t kShort = 6, kLong = 9, kLongest = 60;
  if (key.size() < kShort || key.size() > kLongest) return {};
  size_t best = key.size() < kLong ? 2 : 3;
  std::string_view out;
  for (std::string_view n : names)
    if (const size_t d = n.front() == key.front() ? edit_distance(key, n) : best; d < best) {
      best = d;
      out = n;
    }
  return out;
}

/// A size of the class in place of the one that was written is another model: refused, where a switch is a warning.
void refuse_misread_sizes(Config& c, const ModelSpec& m, std::string_view type) {
  for (const Entry& e : c.map().entries) {
    if (c.was_used(e.key)) continue;
    if (const std::string_view near = meant_by(e.key, c.absent_sizes()); !near.empty())
      c.fault(e, "is not read, and its size would come from the class", fmt::format("did you mean '{}'?", near));
  }
  if (m.moe) return;
  for (std::string_view key : kExpertCount)
    if (const Entry* e = c.map().find(key); e && switches_something_on(e->value))
      c.fault(*e, fmt::format("a {} has no experts: it would be counted as a dense model", type),
              "types with experts: deepseek_v2, deepseek_v3, gpt_oss, mixtral, qwen2_moe, qwen3_moe; or leave it out");
}

void warn_common(Config& c, const Node& root, const ModelSpec& m) {
  constexpr std::string_view kNoEffect[] = {"rope_scaling",
                                            "rope_parameters",
                                            "router_aux_loss_coef",
                                            "aux_loss_alpha",
                                            "use_cache",
                                            "pretraining_tp",
                                            "swiglu_limit",
                                            "attn_logit_softcapping",
                                            "final_logit_softcapping",
                                            "layer_norm_eps",
                                            "layer_norm_epsilon",
                                            "rms_norm_eps",
                                            "partial_rotary_factor",
                                            "rotary_pct"};
  std::string none;
  for (std::string_view k : kNoEffect)
    if (c.present(k)) none += fmt::format("{}{}", none.empty() ? "" : ", ", k);
  if (!none.empty()) c.warn("without effect on time or memory here: " + none);
  for (const Node* n : {&c.map(), &root})
    if (const Entry* e = n->find("quantization_config"); e && e->value.kind != Node::Kind::null) {
      c.warn("quantization_config is not read: weights are counted in the precision of the job's training section");
      break;
    }
  warn_layer_types(c, m);
  if (!c.defaulted().empty())
    c.warn(fmt::format("not in the file, default of its class: {}", fmt::join(c.defaulted(), ", ")));
  // A misspelled key reads as absent; transformers would not say a word.
  std::vector<std::string_view> absent;
  for (std::string_view u : c.used())
    if (!c.map().find(u)) absent.push_back(u);
  std::string others;
  for (const Entry& e : c.map().entries) {
    if (c.was_used(e.key)) continue;
    if (keys_of_any_family().count(e.key)) {
      if (switches_something_on(e.value)) others += fmt::format("{}{}", others.empty() ? "" : ", ", e.key);
    } else if (const std::string_view near = meant_by(e.key, absent); !near.empty()) {
      c.warn(fmt::format("line {}: '{}' is not read: did you mean '{}'?", e.place.line, e.key, near));
    }
  }
  if (!others.empty()) c.warn("not read for this model_type: " + others);
}

std::string name_of(const std::string& file) {
  std::filesystem::path p = file;
  std::string name = p.stem().string();
  if (name == "config" && !p.parent_path().filename().empty()) name = p.parent_path().filename().string();
  if (!is_utf8(name) || name.empty() || name.size() > 200) name = "model";
  return name;
}

constexpr std::string_view kByHand =
    "write a model .yaml with layers, hidden, ffn_hidden, heads, kv_heads, head_dim, vocab, max_context, gated_mlp, "
    "activation, norm, position, tied_embeddings (and moe or mla)";

}  // namespace

std::vector<std::string> hf_model_types() {
  std::vector<std::string> out;
  for (const Family& f : families()) out.emplace_back(f.type);
  return out;
}

Result<ImportedModel> parse_hf_config(std::string_view text, const std::string& file) {
  const auto source = std::make_shared<const tree::Source>(tree::Source{file, "", false});
  std::vector<tree::Duplicate> duplicates;
  std::vector<tree::NotNumber> not_numbers;
  Result<Node> parsed = tree::parse_json(text, source, duplicates, &not_numbers);
  Diagnostics not_json;
  for (const tree::NotNumber& n : not_numbers) not_json.push_back(tree::not_a_number(n));
  if (!parsed.ok()) {
    not_json.insert(not_json.end(), parsed.errors().begin(), parsed.errors().end());
    return not_json;
  }
  const Node& root = parsed.value();
  if (!root.is_map()) return Diagnostic{file, "is not a JSON object", "a Hugging Face config.json"};

  Faults faults;
  for (size_t i = 0; i < not_numbers.size(); ++i)
    faults.push_back({not_numbers[i].place, not_numbers[i].path, not_json[i].what, not_json[i].hint});
  ImportedModel out;
  // Multimodal files nest the language model; what is beside it is not counted.
  const Node* map = &root;
  std::string nested;
  for (const char* key : {"text_config", "llm_config"})
    if (const Entry* e = root.find(key); e && e->value.is_map() && nested.empty()) {
      map = &e->value;
      nested = key;
    }
  if (!nested.empty())
    out.warnings.push_back(fmt::format("read from {}: other parts (vision, audio) are not counted", nested));

  Config c(*map, faults, out.warnings);
  const Entry* type = map->find("model_type");
  if (!type) type = root.find("model_type");
  const std::string word = type && type->value.is_scalar() ? type->value.text : "";
  if (word.empty()) {
    tree::Place whole;
    whole.source = source;
    faults.push_back({type ? type->place : whole, type ? "model_type" : "",
                      "has no model_type: is it a Hugging Face config.json?",
                      fmt::format("known: {}; else {}", fmt::join(hf_model_types(), ", "), kByHand)});
    return to_diagnostics(std::move(faults));
  }
  const Family* family = nullptr;
  for (const Family& f : families())
    if (f.type == word) family = &f;
  if (!family) {
    faults.push_back({type->place, "model_type", fmt::format("unknown model_type '{}'", word.substr(0, 60)),
                      fmt::format("known: {}; else {}", fmt::join(hf_model_types(), ", "), kByHand)});
    return to_diagnostics(std::move(faults));
  }
  const Family* named = named_family(root);
  if (named && named != family)
    out.warnings.push_back(fmt::format("model_type is '{}' but architectures names {}: read as '{}'", word,
                                       root.find("architectures")->value.items[0].text.substr(0, 60), word));

  ModelSpec& m = out.model;
  family->read(c, m);
  if (!nested.empty() && !map->find("tie_word_embeddings"))
    if (const Entry* e = root.find("tie_word_embeddings"); e && e->value.is_scalar())
      m.tied_embeddings = e->value.text == "true";
  m.name = name_of(file);
  m.source = file;
  if (!is_utf8(m.source)) m.source = "Hugging Face config.json";

  if (faults.empty()) {  // checks across keys, in the words of the file
    if (m.heads % m.kv_heads != 0)
      c.fault_at(kKvHeads, fmt::format("{} key/value heads do not divide {} heads", m.kv_heads, m.heads));
    if (m.moe && m.moe->top_k > m.moe->experts)
      c.fault_at(kTopK, fmt::format("{} experts per token of {} experts", m.moe->top_k, m.moe->experts));
    if (m.moe && m.moe->first_dense_layers > m.layers)
      c.fault_at({"first_k_dense_replace", "mlp_only_layers"},
                 fmt::format("{} dense layers of {}", m.moe->first_dense_layers, m.layers));
    if (m.moe && m.moe->shared_ffn_hidden > kWidth.high)
      c.fault_at({"n_shared_experts"}, "the shared expert is wider than 2^22");
    if (m.ffn_hidden > kWidth.high) c.fault_at(kHidden, fmt::format("4 x {} is wider than 2^22", m.hidden));
    if (m.head_dim > kWidth.high) c.fault_at({"qk_nope_head_dim"}, "heads are wider than 2^22");
    if (estimate_parameters(m) > 1e15L) c.fault_at(kLayerCount, "the model has more than 10^15 parameters");
  }
  refuse_misread_sizes(c, m, family->type);
  for (const tree::Duplicate& d : duplicates) {
    const bool shapes = d.path.find('.') == std::string::npos ? c.was_used(d.path)
                                                              : d.path.starts_with(nested + ".") && !nested.empty() &&
                                                                    c.was_used(d.path.substr(nested.size() + 1));
    // What transformers would do (the last one wins) is not what the writer of two different sizes meant.
    if (shapes && !d.same) {
      Fault f;
      f.place.source = source;
      f.place.line = d.line;
      f.place.column = d.column;
      f.path = d.path.substr(0, 60);
      f.what = "is written twice with different values";
      f.hint = fmt::format("first at line {}; keep one", d.first_line);
      faults.push_back(std::move(f));
    } else {
      out.warnings.push_back(fmt::format("line {}: '{}' is written twice (first at line {}); the last is used", d.line,
                                         d.path.substr(0, 60), d.first_line));
    }
  }
  if (!faults.empty()) return to_diagnostics(std::move(faults));
  warn_common(c, root, m);
  for (std::string& w : out.warnings) w = fmt::format("{}: {}", m.source, w);
  return out;
}

Result<ImportedModel> read_hf_config(const std::string& path) {
  Result<std::string> text = read_file(path, tree::kMaxBytes);
  if (!text.ok()) return text.errors();
  return parse_hf_config(text.value(), path);
}

}  // namespace wt
