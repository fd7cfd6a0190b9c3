// What the words of a published row mean in the terms of a job: precision, recompute, schedule, model, layers of stages;
// and which rows no engine of this version can run.
// One row at a time, no data files: frameworks and hardware are in their own parts.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "study/validate_case.hpp"

namespace wt::study {

enum class Recompute { none, selective, parts, full, every_second, unknown, other };
Recompute recompute_of(const std::string& words);
/// Of Recompute::parts: RecomputeSpec::modules. torchtitan's per-op list depends on how the row is cut.
std::string recomputed_parts(const Case&);

/// "bf16", "fp16" or "fp8": the dtype of products; "" where none of these is meant.
std::string precision_of(const std::string& words);
/// How the words after "fp8" scale a tensor; Transformer Engine's own default is delayed scaling.
std::string fp8_recipe_of(const Case&, std::vector<std::string>& assumptions);

/// The registry's name of the schedule that the words mean; "" if it has none.
std::string schedule_of(const Case&);

/// The `model` of a job.
YAML::Node model_of(const Case&, std::vector<std::string>& assumptions);

/// Layers that do not divide over the stages: Megatron and DeepSpeed then count the embedding and the head as layers.
void split_layers(const Case&, YAML::Node strategy, int64_t stages, bool balanced,
                  std::vector<std::string>& assumptions);

/// Layers whose saved activations lie on the host, of "activations: 20 layers to CPU"; 0: none, or not said.
int64_t offloaded_layers(const Case&);

/// Why no engine of this version can run the row, by what it needs; "" if one can.
std::string not_built(const Case&);

}  // namespace wt::study
