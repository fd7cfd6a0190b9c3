// What a row leaves open: the plausible values of each such choice, and one candidate for every combination of them.
// Which of them were really run is for the judge of predictions (validate.cpp).
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "study/validate_map.hpp"

namespace wt::study {

/// One thing that the row leaves open: how to write each of its values into a job.
struct Choice {
  std::string name;
  std::vector<std::string> values;
  std::function<void(YAML::Node job, const std::string& value)> apply;
};

/// Powers of two that divide what one replica gets of the global batch.
std::vector<std::string> plausible_micro_batches(int64_t per_replica);
std::vector<std::string> plausible_virtual_stages(int64_t layers, int64_t pipeline, bool must_interleave);

/// One candidate for each combination of values and each global batch.
std::vector<Candidate> all_combinations(const YAML::Node& job, const std::vector<Choice>& open,
                                        const std::vector<int64_t>& global_batches);

}  // namespace wt::study
