// The entry to the CPU's kernels: one compute op of a plan, done when it returns. Not a device: streams, tickets and
// threads are exec/device/cpu's. Invariant: nothing is written unless the operands fit the op.
#pragma once

#include <span>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "exec/kernels/cpu/workers.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// Fails with every fault of the operands (exec/kernels/check.hpp), or with what the library beneath said.
Status run_cpu_kernel(const plan::Compute&, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext&, Workers&);

}  // namespace wt::exec
