// The hardware of a published row: its phrases for GPU, nodes and network -> the `cluster` of a job, by
// data/validate/clusters.yaml.
// Knows no speed; what a phrase leaves open comes back as several networks.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "study/validate_map.hpp"

namespace wt::study {

struct RowCluster {
  std::string skip;                 // why there is none
  YAML::Node cluster;               // of the job
  std::vector<YAML::Node> fabrics;  // networks to try; one or none: `cluster` has it
};
RowCluster cluster_of(const Case&, const YAML::Node& table, std::vector<std::string>& assumptions);

}  // namespace wt::study
