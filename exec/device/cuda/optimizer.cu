// The gradient norm and the updates on CUDA. The factor of the gradient depends on a norm that lies on the device, so
// each block works it out.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/update_rule.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

constexpr int kParts = 512;  // blocks that sum squares; their results are added up by one more

template <class A>
__global__ void squares_kernel(View x, int64_t begin, int64_t end, double* parts) {
  double sum = 0;
  for (int64_t i = begin + blockIdx.x * int64_t{kThreads} + threadIdx.x; i < end; i += int64_t{kParts} * kThreads) {
    const A v = x.get<A>(i);
    sum += static_cast<double>(v * v);
  }
  sum = over_block(sum, Sum{});
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void add_parts_kernel(const double* parts, double factor, View to) {
  double sum = 0;
  for (int i = threadIdx.x; i < kParts; i += kThreads) sum += parts[i];
  sum = over_block(sum, Sum{});
  if (threadIdx.x == 0) to.put(0, to.get<double>(0) + factor * sum);
}

template <class A>
cudaError_t square_sum(const Job& job) {
  const double scale = job.context.values != nullptr ? job.context.values->loss_scale : 1.0;
  const double factor = 1.0 / (scale * scale);
  double* parts = nullptr;
  if (const cudaError_t e = cudaMallocAsync(reinterpret_cast<void**>(&parts), kParts * sizeof(double), job.stream);
      e != cudaSuccess)
    return e;
  auto add = [&](int64_t begin, int64_t end, double times) {
    if (begin >= end) return;
    squares_kernel<A><<<kParts, kThreads, 0, job.stream>>>(View(job.reads[0]), begin, end, parts);
    add_parts_kernel<<<1, kThreads, 0, job.stream>>>(parts, times, View(job.writes[0]));
  };
  add(0, job.reads[0].elements, factor);
  for (size_t i = 1; i < job.reads.size(); ++i) {
    if (!leaves_out(job.compute, i, job.reads.size(), job.context.group_index)) continue;
    const Overlap o = overlap_of(job.reads[0], job.reads[i]);
    add(o.begin, o.end, -factor);
  }
  return cudaFreeAsync(parts, job.stream);
}

/// The rule with this step's clipping, known only on the device.
template <class A>
__device__ UpdateRule<A> clipped_rule(UpdateRule<A> rule, bool clipped, double most, View norm, double loss_scale) {
  __shared__ double factor;
  if (threadIdx.x == 0) factor = gradient_factor(clipped, most, clipped ? norm.get<double>(0) : 0.0, loss_scale);
  __syncthreads();
  rule.factor = static_cast<A>(factor);
  return rule;
}

template <class A>
__global__ void adam_kernel(int64_t n, UpdateRule<A> rule, bool clipped, double most, View norm, double loss_scale,
                            View g, View w, View m, View v, View parameter, View master, View m_out, View v_out) {
  const UpdateRule<A> r = clipped_rule(rule, clipped, most, norm, loss_scale);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const AdamElement<A> s = adam_element(r, g.get<A>(i), AdamElement<A>{w.get<A>(i), m.get<A>(i), v.get<A>(i)});
    parameter.put(i, s.master);
    master.put(i, s.master);
    m_out.put(i, s.moment1);
    v_out.put(i, s.moment2);
  }
}

template <class A>
__global__ void sgd_kernel(int64_t n, UpdateRule<A> rule, bool clipped, double most, View norm, double loss_scale,
                           View g, View w, View parameter, View master) {
  const UpdateRule<A> r = clipped_rule(rule, clipped, most, norm, loss_scale);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const A value = sgd_element(r, g.get<A>(i), w.get<A>(i));
    parameter.put(i, value);
    master.put(i, value);
  }
}

}  // namespace

template <class A>
cudaError_t optimizer(const Job& job) {
  if (job.compute.kernel == Kernel::square_sum) return square_sum<A>(job);
  const bool adam = job.compute.kernel == Kernel::adam;
  const size_t reads = job.reads.size(), states = adam ? 3 : 1;
  const bool clipped = reads == states + 2;
  const int64_t n = job.compute.dims[0];
  if (n == 0) return cudaSuccess;
  const StepValues& values = *job.context.values;
  const UpdateRule<A> rule = update_rule<A>(job.compute, values, false, 0);
  const View g(job.reads[0]), norm(job.reads[clipped ? 1 : 0]), w(job.reads[reads - states]);
  const View parameter(job.writes[0]), master(job.writes[1]);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, 4096));
  if (adam)
    adam_kernel<A><<<blocks, kThreads, 0, job.stream>>>(n, rule, clipped, job.compute.scalar, norm, values.loss_scale,
                                                        g, w, View(job.reads[reads - 2]), View(job.reads[reads - 1]),
                                                        parameter, master, View(job.writes[2]), View(job.writes[3]));
  else
    sgd_kernel<A><<<blocks, kThreads, 0, job.stream>>>(n, rule, clipped, job.compute.scalar, norm, values.loss_scale, g,
                                                       w, parameter, master);
  return cudaSuccess;
}

template cudaError_t optimizer<float>(const Job&);
template cudaError_t optimizer<double>(const Job&);

}  // namespace wt::exec::cuda
