// Every term of a predicted step with its formula, inputs and source, as text: what --explain prints. Asks the models for
// each kind of op once more; predicts nothing of its own.
#pragma once

#include <string>

#include "sim/simulate.hpp"
#include "study/run_job.hpp"

namespace wt::study {

std::string explain_step(const JobResult& result, const sim::Models& models);

}  // namespace wt::study
