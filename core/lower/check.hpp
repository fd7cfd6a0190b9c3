// What is illegal in a job, without making its plan: lower() asks the same first.
#pragma once

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::lower {

/// Every illegal or contradictory number of the job, in its key names, with the nearest legal values.
Diagnostics check_job(const JobSpec& job);

}  // namespace wt::lower
