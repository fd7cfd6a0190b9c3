// Normalisation of rows and heads, column sums, rotary embedding on CUDA.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"
#include "exec/kernels/rotary.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

template <class A>
void norm_forward(const Job& job) {
  const int64_t h = job.compute.dims[1];
  const bool layer = job.compute.function == static_cast<uint8_t>(NormKind::layer_norm), biased = job.reads.size() > 2;
  const View x(job.reads[0]), gamma(job.reads[1]), beta(job.reads[biased ? 2 : 1]), y(job.writes[0]),
      stats(job.writes[1]);
  const A epsilon = static_cast<A>(job.compute.scalar);
  each_row(job.compute.dims[0], job.stream, [=] __device__(int64_t i) {
    A sum = 0;
    for (int64_t j = threadIdx.x; layer && j < h; j += kThreads) sum += x.get<A>(i * h + j);
    const A mean = over_block(sum, Sum{}) / static_cast<A>(h);
    A square = 0;
    for (int64_t j = threadIdx.x; j < h; j += kThreads) {
      const A d = x.get<A>(i * h + j) - mean;
      square += d * d;
    }
    const A inverse = A(1) / A(sqrt(over_block(square, Sum{}) / static_cast<A>(h) + epsilon));
    for (int64_t j = threadIdx.x; j < h; j += kThreads)
      y.put(i * h + j, (x.get<A>(i * h + j) - mean) * inverse * gamma.get<A>(j) + (biased ? beta.get<A>(j) : A(0)));
    if (threadIdx.x != 0) return;
    if (layer) stats.put(2 * i, mean);
    stats.put(layer ? 2 * i + 1 : i, inverse);
  });
}

template <class A>
void norm_backward(const Job& job) {
  const int64_t rows = job.compute.dims[0], h = job.compute.dims[1];
  const bool layer = job.compute.function == static_cast<uint8_t>(NormKind::layer_norm);
  const View dy(job.reads[0]), x(job.reads[1]), gamma(job.reads[2]), stats(job.reads[3]), dx(job.writes[0]);
  // The gains first: dx may lie where dy does.
  if (job.writes.size() > 1)
    column_sums<A>(rows, h, View(job.writes[1]), job.stream, [=] __device__(int64_t i, int64_t j) {
      const A mean = layer ? stats.get<A>(2 * i) : A(0), inverse = stats.get<A>(layer ? 2 * i + 1 : i);
      return dy.get<A>(i * h + j) * ((x.get<A>(i * h + j) - mean) * inverse);
    });
  if (job.writes.size() > 2)
    column_sums<A>(rows, h, View(job.writes[2]), job.stream,
                   [=] __device__(int64_t i, int64_t j) { return dy.get<A>(i * h + j); });
  each_row(rows, job.stream, [=] __device__(int64_t i) {
    const A mean = layer ? stats.get<A>(2 * i) : A(0), inverse = stats.get<A>(layer ? 2 * i + 1 : i);
    A sum = 0, dot = 0;
    for (int64_t j = threadIdx.x; j < h; j += kThreads) {
      const A g = dy.get<A>(i * h + j) * gamma.get<A>(j);
      sum += g;
      dot += g * ((x.get<A>(i * h + j) - mean) * inverse);
    }
    sum = over_block(sum, Sum{}) / static_cast<A>(h);
    dot = over_block(dot, Sum{}) / static_cast<A>(h);
    if (!layer) sum = 0;
    for (int64_t j = threadIdx.x; j < h; j += kThreads) {
      const A z = (x.get<A>(i * h + j) - mean) * inverse;
      dx.put(i * h + j, (dy.get<A>(i * h + j) * gamma.get<A>(j) - sum - z * dot) * inverse);
    }
  });
}

/// A query or key head of a token: heads are numbered as in the stats, queries first.
struct NormedHead {
  int64_t at;  // of its first element in qkv
  bool query;
};
__device__ NormedHead normed_head(const Heads& a, int64_t stat) {
  const int64_t each = a.heads + a.kv_heads, token = stat / each, head = stat % each;
  const bool query = head < a.heads;
  return {token * a.width() + (query ? a.q_column(head) : a.k_column(head - a.heads)), query};
}

void copy_values(const Job& job) {  // what is not a query or key stays; in place there is nothing to do
  if (job.reads[0].data == job.writes[0].data) return;
  convert(job.reads[0], job.writes[0], job.stream);
}

template <class A>
void qk_norm_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const View x(job.reads[0]), gq(job.reads[1]), gk(job.reads[2]), y(job.writes[0]), stats(job.writes[1]);
  const A epsilon = static_cast<A>(job.compute.scalar);
  copy_values(job);
  each_row(a.tokens() * (a.heads + a.kv_heads), job.stream, [=] __device__(int64_t stat) {
    const NormedHead head = normed_head(a, stat);
    A square = 0;
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads) square += x.get<A>(head.at + i) * x.get<A>(head.at + i);
    const A inverse = A(1) / A(sqrt(over_block(square, Sum{}) / static_cast<A>(a.d) + epsilon));
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads)
      y.put(head.at + i, x.get<A>(head.at + i) * inverse * (head.query ? gq : gk).get<A>(i));
    if (threadIdx.x == 0) stats.put(stat, inverse);
  });
}

template <class A>
void qk_norm_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const View dy(job.reads[0]), x(job.reads[1]), gq(job.reads[2]), gk(job.reads[3]), stats(job.reads[4]),
      dx(job.writes[0]);
  for (const bool query : {true, false}) {
    if (job.writes.size() == 1) break;  // frozen gains
    const int64_t heads = query ? a.heads : a.kv_heads, each = a.heads + a.kv_heads;
    column_sums<A>(a.tokens() * heads, a.d, View(job.writes[query ? 1 : 2]), job.stream,
                   [=] __device__(int64_t row, int64_t i) {
                     const int64_t stat = row / heads * each + row % heads + (query ? 0 : a.heads);
                     const int64_t at = normed_head(a, stat).at + i;
                     return dy.get<A>(at) * (x.get<A>(at) * stats.get<A>(stat));
                   });
  }
  copy_values(job);
  each_row(a.tokens() * (a.heads + a.kv_heads), job.stream, [=] __device__(int64_t stat) {
    const NormedHead head = normed_head(a, stat);
    const A inverse = stats.get<A>(stat);
    const View gain = head.query ? gq : gk;
    A dot = 0;
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads)
      dot += dy.get<A>(head.at + i) * gain.get<A>(i) * (x.get<A>(head.at + i) * inverse);
    dot = over_block(dot, Sum{}) / static_cast<A>(a.d);
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads) {
      const A z = x.get<A>(head.at + i) * inverse;
      dx.put(head.at + i, (dy.get<A>(head.at + i) * gain.get<A>(i) - z * dot) * inverse);
    }
  });
}

}  // namespace

template <class A>
void norms(const Job& job) {
  switch (job.compute.kernel) {
    case Kernel::norm_forward: return norm_forward<A>(job);
    case Kernel::norm_backward: return norm_backward<A>(job);
    case Kernel::qk_norm_forward: return qk_norm_forward<A>(job);
    case Kernel::qk_norm_backward: return qk_norm_backward<A>(job);
    default: {  // bias_gradient
      const int64_t columns = job.compute.dims[1];
      const View dy(job.reads[0]);
      column_sums<A>(job.compute.dims[0], columns, View(job.writes[0]), job.stream,
                     [=] __device__(int64_t i, int64_t j) { return dy.get<A>(i * columns + j); });
    }
  }
}

/// A thread turns one pair of all heads of a token: the angle, in double, is computed once.
template <class A>
void rope(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const double sign = job.compute.kernel == Kernel::rope_forward ? 1 : -1;
  const View y(job.writes[0]);
  const int64_t half = a.d / 2, index = job.context.group_index, ranks = job.context.group_size;
  copy_values(job);
  each(a.tokens() * half, job.stream, [=] __device__(int64_t thread) {
    const int64_t token = thread / half, pair = thread % half;
    const double angle = rotary_angle(plan::sequence_position(token / a.batch, a.seq, index, ranks), pair, a.d);
    const A cosine = static_cast<A>(cos(angle)), sine = static_cast<A>(sign * sin(angle));
    for (int64_t kv = 0; kv < a.kv_heads; ++kv)
      for (int64_t h = 0; h <= a.share(); ++h) {
        const int64_t at = token * a.width() + a.group(kv) + h * a.d + pair;
        const Turned<A> p = turned(y.get<A>(at), y.get<A>(at + half), cosine, sine);
        y.put(at, p.x);
        y.put(at + half, p.y);
      }
  });
}

template void norms<float>(const Job&);
template void norms<double>(const Job&);
template void rope<float>(const Job&);
template void rope<double>(const Job&);

}  // namespace wt::exec::cuda
