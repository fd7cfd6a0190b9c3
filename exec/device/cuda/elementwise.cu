// Kernels that treat elements one by one on CUDA, and the transposition.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/math.hpp"
#include "exec/kernels/matrix.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

template <class A>
void activation(const Job& job) {
  const plan::Compute& c = job.compute;
  const bool backward = c.kernel == Kernel::activation_backward, gated = c.gated;
  const int64_t f = c.dims[1], wide = gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  const bool biased = job.reads.size() > (backward ? 2 : 1);
  const View first(job.reads[0]), x(job.reads[backward ? 1 : 0]), bias(job.reads[biased ? (backward ? 2 : 1) : 0]);
  const View y(job.writes[0]);
  each(c.dims[0] * f, job.stream, [=] __device__(int64_t at) {
    const int64_t i = at / f, j = at % f;
    const A gate = x.get<A>(i * wide + j) + (biased ? bias.get<A>(j) : A(0));
    const A up = gated ? x.get<A>(i * wide + f + j) + (biased ? bias.get<A>(f + j) : A(0)) : A(1);
    const Activated<A> a = activated(kind, gate);
    if (!backward) return y.put(at, a.value * up);
    const A dy = first.get<A>(at);
    y.put(i * wide + j, dy * a.slope * up);
    if (gated) y.put(i * wide + f + j, dy * a.value);
  });
}

template <class A>
void residual(const Job& job) {
  const int64_t h = job.compute.dims[1];
  const bool biased = job.reads.size() > 2, drops = job.writes.size() > 1;
  const View x(job.reads[0]), old(job.reads[1]), bias(job.reads[biased ? 2 : 0]), y(job.writes[0]);
  auto* mask = static_cast<uint8_t*>(job.writes[drops ? 1 : 0].data);
  const uint64_t key = job.context.random_key;
  const auto probability = static_cast<float>(job.compute.scalar);
  const A factor = A(1) / (A(1) - A(probability));
  each(job.compute.dims[0] * h, job.stream, [=] __device__(int64_t i) {
    A branch = x.get<A>(i) + (biased ? bias.get<A>(i % h) : A(0));
    if (drops) {
      const bool keep = uniform(key, static_cast<uint64_t>(i)) >= probability;
      mask[i] = keep ? 1 : 0;
      branch = keep ? branch * factor : A(0);
    }
    y.put(i, branch + old.get<A>(i));
  });
}

template <class A>
void dropout(const Job& job) {
  const View x(job.reads[0]), y(job.writes[0]);
  const auto probability = static_cast<float>(job.compute.scalar);
  const A factor = A(1) / (A(1) - A(probability));
  if (job.compute.kernel == Kernel::dropout_forward) {
    auto* mask = static_cast<uint8_t*>(job.writes[1].data);
    const uint64_t key = job.context.random_key;
    return each(job.reads[0].elements, job.stream, [=] __device__(int64_t i) {
      const bool keep = uniform(key, static_cast<uint64_t>(i)) >= probability;
      mask[i] = keep ? 1 : 0;
      y.put(i, keep ? x.get<A>(i) * factor : A(0));
    });
  }
  const bool dropped = job.reads.size() > 1;
  const auto* mask = static_cast<const uint8_t*>(job.reads[dropped ? 1 : 0].data);
  each(job.reads[0].elements, job.stream, [=] __device__(int64_t i) {
    const A d = x.get<A>(i);
    y.put(i, !dropped ? d : (mask[i] != 0 ? d * factor : A(0)));
  });
}

/// x [m, n] to y [n, m], in tiles that go through shared memory.
template <class A>
__global__ void transpose_kernel(View x, View y, int64_t m, int64_t n) {
  __shared__ A tile[32][33];
  const int64_t tiles = (n + 31) / 32, i0 = blockIdx.x / tiles * 32, j0 = blockIdx.x % tiles * 32;
  for (int r = threadIdx.y; r < 32; r += 8)
    if (i0 + r < m && j0 + threadIdx.x < n) tile[r][threadIdx.x] = x.get<A>((i0 + r) * n + j0 + threadIdx.x);
  __syncthreads();
  for (int r = threadIdx.y; r < 32; r += 8)
    if (j0 + r < n && i0 + threadIdx.x < m) y.put((j0 + r) * m + i0 + threadIdx.x, tile[threadIdx.x][r]);
}
template <class A>
void transpose(const Operand& x, const Operand& y, int64_t m, int64_t n, cudaStream_t stream) {
  if (m == 0 || n == 0) return;
  const int64_t tiles = ((m + 31) / 32) * ((n + 31) / 32);
  transpose_kernel<A><<<static_cast<unsigned>(tiles), dim3(32, 8), 0, stream>>>(View(x), View(y), m, n);
}

}  // namespace

template <class A>
void elementwise(const Job& job) {
  const plan::Compute& c = job.compute;
  switch (c.kernel) {
    case Kernel::activation_forward:
    case Kernel::activation_backward: return activation<A>(job);
    case Kernel::residual_forward: return residual<A>(job);
    case Kernel::add: {
      const View a(job.reads[0]), b(job.reads[1]), y(job.writes[0]);
      return each(job.reads[0].elements, job.stream,
                  [=] __device__(int64_t i) { y.put(i, a.get<A>(i) + b.get<A>(i)); });
    }
    case Kernel::scale: {
      const View x(job.reads[0]), y(job.writes[0]);
      const A factor = static_cast<A>(c.scalar);
      return each(job.reads[0].elements, job.stream, [=] __device__(int64_t i) { y.put(i, factor * x.get<A>(i)); });
    }
    case Kernel::cast:
      convert(job.reads[0], job.writes[0], job.stream);
      if (job.writes.size() > 1) {
        const Matrices all(job.reads[0]);
        for (int64_t i = 0; i < all.count; ++i)
          transpose<A>(all.of(job.reads[0], i), all.of(job.writes[1], i), all.rows, all.columns, job.stream);
      }
      return;
    case Kernel::transpose: return transpose<A>(job.reads[0], job.writes[0], c.dims[0], c.dims[1], job.stream);
    default: return dropout<A>(job);
  }
}

void convert(const Operand& from, const Operand& to, cudaStream_t stream) {
  const View x(from), y(to);
  if (from.dtype == to.dtype) {
    cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDeviceToDevice, stream);
  } else if (from.dtype == DType::f64) {
    each(from.elements, stream, [=] __device__(int64_t i) { y.put(i, x.get<double>(i)); });
  } else {
    each(from.elements, stream, [=] __device__(int64_t i) { y.put(i, x.get<float>(i)); });
  }
}

void add_bias(const Operand& bias, const Operand& to, int64_t columns, cudaStream_t stream) {
  const View b(bias), y(to);
  if (to.dtype == DType::f64)
    each(to.elements, stream, [=] __device__(int64_t i) { y.put(i, y.get<double>(i) + b.get<double>(i % columns)); });
  else
    each(to.elements, stream, [=] __device__(int64_t i) { y.put(i, y.get<float>(i) + b.get<float>(i % columns)); });
}

template void elementwise<float>(const Job&);
template void elementwise<double>(const Job&);

}  // namespace wt::exec::cuda
