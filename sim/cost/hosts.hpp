// data/hosts.csv: how long a host needs to issue one kernel, operator or collective, by processor and framework.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.hpp"

namespace wt::sim {

struct HostProfile {
  std::string name;
  double kernel_seconds = 0, collective_seconds = 0;
  double forward_seconds = 0, backward_seconds = 0;  // an operator of the forward or backward beside its kernels
  double checkpoint_seconds = 0;                     // a checkpointed segment beside its operators
};
Result<std::vector<HostProfile>> read_hosts(const std::string& path);

}  // namespace wt::sim
