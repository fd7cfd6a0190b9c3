// Products of matrices on one thread, by the library that is fastest here (docs/kernels.md): oneDNN for f32 and bf16,
// Eigen for f64. Not a kernel of a plan: gemm and attention are made of it. Invariant: sums are kept in f32 (f64 for
// f64) whatever is stored, and C is rounded once.
#pragma once

#include "exec/kernels/matrix.hpp"

namespace wt::exec {

/// Whether the library takes these types as they are stored: all f64; all f32; or a and b bf16 with c bf16 or f32 where
/// the processor can. Otherwise the caller widens to f32 or f64.
bool multiplies(DType a, DType b, DType c);

/// Types must be such that multiplies() holds.
void multiply(const Product&);

}  // namespace wt::exec
