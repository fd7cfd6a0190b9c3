// What a training framework does where a job says nothing: the rules of data/validate/frameworks.yaml, which published
// runs are read by too, laid under a job that names its framework.
// Not a judge and no second set of defaults: without `framework` a job means what specs.hpp says. Invariant: a key that
// the job writes is never touched.
#pragma once

#include <string>
#include <vector>

#include "core/spec/map_reader.hpp"
#include "core/spec/tree.hpp"

namespace wt {

/// Fills `strategy` and `training` of the job's tree by its key `framework`, and says in `assumptions` with what; without
/// the key nothing happens. Faults: an unknown name, a framework whose runs cannot be planned. Errors: the data file.
void apply_framework(tree::Node& job, Faults& faults, Diagnostics& errors, std::vector<std::string>& assumptions);

}  // namespace wt
