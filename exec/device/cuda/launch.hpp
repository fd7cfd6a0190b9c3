// How host code starts our CUDA kernels. Not products of matrices (products.hpp): launch() takes all other ops.
// Invariant: operands were checked (exec/kernels/check.hpp); what is returned is the error of the launch, not of the run.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "core/plan/plan.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec::cuda {

cudaError_t launch(const plan::Compute&, std::span<const Operand> reads, std::span<const Operand> writes,
                   const KernelContext&, cudaStream_t);

/// y = x in another type.
void launch_convert(const Operand& x, const Operand& y, cudaStream_t);
/// y[rows, columns] += bias[columns].
void launch_add_bias(const Operand& bias, const Operand& y, int64_t columns, cudaStream_t);

}  // namespace wt::exec::cuda
