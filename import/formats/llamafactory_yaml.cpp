// LLaMA-Factory's training YAML: Hugging Face TrainingArguments with data and fine-tuning keys beside them.
// Facts: hiyouga/LlamaFactory ff6d4d12 src/llamafactory/hparams.
#include <fmt/format.h>

#include "import/format.hpp"
#include "import/hf_trainer.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml || !f.has("model_name_or_path")) return 0;
  return f.has("finetuning_type") || f.has("stage") || f.has("template") ? 7 : 4;
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "LLaMA-Factory YAML", "LlamaFactory ff6d4d12, transformers TrainingArguments");
  Keys root(*f.tree, "", d);
  const std::string kind = root.text("finetuning_type").value_or("lora");
  if (kind != "full")
    d.error(root.at("finetuning_type"), fmt::format("'{}': frozen weights and adapters cannot be planned yet", kind),
            "legal: full");
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
  for (const char* key : {"quantization_bit", "use_unsloth", "enable_liger_kernel", "freeze_vision_tower", "packing",
                          "neat_packing", "flash_attn", "shift_attn", "use_badam", "use_galore"})
    root.not_carried_if_on(key, "not built yet");
  root.ignore_all({"lora_rank", "lora_alpha", "lora_target", "lora_dropout"}, "of adapters");
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
                                          "full fine-tuning; its DeepSpeed file comes beside it", recognise, read};

}  // namespace wt::import
