// Normalisation of rows and of heads, forward and backward, and column sums. Gains and biases accumulate over rows:
// their workers share columns, so every column is summed in the order of its rows.
#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kColumns = 64;  // least columns of a worker: some cache lines

bool is_layer(const plan::Compute& c) { return c.function == static_cast<uint8_t>(NormKind::layer_norm); }

/// Rows that are worth handing to another worker.
int64_t row_grain(int64_t columns) { return 1 + (1 << 14) / (columns + 1); }

}  // namespace

template <class A>
void bias_gradient(const Job& job) {
  const int64_t rows = job.compute.dims[0], columns = job.compute.dims[1];
  const Stored<A> dy(job.reads[0]), db(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  job.workers.parallel_for(columns, kColumns, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const auto buffer = buffer_of<A>(2 * n);
    A* sum = db.open_and_read(begin, n, buffer.get());
    for (int64_t i = 0; i < rows; ++i) k.add(sum, dy.read(i * columns + begin, n, buffer.get() + n), sum, n);
    db.close(begin, n, sum);
  });
}

template <class A>
void norm_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], h = c.dims[1];
  const bool layer = is_layer(c);
  const Stored<A> x(job.reads[0]), gamma(job.reads[1]), y(job.writes[0]), stats(job.writes[1]);
  const RowKernels<A>& k = row_kernels<A>();
  const A width = static_cast<A>(h), epsilon = static_cast<A>(c.scalar);
  job.workers.parallel_for(rows, row_grain(h), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(4 * h);
    const A* gain = gamma.read(0, h, buffer.get());
    const A* beta = job.reads.size() > 2 ? Stored<A>(job.reads[2]).read(0, h, buffer.get() + h) : nullptr;
    for (int64_t i = begin; i < end; ++i) {
      const A* in = x.read(i * h, h, buffer.get() + 2 * h);
      const A mean = layer ? k.sum(in, h) / width : A(0);
      const A inverse = A(1) / std::sqrt(k.squares(in, mean, h) / width + epsilon);
      A* out = y.open(i * h, buffer.get() + 3 * h);
      k.normalize(in, mean, inverse, gain, beta, out, h);
      y.close(i * h, h, out);
      if (layer) stats.put(2 * i, mean);
      stats.put(layer ? 2 * i + 1 : i, inverse);
    }
  });
}

template <class A>
void norm_backward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], h = c.dims[1];
  const bool layer = is_layer(c), trained = job.writes.size() > 1, biased = job.writes.size() > 2;
  const Stored<A> dy(job.reads[0]), x(job.reads[1]), gamma(job.reads[2]), stats(job.reads[3]);
  const Stored<A> dx(job.writes[0]), dgamma(job.writes[trained ? 1 : 0]), dbeta(job.writes[biased ? 2 : 0]);
  const RowKernels<A>& k = row_kernels<A>();
  const A width = static_cast<A>(h);
  auto mean_of = [&](int64_t i) { return layer ? stats.get(2 * i) : A(0); };
  auto inverse_of = [&](int64_t i) { return stats.get(layer ? 2 * i + 1 : i); };
  // The gains first: dx may lie where dy does.
  job.workers.parallel_for(trained ? h : 0, kColumns, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const auto buffer = buffer_of<A>(4 * n);
    A* const gain = dgamma.open_and_read(begin, n, buffer.get());
    A* const bias = biased ? dbeta.open_and_read(begin, n, buffer.get() + n) : nullptr;
    for (int64_t i = 0; i < rows; ++i)
      k.normalize_gains(dy.read(i * h + begin, n, buffer.get() + 2 * n), x.read(i * h + begin, n, buffer.get() + 3 * n),
                        mean_of(i), inverse_of(i), gain, bias, n);
    dgamma.close(begin, n, gain);
    if (biased) dbeta.close(begin, n, bias);
  });
  job.workers.parallel_for(rows, row_grain(h), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(4 * h);
    const A* gain = gamma.read(0, h, buffer.get());
    for (int64_t i = begin; i < end; ++i) {
      const A mean = mean_of(i), inverse = inverse_of(i);
      const A* d = dy.read(i * h, h, buffer.get() + h);
      const A* in = x.read(i * h, h, buffer.get() + 2 * h);
      A sum, dot;
      k.normalize_sums(d, in, gain, mean, inverse, &sum, &dot, h);
      A* out = dx.open(i * h, buffer.get() + 3 * h);
      k.normalize_gradient(d, in, gain, mean, inverse, layer ? sum / width : A(0), dot / width, out, h);
      dx.close(i * h, h, out);
    }
  });
}

namespace {

/// Calls f(column of the head, is a query, index in the token's stats) for each query and key head of a row.
template <class F>
void each_normed_head(const Heads& a, F f) {
  for (int64_t h = 0; h < a.heads; ++h) f(a.q_column(h), true, h);
  for (int64_t kv = 0; kv < a.kv_heads; ++kv) f(a.k_column(kv), false, a.heads + kv);
}

}  // namespace

template <class A>
void qk_norm_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const int64_t width = a.width(), stats_width = a.heads + a.kv_heads;
  const Stored<A> qkv(job.reads[0]), gq(job.reads[1]), gk(job.reads[2]), out(job.writes[0]), stats(job.writes[1]);
  const RowKernels<A>& k = row_kernels<A>();
  const A epsilon = static_cast<A>(job.compute.scalar);
  job.workers.parallel_for(a.tokens(), row_grain(width), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * width + 2 * a.d);
    const A* gain[2] = {gk.read(0, a.d, buffer.get()), gq.read(0, a.d, buffer.get() + a.d)};
    A* const rest = buffer.get() + 2 * a.d;
    for (int64_t t = begin; t < end; ++t) {
      const A* x = qkv.read(t * width, width, rest);
      A* y = out.open(t * width, rest + width);
      if (y != x) std::copy(x, x + width, y);
      each_normed_head(a, [&](int64_t at, bool query, int64_t stat) {
        const A inverse = A(1) / std::sqrt(k.squares(x + at, A(0), a.d) / static_cast<A>(a.d) + epsilon);
        k.normalize(x + at, A(0), inverse, gain[query], nullptr, y + at, a.d);
        stats.put(t * stats_width + stat, inverse);
      });
      out.close(t * width, width, y);
    }
  });
}

template <class A>
void qk_norm_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const int64_t width = a.width(), stats_width = a.heads + a.kv_heads;
  const Stored<A> dy(job.reads[0]), qkv(job.reads[1]), gq(job.reads[2]), gk(job.reads[3]), stats(job.reads[4]);
  const bool trained = job.writes.size() > 1;
  const Stored<A> dx(job.writes[0]), dgq(job.writes[trained ? 1 : 0]), dgk(job.writes[trained ? 2 : 0]);
  const RowKernels<A>& k = row_kernels<A>();
  if (trained) {  // The gains, d elements each, are summed over tokens and heads in a fixed order: by one worker.
    const auto buffer = buffer_of<A>(4 * a.d);
    A* const sum[2] = {dgk.open_and_read(0, a.d, buffer.get()), dgq.open_and_read(0, a.d, buffer.get() + a.d)};
    for (int64_t t = 0; t < a.tokens(); ++t)
      each_normed_head(a, [&](int64_t at, bool query, int64_t stat) {
        const A* d = dy.read(t * width + at, a.d, buffer.get() + 2 * a.d);
        const A* x = qkv.read(t * width + at, a.d, buffer.get() + 3 * a.d);
        k.normalize_gains(d, x, A(0), stats.get(t * stats_width + stat), sum[query], nullptr, a.d);
      });
    dgk.close(0, a.d, sum[0]);
    dgq.close(0, a.d, sum[1]);
  }
  job.workers.parallel_for(a.tokens(), row_grain(width), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(3 * width + 2 * a.d);
    const A* gain[2] = {gk.read(0, a.d, buffer.get()), gq.read(0, a.d, buffer.get() + a.d)};
    A* const rest = buffer.get() + 2 * a.d;
    for (int64_t t = begin; t < end; ++t) {
      const A* d = dy.read(t * width, width, rest);
      const A* x = qkv.read(t * width, width, rest + width);
      A* out = dx.open(t * width, rest + 2 * width);
      if (out != d) std::copy(d, d + width, out);
      each_normed_head(a, [&](int64_t at, bool query, int64_t stat) {
        const A inverse = stats.get(t * stats_width + stat);
        A sum, dot;
        k.normalize_sums(d + at, x + at, gain[query], A(0), inverse, &sum, &dot, a.d);
        k.normalize_gradient(d + at, x + at, gain[query], A(0), inverse, A(0), dot / static_cast<A>(a.d), out + at,
                             a.d);
      });
      dx.close(t * width, width, out);
    }
  });
}

template void bias_gradient<float>(const Job&);
template void bias_gradient<double>(const Job&);
template void norm_forward<float>(const Job&);
template void norm_forward<double>(const Job&);
template void norm_backward<float>(const Job&);
template void norm_backward<double>(const Job&);
template void qk_norm_forward<float>(const Job&);
template void qk_norm_forward<double>(const Job&);
template void qk_norm_backward<float>(const Job&);
template void qk_norm_backward<double>(const Job&);

}  // namespace wt::exec
