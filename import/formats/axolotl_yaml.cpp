// Axolotl's training YAML: its own spellings over Hugging Face's Trainer, FSDP with or without the prefix, and parallel
// degrees. Facts: axolotl-ai-cloud/axolotl 067b021c src/axolotl/utils/schemas.
#include <fmt/format.h>

#include "import/format.hpp"
#include "import/hf_adapters.hpp"
#include "import/hf_trainer.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml || !f.has("base_model")) return 0;
  return f.has("micro_batch_size") || f.has("sequence_len") || f.has("datasets") ? 7 : 3;
}

void read_degrees(Keys& root) {
  Draft& d = root.draft();
  root.take_integer("tensor_parallel_size", "strategy.tensor");
  if (const auto replicate = root.integer("dp_replicate_size"); replicate && *replicate > 1) {
    d.take(root.at("dp_replicate_size"), root.said("dp_replicate_size"), "strategy.fsdp.sharding", "hybrid_shard");
    if (const auto shard = root.integer("dp_shard_size"))
      d.take(root.at("dp_shard_size"), root.said("dp_shard_size"), "strategy.fsdp.shard_size", *shard);
  } else if (root.has("dp_shard_size")) {
    const auto shard = root.integer("dp_shard_size");
    const Origin from = root.at("dp_shard_size");
    if (shard)
      d.later([&d, from, shard = *shard] {
        const auto w = d.world();
        const int64_t cut = d.number("strategy.tensor").value_or(1) * d.number("strategy.context").value_or(1);
        if (w && shard * cut != *w)
          d.error(from,
                  fmt::format("{} x tensor {} x context {} is not {} GPUs", shard,
                              d.number("strategy.tensor").value_or(1), d.number("strategy.context").value_or(1), *w),
                  "Axolotl refuses this");
        else
          d.ignore(from, std::to_string(shard), "what is left of the GPUs, as planned");
      });
  }
  if (const auto cp = root.integer("context_parallel_size"))
    d.take(root.at("context_parallel_size"), root.said("context_parallel_size"), "strategy.context", *cp);
  if (const auto sp = root.integer("sequence_parallel_degree"); sp && *sp > 1)
    d.take(root.at("sequence_parallel_degree"), root.said("sequence_parallel_degree"), "strategy.context", *sp,
           "ring attention over these ranks");
}

/// Whether the file has an adapter.
bool read_adapters(Keys& root) {
  Draft& d = root.draft();
  const std::string kind = root.text("adapter").value_or("");
  const bool four = root.flag("load_in_4bit").value_or(false) || kind == "qlora";
  if (root.flag("load_in_8bit").value_or(false))
    d.error(root.at("load_in_8bit"), "8-bit weights beside adapters cannot be planned yet",
            "legal: load_in_4bit with adapter: qlora, or neither");
  if (kind.empty()) {
    if (four) d.error(root.at("load_in_4bit"), "4-bit weights cannot be trained", "with adapter: qlora");
    return false;
  }
  if (kind != "lora" && kind != "qlora") {
    d.error(root.at("adapter"), fmt::format("'{}' cannot be planned yet", kind), "legal: lora, qlora");
    return false;
  }
  if (!root.take_integer("lora_r", "training.lora.rank"))
    d.error(root.at("adapter"), fmt::format("'{}' without lora_r", kind), "such as lora_r: 16");
  if (const auto alpha = root.number("lora_alpha"))
    d.take(root.at("lora_alpha"), root.said("lora_alpha"), "training.lora.alpha", fmt::format("{}", *alpha));
  if (const auto dropout = root.number("lora_dropout"))
    d.take(root.at("lora_dropout"), root.said("lora_dropout"), "training.lora.dropout",
           *dropout > 0 ? "true" : "false");
  if (four)
    d.take(root.at("load_in_4bit"), "true", "training.lora.base", "nf4", "bitsandbytes with double quantisation");
  if (root.flag("lora_target_linear").value_or(false))
    take_adapter_targets(root, "lora_target_linear", {"all"});
  else
    take_adapter_targets(root, "lora_target_modules", words_of(root, "lora_target_modules"));
  for (const char* key : {"lora_modules_to_save", "peft_use_dora"})
    root.not_carried_if_on(key, "planned as plain LoRA");
  root.ignore_all({"lora_model_dir", "lora_fan_in_fan_out", "peft_use_rslora", "lora_mlp_kernel", "lora_qkv_kernel",
                   "lora_o_kernel"},
                  "no effect that is planned");
  return true;
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "Axolotl YAML", "axolotl 067b021c, transformers TrainingArguments");
  Keys root(*f.tree, "", d);
  const bool adapts = read_adapters(root);
  read_degrees(root);
  root.take_integer("micro_batch_size", "training.micro_batch");
  root.take_integer(
      "sequence_len", "training.seq_len",
      root.flag("sample_packing").value_or(false) ? "packed full" : "every sequence is planned at this length");
  if (const auto optimizer = root.text("optimizer")) {
    if (optimizer->find("8bit") != std::string::npos && optimizer->find("adam") != std::string::npos)
      d.take(root.at("optimizer"), *optimizer, "training.moment_dtype", "fp8", "8-bit moments (bitsandbytes)");
    else if (optimizer->starts_with("adam"))
      d.take(root.at("optimizer"), *optimizer, "training.optimizer", "adam");
    else
      d.not_carried(root.at("optimizer"), *optimizer, "only adam and sgd are built; planned as adam");
  }
  if (root.flag("liger_fused_linear_cross_entropy").value_or(false))
    take_liger_loss(d, root.at("liger_fused_linear_cross_entropy"), "true");
  if (root.flag("sample_packing").value_or(false))
    d.not_carried(root.at("sample_packing"), "true",
                  "the lengths of the documents are in the data: --set training.packing.mean_length=TOKENS");
  if (const tree::Entry* e = root.find("plugins");
      e && written(e->value).find("cut_cross_entropy") != std::string::npos)
    d.take(root.at("plugins"), written(e->value), "training.fused_loss", "true",
           "CutCrossEntropy: no fp32 copy of the logits");
  else if (e)
    d.not_carried(root.at("plugins"), written(e->value), "kernels of plugins are not planned");
  read_training_arguments(root);
  need_hub_model(root, "base_model");
  for (const char* key : {"flash_attention", "sdp_attention"})
    if (root.flag(key).value_or(false)) d.take(root.at(key), "true", "strategy.attention", "flash");
  if (const auto a = root.text("attn_implementation"))
    d.take(root.at("attn_implementation"), *a, "strategy.attention", *a == "eager" ? "unfused" : "flash");
  root.ignore_all(
      {"datasets",        "val_set_size",    "eval_sample_packing", "gradient_clipping",   "dataset_prepared_path",
       "special_tokens",  "tokenizer_type",  "model_type",          "evals_per_epoch",     "saves_per_epoch",
       "logging_steps",   "strict",          "wandb_project",       "wandb_entity",        "wandb_watch",
       "wandb_name",      "wandb_log_model", "chat_template",       "pad_to_sequence_len", "train_on_inputs",
       "group_by_length", "ring_attn_func",  "heads_k_stride"},
      "data, logging and checkpoints");
  if (!adapts)
    root.ignore_all({"lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules"},
                    "of adapters");
  root.finish("Axolotl");
}

}  // namespace

extern const Format formats_axolotl_yaml;
const Format formats_axolotl_yaml = {
    "axolotl_yaml", "Axolotl YAML", "full fine-tuning and LoRA with FSDP, tensor and context degrees", recognise, read};

}  // namespace wt::import
