#include "exec/device/cuda/run.hpp"

#include "exec/device/cuda/launch.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Compute;
using plan::Kernel;
using Operands = std::span<const Operand>;

Fault gemm(const Compute& c, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2];
  const Operand &a = reads[0], &b = reads[1], &out = writes[0];
  Product p{m,
            n,
            k,
            {a.data, a.dtype, c.transpose_a ? m : k, c.transpose_a},
            {b.data, b.dtype, c.transpose_b ? k : n, c.transpose_b},
            {out.data, out.dtype, n, false},
            nullptr,
            c.accumulate};
  const bool fused = reads.size() > 2 && reads[2].dtype == out.dtype && Products::native(p, {});
  if (fused) p.bias = reads[2].data;
  if (auto f = products.multiply(p, {}, stream)) return f;
  if (reads.size() > 2 && !fused) launch_add_bias(reads[2], out, n, stream);
  return fault_of(cudaGetLastError(), "gemm");
}

/// The products of all groups in one call: they follow each other at equal distances.
Fault grouped_gemm(const Compute& c, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2], groups = c.dims[3];
  if (groups == 0) return std::nullopt;
  const Operand &a = reads[0], &b = reads[1], &out = writes[0];
  return products.multiply({m,
                            n,
                            k,
                            {a.data, a.dtype, c.transpose_a ? m : k, c.transpose_a},
                            {b.data, b.dtype, c.transpose_b ? k : n, c.transpose_b},
                            {out.data, out.dtype, n, false},
                            nullptr,
                            c.accumulate},
                           {groups, m * k, k * n, m * n}, stream);
}

/// Calls f(sample, first head, heads) for each batched call: all heads where each has its own key, otherwise those that
/// share one.
template <class F>
Fault each_batch(const Heads& a, F f) {
  const int64_t count = a.share() == 1 ? a.heads : a.share();
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; h += count)
      if (Fault fault = f(b, h, count)) return fault;
  return std::nullopt;
}

/// Elements between neighbouring heads of a batch: queries, keys or values, outputs, scores.
struct Steps {
  int64_t q, kv, out, scores;
  explicit Steps(const Heads& a)
      : q(a.share() == 1 ? 3 * a.d : a.d), kv(a.share() == 1 ? 3 * a.d : 0), out(a.d), scores(a.seq * a.seq) {}
};

Fault scores_forward(const Heads& a, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const Steps step(a);
  return each_batch(a, [&](int64_t b, int64_t h, int64_t count) {
    return products.multiply({a.seq, a.seq, a.d, head_of(a, reads[0], a.width(), b, a.q_column(h)),
                              head_of(a, reads[0], a.width(), b, a.k_column(h / a.share()), true),
                              scores_of(a, writes[0], b, h), nullptr, false},
                             {count, step.q, step.kv, step.scores}, stream);
  });
}

Fault context_forward(const Heads& a, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const Steps step(a);
  return each_batch(a, [&](int64_t b, int64_t h, int64_t count) {
    return products.multiply(
        {a.seq, a.d, a.seq, scores_of(a, reads[0], b, h), head_of(a, reads[1], a.width(), b, a.v_column(h / a.share())),
         head_of(a, writes[0], a.heads * a.d, b, h * a.d), nullptr, false},
        {count, step.scores, step.kv, step.out}, stream);
  });
}

/// to = sum over the heads of a key of x^T y: one batched call where each head has its own key, else head by head.
template <class X, class Y, class To>
Fault key_sums(const Heads& a, int64_t step_y, X x, Y y, To to, Products& products, cudaStream_t stream) {
  const Steps step(a);
  const int64_t count = a.share() == 1 ? a.heads : 1;
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; h += count)
      if (Fault f = products.multiply(
              {a.seq, a.d, a.seq, x(b, h), y(b, h), to(b, h / a.share()), nullptr, h % a.share() != 0},
              {count, step.scores, step_y, step.kv}, stream))
        return f;
  return std::nullopt;
}

Fault context_backward(const Heads& a, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const Operand &d_out = reads[0], &probs = reads[1], &qkv = reads[2];
  const Steps step(a);
  auto gradient = [&](int64_t b, int64_t h) { return head_of(a, d_out, a.heads * a.d, b, h * a.d); };
  if (Fault f = each_batch(a, [&](int64_t b, int64_t h, int64_t count) {
        return products.multiply(
            {a.seq, a.seq, a.d, gradient(b, h), head_of(a, qkv, a.width(), b, a.v_column(h / a.share()), true),
             scores_of(a, writes[0], b, h), nullptr, false},
            {count, step.out, step.kv, step.scores}, stream);
      }))
    return f;
  return key_sums(
      a, step.out, [&](int64_t b, int64_t h) { return scores_of(a, probs, b, h, true); }, gradient,
      [&](int64_t b, int64_t kv) { return head_of(a, writes[1], a.width(), b, a.v_column(kv)); }, products, stream);
}

Fault scores_backward(const Heads& a, Operands reads, Operands writes, Products& products, cudaStream_t stream) {
  const Operand &d_scores = reads[0], &qkv = reads[1], &d_qkv = writes[0];
  const Steps step(a);
  if (Fault f = each_batch(a, [&](int64_t b, int64_t h, int64_t count) {
        return products.multiply(
            {a.seq, a.d, a.seq, scores_of(a, d_scores, b, h), head_of(a, qkv, a.width(), b, a.k_column(h / a.share())),
             head_of(a, d_qkv, a.width(), b, a.q_column(h)), nullptr, false},
            {count, step.scores, step.kv, step.q}, stream);
      }))
    return f;
  return key_sums(
      a, step.q, [&](int64_t b, int64_t h) { return scores_of(a, d_scores, b, h, true); },
      [&](int64_t b, int64_t h) { return head_of(a, qkv, a.width(), b, a.q_column(h)); },
      [&](int64_t b, int64_t kv) { return head_of(a, d_qkv, a.width(), b, a.k_column(kv)); }, products, stream);
}

}  // namespace

Fault run_cuda_kernel(const Compute& c, Operands reads, Operands writes, const KernelContext& context,
                      Products& products, cudaStream_t stream) {
  switch (c.kernel) {
    case Kernel::gemm: return gemm(c, reads, writes, products, stream);
    case Kernel::grouped_gemm: return grouped_gemm(c, reads, writes, products, stream);
    case Kernel::scores_forward: return scores_forward(Heads::of(c), reads, writes, products, stream);
    case Kernel::context_forward: return context_forward(Heads::of(c), reads, writes, products, stream);
    case Kernel::context_backward: return context_backward(Heads::of(c), reads, writes, products, stream);
    case Kernel::scores_backward: return scores_backward(Heads::of(c), reads, writes, products, stream);
    default: return fault_of(launch(c, reads, writes, context, stream), plan::to_text(c.kernel));
  }
}

}  // namespace wt::exec::cuda
