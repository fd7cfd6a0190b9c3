// What a training framework does where a job says nothing: the rules of framework_rules.hpp, laid under a job that names
// its framework, or describes it in the words that a published run is described in:
//   framework: megatron
//   framework: {words: Megatron-DeepSpeed (2022-02), zero_stage: 1, overlap: DP overlap}
// Not a judge and no second set of defaults: without `framework` a job means what specs.hpp says. Invariant: a key that
// the job writes is never touched.
#pragma once

#include <string>
#include <vector>

#include "core/spec/map_reader.hpp"
#include "core/spec/tree.hpp"

namespace wt {

/// Fills `strategy`, `training` and, of a described run, `cluster` of the job's tree by its key `framework`, and says in
/// `assumptions` with what; without the key nothing happens. Faults: an unknown name or key of a description, a framework
/// whose runs cannot be planned. Errors: the data file.
void apply_framework(tree::Node& job, Faults& faults, Diagnostics& errors, std::vector<std::string>& assumptions);

}  // namespace wt
