// One function per family of Hugging Face architectures: which keys it has, under which names, with which class
// defaults (transformers src/transformers/models/*/configuration_*.py).
#include "core/spec/hf_families.hpp"

#include <fmt/format.h>

#include <set>

namespace wt::hf {

namespace {

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

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace wt::hf
