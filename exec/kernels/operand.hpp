// What a kernel is handed beside its plan::Compute: resolved operands and the few values that only a run knows.
// Not a tensor library: shapes come from the plan's buffer, storage from the device's arena. Both devices and every
// conformance test speak this.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/dtype.hpp"

namespace wt::exec {

/// A resolved buffer. `dtype` is of the storage: the plan's, or what the run was told to use in its place.
struct Operand {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t elements = 0;
  std::span<const int64_t> shape;  // local, of the plan's buffer; empty in kernel tests
  int64_t bytes() const { return elements * size_of(dtype); }
};

/// Hyperparameters of one step; the same on every rank. A device that records graphs keeps them in its own memory.
struct StepValues {
  int64_t step = 0;  // 0-based; Adam's bias correction uses step + 1 less the steps skipped
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.0;
  double loss_scale = 1.0;  // loss_backward multiplies by it, adam and the norm divide; fp16 only
};

/// Where the op stands.
struct KernelContext {
  int64_t group_index = 0, group_size = 1;  // this rank in Compute::group
  int64_t micro_batches = 1;                // the loss is a mean over them
  uint64_t random_key = 0;  // dropout: of (seed, step, micro-batch, layer, op); element index counts on top
  const StepValues* values = nullptr;
};

}  // namespace wt::exec
