// The keys of a DeepSpeed configuration, wherever they stand: a ds_config.json, a GPT-NeoX YAML, accelerate's sections.
// Facts: DeepSpeed edaa7221 (2026-08-22) deepspeed/runtime/config.py, runtime/zero/{config,stage_1_and_2,stage3}.py,
// runtime/engine.py; "auto": transformers integrations/deepspeed.py.
#pragma once

#include <string_view>

#include "import/keys.hpp"

namespace wt::import {

inline constexpr std::string_view kDeepSpeedVersion = "DeepSpeed edaa7221 (2026-08-22)";

/// Reads the keys of the top level that are DeepSpeed's and leaves the others to the caller, who calls finish().
/// `auto` values are resolved when all files are known.
void read_deepspeed(Keys& root);

/// stage 0 to 3 -> strategy.*, when precision is known. `bucket` in elements; nothing where the default holds.
void take_zero_stage(Draft& draft, const Origin& from, std::string_view written, int64_t stage);

/// "fp16", "float16", "torch.float16" -> our spelling; "" for another.
std::string dtype_word(std::string_view framework_word);

}  // namespace wt::import
