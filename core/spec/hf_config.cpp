// One function per family of Hugging Face architectures: which keys it has, under which names, with which class
// defaults (transformers src/transformers/models/*/configuration_*.py). A key that is absent takes the class default; a
// key that is null takes what the class makes of None: the two differ (Mistral: 8 key/value heads or all of them).
#include "core/spec/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <span>

#include "core/base/edit_distance.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/spec/map_reader.hpp"
#include "core/spec/parameters.hpp"

namespace wt {
namespace {

using tree::Entry;
using tree::Node;
using Names = std::initializer_list<std::string_view>;  // the first is how we speak of it, the rest are aliases

class Config {
 public:
  Config(const Node& map, Faults& faults, std::vector<std::string>& warnings)
      : map_(map), faults_(faults), warnings_(warnings) {}

  /// Absent: `otherwise`. Null: `if_null`, or `otherwise` if that is not given. Whoever gets `otherwise` is told.
  int64_t integer(Names names, int64_t otherwise, Range range, std::optional<int64_t> if_null = {}) {
    const Entry* e = take(names);
    const bool null = e && e->value.kind == Node::Kind::null;
    if (null && if_null) return *if_null;
    if (!e || null) {
      note_absent(names);
      if (otherwise > 0)
        defaulted_.push_back(null ? fmt::format("{} {} (null in the file)", e->key.substr(0, 60), otherwise)
                                  : fmt::format("{} {}", *names.begin(), otherwise));
      return otherwise;
    }
    const auto v = e->value.is_scalar() && !e->value.quoted ? parse_int(e->value.text) : std::nullopt;
    if (!v) {
      fault(*e, fmt::format("{} is not a whole number", shown(e->value)), "");
    } else if (*v < range.low || *v > range.high) {
      fault(*e, fmt::format("{} is out of range", *v), fmt::format("legal: {} to {}", range.low, range.high));
    } else {
      return *v;
    }
    return otherwise;
  }
  /// Absent and null alike: `otherwise`, which is derived and needs no warning.
  int64_t derived(Names names, int64_t otherwise, Range range) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) {
      note_absent(names);
      return otherwise;
    }
    return integer(names, otherwise, range);
  }
  bool flag(Names names, bool otherwise) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) return otherwise;
    if (e->value.is_scalar() && !e->value.quoted && e->value.text == "true") return true;
    if (e->value.is_scalar() && !e->value.quoted && e->value.text == "false") return false;
    fault(*e, fmt::format("{} is neither true nor false", shown(e->value)), "");
    return otherwise;
  }
  std::string word(Names names, std::string_view otherwise) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) return std::string(otherwise);
    if (e->value.is_scalar() && e->value.quoted) return e->value.text;
    fault(*e, fmt::format("{} is not a text", shown(e->value)), "");
    return std::string(otherwise);
  }
  Activation activation(Names names, std::string_view otherwise) {
    const std::string w = word(names, otherwise);
    if (w.starts_with("gelu") || w == "quick_gelu") return Activation::gelu;
    if (w == "silu" || w == "swish") return Activation::silu;
    if (w == "relu") return Activation::relu;
    if (w == "relu2") {
      warnings_.push_back("the activation relu2 is counted as relu");
      return Activation::relu;
    }
    if (const Entry* e = find(names)) fault(*e, fmt::format("unknown activation '{}'", w), "legal: gelu*, silu, relu");
    return Activation::gelu;
  }

  const Entry* take(Names names) {
    const Entry *first = nullptr, *null = nullptr;
    for (std::string_view n : names) {
      used_.insert(n);
      const Entry* e = map_.find(n);
      if (e && e->value.kind == Node::Kind::null) {
        null = e;
        continue;
      }
      if (e && first && !same_content(first->value, e->value))
        fault(*e, fmt::format("differs from '{}', which is the same setting", first->key), "keep one");
      if (e && !first) first = e;
    }
    return first ? first : null;
  }
  const Entry* find(Names names) const {
    for (std::string_view n : names)
      if (const Entry* e = map_.find(n)) return e;
    return nullptr;
  }
  bool present(std::string_view key) const {  // there and not null
    const Entry* e = map_.find(key);
    return e && e->value.kind != Node::Kind::null;
  }
  void fault(const Entry& e, std::string what, std::string hint) {
    faults_.push_back({e.place, e.key.substr(0, 60), std::move(what), std::move(hint)});
  }
  void fault_at(Names names, std::string what, std::string hint = {}) {
    if (const Entry* e = find(names)) return fault(*e, std::move(what), std::move(hint));
    faults_.push_back({map_.place, std::string(*names.begin()), std::move(what), std::move(hint)});
  }
  void warn(std::string text) { warnings_.push_back(std::move(text)); }
  bool fine() const { return faults_.empty(); }
  bool was_used(std::string_view key) const { return used_.count(key) > 0; }
  const std::vector<std::string>& defaulted() const { return defaulted_; }
  const Node& map() const { return map_; }
  const std::set<std::string_view>& used() const { return used_; }
  /// Every spelling of the sizes that the file does not give.
  const std::vector<std::string_view>& absent_sizes() const { return absent_sizes_; }

 private:
  void note_absent(Names names) { absent_sizes_.insert(absent_sizes_.end(), names.begin(), names.end()); }
  static std::string shown(const Node& n) {
    switch (n.kind) {
      case Node::Kind::null: return "null";
      case Node::Kind::list: return "a list";
      case Node::Kind::map: return "an object";
      case Node::Kind::scalar: break;
    }
    const std::string text = n.text.size() > 60 ? n.text.substr(0, 57) + "..." : n.text;
    return n.quoted ? fmt::format("\"{}\"", text) : text;
  }
  const Node& map_;
  Faults& faults_;
  std::vector<std::string>& warnings_;
  std::set<std::string_view> used_;
  std::vector<std::string> defaulted_;
  std::vector<std::string_view> absent_sizes_;
};

// Names that attribute_map makes equal, for all architectures at once.
const Names kHidden = {"hidden_size", "n_embd", "n_embed", "d_model"};
const Names kLayerCount = {"num_hidden_layers", "n_layer"};
const Names kHeads = {"num_attention_heads", "n_head"};
const Names kKvHeads = {"num_key_value_heads", "num_kv_heads", "n_head_kv"};
const Names kFfn = {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"};
const Names kContext = {"max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"};
const Names kExpertCount = {"num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts"};
const Names kTopK = {"num_experts_per_tok", "experts_per_token"};

struct Sizes {
  int64_t hidden, layers, heads, vocab, context;
};

void read_sizes(Config& c, ModelSpec& m, Sizes d) {
  m.hidden = c.integer(kHidden, d.hidden, kWidth);
  m.layers = c.integer(kLayerCount, d.layers, kLayers);
  m.heads = c.integer(kHeads, d.heads, kWidth);
  m.kv_heads = m.heads;
  m.vocab = c.integer({"vocab_size"}, d.vocab, kCount);
  m.max_context = c.integer(kContext, d.context, kLength);
}

void read_head_dim(Config& c, ModelSpec& m, int64_t otherwise = 0) {
  if (otherwise == 0 && m.heads > 0) otherwise = m.hidden / m.heads;
  m.head_dim = c.derived({"head_dim"}, otherwise, kWidth);
  if (c.fine() && !c.present("head_dim") && m.head_dim * m.heads != m.hidden && m.hidden % m.heads != 0)
    c.fault_at(kHeads, fmt::format("{} heads do not divide hidden_size {}", m.heads, m.hidden), "");
}

void read_tied(Config& c, ModelSpec& m, bool otherwise) {
  m.tied_embeddings = c.flag({"tie_word_embeddings"}, otherwise);
}

void llama_like(ModelSpec& m) {
  m.gated_mlp = true;
  m.norm = Norm::rms_norm;
  m.position = Position::rotary;
}

void read_window(Config& c, ModelSpec& m, int64_t otherwise) {
  m.sliding_window = c.integer({"sliding_window"}, otherwise, kLengthOr0, 0);
}

/// Qwen: the window is on only when asked for, and only from layer max_window_layers on.
void read_qwen_window(Config& c, ModelSpec& m) {
  const bool on = c.flag({"use_sliding_window"}, false);
  const int64_t window = c.derived({"sliding_window"}, 4096, kLengthOr0);
  const int64_t from = c.derived({"max_window_layers"}, 28, kLayersOr0);
  if (!on || window == 0 || from >= m.layers) return;
  m.sliding_window = window;
  if (from > 0)
    c.warn(fmt::format(
        "max_window_layers {}: the first {} layers see everything; here all {} have the window of {} tokens, so longer "
        "sequences come out too fast",
        from, from, m.layers, window));
}

// -------------------------------------------------------------------------------------------- GPT-2 and relatives

void gpt2(Config& c, ModelSpec& m) {
  read_sizes(c, m, {768, 12, 12, 50257, 1024});
  m.ffn_hidden = c.derived(kFfn, 4 * m.hidden, kWidth);
  m.activation = c.activation({"activation_function"}, "gelu_new");
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  read_head_dim(c, m);
  read_tied(c, m, true);
}

void gpt_bigcode(Config& c, ModelSpec& m) {
  gpt2(c, m);
  if (c.flag({"multi_query"}, true)) m.kv_heads = 1;
}

void gptj(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 28, 16, 50400, 2048});
  m.ffn_hidden = c.derived(kFfn, 4 * m.hidden, kWidth);
  m.activation = c.activation({"activation_function"}, "gelu_new");
  m.position = Position::rotary;
  m.parallel_block = m.mlp_bias = m.head_bias = true;
  m.norms_per_layer = 1;
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void gpt_neox(Config& c, ModelSpec& m) {
  read_sizes(c, m, {6144, 44, 64, 50432, 2048});
  m.ffn_hidden = c.integer(kFfn, 24576, kWidth);
  m.activation = c.activation({"hidden_act"}, "gelu");
  m.position = Position::rotary;
  m.parallel_block = c.flag({"use_parallel_residual"}, true);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, true);
  m.mlp_bias = true;
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void opt(Config& c, ModelSpec& m) {
  read_sizes(c, m, {768, 12, 12, 50272, 2048});
  m.ffn_hidden = c.integer({"ffn_dim"}, 3072, kWidth);
  m.activation = c.activation({"activation_function"}, "relu");
  m.attention_bias = m.output_bias = m.mlp_bias = c.flag({"enable_bias"}, true);
  m.extra_positions = 2;  // positions are counted from 2
  const int64_t width = c.derived({"word_embed_proj_dim"}, m.hidden, kWidth);
  if (width != m.hidden) m.embedding_dim = width;
  m.final_norm = c.flag({"do_layer_norm_before"}, true) && !c.flag({"_remove_final_layer_norm"}, false);
  read_head_dim(c, m);
  read_tied(c, m, true);
}

void bloom(Config& c, ModelSpec& m) {
  read_sizes(c, m, {64, 2, 8, 250880, 2048});
  m.ffn_hidden = 4 * m.hidden;  // BloomMLP has no other width, whatever n_inner says
  if (c.present("n_inner") && c.derived({"n_inner"}, 0, kWidth) != m.ffn_hidden)
    c.warn(fmt::format("n_inner is not read by Bloom: its MLP is 4 x hidden = {}", m.ffn_hidden));
  m.position = Position::alibi;
  m.embedding_norm = m.attention_bias = m.output_bias = m.mlp_bias = true;
  read_head_dim(c, m);
  read_tied(c, m, true);
}

void falcon(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4544, 32, 71, 65024, 2048});
  m.ffn_hidden = c.derived({"ffn_hidden_size"}, 4 * m.hidden, kWidth);
  m.activation = c.activation({"activation"}, "gelu");
  const bool grouped = c.flag({"new_decoder_architecture"}, false), multi_query = c.flag({"multi_query"}, true);
  const int64_t kv = c.derived({"num_kv_heads", "n_head_kv"}, m.heads, kWidth);
  m.kv_heads = grouped ? kv : multi_query ? 1 : m.heads;
  m.parallel_block = c.flag({"parallel_attn"}, true) || grouped;
  const int64_t norms = c.derived({"num_ln_in_parallel_attn"}, grouped ? 2 : 1, {1, 2});
  m.norms_per_layer = m.parallel_block ? norms : 2;
  m.attention_bias = m.output_bias = m.mlp_bias = c.flag({"bias"}, false);
  m.position = c.flag({"alibi"}, false) ? Position::alibi : Position::rotary;
  read_head_dim(c, m);
  read_tied(c, m, true);
}

void phi(Config& c, ModelSpec& m) {
  read_sizes(c, m, {2048, 24, 32, 51200, 2048});
  m.ffn_hidden = c.integer(kFfn, 8192, kWidth);
  m.kv_heads = c.derived(kKvHeads, m.heads, kWidth);
  m.activation = c.activation({"hidden_act"}, "gelu_new");
  m.position = Position::rotary;
  m.parallel_block = m.attention_bias = m.output_bias = m.mlp_bias = m.head_bias = true;
  m.norms_per_layer = 1;
  m.qk_norm = c.flag({"qk_layernorm"}, false);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void bert(Config& c, ModelSpec& m) {
  read_sizes(c, m, {768, 12, 12, 30522, 512});
  m.ffn_hidden = c.integer(kFfn, 3072, kWidth);
  m.activation = c.activation({"hidden_act"}, "gelu");
  m.segment_types = c.integer({"type_vocab_size"}, 2, {0, 1 << 20});
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  m.embedding_norm = m.head_transform = m.head_bias = true;
  m.final_norm = m.causal = false;  // the norms come after each block, the last one is the final norm
  read_head_dim(c, m);
  read_tied(c, m, true);
  c.warn("counted with the masked-language-model head and without the pooler");
}

// -------------------------------------------------------------------------------------------- Llama and relatives

void llama(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 32, 32, 32000, 2048});
  m.kv_heads = c.derived(kKvHeads, m.heads, kWidth);
  m.ffn_hidden = c.integer(kFfn, 11008, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, false);
  m.mlp_bias = c.flag({"mlp_bias"}, false);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void mistral(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 32, 32, 32000, 131072});
  m.kv_heads = c.integer(kKvHeads, 8, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 14336, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  read_window(c, m, 4096);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void mixtral(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 32, 32, 32000, 131072});
  m.kv_heads = c.integer(kKvHeads, 8, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 14336, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.moe = MoeSpec{};
  m.moe->experts = c.integer(kExpertCount, 8, kExperts);
  m.moe->top_k = c.integer(kTopK, 2, kExperts);
  m.moe->ffn_hidden = m.ffn_hidden;
  read_window(c, m, 0);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void qwen2(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 32, 32, 151936, 32768});
  m.kv_heads = c.integer(kKvHeads, 32, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 22016, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.attention_bias = true;  // on q, k and v, always
  read_qwen_window(c, m);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void qwen3(Config& c, ModelSpec& m) {
  read_sizes(c, m, {4096, 32, 32, 151936, 32768});
  m.kv_heads = c.integer(kKvHeads, 32, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 22016, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, false);
  m.qk_norm = true;
  read_qwen_window(c, m);
  read_head_dim(c, m, 128);
  read_tied(c, m, false);
}

/// mlp_only_layers lists layers without experts: we can say "the first k".
void read_dense_layers(Config& c, ModelSpec& m) {
  const Entry* e = c.take({"mlp_only_layers"});
  if (!e || e->value.kind == Node::Kind::null) return;
  if (e->value.kind != Node::Kind::list) return c.fault(*e, "is not a list of layers", "");
  std::set<int64_t> layers;
  for (const Node& n : e->value.items) {
    const auto v = n.is_scalar() && !n.quoted ? parse_int(n.text) : std::nullopt;
    if (!v) return c.fault(*e, "is not a list of layers", "");
    layers.insert(*v);
  }
  int64_t first = 0;
  while (layers.count(first)) ++first;
  if (first != static_cast<int64_t>(layers.size()))
    return c.fault(*e, "lists layers other than the first ones", "write a model .yaml that is close to it");
  m.moe->first_dense_layers = first;
}

void qwen_moe(Config& c, ModelSpec& m, int64_t experts, int64_t top_k, int64_t width) {
  m.moe = MoeSpec{};
  m.moe->experts = c.integer(kExpertCount, experts, kExperts);
  m.moe->top_k = c.integer(kTopK, top_k, kExperts);
  m.moe->ffn_hidden = c.integer({"moe_intermediate_size"}, width, kWidth);
  m.moe->layer_period = c.derived({"decoder_sparse_step"}, 1, kLayers);
  read_dense_layers(c, m);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  read_qwen_window(c, m);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void qwen2_moe(Config& c, ModelSpec& m) {
  read_sizes(c, m, {2048, 24, 16, 151936, 32768});
  m.kv_heads = c.integer(kKvHeads, 16, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 5632, kWidth);
  qwen_moe(c, m, 60, 4, 1408);
  m.moe->shared_ffn_hidden = c.integer({"shared_expert_intermediate_size"}, 5632, kWidthOr0);
  m.moe->shared_gate = m.moe->shared_ffn_hidden > 0;
  m.attention_bias = c.flag({"qkv_bias"}, true);
  m.qk_norm = c.flag({"use_qk_norm"}, false);  // not of transformers; files that carry Qwen3 under this name have it
}

void qwen3_moe(Config& c, ModelSpec& m) {
  read_sizes(c, m, {2048, 24, 32, 151936, 32768});
  m.kv_heads = c.integer(kKvHeads, 4, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 6144, kWidth);
  qwen_moe(c, m, 128, 8, 768);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, false);
  m.qk_norm = true;
}

void deepseek(Config& c, ModelSpec& m, Sizes sizes, int64_t ffn, int64_t experts, int64_t shared, int64_t width,
              int64_t top_k, int64_t first_dense) {
  read_sizes(c, m, sizes);
  m.kv_heads = c.derived(kKvHeads, m.heads, kWidth);
  m.ffn_hidden = c.integer(kFfn, ffn, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, false);
  MlaSpec a;
  a.q_lora_rank = c.integer({"q_lora_rank"}, 1536, kWidthOr0, 0);
  a.kv_lora_rank = c.integer({"kv_lora_rank"}, 512, kWidth);
  a.qk_nope_head_dim = c.integer({"qk_nope_head_dim"}, 128, kWidth);
  a.qk_rope_head_dim = c.integer({"qk_rope_head_dim"}, 64, kWidth);
  a.v_head_dim = c.integer({"v_head_dim"}, 128, kWidth);
  m.mla = a;
  m.head_dim = a.qk_nope_head_dim + a.qk_rope_head_dim;  // a `head_dim` in the file is qk_rope_head_dim: not this
  c.take({"head_dim"});
  MoeSpec e;
  e.experts = c.integer(kExpertCount, experts, kExperts);
  e.top_k = c.integer(kTopK, top_k, kExperts);
  if (e.top_k == 0) c.fault_at(kTopK, "missing: the class has no default", "such as 6");
  e.ffn_hidden = c.integer({"moe_intermediate_size"}, width, kWidth);
  e.shared_ffn_hidden = e.ffn_hidden * c.integer({"n_shared_experts", "num_shared_experts"}, shared, {0, 64}, 0);
  e.first_dense_layers = c.integer({"first_k_dense_replace"}, first_dense, kLayersOr0);
  if (c.derived({"moe_layer_freq"}, 1, kLayers) != 1)
    c.fault_at({"moe_layer_freq"}, "other than 1 is not read", "write a model .yaml with moe.layer_period");
  m.moe = e;
  read_tied(c, m, false);
  for (std::string_view odd : {"num_routed_experts", "num_shared_experts"})
    if (c.present(odd)) c.warn(fmt::format("'{}' is not a key of transformers; read as n{}", odd, odd.substr(3)));
  if (c.derived({"num_nextn_predict_layers"}, 0, {0, 64}) > 0)
    c.warn(
        "num_nextn_predict_layers: the multi-token prediction layer is left out, as transformers does; "
        "set mtp_layers to count it");
}

void deepseek_v2(Config& c, ModelSpec& m) { deepseek(c, m, {4096, 32, 32, 32000, 2048}, 11008, 64, 2, 1407, 0, 0); }
void deepseek_v3(Config& c, ModelSpec& m) {
  deepseek(c, m, {7168, 61, 128, 129280, 4096}, 18432, 256, 1, 2048, 8, 3);
  m.moe->router_bias = true;  // e_score_correction_bias
}

void gemma_base(Config& c, ModelSpec& m, Sizes sizes, int64_t kv_heads, int64_t ffn) {
  read_sizes(c, m, sizes);
  m.kv_heads = c.integer(kKvHeads, kv_heads, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, ffn, kWidth);
  m.activation = c.activation({"hidden_activation"}, c.word({"hidden_act"}, "gelu_pytorch_tanh"));
  llama_like(m);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, false);
  read_head_dim(c, m, 256);
  read_tied(c, m, true);
}
void gemma(Config& c, ModelSpec& m) { gemma_base(c, m, {3072, 28, 16, 256000, 8192}, 16, 24576); }
void gemma2(Config& c, ModelSpec& m) {
  gemma_base(c, m, {2304, 26, 8, 256000, 8192}, 4, 9216);
  m.norms_per_layer = 4;  // before and after both blocks
  read_window(c, m, 4096);
  m.sliding_period = 2;
}
void gemma3(Config& c, ModelSpec& m) {
  gemma_base(c, m, {2304, 26, 8, 262208, 131072}, 4, 9216);
  m.norms_per_layer = 4;
  m.qk_norm = true;
  read_window(c, m, 4096);
  const int64_t period = c.derived({"sliding_window_pattern", "_sliding_window_pattern"}, 6, kLayers);
  if (m.sliding_window > 0) m.full_period = period;
}

void phi3(Config& c, ModelSpec& m) {
  read_sizes(c, m, {3072, 32, 32, 32064, 4096});
  m.kv_heads = c.derived(kKvHeads, m.heads, kWidth);
  m.ffn_hidden = c.integer(kFfn, 8192, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  read_window(c, m, 0);
  read_head_dim(c, m);
  read_tied(c, m, false);
}

void gpt_oss(Config& c, ModelSpec& m) {
  read_sizes(c, m, {2880, 36, 64, 201088, 131072});
  m.kv_heads = c.integer(kKvHeads, 8, kWidth, m.heads);
  m.ffn_hidden = c.integer(kFfn, 2880, kWidth);
  m.activation = c.activation({"hidden_act"}, "silu");
  llama_like(m);
  m.attention_bias = m.output_bias = c.flag({"attention_bias"}, true);
  m.attention_sinks = m.expert_bias = true;
  MoeSpec e;
  e.experts = c.integer({"num_local_experts", "num_experts"}, 128, kExperts);
  e.top_k = c.integer(kTopK, 4, kExperts);
  e.ffn_hidden = m.ffn_hidden;
  e.router_bias = true;
  m.moe = e;
  read_window(c, m, 128);
  m.sliding_period = 2;
  read_head_dim(c, m, 64);
  read_tied(c, m, false);
}

struct Family {
  std::string_view type;        // model_type
  std::string_view class_name;  // what `architectures` starts with
  void (*read)(Config&, ModelSpec&);
};
constexpr Family kFamilies[] = {
    {"bert", "Bert", bert},
    {"bloom", "Bloom", bloom},
    {"deepseek_v2", "DeepseekV2", deepseek_v2},
    {"deepseek_v3", "DeepseekV3", deepseek_v3},
    {"falcon", "Falcon", falcon},
    {"gemma", "Gemma", gemma},
    {"gemma2", "Gemma2", gemma2},
    {"gemma3_text", "Gemma3", gemma3},
    {"gpt2", "GPT2", gpt2},
    {"gpt_bigcode", "GPTBigCode", gpt_bigcode},
    {"gpt_neox", "GPTNeoX", gpt_neox},
    {"gpt_oss", "GptOss", gpt_oss},
    {"gptj", "GPTJ", gptj},
    {"llama", "Llama", llama},
    {"mistral", "Mistral", mistral},
    {"mixtral", "Mixtral", mixtral},
    {"opt", "OPT", opt},
    {"phi", "Phi", phi},
    {"phi3", "Phi3", phi3},
    {"qwen2", "Qwen2", qwen2},
    {"qwen2_moe", "Qwen2Moe", qwen2_moe},
    {"qwen3", "Qwen3", qwen3},
    {"qwen3_moe", "Qwen3Moe", qwen3_moe},
};

// --------------------------------------------------------------------------------------------------- warnings

/// The family that `architectures` names, if it names one at all.
const Family* named_family(const Node& root) {
  const Entry* e = root.find("architectures");
  if (!e || e->value.kind != Node::Kind::list || e->value.items.empty() || !e->value.items[0].is_scalar())
    return nullptr;
  const std::string& name = e->value.items[0].text;
  for (const Family& f : kFamilies) {
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
    for (const Family& f : kFamilies) {
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
  for (const Family& f : kFamilies) out.emplace_back(f.type);
  return out;
}

Result<ImportedModel> parse_hf_config(std::string_view text, const std::string& file) {
  const auto source = std::make_shared<const tree::Source>(tree::Source{file, "", false});
  std::vector<tree::Duplicate> duplicates;
  Result<Node> parsed = tree::parse_json(text, source, duplicates);
  if (!parsed.ok()) return parsed.errors();
  const Node& root = parsed.value();
  if (!root.is_map()) return Diagnostic{file, "is not a JSON object", "a Hugging Face config.json"};

  Faults faults;
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
    Diagnostic d{type ? to_text(type->place, "model_type") : file,
                 "has no model_type: is it a Hugging Face config.json?",
                 fmt::format("known: {}; else {}", fmt::join(hf_model_types(), ", "), kByHand)};
    return d;
  }
  const Family* family = nullptr;
  for (const Family& f : kFamilies)
    if (f.type == word) family = &f;
  if (!family)
    return Diagnostic{to_text(type->place, "model_type"), fmt::format("unknown model_type '{}'", word.substr(0, 60)),
                      fmt::format("known: {}; else {}", fmt::join(hf_model_types(), ", "), kByHand)};
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
      f.place.column = 1;
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
