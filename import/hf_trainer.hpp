// What Hugging Face's TrainingArguments and accelerate's FSDP plugin mean, wherever their keys stand: an accelerate YAML,
// LLaMA-Factory's or Axolotl's YAML, the command line of a script.
// Facts: accelerate 16cb6eb8 src/accelerate/utils/dataclasses.py, commands/launch.py; transformers training_args.py.
#pragma once

#include <string>
#include <string_view>

#include "import/keys.hpp"

namespace wt::import {

inline constexpr std::string_view kAccelerateVersion = "accelerate 16cb6eb8 (2026-08)";

/// fsdp_config, with or without the prefix fsdp_. `from` names what chose FSDP, `version` what stands outside.
void read_fsdp(Keys& section, const Origin& from, int64_t version);
/// FSDP's CPU offload moves shards, gradients and the update.
void take_fsdp_offload(Draft&, const Origin& from, std::string_view written);
/// Without any fsdp_config: the plugin's defaults.
void fall_back_to_plain_ddp(Draft& draft, const std::string& why);

/// per_device_train_batch_size, bf16, fsdp, deepspeed ... and those with no effect. The caller calls finish().
void read_training_arguments(Keys& keys);

/// A model of the Hub is not in the file: how to give it, with the built-in of that name if there is one.
void need_hub_model(Keys& keys, std::string_view key);

}  // namespace wt::import
