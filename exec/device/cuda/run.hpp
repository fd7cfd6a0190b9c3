// One compute op of a plan on a CUDA stream: products by the library, the rest by our kernels.
#pragma once

#include "exec/device/cuda/products.hpp"

namespace wt::exec::cuda {

/// Operands must fit the op (exec/kernels/check.hpp).
Fault run_cuda_kernel(const plan::Compute&, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext&, Products&, cudaStream_t);

}  // namespace wt::exec::cuda
