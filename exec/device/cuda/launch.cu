// From an op to the launcher of its kernel.
#include "exec/device/cuda/launch.hpp"

#include "exec/device/cuda/kernels.cuh"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

cudaError_t fill_zero(const Job& job) {
  for (const Operand& x : job.writes)
    if (const cudaError_t e = cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.bytes()), job.stream); e != cudaSuccess)
      return e;
  return cudaSuccess;
}

/// With a group, y is this rank's piece of x. The same memory on both sides is a copy already.
void copy(const Job& job) {
  for (size_t i = 0; i < job.reads.size(); ++i) {
    const Operand &x = job.reads[i], &y = job.writes[i];
    const Operand piece{static_cast<std::byte*>(x.data) + job.context.group_index * y.elements * size_of(x.dtype),
                        x.dtype,
                        y.elements,
                        {}};
    if (piece.data != y.data || x.dtype != y.dtype) convert(piece, y, job.stream);
  }
}

/// concat_columns and slice_columns: a copy of rows at a distance for each piece.
cudaError_t columns(const Job& job) {
  const int64_t rows = job.compute.dims[0], pieces = job.context.group_size;
  const int64_t row = job.compute.dims[1] * size_of(job.writes[0].dtype);
  const auto* x = static_cast<const std::byte*>(job.reads[0].data);
  auto* y = static_cast<std::byte*>(job.writes[0].data);
  auto move = [&](std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch) {
    return cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                             static_cast<size_t>(row), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, job.stream);
  };
  if (job.compute.kernel == Kernel::slice_columns) return move(y, row, x + job.context.group_index * row, pieces * row);
  for (int64_t g = 0; g < pieces; ++g)
    if (const cudaError_t e = move(y + g * row, pieces * row, x + g * rows * row, row); e != cudaSuccess) return e;
  return cudaSuccess;
}

template <class A>
cudaError_t run(const Job& job) {
  switch (job.compute.kernel) {
    case Kernel::bias_gradient:
    case Kernel::norm_forward:
    case Kernel::norm_backward:
    case Kernel::qk_norm_forward:
    case Kernel::qk_norm_backward: norms<A>(job); break;
    case Kernel::rope_forward:
    case Kernel::rope_backward: rope<A>(job); break;
    case Kernel::attention_forward:
    case Kernel::attention_backward:
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::block_attention_forward:
    case Kernel::block_attention_backward: return attention<A>(job);
    case Kernel::softmax_forward:
    case Kernel::softmax_backward: softmax<A>(job); break;
    case Kernel::activation_forward:
    case Kernel::activation_backward:
    case Kernel::residual_forward:
    case Kernel::residual_backward:
    case Kernel::add:
    case Kernel::dropout_forward:
    case Kernel::dropout_backward:
    case Kernel::scale:
    case Kernel::cast:
    case Kernel::transpose: elementwise<A>(job); break;
    case Kernel::embedding_forward:
    case Kernel::embedding_backward:
    case Kernel::position_forward:
    case Kernel::position_backward: tables<A>(job); break;
    case Kernel::loss_max:
    case Kernel::loss_sums:
    case Kernel::loss_forward:
    case Kernel::loss_backward: losses<A>(job); break;
    case Kernel::square_sum:
    case Kernel::adam:
    case Kernel::sgd: return optimizer<A>(job);
    case Kernel::fill_zero: return fill_zero(job);
    case Kernel::copy: copy(job); break;
    case Kernel::concat_columns:
    case Kernel::slice_columns: return columns(job);
    case Kernel::orthogonalize: return cudaErrorNotSupported;  // CudaDevice::unsupported refuses it before
    case Kernel::gemm:
    case Kernel::scores_forward:
    case Kernel::context_forward:
    case Kernel::context_backward:
    case Kernel::scores_backward:
    case Kernel::grouped_gemm: return cudaErrorNotSupported;  // products: run.cpp has them
    case Kernel::route_forward:
    case Kernel::route_backward:
    case Kernel::permute:
    case Kernel::unpermute:
    case Kernel::regroup:
    case Kernel::expert_activation_forward:
    case Kernel::expert_activation_backward: return experts<A>(job);
    case Kernel::latent_assemble:
    case Kernel::latent_scatter:
    case Kernel::split_latent:
    case Kernel::join_latent: latent<A>(job); break;
    case Kernel::split_qkv:
    case Kernel::join_qkv:
    case Kernel::merge_attention:
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence: context<A>(job); break;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch(const plan::Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                   const KernelContext& context, cudaStream_t stream) {
  const Job job{c, reads, writes, context, stream};
  const cudaError_t e = in_double(job) ? run<double>(job) : run<float>(job);
  const cudaError_t launched = cudaGetLastError();  // also clears it
  return e != cudaSuccess ? e : launched;
}

void launch_convert(const Operand& x, const Operand& y, cudaStream_t stream) { convert(x, y, stream); }
void launch_add_bias(const Operand& bias, const Operand& y, int64_t columns, cudaStream_t stream) {
  add_bias(bias, y, columns, stream);
}

}  // namespace wt::exec::cuda
