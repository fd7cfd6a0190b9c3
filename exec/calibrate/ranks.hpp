// The ranks that calibration drives: all of a job as threads of this process, or this process's one of several. Not a
// machine: what opens one is given by the command, as for a run.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/result.hpp"
#include "exec/backend.hpp"
#include "exec/device/cpu.hpp"

namespace wt::exec {

struct Ranks {
  int64_t size = 1;      // of all processes
  int64_t per_host = 1;  // ranks on one host; hosts have equally many
  /// Opens the machines of the ranks of this process, with a kernel in place of the device's where one is given. Collective;
  /// one set at a time.
  std::function<Result<std::vector<Machine>>(CpuKernel)> open;

  int64_t hosts() const { return (size + per_host - 1) / per_host; }
};

/// Calls f on every machine of this process, on a thread for each where there are several. The first failure.
Status on_every(std::vector<Machine>& machines, const std::function<Status(Machine&)>& f);

}  // namespace wt::exec
