// Job -> plan. Checks what only the whole job can show (30 layers on 4 stages, heads against tensor degree, world size),
// all faults at once in the job's key names, then runs the passes.
#pragma once

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::lower {

/// Errors: every illegal or contradictory number with the nearest legal values.
Result<plan::Plan> lower(const JobSpec& job);

}  // namespace wt::lower
