// What DeepSpeed's own estimators print for a job, estimate_zero2_model_states_mem_needs and estimate_zero3_...: memory of the
// model states alone. Theirs, not ours: buckets, prefetched and live weights, activations and the CUDA context are not in
// them, which is why a run needs more (deepspeedai/DeepSpeed issue 4527). (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/report/report.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

/// One row of their table: bytes of a node's host memory and of a GPU.
struct StateEstimate {
  bool offload_optimizer = false, offload_parameters = false, zero_init = false;
  double host_bytes = 0, device_bytes = 0;
};

struct StateCounts {
  int64_t parameters = 0, largest_layer = 0;  // largest_layer: of one module, without those inside it
  int64_t nodes = 1, devices = 1;             // devices of a node
};
StateCounts state_counts(const JobSpec&);

/// Stage 3: six rows in DeepSpeed's order; stage 2: two.
std::vector<StateEstimate> deepspeed_estimate(int stage, const StateCounts&);

/// The table of the job's stage with our own numbers below it, and what those add; a line that says so where the job is not
/// DeepSpeed's stage 2 or 3.
std::string print_deepspeed_estimate(const JobSpec&, const report::MemoryReport&);

}  // namespace wt::study
