// Between doubles on the host and elements as they are stored: initial weights in, losses and checkpoints out.
// Not for kernels (exec/kernels has its own, faster). Invariant: storing rounds to nearest even, once.
#pragma once

#include <span>

#include "core/base/dtype.hpp"

namespace wt::exec {

/// `out` holds values.size() elements of `dtype`; whole-number types take the nearest whole number.
void store(std::span<const double> values, DType dtype, void* out);
/// `from` holds out.size() elements of `dtype`.
void load(const void* from, DType dtype, std::span<double> out);

}  // namespace wt::exec
