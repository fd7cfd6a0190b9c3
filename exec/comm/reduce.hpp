// Sums and maxima over buffers of several ranks, element by element. Arithmetic only: who waits for whom is a
// communicator's. Invariant: operands are taken in the order given, and each element is rounded once.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"

namespace wt::exec {

/// out[i] = reduction of inputs[0][i], inputs[1][i], ... over `elements` of `dtype`. `out` may be one of the inputs.
/// Fails for types that have no such sum (f8, u8).
Status reduce_elements(std::span<const void* const> inputs, void* out, int64_t elements, DType dtype, plan::Reduction);

/// The reduction of `count` doubles of each rank, as their bytes were gathered.
Result<std::vector<double>> reduce_gathered(const std::vector<std::string>& ranks, int64_t count, plan::Reduction);

}  // namespace wt::exec
