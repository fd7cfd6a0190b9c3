// The CUDA kernels of plan::Kernel, one launcher each. What an element means is shared with the CPU (exec/kernels/*.hpp);
// here are the loops. Not products of matrices (products.hpp). Invariants: operands were checked; everything is ordered
// by the stream; sums are added up in an order that does not depend on how blocks are scheduled.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "core/plan/plan.hpp"
#include "exec/kernels/element.hpp"
#include "exec/kernels/math.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec::cuda {

/// What every launcher is given.
struct Job {
  const plan::Compute& compute;
  std::span<const Operand> reads, writes;
  const KernelContext& context;
  cudaStream_t stream;
};

/// An operand as a kernel sees it: elements of any storage type as A. The type is the same for all threads.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;

  View() = default;
  explicit View(const Operand& x) : data(x.data), dtype(x.dtype) {}

  template <class A>
  __device__ __forceinline__ A get(int64_t i) const {
    switch (dtype) {
      case DType::f64: return static_cast<A>(static_cast<const double*>(data)[i]);
      case DType::f32: return static_cast<A>(static_cast<const float*>(data)[i]);
      case DType::bf16: return static_cast<A>(widen(static_cast<const Bf16*>(data)[i]));
      case DType::f16: return static_cast<A>(widen(static_cast<const F16*>(data)[i]));
      default: return static_cast<A>(widen(static_cast<const F8*>(data)[i]));
    }
  }
  template <class A>
  __device__ __forceinline__ void put(int64_t i, A x) const {
    switch (dtype) {
      case DType::f64: static_cast<double*>(data)[i] = static_cast<double>(x); return;
      case DType::f32: static_cast<float*>(data)[i] = Narrow<float>::of(x); return;
      case DType::bf16: static_cast<Bf16*>(data)[i] = Narrow<Bf16>::of(x); return;
      case DType::f16: static_cast<F16*>(data)[i] = Narrow<F16>::of(x); return;
      default: static_cast<F8*>(data)[i] = Narrow<F8>::of(x); return;
    }
  }
};

constexpr int kThreads = 256;

template <class A>
__device__ Activated<A> activated(ActivationKind kind, A x) {
  return kind == ActivationKind::gelu ? gelu(x) : (kind == ActivationKind::silu ? silu(x) : relu(x));
}

/// Calls f(i) for i in [0, n), a thread each, in as many rounds as the grid needs.
template <class F>
__global__ void each_kernel(int64_t n, F f) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) f(i);
}
template <class F>
void each(int64_t n, cudaStream_t stream, F f) {
  if (n == 0) return;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  each_kernel<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), kThreads, 0, stream>>>(n, f);
}

/// Calls f(row) for a block of kThreads threads on each row.
template <class F>
__global__ void each_row_kernel(int64_t rows, F f) {
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) f(i);
}
template <class F>
void each_row(int64_t rows, cudaStream_t stream, F f) {
  if (rows == 0) return;
  each_row_kernel<<<static_cast<unsigned>(rows < 65536 ? rows : 65536), kThreads, 0, stream>>>(rows, f);
}

struct Sum {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
struct Largest {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a > b ? a : b;
  }
};

/// f over the values of a block's threads, for all of them; a tree of fixed shape.
template <class A, class F>
__device__ A over_block(A x, F f) {
  __shared__ A shared[kThreads];
  shared[threadIdx.x] = x;
  __syncthreads();
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) shared[threadIdx.x] = f(shared[threadIdx.x], shared[threadIdx.x + step]);
    __syncthreads();
  }
  const A result = shared[0];
  __syncthreads();
  return result;
}

/// Adds to columns [0, columns) of `to` the sums over rows of f(row, column): 32 columns a block.
template <class A, class F>
__global__ void column_sums_kernel(int64_t rows, int64_t columns, View to, F f) {
  __shared__ A shared[32][33];
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  A sum = 0;
  if (column < columns)
    for (int64_t i = threadIdx.y; i < rows; i += 32) sum += f(i, column);
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  A total = 0;
  for (int y = 0; y < 32; ++y) total += shared[y][threadIdx.x];
  to.put(column, to.get<A>(column) + total);
}
template <class A, class F>
void column_sums(int64_t rows, int64_t columns, View to, cudaStream_t stream, F f) {
  if (columns == 0) return;
  column_sums_kernel<A><<<static_cast<unsigned>((columns + 31) / 32), dim3(32, 32), 0, stream>>>(rows, columns, to, f);
}

// Defined for float and double in the file named beside each; the launch's error is left for cudaGetLastError.
template <class A>
void norms(const Job&);  // norm.cu: bias_gradient, norm_*, qk_norm_*
template <class A>
void rope(const Job&);  // norm.cu
template <class A>
cudaError_t attention(const Job&);  // attention.cu: attention_*, latent_attention_*, block_attention_*
template <class A>
void softmax(const Job&);  // attention.cu: softmax_forward and _backward
template <class A>
void elementwise(const Job&);  // elementwise.cu: activations, residual, dropout, add, scale, cast, transpose
template <class A>
void tables(const Job&);  // tables.cu: embedding and position
template <class A>
void losses(const Job&);  // loss.cu
template <class A>
cudaError_t experts(const Job&);  // experts.cu: route_*, permute, unpermute, regroup, expert_activation_*
template <class A>
void latent(const Job&);  // latent.cu: latent_assemble, latent_scatter, split_latent, join_latent
template <class A>
void context(
    const Job&);  // context.cu: merge_attention, split_qkv, join_qkv, rows and columns of ranks that share sequences
template <class A>
cudaError_t optimizer(const Job&);  // optimizer.cu: square_sum, adam, sgd

/// y = x in another type, element by element.
void convert(const Operand& x, const Operand& y, cudaStream_t);
/// y[rows, columns] += bias[columns].
void add_bias(const Operand& bias, const Operand& y, int64_t columns, cudaStream_t);

inline bool in_double(const Job& job) {
  for (const Operand& x : job.reads)
    if (x.dtype == DType::f64) return true;
  for (const Operand& x : job.writes)
    if (x.dtype == DType::f64) return true;
  return false;
}

}  // namespace wt::exec::cuda
