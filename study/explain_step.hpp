// Every term of a predicted step with its formula, inputs and source, as text: what --explain prints. Asks the models for
// each kind of op once more; predicts nothing of its own.
#pragma once

#include <cstdint>
#include <string>

#include "sim/simulate.hpp"
#include "study/run_job.hpp"

namespace wt::study {

/// grouped: ops that differ only in the number behind their name (buckets, modules) in one line, with count, least and
/// most. full: each for itself.
enum class Listing : uint8_t { grouped, full };

std::string explain_step(const JobResult& result, const sim::Models& models, Listing listing = Listing::grouped);

}  // namespace wt::study
