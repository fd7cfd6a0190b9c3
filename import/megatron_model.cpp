// Model half of megatron.hpp: the shape that Megatron's arguments give, with its rules for what they leave out.
#include <fmt/format.h>

#include <algorithm>

#include "import/megatron.hpp"

namespace wt::import {

namespace {

void take_flag(MegatronArgs& a, const std::string& field, std::string_view to, bool value, const std::string& why) {
  if (a.has(field))
    a.draft().take(a.at(field), a.said(field), to, value ? "true" : "false");
  else
    a.draft().fall_back(to, value ? "true" : "false", why);
}

void read_widths(MegatronArgs& a) {
  Draft& d = a.draft();
  const auto hidden = a.integer("hidden_size"), heads = a.integer("num_attention_heads");
  if (!a.take_integer("num_layers", "model.layers"))
    a.take_integer("encoder_num_layers", "model.layers");
  else
    a.used("encoder_num_layers");
  if (hidden) d.take(a.at("hidden_size"), a.said("hidden_size"), "model.hidden", *hidden);
  if (heads) d.take(a.at("num_attention_heads"), a.said("num_attention_heads"), "model.heads", *heads);
  const bool gated = a.on("swiglu");
  if (!a.take_integer("ffn_hidden_size", "model.ffn_hidden") && hidden && *hidden < (int64_t{1} << 40))
    d.fall_back("model.ffn_hidden", std::to_string(gated ? *hidden * 8 / 3 / 64 * 64 : 4 * *hidden),
                gated ? "ffn_hidden_size: int(8 h / 3 / 64) x 64 with --swiglu" : "ffn_hidden_size: 4 x hidden");
  if (a.on("multi_latent_attention")) {
    if (a.has("kv_channels"))
      d.ignore(a.at("kv_channels"), a.said("kv_channels"), "multi-latent attention has head sizes of its own");
    a.used("kv_channels");
  } else if (!a.take_integer("kv_channels", "model.head_dim") && hidden && heads && *heads > 0 && *hidden % *heads == 0)
    d.fall_back("model.head_dim", std::to_string(*hidden / *heads), "kv_channels: hidden / heads");
  const bool grouped = a.on("group_query_attention");
  const auto groups = a.integer("num_query_groups");
  if (grouped)
    d.take(groups ? a.at("num_query_groups") : a.at("group_query_attention"), groups ? a.said("num_query_groups") : "1",
           "model.kv_heads", groups.value_or(1));
  else if (groups && *groups > 1 && heads && *groups != *heads)
    d.note(fmt::format("{}: --num-query-groups {} has no effect without --group-query-attention",
                       a.at("num_query_groups").where, *groups));
  if (!grouped && heads) d.fall_back("model.kv_heads", std::to_string(*heads), "no --group-query-attention");
}

void read_kinds(MegatronArgs& a) {
  Draft& d = a.draft();
  const bool gated = a.on("swiglu"), squared = a.on("squared_relu");
  if (a.on("quick_geglu")) a.draft().not_carried(a.at("quick_geglu"), a.said("quick_geglu"), "planned as a gated gelu");
  take_flag(a, "swiglu", "model.gated_mlp", gated || a.on("quick_geglu"), "no --swiglu");
  if (squared)
    d.take(a.at("squared_relu"), "True", "model.activation", "relu",
           "squared: the square is part of the activation's pass");
  else
    d.fall_back("model.activation", gated ? "silu" : "gelu", gated ? "of --swiglu" : "gelu");
  if (const auto norm = a.text("normalization")) {
    std::string low = *norm;
    std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
    if (low == "rmsnorm" || low == "layernorm" || low == "layernorm1p")
      d.take(a.at("normalization"), *norm, "model.norm", low == "rmsnorm" ? "rms_norm" : "layer_norm");
    else
      a.error("normalization", fmt::format("unknown normalization '{}'", *norm), "legal: LayerNorm, RMSNorm");
  } else {
    d.fall_back("model.norm", "layer_norm", "normalization: LayerNorm");
  }
  if (a.on("use_rotary_position_embeddings")) {
    d.take(a.at("use_rotary_position_embeddings"), "True", "model.position", "rotary");
    a.used("position_embedding_type");
  } else if (const auto p = a.text("position_embedding_type")) {
    const std::string_view ours = *p == "learned_absolute"                        ? "learned"
                                  : *p == "rope" || *p == "mrope" || *p == "yarn" ? "rotary"
                                  : *p == "none" || *p == "relative"              ? "none"
                                  : *p == "alibi"                                 ? "alibi"
                                                                                  : "";
    if (ours.empty())
      a.error("position_embedding_type", fmt::format("unknown '{}'", *p), "legal: learned_absolute, rope, none");
    else
      d.take(a.at("position_embedding_type"), *p, "model.position", std::string(ours));
  } else {
    d.fall_back("model.position", "learned", "position_embedding_type: learned_absolute");
  }
  const bool untied = a.on("untie_embeddings_and_output_weights");
  take_flag(a, "untie_embeddings_and_output_weights", "model.tied_embeddings", !untied,
            "no --untie-embeddings-and-output-weights");
  const bool bias = a.on("add_bias_linear", true);
  for (const char* key : {"model.output_bias", "model.mlp_bias"})
    take_flag(a, "add_bias_linear", key, bias, "no --disable-bias-linear");
  if (a.on("add_qkv_bias"))
    d.take(a.at("add_qkv_bias"), "True", "model.attention_bias", "true");
  else
    take_flag(a, "add_bias_linear", "model.attention_bias", bias, "no --disable-bias-linear");
  if (a.on("embed_layernorm")) d.take(a.at("embed_layernorm"), "True", "model.embedding_norm", "true");
  if (a.on("qk_layernorm")) d.take(a.at("qk_layernorm"), "True", "model.qk_norm", "true");
  if (!a.take_integer("max_position_embeddings", "model.max_context"))
    d.later([&d] {
      if (const auto s = d.value("training.seq_len")) d.fall_back("model.max_context", *s, "the sequence length");
    });
  if (const auto w = a.text("window_size"))
    d.not_carried(a.at("window_size"), *w, "sliding windows: --set model.sliding_window=N");
  if (const auto mtp = a.integer("mtp_num_layers"); mtp && *mtp > 0)
    d.take(a.at("mtp_num_layers"), a.said("mtp_num_layers"), "model.mtp_layers", *mtp);
}

void read_moe(MegatronArgs& a) {
  Draft& d = a.draft();
  const auto experts = a.text("num_experts");
  if (!experts) return;
  const auto n = a.integer("num_experts");
  if (!n) return;
  if (*n <= 1) return d.ignore(a.at("num_experts"), *experts, "dense");
  d.take(a.at("num_experts"), *experts, "model.moe.experts", *n);
  if (!a.take_integer("moe_router_topk", "model.moe.top_k")) {
    if (!a.take_integer("topk", "model.moe.top_k")) d.fall_back("model.moe.top_k", "2", "moe_router_topk: 2");
  }
  if (!a.take_integer("moe_ffn_hidden_size", "model.moe.ffn_hidden"))
    if (const auto f = d.value("model.ffn_hidden"))
      d.fall_back("model.moe.ffn_hidden", *f, "moe_ffn_hidden_size: that of the dense layers");
  a.take_integer("moe_shared_expert_intermediate_size", "model.moe.shared_ffn_hidden");
  if (a.on("moe_router_enable_expert_bias"))
    d.take(a.at("moe_router_enable_expert_bias"), "True", "model.moe.router_bias", "true");
  if (a.on("moe_shared_expert_gate")) d.take(a.at("moe_shared_expert_gate"), "True", "model.moe.shared_gate", "true");
  const auto freq = a.text("moe_layer_freq");
  if (!freq || *freq == "1") return;
  const auto list = python_list(*freq);
  if (const auto every = list ? std::nullopt : a.integer("moe_layer_freq")) {
    d.take(a.at("moe_layer_freq"), *freq, "model.moe.layer_period", *every);
  } else if (list) {
    const auto first = std::find(list->begin(), list->end(), 1);
    if (std::all_of(first, list->end(), [](int64_t x) { return x == 1; }))
      d.take(a.at("moe_layer_freq"), *freq, "model.moe.first_dense_layers", first - list->begin());
    else
      d.not_carried(a.at("moe_layer_freq"), *freq, "a pattern other than first dense layers, then experts");
  }
}

void read_mla(MegatronArgs& a) {
  Draft& d = a.draft();
  if (!a.on("multi_latent_attention")) {
    for (const char* f : {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"})
      if (a.complete) a.used(f);
    return;
  }
  const auto take = [&](const char* field, const char* to, const char* fallback) {
    if (!a.take_integer(field, to)) d.fall_back(to, fallback, fmt::format("{}: {}", field, fallback));
  };
  take("q_lora_rank", "model.mla.q_lora_rank", "0");
  take("kv_lora_rank", "model.mla.kv_lora_rank", "32");
  take("qk_head_dim", "model.mla.qk_nope_head_dim", "128");
  take("qk_pos_emb_head_dim", "model.mla.qk_rope_head_dim", "64");
  take("v_head_dim", "model.mla.v_head_dim", "128");
}

void read_vocabulary(MegatronArgs& a) {
  Draft& d = a.draft();
  if (const auto n = a.integer("vocab_size"); n && *n > 0)
    d.take(a.at("vocab_size"), a.said("vocab_size"), "model.vocab", *n);
  else if (const auto to = a.integer("pad_vocab_size_to"); to && *to > 0)
    d.take(a.at("pad_vocab_size_to"), a.said("pad_vocab_size_to"), "model.vocab", *to, "already padded");
  else if (const auto padded = a.integer("padded_vocab_size"); padded && *padded > 0)
    d.take(a.at("padded_vocab_size"), a.said("padded_vocab_size"), "model.vocab", *padded, "already padded");
  a.used("padded_vocab_size");
  if (!a.take_integer("make_vocab_size_divisible_by", "training.vocab_multiple"))
    d.fall_back("training.vocab_multiple", "128", "make_vocab_size_divisible_by: 128");
  const std::string tokenizer = a.text("tokenizer_type").value_or("");
  d.later([&d, tokenizer] {
    if (d.has("model.vocab") || !d.options().model.empty()) return;
    if (tokenizer == "GPT2BPETokenizer")
      d.fall_back("model.vocab", "50257", "GPT2BPETokenizer with GPT-2's vocabulary file: 50,257 tokens");
    else
      d.missing("model.vocab", fmt::format("--set model.vocab=N: that of the tokenizer{}{}, which is not in the file",
                                           tokenizer.empty() ? "" : " ", tokenizer));
  });
}

}  // namespace

void read_megatron_model(MegatronArgs& a) {
  // With --model the arguments need not describe one (a part of a script); what they do say is taken.
  if (a.has("hidden_size") || a.has("num_layers") || a.draft().options().model.empty()) {
    read_mla(a);
    read_widths(a);
    read_kinds(a);
    read_moe(a);
  }
  read_vocabulary(a);
}

}  // namespace wt::import
