// The tables that rows are mapped by (data/validate), and what they say of a row: corrections, the framework's rules, what
// its model has.
// The rules themselves are interpreted in core/spec/framework_rules.hpp, by which jobs that name a framework are read too.
#pragma once

#include <yaml-cpp/yaml.h>

#include <memory>
#include <string>
#include <vector>

#include "core/spec/framework_rules.hpp"
#include "study/validate_map.hpp"

namespace wt::study {

struct ValidateData::Impl {
  YAML::Node clusters, memory_kinds;
  std::shared_ptr<const tree::Node> frameworks;
};

/// The row in the words that the rules look into.
RunDescription description_of(const Case&);

/// What a row says against its own source's evidence, put right and named.
Case corrected(Case, const tree::Node& frameworks, std::vector<std::string>& assumptions);

/// Puts what the row's fields do not say of its model over `model`, by the list `models`.
void add_model_rules(const Case&, const tree::Node& frameworks, YAML::Node model);

/// The key `framework` of the row's job: as much of the description as its rules look at.
YAML::Node framework_key(const Case&, const FrameworkDefaults&);

}  // namespace wt::study
