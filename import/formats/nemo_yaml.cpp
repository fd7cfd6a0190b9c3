// NeMo 1.x YAML (trainer, model with Megatron's fields) and Megatron-Bridge YAML (model, train, ddp, optimizer). References
// of OmegaConf, ${.hidden_size} and ${multiply:4, ${.hidden_size}}, are resolved where what they name is in the file.
// Facts: NVIDIA/NeMo 8cfedd72 examples/nlp/language_modeling/conf, Megatron-Bridge 067f987d.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"
#include "import/megatron.hpp"

namespace wt::import {

namespace {

bool is_bridge(const Foreign& f) { return f.has("model") && f.has("train") && (f.has("ddp") || f.has("optimizer")); }

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml || !f.has("model")) return 0;
  const tree::Node& model = f.tree->find("model")->value;
  if (!model.is_map()) return 0;
  if (is_bridge(f)) return 7;
  return f.has("trainer") && (model.find("tensor_model_parallel_size") || model.find("num_layers") ||
                              model.find("micro_batch_size"))
             ? 8
             : 0;
}

struct Value {
  std::string text;
  std::vector<std::string> open;
};

/// Resolves one scalar; `depth` bounds references to references.
class References {
 public:
  explicit References(const tree::Node& root) : root_(root) {}

  Value resolve(const std::string& text, const tree::Node& map, int depth = 0) const {
    constexpr int kMostDepth = 8;
    const size_t begin = text.find("${");
    if (begin == text.npos) return {text, {}};
    const size_t end = closing(text, begin);
    if (depth > kMostDepth || end == text.npos) return {text, {text.substr(begin, 60)}};
    const Value inner = one(text.substr(begin + 2, end - begin - 3), map, depth);
    if (begin == 0 && end == text.size()) return inner;
    Value rest = resolve(text.substr(end), map, depth + 1);
    rest.text = text.substr(0, begin) + inner.text + rest.text;
    rest.open.insert(rest.open.end(), inner.open.begin(), inner.open.end());
    return rest;
  }

 private:
  static size_t closing(const std::string& text, size_t begin) {
    int level = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '{') ++level;
      if (text[i] == '}' && --level == 0) return i + 1;
    }
    return text.npos;
  }

  Value one(const std::string& inside, const tree::Node& map, int depth) const {
    for (const char* op : {"multiply:", "divide:", "sum:"})
      if (inside.starts_with(op)) return arithmetic(op, inside.substr(std::string_view(op).size()), map, depth);
    const tree::Node* at = &map;
    std::string path = inside;
    if (path.starts_with(".")) {
      path.erase(0, 1);
    } else {
      at = &root_;
      if (path.starts_with("training.") && !root_.find("training"))
        path.erase(0, 9);  // the launcher puts the file below it
    }
    while (at && !path.empty()) {
      const size_t dot = path.find('.');
      const tree::Entry* e = at->find(path.substr(0, dot));
      at = e ? &e->value : nullptr;
      path = dot == path.npos ? "" : path.substr(dot + 1);
    }
    if (!at || !at->is_scalar()) {
      const std::string whole = fmt::format("${{{}}}", inside);
      return {whole, {whole}};
    }
    return resolve(at->text, map, depth + 1);
  }

  Value arithmetic(std::string_view op, const std::string& list, const tree::Node& map, int depth) const {
    const Value text = resolve(list, map, depth + 1);
    if (!text.open.empty()) return text;
    std::optional<int64_t> out;
    for (size_t begin = 0; begin <= text.text.size();) {
      const size_t comma = std::min(text.text.find(',', begin), text.text.size());
      std::string word = text.text.substr(begin, comma - begin);
      word.erase(0, word.find_first_not_of(' ') == word.npos ? word.size() : word.find_first_not_of(' '));
      const auto n = whole_number(word);
      if (!n || std::abs(*n) > (int64_t{1} << 31)) return {text.text, {fmt::format("${{{}{}}}", op, list)}};
      if (!out)
        out = *n;
      else if (op == "multiply:")
        out = *out * *n;
      else if (op == "sum:")
        out = *out + *n;
      else if (*n != 0)
        out = *out / *n;
      if (std::abs(*out) > (int64_t{1} << 31)) return {text.text, {"a product out of range"}};
      begin = comma + 1;
    }
    return {std::to_string(out.value_or(0)), {}};
  }

  const tree::Node& root_;
};

const std::set<std::string, std::less<>>& megatron_fields() {
  static const std::set<std::string, std::less<>> fields = [] {
    std::set<std::string, std::less<>> out;
    for (std::string_view flag : megatron_flags()) out.insert(megatron_flag(flag)->field);
    for (const char* own : {"mcore_gpt",
                            "virtual_pipeline_model_parallel_size",
                            "bias_dropout_add_fusion",
                            "get_attention_mask_from_fusion",
                            "validation_param_sync_overlap",
                            "dist_ckpt_format",
                            "dist_ckpt_load_on_device",
                            "dist_ckpt_parallel_save",
                            "dist_ckpt_parallel_save_within_dp",
                            "dist_ckpt_parallel_load",
                            "dist_ckpt_torch_dist_multiproc",
                            "dist_ckpt_assume_constant_structure",
                            "dist_ckpt_parallel_dist_opt",
                            "dist_ckpt_load_strictness",
                            "restore_from_path",
                            "restore_from_ckpt",
                            "skip_train",
                            "use_scaled_init_method",
                            "do_layer_norm_weight_decay",
                            "pre_process",
                            "post_process",
                            "headscale",
                            "transformer_block_type",
                            "normalize_attention_scores",
                            "attention_type",
                            "batch_p2p_comm",
                            "seq_len_interpolation_factor",
                            "scale_positional_embedding",
                            "drop_layers",
                            "reset_lr",
                            "reset_lr_steps",
                            "tokenizer",
                            "native_amp_init_scale",
                            "native_amp_growth_interval",
                            "megatron_amp_O2",
                            "grad_allreduce_chunk_size_mb",
                            "grad_div_ar_fusion",
                            "bias_activation_fusion",
                            "gradient_as_bucket_view",
                            "sync_batch_comm",
                            "use_cpu_initialization",
                            "onnx_safe",
                            "apex_transformer_log_level",
                            "gc_interval",
                            "nsys_profile",
                            "optim",
                            "data",
                            "rotary_percentage",
                            "ffn_dropout",
                            "persist_layer_norm",
                            "layernorm_epsilon",
                            "resume_from_checkpoint",
                            "num_micro_batches_with_partial_activation_checkpoints",
                            "activations_checkpoint_layers_per_pipeline",
                            "sharp",
                            "fsdp_sharding_strategy",
                            "fsdp_grad_reduce_dtype",
                            "fsdp_sharded_checkpoint",
                            "fp8_e4m3",
                            "fp8_wgrad",
                            "fp8_margin",
                            "fp8_interval",
                            "mcore_customization_config",
                            "name",
                            "precision",
                            "target",
                            "peft",
                            "gen_shape",
                            "memory_profile",
                            "use_flash_attention",
                            "nccl_communicator_config_path",
                            "fp8_params",
                            "deterministic_mode",
                            "masked_softmax_fusion",
                            "hysteresis",
                            "openai_gelu",
                            "reduce_amax",
                            "ub_tp_comm_overlap_cfg",
                            "seed",
                            "tp_comm_overlap_cfg",
                            "cpu_offloading",
                            "cpu_offloading_activations",
                            "cpu_offloading_weights",
                            "use_emha",
                            "enable_megatron_timers",
                            "use_transformer_engine_op_fuser",
                            "no_sync_func",
                            "grad_sync_func",
                            "param_sync_func",
                            "softmax_scale",
                            "rotary_base",
                            "autocast_dtype",
                            "params_dtype",
                            "pipeline_dtype",
                            "should_pad_vocab",
                            "generation_config",
                            "activation_func",
                            "gated_linear_unit",
                            "hf_model_id",
                            "scatter_embedding_sequence_parallel",
                            "parallel_output",
                            "fp16_lm_cross_entropy",
                            "bias_dropout_fusion",
                            "masked_softmax_fusion",
                            "attention_softmax_in_fp32",
                            "max_position_embeddings"})
      out.insert(own);
    return out;
  }();
  return fields;
}

class Nemo {
 public:
  Nemo(const Foreign& f, Draft& d) : root_(*f.tree), d_(d), references_(*f.tree), args_(d) {}

  void run(bool bridge) {
    for (const tree::Entry& e : root_.entries) section(e);
    if (!args_.has("overlap_p2p_comm") && !bridge)
      args_.set("overlap_p2p_comm", "False", {"", "overlap_p2p_comm: false"});
    read_megatron(args_);
  }

 private:
  void section(const tree::Entry& e) {
    if (!e.value.is_map()) return d_.ignore(origin_of(e.place, e.key), written(e.value), "no effect on the plan");
    if (e.key == "model")
      model(e.value);
    else if (e.key == "trainer")
      trainer(e.value);
    else if (e.key == "train" || e.key == "ddp" || e.key == "optimizer" || e.key == "dataset" ||
             e.key == "mixed_precision" || e.key == "comm_overlap")
      plain(e.key, e.value);
    else
      d_.ignore(origin_of(e.place, e.key), written(e.value), "how it is run and logged");
  }

  void put(const std::string& field, const tree::Entry& e, const tree::Node& map, const std::string& path) {
    const Value v = references_.resolve(written(e.value), map);
    args_.set(field, v.text, origin_of(e.place, fmt::format("{}.{}", path, e.key)), v.open);
  }

  /// NeMo's own names; the others are Megatron's.
  void model(const tree::Node& m) {
    static const std::map<std::string, std::string, std::less<>> kNames = {
        {"encoder_seq_length", "seq_length"},
        {"num_moe_experts", "num_experts"},
        {"bias", "add_bias_linear"},
        {"rotary_percentage", "rotary_percent"},
        {"ub_tp_comm_overlap", "tp_comm_overlap"},
        {"use_flash_attention", "use_flash_attn"},
        {"bias_activation_fusion", "bias_gelu_fusion"},
        {"overlap_moe_expert_parallel_comm", "overlap_moe_expert_parallel_comm"}};
    for (const tree::Entry& e : m.entries) {
      if (e.value.kind == tree::Node::Kind::null) continue;
      const Origin from = origin_of(e.place, "model." + e.key);
      const std::string text = references_.resolve(written(e.value), m).text;
      const auto on = truth(text);
      if (e.key == "optim" && e.value.is_map())
        optim(e.value);
      else if (e.key == "data" && e.value.is_map()) {
        if (const tree::Entry* s = e.value.find("seq_length"); s && !m.find("encoder_seq_length"))
          put("seq_length", *s, e.value, "model.data");
      } else if (e.key == "tokenizer" && e.value.is_map()) {
        if (const tree::Entry* t = e.value.find("type")) put("tokenizer_type", *t, e.value, "model.tokenizer");
      } else if (e.key == "activation")
        activation(text, from);
      else if (e.key == "gated_linear_unit") {
        if (on == true) args_.set("swiglu", "True", from);
      } else if (e.key == "share_embeddings_and_output_weights")
        args_.set_as("untie_embeddings_and_output_weights", on == false ? "True" : "False", from, text);
      else if (e.key == "num_query_groups") {
        put("num_query_groups", e, m, "model");
        args_.set("group_query_attention", "True", from);
      } else if (e.key == "transformer_engine")
        args_.set_as("transformer_impl", on == false ? "local" : "transformer_engine", from, text);
      else if (e.key == "fp8") {
        if (on != false) args_.set("fp8", on == true ? "hybrid" : text, from);
      } else if (e.key == "fsdp") {
        if (on == true) d_.not_carried(from, text, "FSDP of NeMo: --set strategy.data_parallel=fsdp");
      } else if (e.key == "fp8_hybrid" || e.key == "fp8_e4m3")
        d_.ignore(from, text, "the format of fp8, where it is on");
      else if (!e.value.is_scalar() && e.value.kind != tree::Node::Kind::list)
        d_.ignore(from, written(e.value), "no effect on the plan");
      else if (const auto n = kNames.find(e.key); n != kNames.end())
        put(n->second, e, m, "model");
      else if (megatron_fields().contains(e.key))
        put(e.key, e, m, "model");
      else
        unknown(e, from);
    }
  }

  void unknown(const tree::Entry& e, const Origin& from) {
    if (e.key.starts_with("activations_checkpoint_") || e.key.starts_with("fp8_") || e.key.starts_with("moe_") ||
        e.key.starts_with("ub_tp_"))
      return put_plain(e);
    const std::vector<std::string_view> known(megatron_fields().begin(), megatron_fields().end());
    const auto near = closest(e.key, known);
    d_.unknown(from, written(e.value),
               near ? fmt::format("not a field of NeMo's model; did you mean '{}'?", *near)
                    : "not a field of NeMo's model, as far as known");
  }
  void put_plain(const tree::Entry& e) { args_.set(e.key, written(e.value), origin_of(e.place, "model." + e.key)); }

  void activation(const std::string& word, const Origin& from) {
    if (word.find("swiglu") != word.npos)
      args_.set_as("swiglu", "True", from, word);
    else if (word == "squared-relu")
      args_.set_as("squared_relu", "True", from, word);
    else if (word.find("geglu") != word.npos)
      args_.set_as("quick_geglu", "True", from, word);
    else if (word != "gelu")
      d_.not_carried(from, word, "planned as gelu");
  }

  void optim(const tree::Node& o) {
    for (const tree::Entry& e : o.entries) {
      const Origin from = origin_of(e.place, "model.optim." + e.key);
      const std::string text = written(e.value);
      const bool on = truth(text) == true;
      if (e.key == "name")
        args_.set_as("use_distributed_optimizer", text.find("dist") != text.npos ? "True" : "False", from, text);
      else if (e.key == "overlap_grad_sync" || e.key == "overlap_grad_reduce")
        args_.set_as("overlap_grad_reduce", on ? "True" : "False", from, text);
      else if (e.key == "overlap_param_sync" || e.key == "overlap_param_gather")
        args_.set_as("overlap_param_gather", on ? "True" : "False", from, text);
      else if (e.key == "grad_sync_dtype" && (text == "bf16" || text == "16"))
        args_.set_as("grad_reduce_in_bf16", "True", from, text);
      else if (e.key == "bucket_cap_mb")
        d_.not_carried(from, text,
                       "bytes of one bucket of apex; planned by Megatron's rule: --set strategy.bucket_elements=N");
      else
        d_.ignore(from, text, "no effect on the time or memory of a step");
    }
  }

  void trainer(const tree::Node& t) {
    for (const tree::Entry& e : t.entries) {
      const Origin from = origin_of(e.place, "trainer." + e.key);
      const Value v = references_.resolve(written(e.value), t);
      const auto n = whole_number(v.text);
      if (e.key == "num_nodes" && n) {
        if (d_.options().nodes == 0 && d_.options().gpus == 0) d_.take(from, v.text, "run.nodes", *n);
      } else if (e.key == "devices" && n && *n > 0) {
        if (d_.options().gpus == 0) d_.take(from, v.text, "run.devices", *n);
      } else if (e.key == "precision")
        precision(v.text, from);
      else if (e.key == "gradient_clip_val")
        args_.set("clip_grad", v.text, from);
      else if (e.key == "max_steps" && n && *n > 0)
        args_.set("train_iters", v.text, from);
      else
        d_.ignore(from, v.text, "how it is run and logged");
    }
  }

  void precision(const std::string& word, const Origin& from) {
    if (word.starts_with("bf16"))
      args_.set_as("bf16", "True", from, word);
    else if (word.starts_with("16") || word.starts_with("fp16"))
      args_.set_as("fp16", "True", from, word);
    else if (word != "32" && word != "32-true")
      d_.error(from, fmt::format("unknown precision '{}'", word), "legal: bf16, bf16-mixed, 16, 16-mixed, 32");
  }

  /// Sections of Megatron-Bridge, whose fields are Megatron's.
  void plain(const std::string& name, const tree::Node& s) {
    for (const tree::Entry& e : s.entries) {
      const Origin from = origin_of(e.place, fmt::format("{}.{}", name, e.key));
      const std::string text = references_.resolve(written(e.value), s).text;
      if (e.key == "grad_reduce_in_fp32")
        args_.set_as(truth(text) == true ? "accumulate_allreduce_grads_in_fp32" : "grad_reduce_in_bf16", "True", from,
                     text);
      else if (e.key == "bucket_size")
        args_.set("ddp_bucket_size", text, from);
      else if (e.key == "average_in_collective")
        args_.set("ddp_average_in_collective", text, from);
      else if (e.key == "sequence_length")
        args_.set("seq_length", text, from);
      else if (megatron_fields().contains(e.key))
        args_.set(e.key, text, from);
      else
        d_.ignore(from, text, "no effect on the plan");
    }
  }

  const tree::Node& root_;
  Draft& d_;
  References references_;
  MegatronArgs args_;
};

void read(const Foreign& f, Draft& d) {
  const bool bridge = is_bridge(f);
  d.file(f.name, bridge ? "Megatron-Bridge YAML" : "NeMo YAML",
         fmt::format("{}, {}", bridge ? "Megatron-Bridge 067f987d" : "NeMo 8cfedd72", kMegatronVersion));
  Nemo(f, d).run(bridge);
}

}  // namespace

extern const Format formats_nemo_yaml;
const Format formats_nemo_yaml = {"nemo_yaml", "NeMo or Megatron-Bridge YAML",
                                  "trainer and model of NeMo 1.x; model, train, ddp, optimizer of Megatron-Bridge",
                                  recognise, read};

}  // namespace wt::import
