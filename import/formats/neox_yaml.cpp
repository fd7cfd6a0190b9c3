// GPT-NeoX YAML (in braces, as its authors write it): model and parallelism of NeoX, optimisation of DeepSpeed.
// Facts: EleutherAI/gpt-neox ea7aefd8 megatron/neox_arguments/neox_args.py.
#include <fmt/format.h>

#include <algorithm>

#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

constexpr std::string_view kVersion = "GPT-NeoX ea7aefd8";

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml) return 0;
  return f.has("pipe_parallel_size") || f.has("pipe-parallel-size") ? 8
         : f.has("model_parallel_size") && f.has("num_layers")      ? 5
                                                                    : 0;
}

/// NeoX takes dashes for underscores.
tree::Node underscored(const tree::Node& from) {
  tree::Node out = from;
  for (tree::Entry& e : out.entries) std::replace(e.key.begin(), e.key.end(), '-', '_');
  return out;
}

void read_model(Keys& k) {
  Draft& d = k.draft();
  k.take_integer("num_layers", "model.layers");
  k.take_integer("num_attention_heads", "model.heads");
  k.take_integer("max_position_embeddings", "model.max_context");
  const auto hidden = k.integer("hidden_size");
  if (hidden) d.take(k.at("hidden_size"), k.said("hidden_size"), "model.hidden", *hidden);
  const std::string activation = k.text("activation").value_or("gelu");
  const bool gated = activation == "swiglu" || activation == "geglu";
  if (!k.take_integer("intermediate_size", "model.ffn_hidden") && hidden && *hidden < (int64_t{1} << 40))
    d.fall_back("model.ffn_hidden", std::to_string(4 * *hidden), "intermediate_size: 4 x hidden");
  if (!k.take_integer("num_kv_heads", "model.kv_heads"))
    if (const auto heads = d.value("model.heads")) d.fall_back("model.kv_heads", *heads, "num_kv_heads: heads");
  d.fall_back("model.gated_mlp", gated ? "true" : "false", fmt::format("activation: {}", activation));
  d.fall_back("model.activation",
              activation == "swiglu" || activation == "silu" ? "silu"
              : activation == "relu"                         ? "relu"
                                                             : "gelu",
              fmt::format("activation: {}", activation));
  k.has("activation");
  const std::string norm = k.text("norm").value_or("layernorm");
  if (norm == "layernorm" || norm == "rmsnorm") {
    if (k.has("norm"))
      d.take(k.at("norm"), norm, "model.norm", norm == "rmsnorm" ? "rms_norm" : "layer_norm");
    else
      d.fall_back("model.norm", "layer_norm", "norm: layernorm");
  } else {
    d.error(k.at("norm"), fmt::format("'{}' cannot be planned", norm), "legal: layernorm, rmsnorm");
  }
  const std::string position = k.text("pos_emb").value_or("learned");
  if (position == "rotary" || position == "learned" || position == "alibi" || position == "none") {
    if (k.has("pos_emb"))
      d.take(k.at("pos_emb"), position, "model.position", position);
    else
      d.fall_back("model.position", "learned", "pos_emb: learned");
  } else {
    d.error(k.at("pos_emb"), fmt::format("'{}' cannot be planned", position), "legal: rotary, learned, alibi, none");
  }
  const auto untied = k.flag("no_weight_tying");
  if (untied)
    d.take(k.at("no_weight_tying"), k.said("no_weight_tying"), "model.tied_embeddings", *untied ? "false" : "true");
  else
    d.fall_back("model.tied_embeddings", "true", "no_weight_tying: false");
  if (k.flag("gpt_j_residual").value_or(false)) {
    d.take(k.at("gpt_j_residual"), "true", "model.parallel_block", "true");
    d.fall_back("model.norms_per_layer", k.flag("gpt_j_tied").value_or(false) ? "1" : "2",
                "gpt_j_tied: false, two norms");
  }
  for (const auto& [key, ours] :
       {std::pair{"use_bias_in_attn_linear", "attention"}, {"use_bias_in_norms", ""}, {"use_bias_in_mlp", "mlp"}}) {
    const bool on = k.flag(key).value_or(true);
    if (std::string_view(ours) == "attention")
      for (const char* to : {"model.attention_bias", "model.output_bias"})
        d.fall_back(to, on ? "true" : "false", "use_bias_in_attn_linear: true");
    if (std::string_view(ours) == "mlp") d.fall_back("model.mlp_bias", on ? "true" : "false", "use_bias_in_mlp: true");
  }
  if (!k.take_integer("make_vocab_size_divisible_by", "training.vocab_multiple"))
    d.fall_back("training.vocab_multiple", "128", "make_vocab_size_divisible_by: 128");
  if (!k.take_integer("vocab_size", "model.vocab")) {
    const std::string file = k.text("vocab_file").value_or("");
    const std::string type = k.text("tokenizer_type").value_or("GPT2BPETokenizer");
    if (file.find("20B_tokenizer") != std::string::npos)
      d.take(k.at("vocab_file"), file, "model.vocab", 50277, "the 20B tokenizer has 50,277 tokens");
    else if (type == "GPT2BPETokenizer" && d.options().model.empty())
      d.fall_back("model.vocab", "50257", "tokenizer_type: GPT2BPETokenizer, 50,257 tokens");
    else if (d.options().model.empty())
      d.missing("model.vocab", fmt::format("--set model.vocab=N: that of the tokenizer {}", type));
  }
  if (const tree::Entry* e = k.find("attention_config"); e && written(e->value).find("flash") != std::string::npos)
    d.take(k.at("attention_config"), written(e->value), "strategy.attention", "flash");
  else if (e && written(e->value).find("global") == std::string::npos)
    d.not_carried(k.at("attention_config"), written(e->value), "another attention");
  else
    d.fall_back("strategy.attention", "unfused", "attention_config: global, with the scores kept");
}

void read_parallelism(Keys& k) {
  Draft& d = k.draft();
  const int64_t pp = k.integer("pipe_parallel_size").value_or(0);
  if (k.has("pipe_parallel_size"))
    d.take(k.at("pipe_parallel_size"), k.said("pipe_parallel_size"), "strategy.pipeline", std::max<int64_t>(pp, 1),
           pp <= 1 ? "0 and 1: no pipeline" : "");
  k.take_integer("model_parallel_size", "strategy.tensor");
  if (k.flag("sequence_parallel").value_or(false))
    d.take(k.at("sequence_parallel"), "true", "strategy.sequence_parallel", "true");
  if (const auto n = k.integer("context_parallel_size"); n && *n > 1)
    d.take(k.at("context_parallel_size"), k.said("context_parallel_size"), "strategy.context", *n);
  const std::string partition = k.text("pipe_partition_method").value_or("type:transformer|mlp");
  if (k.has("pipe_partition_method")) d.ignore(k.at("pipe_partition_method"), partition, "layers are planned evenly");
  if (pp > 1) {
    d.fall_back("strategy.shard_messages", "true", "DeepSpeed's pipeline engine cuts messages over tensor ranks");
    d.fall_back("strategy.serial_messages", "true", "DeepSpeed's pipeline engine sends one after the other");
    d.fall_back("strategy.kept_edges", "2", "DeepSpeed's pipeline engine keeps what a stage sent and received");
  }
  k.ignore("output_layer_parallelism", "column, as planned");
}

void read_training(Keys& k) {
  Draft& d = k.draft();
  k.take_integer("seq_length", "training.seq_len");
  k.take_integer("seed", "training.seed");
  const double hidden = k.number("hidden_dropout").value_or(0), attention = k.number("attention_dropout").value_or(0);
  d.fall_back("training.dropout", hidden > 0 || attention > 0 ? "true" : "false",
              "hidden_dropout and attention_dropout");
  if (k.flag("checkpoint_activations").value_or(false)) {
    d.take(k.at("checkpoint_activations"), "true", "strategy.recompute.kind", "full");
    if (!k.take_integer("checkpoint_num_layers", "strategy.recompute.layers"))
      d.fall_back("strategy.recompute.layers", "1", "checkpoint_num_layers: 1");
  }
  k.has("checkpoint_num_layers");
  k.not_carried_if_on("partition_activations", "saved inputs cut over tensor ranks are not built yet");
  if (const auto precision = k.text("precision")) {
    const std::string ours = dtype_word(*precision);
    if (ours.empty())
      d.error(k.at("precision"), fmt::format("unknown '{}'", *precision), "legal: fp16, bfloat16, fp32");
    else
      d.take(k.at("precision"), *precision, "training.precision", ours);
  }
  d.fall_back("training.gradient_fusion", "false", "NeoX adds weight gradients in a kernel of their own");
  d.fall_back("strategy.tensor_async_backward", "false", "NeoX reduces input gradients before the next product");
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "GPT-NeoX YAML", fmt::format("{}, {}", kVersion, kDeepSpeedVersion));
  const auto root = std::make_shared<tree::Node>(underscored(*f.tree));
  d.later([root] {});
  Keys k(*root, "", d);
  d.framework("gpt_neox");
  read_model(k);
  read_parallelism(k);
  read_training(k);
  read_deepspeed(k);
  d.later([&d] { d.fall_back("batch.accumulation", "1", "gradient_accumulation_steps: 1"); });
  k.ignore_all(
      {"scaled_upper_triang_masked_softmax_fusion", "bias_gelu_fusion", "rope_fusion", "layernorm_fusion",
       "rmsnorm_fusion", "synchronize_each_layer", "contiguous_checkpointing", "rotary_pct", "rotary_emb_base",
       "rotary_ndims", "init_method", "output_layer_init_method", "init_method_std", "apply_query_key_layer_scaling"},
      "kernels are planned fused; initial values");
  k.ignore_all({"train_iters",
                "lr_decay_iters",
                "min_lr",
                "lr_decay_style",
                "warmup",
                "weight_decay",
                "distributed_backend",
                "checkpoint_factor",
                "eval_interval",
                "eval_iters",
                "log_interval",
                "keep_last_n_checkpoints",
                "log_dir",
                "tensorboard_dir",
                "save",
                "load",
                "vocab_file",
                "merge_file",
                "data_path",
                "data_impl",
                "split",
                "tokenizer_type",
                "train_data_paths",
                "valid_data_paths",
                "test_data_paths",
                "num_workers",
                "launcher",
                "hostfile",
                "use_wandb",
                "wandb_project",
                "wandb_group",
                "include",
                "master_port"},
               "data, logging, checkpoints and learning rate");
  k.finish("GPT-NeoX");
}

}  // namespace

extern const Format formats_neox_yaml;
const Format formats_neox_yaml = {"neox_yaml", "GPT-NeoX YAML", "model, parallelism and DeepSpeed's keys in one",
                                  recognise, read};

}  // namespace wt::import
