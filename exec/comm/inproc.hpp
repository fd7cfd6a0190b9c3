// Ranks as threads of one process: collectives, sends and receives straight between the ranks' memories, for CPU devices.
// Not a network: nothing is copied twice, so its times say nothing of one. Invariants: reductions add in the order of the
// group's members, so a result does not depend on timing; a rank that waits longer than the timeout, or that any rank
// aborts, stops every rank with that reason.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "exec/device/cpu.hpp"

namespace wt::exec {

struct InprocOptions {
  int threads_per_rank = 1;
  bool pin = true;  // ranks take the usable cores in turn; without effect when there are fewer cores than threads
  std::chrono::milliseconds timeout{60'000};
  bool poison = false;  // CpuOptions
  CpuKernel kernel;     // CpuOptions
};

/// One machine for each rank, each to be driven by a thread of its own. Any order of destruction.
std::vector<Machine> open_inproc(int64_t ranks, const InprocOptions& = {});

}  // namespace wt::exec
