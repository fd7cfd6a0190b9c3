#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Compute;
using plan::Kernel;

Compute gemm(int64_t m, int64_t n, int64_t k, DType in, DType out, bool transpose_a, bool transpose_b,
             bool accumulate) {
  Compute c;
  c.kernel = Kernel::gemm;
  c.dtype = in;
  c.dims = {m, n, k};
  c.transpose_a = transpose_a;
  c.transpose_b = transpose_b;
  c.accumulate = accumulate;
  const int64_t output = m * n * size_of(out);
  c.work.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  c.work.bytes_read = (m * k + k * n) * size_of(in) + (accumulate ? output : 0);
  c.work.bytes_written = output;
  return c;
}

Compute grouped_gemm(int64_t groups, int64_t m, int64_t n, int64_t k, DType in, DType out, bool transpose_a,
                     bool transpose_b, bool accumulate) {
  Compute c = gemm(m, n, k, in, out, transpose_a, transpose_b, accumulate);
  c.kernel = Kernel::grouped_gemm;
  c.dims[3] = groups;
  c.work.flops *= static_cast<double>(groups);
  c.work.bytes_read *= groups;
  c.work.bytes_written *= groups;
  return c;
}

double AttentionShape::computed_share() const {
  if (document > 0 && document < seq) {
    AttentionShape one = *this;
    one.seq = document;
    one.document = 0;
    return one.computed_share() * static_cast<double>(document) / static_cast<double>(seq);
  }
  const auto s = static_cast<double>(seq), w = static_cast<double>(window);
  if (window <= 0 || window >= seq) return causal ? 0.5 : 1.0;
  // Row i sees min(i, w) keys: s w - w^2 / 2 in all; both directions double the band.
  const double band = (s * w - w * w / 2) / (s * s);
  return causal ? band : 2 * band;
}

namespace {

struct AttentionBytes {
  int64_t q, kv, lse;  // kv: k or v alone
};
AttentionBytes bytes_of(const AttentionShape& a) {
  const int64_t tokens = a.batch * a.seq, e = size_of(a.dtype);
  return {tokens * a.heads * a.head_dim * e, tokens * a.kv_heads * a.head_dim * e, tokens * a.heads * 4};
}
/// Asked of unfused attention alone: flash attention takes sequences whose scores are too many to count.
int64_t score_bytes(const AttentionShape& a) { return a.batch * a.heads * a.seq * a.seq * size_of(a.dtype); }

Compute attention(const AttentionShape& a, Kernel kernel, double flops, int64_t read, int64_t written) {
  Compute c;
  c.kernel = kernel;
  c.dtype = a.dtype;
  c.dims = {a.batch, a.seq, a.heads, a.kv_heads, a.head_dim};
  c.causal = a.causal;
  c.scalar = static_cast<double>(a.window);
  c.work = {flops, read, written};
  return c;
}

/// One product over all heads: 2 b a s^2 d.
double product_flops(const AttentionShape& a) {
  return 2.0 * static_cast<double>(a.batch * a.heads) * static_cast<double>(a.seq) * static_cast<double>(a.seq) *
         static_cast<double>(a.head_dim);
}

}  // namespace

Compute attention_forward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  const double flops = 2 * product_flops(a) * a.computed_share();
  return attention(a, Kernel::attention_forward, flops, b.q + 2 * b.kv, b.q + b.lse);
}

Compute attention_backward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  const double flops = 5 * product_flops(a) * a.computed_share();
  return attention(a, Kernel::attention_backward, flops, 3 * b.q + 2 * b.kv + b.lse, b.q + 2 * b.kv);
}

namespace {

Compute latent(const LatentShape& a, Kernel kernel, int64_t of_qk, int64_t of_v, int64_t read, int64_t written) {
  Compute c;
  c.kernel = kernel;
  c.dtype = a.dtype;
  c.dims = {a.batch, a.seq, a.heads, a.qk_dim, a.v_dim};
  c.causal = a.causal;
  const double scores =
      static_cast<double>(a.batch * a.heads) * static_cast<double>(a.seq) * static_cast<double>(a.seq);
  c.work = {2 * scores * static_cast<double>(of_qk * a.qk_dim + of_v * a.v_dim) * (a.causal ? 0.5 : 1.0), read,
            written};
  return c;
}

}  // namespace

Compute latent_attention_forward(const LatentShape& a) {
  const int64_t heads = a.batch * a.seq * a.heads, e = size_of(a.dtype), qkv = heads * (2 * a.qk_dim + a.v_dim) * e;
  return latent(a, Kernel::latent_attention_forward, 1, 1, qkv, heads * (a.v_dim * e + 4));
}

Compute latent_attention_backward(const LatentShape& a) {
  const int64_t heads = a.batch * a.seq * a.heads, e = size_of(a.dtype), qkv = heads * (2 * a.qk_dim + a.v_dim) * e;
  return latent(a, Kernel::latent_attention_backward, 3, 2, qkv + heads * (2 * a.v_dim * e + 4), qkv);
}

namespace {

/// Share of the seq x seq x (blocks) scores that lie in a block.
double block_share(const AttentionShape& a, uint8_t block, int64_t ranks) {
  if (block != plan::kAllBlocks) return a.causal ? 0.5 : 1.0;
  AttentionShape whole = a;
  whole.seq *= ranks;
  return whole.computed_share();
}

}  // namespace

Compute block_attention_forward(const AttentionShape& a, uint8_t block, int64_t ranks) {
  const auto b = bytes_of(a);
  const int64_t blocks = block == plan::kAllBlocks ? ranks : 1;
  const double flops = 2 * product_flops(a) * static_cast<double>(blocks) * block_share(a, block, ranks);
  Compute c = attention(a, Kernel::block_attention_forward, flops, b.q + 2 * blocks * b.kv, b.q + b.lse);
  c.function = block;
  return c;
}

Compute block_attention_backward(const AttentionShape& a, uint8_t block, int64_t ranks, bool accumulate) {
  const auto b = bytes_of(a);
  const int64_t blocks = block == plan::kAllBlocks ? ranks : 1;
  const double flops = 5 * product_flops(a) * static_cast<double>(blocks) * block_share(a, block, ranks);
  Compute c = attention(a, Kernel::block_attention_backward, flops,
                        (accumulate ? 4 : 3) * b.q + 2 * blocks * b.kv + b.lse, b.q + 2 * blocks * b.kv);
  c.function = block;
  c.accumulate = accumulate;
  return c;
}

Compute merge_attention(const AttentionShape& a) {
  const auto b = bytes_of(a);
  return attention(a, Kernel::merge_attention, 4.0 * static_cast<double>(b.q / size_of(a.dtype)), 2 * (b.q + b.lse),
                   b.q + b.lse);
}

Compute reorder_qkv(Kernel kernel, const AttentionShape& a) {
  const auto b = bytes_of(a);
  return attention(a, kernel, 0, b.q + 2 * b.kv, b.q + 2 * b.kv);
}

Compute scores_forward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  return attention(a, Kernel::scores_forward, product_flops(a), b.q + b.kv, score_bytes(a));
}
Compute context_forward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  return attention(a, Kernel::context_forward, product_flops(a), score_bytes(a) + b.kv, b.q);
}
Compute context_backward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  Compute c = attention(a, Kernel::context_backward, 2 * product_flops(a), b.q + 2 * score_bytes(a) + b.kv,
                        score_bytes(a) + b.kv);
  c.launches = 2;
  return c;
}
Compute scores_backward(const AttentionShape& a) {
  const auto b = bytes_of(a);
  Compute c = attention(a, Kernel::scores_backward, 2 * product_flops(a), 2 * score_bytes(a) + b.q + b.kv, b.q + b.kv);
  c.launches = 2;
  return c;
}

Compute softmax_forward(const AttentionShape& a, bool fused) {
  const int64_t passes = fused ? 1 : 3;  // scale, mask, softmax
  Compute c = attention(a, Kernel::softmax_forward, 5.0 * static_cast<double>(score_bytes(a) / size_of(a.dtype)),
                        passes * score_bytes(a), passes * score_bytes(a));
  c.launches = static_cast<uint16_t>(passes);
  return c;
}
Compute softmax_backward(const AttentionShape& a, bool fused) {
  const int64_t passes = fused ? 1 : 2;
  Compute c = attention(a, Kernel::softmax_backward, 4.0 * static_cast<double>(score_bytes(a) / size_of(a.dtype)),
                        (passes + 1) * score_bytes(a), passes * score_bytes(a));
  c.launches = static_cast<uint16_t>(passes);
  return c;
}

Compute streaming(Kernel kernel, DType dtype, int64_t rows, int64_t columns, int64_t read, int64_t written,
                  double flops_per_element, int launches) {
  Compute c;
  c.kernel = kernel;
  c.dtype = dtype;
  c.dims = {rows, columns};
  c.launches = static_cast<uint16_t>(launches);
  c.work.flops = flops_per_element * static_cast<double>(rows) * static_cast<double>(columns);
  c.work.bytes_read = read;
  c.work.bytes_written = written;
  return c;
}

Compute adam(int64_t n, const AdamBytes& of, bool fused, bool clipped) {
  int64_t read = of.gradient + of.weight + of.moments, written = of.weight + of.moments + of.copy;
  int launches = 1;
  if (!fused) {  // m *= b1; m += g; v *= b2; v += g g; root; / correction; + eps; w -= m / that; then the copy
    const int64_t m = of.moments / 2, root = 4;
    read = 5 * m + 2 * of.gradient + 2 * root + of.weight + m + root;
    written = 4 * m + 3 * root + of.weight;
    launches = 8;
    if (clipped) read += of.gradient, written += of.gradient, ++launches;
    if (of.copy > 0) read += of.weight, written += of.copy, ++launches;
  }
  Compute op = flat(Kernel::adam, DType::f32, n, n * read, n * written, 12);
  op.launches = static_cast<uint16_t>(launches);
  return op;
}

Compute flat(Kernel kernel, DType dtype, int64_t elements, int64_t read, int64_t written, double flops) {
  Compute op = streaming(kernel, dtype, 1, elements, read, written, flops);
  op.dims = {elements};
  return op;
}

}  // namespace wt::lower
