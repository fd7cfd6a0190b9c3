// Adapters (PEFT), 4-bit weights (bitsandbytes) and Liger's fused loss, as Hugging Face's fine-tuning tools spell them. The
// keys differ by tool; what they mean is here. Facts: peft 0.17 src/peft/tuners/lora, liger_kernel 0.6
// ops/fused_linear_cross_entropy.py.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "import/keys.hpp"

namespace wt::import {

/// "q_proj" -> "q", "query_key_value" -> "qkv"; "" for a module that no product of a layer is.
std::string adapter_target(std::string_view module);

/// strategy and training keys of an adapter: its targets as lists or texts with commas say them ("all", "all-linear"; nothing: what
/// peft chooses for Llama, q_proj and v_proj).
void take_adapter_targets(Keys& keys, std::string_view key, const std::vector<std::string>& modules);
/// The items of a list, or of a text with commas.
std::vector<std::string> words_of(Keys& keys, std::string_view key);

/// training.loss_chunk as Liger chooses it: the rows whose logits take as much memory as their hidden states.
void take_liger_loss(Draft& draft, const Origin& from, std::string_view written);

}  // namespace wt::import
