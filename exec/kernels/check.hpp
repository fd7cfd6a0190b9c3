// Whether operands fit a compute op: how many, how many elements, of which types. The same table for both devices.
// Not a check of the plan (core/plan/plan_io.hpp). Invariant: all faults at once, in the words of plan::Kernel.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// Counts, element types and, if the operands have sizes, elements.
Status check_operands(const plan::Compute&, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext&);

/// Counts and element types alone: what Device::unsupported asks before there is memory.
std::optional<std::string> unsupported_types(const plan::Compute&, std::span<const Operand> reads,
                                             std::span<const Operand> writes);

}  // namespace wt::exec
