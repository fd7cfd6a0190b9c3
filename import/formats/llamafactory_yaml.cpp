// LLaMA-Factory's training YAML: Hugging Face TrainingArguments with data and fine-tuning keys beside them.
// Facts: hiyouga/LlamaFactory ff6d4d12 src/llamafactory/hparams.
#include <fmt/format.h>

#include "import/format.hpp"
#include "import/hf_adapters.hpp"
#include "import/hf_trainer.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml || !f.has("model_name_or_path")) return 0;
  return f.has("finetuning_type") || f.has("stage") || f.has("template") ? 7 : 4;
}

/// The defaults of LLaMA-Factory's LoraArguments: rank 8, alpha twice the rank, all products.
void read_adapters(Keys& root) {
  Draft& d = root.draft();
  if (!root.take_integer("lora_rank", "training.lora.rank"))
    d.take(root.at("finetuning_type"), "lora", "training.lora.rank", "8", "lora_rank: 8");
  if (const auto alpha = root.number("lora_alpha"))
    d.take(root.at("lora_alpha"), root.said("lora_alpha"), "training.lora.alpha", fmt::format("{}", *alpha));
  if (const auto dropout = root.number("lora_dropout"))
    d.take(root.at("lora_dropout"), root.said("lora_dropout"), "training.lora.dropout",
           *dropout > 0 ? "true" : "false");
  const auto modules = words_of(root, "lora_target");
  take_adapter_targets(root, "lora_target", modules.empty() ? std::vector<std::string>{"all"} : modules);
  root.ignore_all({"loraplus_lr_ratio", "use_rslora", "create_new_adapter", "adapter_name_or_path"},
                  "no effect on the time or memory of a step");
  for (const char* key : {"use_dora", "pissa_init", "additional_target"})
    root.not_carried_if_on(key, "planned as plain LoRA");
  if (const auto bits = root.integer("quantization_bit")) {
    if (*bits == 4)
      d.take(root.at("quantization_bit"), "4", "training.lora.base", "nf4", "bitsandbytes with double quantisation");
    else
      d.error(root.at("quantization_bit"), fmt::format("{}-bit weights cannot be planned yet", *bits), "legal: 4");
  }
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "LLaMA-Factory YAML", "LlamaFactory ff6d4d12, transformers TrainingArguments");
  Keys root(*f.tree, "", d);
  const std::string kind = root.text("finetuning_type").value_or("lora");
  if (kind == "lora")
    read_adapters(root);
  else if (kind != "full")
    d.error(root.at("finetuning_type"), fmt::format("'{}' cannot be planned yet", kind), "legal: full, lora");
  else
    d.ignore(root.at("finetuning_type"), kind, "every weight is trained, as planned");
  const std::string stage = root.text("stage").value_or("sft");
  if (stage == "pt" || stage == "sft") {
    if (root.has("stage")) d.ignore(root.at("stage"), stage, "sequences are planned full");
  } else {
    d.error(root.at("stage"), fmt::format("'{}' needs models and steps of its own that cannot be planned yet", stage),
            "legal: pt, sft");
  }
  if (!root.take_integer("cutoff_len", "training.seq_len", "every sequence is planned at this length"))
    d.fall_back("training.seq_len", "2048", "cutoff_len: 2048");
  read_training_arguments(root);
  need_hub_model(root, "model_name_or_path");
  if (root.flag("enable_liger_kernel").value_or(false)) take_liger_loss(d, root.at("enable_liger_kernel"), "true");
  if (root.flag("neat_packing").value_or(false))
    d.not_carried(root.at("neat_packing"), "true",
                  "the lengths of the documents are in the data: --set training.packing.mean_length=TOKENS");
  for (const char* key :
       {"use_unsloth", "freeze_vision_tower", "packing", "flash_attn", "shift_attn", "use_badam", "use_galore"})
    root.not_carried_if_on(key, "not built yet");
  if (kind != "lora") {
    root.ignore_all({"lora_rank", "lora_alpha", "lora_target", "lora_dropout"}, "of adapters");
    root.not_carried_if_on("quantization_bit", "of adapters");
  }
  root.finish("LLaMA-Factory");
  d.later([&d] {
    d.note(
        "activation recompute: LLaMA-Factory switches gradient checkpointing on by itself "
        "(disable_gradient_checkpointing: false)");
    d.fall_back("strategy.recompute.kind", "full", "disable_gradient_checkpointing: false");
  });
}

}  // namespace

extern const Format formats_llamafactory_yaml;
const Format formats_llamafactory_yaml = {"llamafactory_yaml", "LLaMA-Factory YAML",
                                          "full fine-tuning and LoRA; its DeepSpeed file comes beside it", recognise,
                                          read};

}  // namespace wt::import
