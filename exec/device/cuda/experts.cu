// Layers of experts on CUDA: the router's choices, rows on their way to the slots of their experts and back, weighted
// activations. Not the products (run.cpp). Slots are filled in the order of (row, choice) without atomics: a block of threads
// goes through the choices of all rows and counts those of its expert by ballots.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

template <class A>
void route_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], experts = c.dims[1], k = c.dims[2], batch = c.dims[3];
  const bool even = c.function == static_cast<uint8_t>(RoutingRule::even);
  const int64_t before = job.context.group_index * rows;
  const View logits(job.reads[0]), weights(job.writes[0]);
  auto* const expert = static_cast<int32_t*>(job.writes[1].data);
  auto* const counts = static_cast<int32_t*>(job.writes[2].data);
  each(rows, job.stream, [=] __device__(int64_t row) {
    const auto logit = [&](int64_t e) { return logits.get<A>(row * experts + e); };
    int64_t last = -1;
    A most = -A(INFINITY), sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      last = even ? even_choice(before + row, batch, k, j, experts) : next_choice<A>(experts, last, logit);
      expert[row * k + j] = static_cast<int32_t>(last);
      most = Largest{}(most, logit(last));
    }
    for (int64_t j = 0; j < k; ++j) sum += exponential(logit(expert[row * k + j]) - most);
    for (int64_t j = 0; j < k; ++j) weights.put(row * k + j, exponential(logit(expert[row * k + j]) - most) / sum);
  });
  each_row(experts, job.stream, [=] __device__(int64_t e) {
    int32_t mine = 0;
    for (int64_t i = threadIdx.x; i < rows * k; i += kThreads) mine += expert[i] == e ? 1 : 0;
    mine = over_block(mine, Sum{});
    if (threadIdx.x == 0) counts[e] = mine;
  });
}

template <class A>
void route_backward(const Job& job) {
  const int64_t experts = job.compute.dims[1], k = job.compute.dims[2];
  const View d_weights(job.reads[0]), weights(job.reads[1]), d_logits(job.writes[0]);
  const auto* expert = static_cast<const int32_t*>(job.reads[2].data);
  each(job.compute.dims[0], job.stream, [=] __device__(int64_t row) {
    A dot = 0;
    for (int64_t j = row * k; j < (row + 1) * k; ++j) dot += d_weights.get<A>(j) * weights.get<A>(j);
    for (int64_t e = row * experts; e < (row + 1) * experts; ++e) d_logits.put(e, A(0));
    for (int64_t j = row * k; j < (row + 1) * k; ++j)
      d_logits.put(row * experts + expert[j], weights.get<A>(j) * (d_weights.get<A>(j) - dot));
  });
}

/// Calls f(slot, choice) for the slots of expert e, choice -1 for an empty one; a block of threads for each expert, all of
/// whose threads get the same arguments at once.
template <class F>
__device__ void each_slot(const Slots& s, const int32_t* expert, int64_t e, F f) {
  __shared__ unsigned hits[kThreads / 32];  // of 256 choices, a bit each
  int64_t taken = 0;
  for (int64_t from = 0; from < s.choices() && taken < s.capacity; from += kThreads) {
    const int64_t mine = from + threadIdx.x;
    const unsigned found = __ballot_sync(0xffffffffu, mine < s.choices() && expert[mine] == e);
    if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = found;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w)
      for (unsigned left = hits[w]; left != 0 && taken < s.capacity; left &= left - 1)
        f(e * s.capacity + taken++, from + w * 32 + __ffs(static_cast<int>(left)) - 1);
    __syncthreads();
  }
  for (; taken < s.capacity; ++taken) f(e * s.capacity + taken, int64_t{-1});
}

template <class A>
void permute(const Job& job) {
  const Slots s = Slots::of(job.compute);
  const View x(job.reads[0]), y(job.writes[0]);
  const auto* expert = static_cast<const int32_t*>(job.reads[1].data);
  const bool weighted = job.writes.size() > 1;
  const View weights(job.reads[weighted ? 2 : 0]), slot_weights(job.writes[weighted ? 1 : 0]);
  each_row(s.experts, job.stream, [=] __device__(int64_t e) {
    each_slot(s, expert, e, [&](int64_t slot, int64_t choice) {
      for (int64_t i = threadIdx.x; i < s.columns; i += kThreads)
        y.put(slot * s.columns + i, choice < 0 ? A(0) : x.get<A>(choice / s.k * s.columns + i));
      if (weighted && threadIdx.x == 0) slot_weights.put(slot, choice < 0 ? A(0) : weights.get<A>(choice));
    });
  });
}

/// The slot of each choice first, -1 for none, in memory of the stream; then each row sums its own.
template <class A>
cudaError_t unpermute(const Job& job) {
  const Slots s = Slots::of(job.compute);
  const View x(job.reads[0]), y(job.writes[0]);
  const auto* expert = static_cast<const int32_t*>(job.reads[1].data);
  const bool weighted = job.writes.size() > 1;
  const View slot_weights(job.reads[weighted ? 2 : 0]), weights(job.writes[weighted ? 1 : 0]);
  if (s.choices() == 0) return cudaSuccess;
  int64_t* slot_of = nullptr;
  if (const cudaError_t e = cudaMallocAsync(reinterpret_cast<void**>(&slot_of),
                                            static_cast<size_t>(s.choices()) * sizeof(int64_t), job.stream);
      e != cudaSuccess)
    return e;
  each(s.choices(), job.stream, [=] __device__(int64_t i) { slot_of[i] = -1; });
  each_row(s.experts, job.stream, [=] __device__(int64_t e) {
    each_slot(s, expert, e, [&](int64_t slot, int64_t choice) {
      if (choice >= 0 && threadIdx.x == 0) slot_of[choice] = slot;
    });
  });
  each(s.rows * s.columns, job.stream, [=] __device__(int64_t at) {
    const int64_t row = at / s.columns, i = at % s.columns;
    A sum = 0;
    for (int64_t j = row * s.k; j < (row + 1) * s.k; ++j)
      if (slot_of[j] >= 0) sum += x.get<A>(slot_of[j] * s.columns + i);
    y.put(at, sum);
  });
  if (weighted)
    each(s.choices(), job.stream,
         [=] __device__(int64_t i) { weights.put(i, slot_of[i] < 0 ? A(0) : slot_weights.get<A>(slot_of[i])); });
  return cudaFreeAsync(slot_of, job.stream);
}

/// [a, b, piece] to [b, a, piece].
template <class T>
void regroup_as(const Operand& from, const Operand& to, int64_t a, int64_t b, int64_t piece, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(from.data);
  auto* y = static_cast<T*>(to.data);
  each(a * b * piece, stream, [=] __device__(int64_t at) {
    const int64_t i = at / piece;
    y[at] = x[(i % a * b + i / a) * piece + at % piece];
  });
}

void regroup(const Job& job) {
  const auto& dims = job.compute.dims;
  for (size_t n = 0; n < job.reads.size(); ++n) {
    const int64_t piece = dims[2] * (n == 0 ? dims[3] : 1);
    const auto as = [&]<class T>(T) {
      regroup_as<T>(job.reads[n], job.writes[n], dims[0], dims[1], piece, job.stream);
    };
    switch (size_of(job.reads[n].dtype)) {
      case 8: as(uint64_t{}); break;
      case 4: as(uint32_t{}); break;
      case 2: as(uint16_t{}); break;
      default: as(uint8_t{});
    }
  }
}

template <class A>
void activation(const Job& job) {
  const plan::Compute& c = job.compute;
  const bool gated = c.gated;
  const int64_t f = c.dims[1], wide = gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  if (c.kernel == Kernel::expert_activation_forward) {
    const View x(job.reads[0]), weight(job.reads[1]), y(job.writes[0]);
    return each(c.dims[0] * f, job.stream, [=] __device__(int64_t at) {
      const int64_t i = at / f, j = at % f;
      const A up = gated ? x.get<A>(i * wide + f + j) : A(1);
      y.put(at, activated(kind, x.get<A>(i * wide + j)).value * up * weight.get<A>(i));
    });
  }
  const View dy(job.reads[0]), x(job.reads[1]), weight(job.reads[2]), dx(job.writes[0]), d_weight(job.writes[1]);
  each_row(c.dims[0], job.stream, [=] __device__(int64_t i) {
    const A w = weight.get<A>(i);
    A sum = 0;
    for (int64_t j = threadIdx.x; j < f; j += kThreads) {
      const A d = dy.get<A>(i * f + j), up = gated ? x.get<A>(i * wide + f + j) : A(1);
      const Activated<A> a = activated(kind, x.get<A>(i * wide + j));
      sum += d * a.value * up;
      dx.put(i * wide + j, d * w * a.slope * up);
      if (gated) dx.put(i * wide + f + j, d * w * a.value);
    }
    sum = over_block(sum, Sum{});
    if (threadIdx.x == 0) d_weight.put(i, sum);
  });
}

}  // namespace

template <class A>
cudaError_t experts(const Job& job) {
  switch (job.compute.kernel) {
    case Kernel::route_forward: route_forward<A>(job); break;
    case Kernel::route_backward: route_backward<A>(job); break;
    case Kernel::permute: permute<A>(job); break;
    case Kernel::unpermute: return unpermute<A>(job);
    case Kernel::regroup: regroup(job); break;
    default: activation<A>(job);
  }
  return cudaSuccess;
}

template cudaError_t experts<float>(const Job&);
template cudaError_t experts<double>(const Job&);

}  // namespace wt::exec::cuda
