// data/hosts.csv: how long a host needs to issue one kernel or one collective, by processor and framework.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.hpp"

namespace wt::sim {

struct HostProfile {
  std::string name;
  double kernel_seconds = 0, collective_seconds = 0;
};
Result<std::vector<HostProfile>> read_hosts(const std::string& path);

}  // namespace wt::sim
