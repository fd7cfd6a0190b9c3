// Attention as products of whole matrices with the scores in memory: Q K^T, softmax, P V and their gradients, one head
// of one sample at a time. Where queries share a key, its gradients are summed in A and rounded once.
#include <limits>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/product.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

/// The matrix in A, in `buffer` unless it is stored so.
template <class A>
MatrixView widened(MatrixView x, int64_t rows, int64_t columns, std::unique_ptr<A[]>& buffer) {
  if (x.dtype == kDTypeOf<A>) return x;
  if (x.transposed) std::swap(rows, columns);
  buffer = buffer_of<A>(rows * columns);
  const Stored<A> from(Operand{x.data, x.dtype, 0, {}});
  for (int64_t i = 0; i < rows; ++i) {
    const A* row = from.read(i * x.stride, columns, buffer.get() + i * columns);
    if (row != buffer.get() + i * columns) std::copy(row, row + columns, buffer.get() + i * columns);
  }
  return {buffer.get(), kDTypeOf<A>, columns, x.transposed};
}

/// multiply() for operands that the library may not take as they are.
template <class A>
void multiply_any(Product p) {
  if (multiplies(p.a.dtype, p.b.dtype, p.c.dtype)) return multiply(p);
  std::unique_ptr<A[]> a, b, c;
  p.a = widened<A>(p.a, p.m, p.k, a);
  p.b = widened<A>(p.b, p.k, p.n, b);
  const MatrixView out = p.c;
  if (out.dtype != kDTypeOf<A>) {
    c = buffer_of<A>(p.m * p.n);
    p.c = {c.get(), kDTypeOf<A>, p.n, false};
  }
  multiply(p);
  if (out.dtype == kDTypeOf<A>) return;
  const Stored<A> to(Operand{out.data, out.dtype, 0, {}});
  for (int64_t i = 0; i < p.m; ++i) to.close(i * out.stride, p.n, c.get() + i * p.n);
}

/// Rows of [seq, d] in A to the storage of a head.
template <class A>
void store_head(const Heads& a, const MatrixView& to, const A* from) {
  const Stored<A> out(Operand{to.data, to.dtype, 0, {}});
  for (int64_t s = 0; s < a.seq; ++s) out.close(s * to.stride, a.d, from + s * a.d);
}

}  // namespace

template <class A>
void scores_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &qkv = job.reads[0], &scores = job.writes[0];
  job.workers.parallel_for(a.batch * a.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / a.heads, h = i % a.heads;
      multiply_any<A>({a.seq, a.seq, a.d, head_of(a, qkv, a.width(), b, a.q_column(h)),
                       head_of(a, qkv, a.width(), b, a.k_column(h / a.share()), true), scores_of(a, scores, b, h),
                       nullptr, false});
    }
  });
}

template <class A>
void softmax_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Stored<A> scores(job.reads[0]), probs(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  job.workers.parallel_for(a.batch * a.heads * a.seq, 1 + (1 << 13) / (a.seq + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * a.seq);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t s = row % a.seq, first = a.first_key(s), past = a.end_key(s), n = past - first;
      const A* x = scores.read(row * a.seq, a.seq, buffer.get()) + first;
      A* y = probs.open(row * a.seq, buffer.get() + a.seq);
      const A sum = k.exponentials(scale, x, scale * k.maximum(x, n), y + first, n);
      k.scale(A(1) / sum, y + first, y + first, n);
      std::fill(y, y + first, A(0));
      std::fill(y + past, y + a.seq, A(0));
      probs.close(row * a.seq, a.seq, y);
    }
  });
}

template <class A>
void context_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &probs = job.reads[0], &qkv = job.reads[1], &out = job.writes[0];
  job.workers.parallel_for(a.batch * a.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / a.heads, h = i % a.heads;
      multiply_any<A>({a.seq, a.d, a.seq, scores_of(a, probs, b, h),
                       head_of(a, qkv, a.width(), b, a.v_column(h / a.share())),
                       head_of(a, out, a.heads * a.d, b, h * a.d), nullptr, false});
    }
  });
}

template <class A>
void context_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &d_out = job.reads[0], &probs = job.reads[1], &qkv = job.reads[2];
  const Operand &d_probs = job.writes[0], &d_qkv = job.writes[1];
  job.workers.parallel_for(a.batch * a.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const auto dv = buffer_of<A>(a.seq * a.d);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / a.kv_heads, kv = i % a.kv_heads;
      for (int64_t h = kv * a.share(); h < (kv + 1) * a.share(); ++h) {
        const MatrixView d = head_of(a, d_out, a.heads * a.d, b, h * a.d);
        multiply_any<A>({a.seq, a.seq, a.d, d, head_of(a, qkv, a.width(), b, a.v_column(kv), true),
                         scores_of(a, d_probs, b, h), nullptr, false});
        std::unique_ptr<A[]> p_wide, d_wide;
        multiply({a.seq,
                  a.d,
                  a.seq,
                  widened<A>(scores_of(a, probs, b, h, true), a.seq, a.seq, p_wide),
                  widened<A>(d, a.seq, a.d, d_wide),
                  {dv.get(), kDTypeOf<A>, a.d, false},
                  nullptr,
                  h > kv * a.share()});
      }
      store_head(a, head_of(a, d_qkv, a.width(), b, a.v_column(kv)), dv.get());
    }
  });
}

template <class A>
void softmax_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Stored<A> d_probs(job.reads[0]), probs(job.reads[1]), d_scores(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  job.workers.parallel_for(a.batch * a.heads * a.seq, 1 + (1 << 13) / (a.seq + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(3 * a.seq);
    for (int64_t row = begin; row < end; ++row) {
      const A* d = d_probs.read(row * a.seq, a.seq, buffer.get());
      const A* p = probs.read(row * a.seq, a.seq, buffer.get() + a.seq);
      A* to = d_scores.open(row * a.seq, buffer.get() + 2 * a.seq);
      k.softmax_gradient(p, d, k.dot(p, d, a.seq), scale, to, a.seq);
      d_scores.close(row * a.seq, a.seq, to);
    }
  });
}

template <class A>
void scores_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &d_scores = job.reads[0], &qkv = job.reads[1], &d_qkv = job.writes[0];
  job.workers.parallel_for(a.batch * a.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const auto dk = buffer_of<A>(a.seq * a.d);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / a.kv_heads, kv = i % a.kv_heads;
      for (int64_t h = kv * a.share(); h < (kv + 1) * a.share(); ++h) {
        multiply_any<A>({a.seq, a.d, a.seq, scores_of(a, d_scores, b, h), head_of(a, qkv, a.width(), b, a.k_column(kv)),
                         head_of(a, d_qkv, a.width(), b, a.q_column(h)), nullptr, false});
        std::unique_ptr<A[]> d_wide, q_wide;
        multiply({a.seq,
                  a.d,
                  a.seq,
                  widened<A>(scores_of(a, d_scores, b, h, true), a.seq, a.seq, d_wide),
                  widened<A>(head_of(a, qkv, a.width(), b, a.q_column(h)), a.seq, a.d, q_wide),
                  {dk.get(), kDTypeOf<A>, a.d, false},
                  nullptr,
                  h > kv * a.share()});
      }
      store_head(a, head_of(a, d_qkv, a.width(), b, a.k_column(kv)), dk.get());
    }
  });
}

template void scores_forward<float>(const Job&);
template void scores_forward<double>(const Job&);
template void softmax_forward<float>(const Job&);
template void softmax_forward<double>(const Job&);
template void context_forward<float>(const Job&);
template void context_forward<double>(const Job&);
template void context_backward<float>(const Job&);
template void context_backward<double>(const Job&);
template void softmax_backward<float>(const Job&);
template void softmax_backward<double>(const Job&);
template void scores_backward<float>(const Job&);
template void scores_backward<double>(const Job&);

}  // namespace wt::exec
