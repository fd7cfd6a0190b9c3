// Axolotl's training YAML: its own spellings over Hugging Face's Trainer, FSDP with or without the prefix, and parallel
// degrees. Facts: axolotl-ai-cloud/axolotl 067b021c src/axolotl/utils/schemas.
#include <fmt/format.h>

#include "import/format.hpp"
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

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "Axolotl YAML", "axolotl 067b021c, transformers TrainingArguments");
  Keys root(*f.tree, "", d);
  for (const char* key : {"adapter", "load_in_4bit", "load_in_8bit"}) {
    const auto word = root.text(key);
    if (word && !word->empty() && truth(*word) != false)
      d.error(root.at(key), fmt::format("'{}': frozen or quantised weights with adapters cannot be planned yet", *word),
              "legal: full fine-tuning, without this key");
  }
  read_degrees(root);
  root.take_integer("micro_batch_size", "training.micro_batch");
  root.take_integer(
      "sequence_len", "training.seq_len",
      root.flag("sample_packing").value_or(false) ? "packed full" : "every sequence is planned at this length");
  if (const auto optimizer = root.text("optimizer")) {
    if (optimizer->find("8bit") != std::string::npos)
      d.not_carried(root.at("optimizer"), *optimizer, "8-bit moments are not built yet");
    else if (optimizer->starts_with("adam"))
      d.take(root.at("optimizer"), *optimizer, "training.optimizer", "adam");
    else
      d.not_carried(root.at("optimizer"), *optimizer, "only adam and sgd are built; planned as adam");
  }
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
  root.ignore_all({"lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules"}, "of adapters");
  root.finish("Axolotl");
}

}  // namespace

extern const Format formats_axolotl_yaml;
const Format formats_axolotl_yaml = {"axolotl_yaml", "Axolotl YAML",
                                     "full fine-tuning with FSDP, tensor and context degrees", recognise, read};

}  // namespace wt::import
