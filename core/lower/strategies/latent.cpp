// Multi-head latent attention (DeepSeek): queries, and keys with values, pass through narrow products.
//
//   x -> q_down -> norm -> (gather) q_up -> q          without q_down: x -> (gather) q
//   x -> kv_down -> kv | k_rope;  kv -> norm -> (gather) kv_up -> k without its rope part, v
//   q, kv, k_rope -> qkv -> attention
//
// The narrow products are whole on every tensor rank and work on the rank's rows; what leaves them is gathered, which is less
// than their input. After Megatron's MLASelfAttention (core/transformer/multi_latent_attention.py).
#include <algorithm>

#include "core/lower/layer_ops.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Role;
using plan::Scope;
using plan::Stream;

namespace {

struct Widths {
  int64_t q_rank, kv_rank, nope, rope, v;
  int64_t q, kv;  // columns of this rank: of all its heads
};

Widths widths(const Context& c) {
  const MlaSpec& m = *c.model_spec().mla;
  Widths w{m.q_lora_rank, m.kv_lora_rank, m.qk_nope_head_dim, m.qk_rope_head_dim, m.v_head_dim, 0, 0};
  w.q = c.n.heads * (w.nope + w.rope);
  w.kv = c.n.heads * (w.nope + w.v);
  return w;
}

LatentShape shape(const Context& c) {
  const Widths w = widths(c);
  return {c.n.b, c.n.s, c.n.heads, w.nope + w.rope, w.v, c.act, c.model_spec().causal};
}

Compute rank_norm(const Context& c, Kernel kernel, int64_t rank) {
  const bool backward = kernel == Kernel::norm_backward;
  const int64_t tile = c.n.rows * rank * size_of(c.act), stats = c.n.rows * 4;
  Compute op = streaming(kernel, c.act, c.n.rows, rank, backward ? 2 * tile + stats : tile,
                         backward ? tile : tile + stats, backward ? 12 : 6, backward ? 2 : 1);
  op.function = static_cast<uint8_t>(Norm::rms_norm);
  op.scalar = 1e-6;
  return op;
}

Compute columns(const Context& c, Kernel kernel, int64_t a, int64_t b) {
  const int64_t size = c.n.rows * (a + b) * size_of(c.act);
  Compute op = streaming(kernel, c.act, c.n.rows, a + b, size, size, 0);
  op.dims = {c.n.rows, a, b};
  return op;
}

Compute assemble(const Context& c, Kernel kernel) {
  const Widths w = widths(c);
  const int64_t size = c.n.tokens * c.n.qkv * size_of(c.act);
  Compute op = streaming(kernel, c.act, c.n.tokens, c.n.qkv, size, size, 1, c.training().fused_kernels ? 2 : 8);
  op.dims = {c.n.b, c.n.s, c.n.heads, w.nope, w.rope};
  op.scalar = static_cast<double>(w.v);
  return op;
}

/// A product on the rank's own rows.
void narrow(BlockBuilder& b, const Context& c, const char* name, Phase phase, BufferRef x, int weight, int j,
            BufferRef y, int64_t out) {
  b.compute(name, phase, gemm(c.n.rows, out, c.n.h, dtype(c, x), c.act, false, true, false), {x, c.operand(weight, j)},
            {y});
}

void narrow_backward(BlockBuilder& b, const Context& c, const char* what, BufferRef d, BufferRef x, int weight, int j,
                     BufferRef dx, int64_t out) {
  const std::string name = what;
  b.compute(name + " dgrad", Phase::backward_input, gemm(c.n.rows, c.n.h, out, dtype(c, d), c.act, false, false, false),
            {d, c.operand(weight, j)}, {dx});
  b.compute(name + " wgrad", Phase::backward_weight,
            gemm(out, c.n.h, c.n.rows, dtype(c, d), c.grad, true, false, !c.fresh_gradients), {d, x},
            {c.gradient(weight, j)});
}

}  // namespace

void make_latent_sizes(Context& c) {
  const Widths w = widths(c);
  c.n.qkv = c.n.heads * (2 * (w.nope + w.rope) + w.v);
  c.n.attention = c.n.heads * w.v;
}

void make_latent_parameters(Context& c) {
  const Sizes& n = c.n;
  const Widths w = widths(c);
  ParameterIds& id = c.id;
  auto whole = [&](const char* name, int64_t out) {
    const int k = add_parameter(c, name, {out, n.h}, {}, true, plan::Init::normal, kSigma);
    if (n.sequence_parallel) c.parameters[static_cast<size_t>(k)].partial_over_tensor = true;
    return k;
  };
  auto gain = [&](const char* name, int64_t size) {
    const int k = add_parameter(c, name, {size}, {}, true, plan::Init::ones, 0);
    if (n.sequence_parallel) c.parameters[static_cast<size_t>(k)].partial_over_tensor = true;
    return k;
  };
  auto cut = [&](const char* name, int64_t out, int64_t in) {
    const auto shards = n.t > 1 ? std::vector<plan::Shard>{{0, c.tp, 1}} : std::vector<plan::Shard>{};
    return add_parameter(c, name, {out, in}, shards, true, plan::Init::normal, kSigma);
  };
  if (w.q_rank > 0) {
    id.q_down = whole("q_down", w.q_rank);
    id.q_down_gamma = gain("q_down.gamma", w.q_rank);
  }
  id.q_up = cut("q_up", w.q, w.q_rank > 0 ? w.q_rank : n.h);
  id.kv_down = whole("kv_down", w.kv_rank + w.rope);
  id.kv_down_gamma = gain("kv_down.gamma", w.kv_rank);
  id.kv_up = cut("kv_up", w.kv, w.kv_rank);
}

void make_latent_layer(Context& c, LayerBuffers& l, const std::string& suffix, Scope scope) {
  const Sizes& n = c.n;
  const Widths w = widths(c);
  auto kept = [&](const char* name, int64_t columns, DType dtype) {
    return c.add_layer_buffer(name + suffix, Role::activation, scope, dtype, {n.rows, columns});
  };
  // With fp8 products the 8-bit inputs are kept; the 16-bit ones go as soon as they are cast.
  auto normed = [&](const char* name, int64_t columns) {
    return c.add_layer_buffer(name + suffix, Role::activation, c.narrow() ? Scope::invocation : scope, c.act,
                              {n.rows, columns});
  };
  LatentBuffers& m = l.latent;
  if (c.narrow()) {
    if (w.q_rank > 0) m.q_normed_f8 = kept("q_down_normed_f8", w.q_rank, DType::f8);
    m.kv_normed_f8 = kept("kv_down_normed_f8", w.kv_rank, DType::f8);
  }
  if (w.q_rank > 0) {
    m.q_down = kept("q_down_out", w.q_rank, c.act);
    m.q_stats = kept("q_down_stats", 1, DType::f32);
    m.q_normed = normed("q_down_normed", w.q_rank);
  }
  m.kv_down = kept("kv_down_out", w.kv_rank, c.act);
  m.kv_stats = kept("kv_down_stats", 1, DType::f32);
  m.kv_normed = normed("kv_down_normed", w.kv_rank);
}

void make_latent_transients(Context& c) {
  const Sizes& n = c.n;
  const Widths w = widths(c);
  auto tmp = [&](const char* name, int64_t rows, int64_t columns) {
    return c.add_layer_buffer(name, Role::transient, Scope::invocation, c.act, {rows, columns});
  };
  LatentTransients& x = c.latent;
  if (c.narrow()) {
    auto f8 = [&](const char* name, int64_t rows, int64_t columns) {
      return c.add_layer_buffer(name, Role::transient, Scope::invocation, DType::f8, {rows, columns});
    };
    x.q_full_f8 = f8("q_down_full_f8", n.tokens, std::max<int64_t>(1, w.q_rank));
    x.kv_full_f8 = f8("kv_down_full_f8", n.tokens, w.kv_rank);
    x.d_q_f8 = f8("d_q_f8", n.tokens, w.q);
    x.d_q_down_f8 = f8("d_q_down_f8", n.rows, std::max<int64_t>(1, w.q_rank));
    x.d_kv_f8 = f8("d_kv_f8", n.tokens, w.kv);
    x.d_kv_rope_f8 = f8("d_kv_rope_f8", n.rows, w.kv_rank + w.rope);
  }
  if (w.q_rank > 0) {
    x.q_full = tmp("q_down_full", n.tokens, w.q_rank);
    x.d_q_full = tmp("d_q_down_full", n.tokens, w.q_rank);
    x.d_q_normed = tmp("d_q_down_normed", n.rows, w.q_rank);
    x.d_q_down = tmp("d_q_down", n.rows, w.q_rank);
  } else {
    x.d_q_full = tmp("d_q_in_full", n.tokens, n.h);
  }
  x.q = tmp("q_out", n.tokens, w.q);
  x.kv = tmp("kv_out", n.tokens, w.kv);
  x.kv_rope = tmp("kv_rope_out", n.rows, w.kv_rank + w.rope);
  x.k_rope = tmp("k_rope", n.rows, w.rope);
  x.k_rope_full = tmp("k_rope_full", n.tokens, w.rope);
  x.kv_full = tmp("kv_down_full", n.tokens, w.kv_rank);
  x.d_q = tmp("d_q", n.tokens, w.q);
  x.d_kv = tmp("d_kv", n.tokens, w.kv);
  x.d_k_rope_full = tmp("d_k_rope_full", n.tokens, w.rope);
  x.d_k_rope = tmp("d_k_rope", n.rows, w.rope);
  x.d_kv_full = tmp("d_kv_down_full", n.tokens, w.kv_rank);
  x.d_kv_normed = tmp("d_kv_down_normed", n.rows, w.kv_rank);
  x.d_kv_down = tmp("d_kv_down", n.rows, w.kv_rank);
  x.d_kv_rope = tmp("d_kv_rope", n.rows, w.kv_rank + w.rope);
  x.d_x_q = tmp("d_latent_q_in", n.rows, n.h);
  x.d_x_kv = tmp("d_latent_kv_in", n.rows, n.h);
  x.d_x = tmp("d_latent_in", n.rows, n.h);
}

void latent_core(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef out) {
  b.compute("attention", phase, latent_attention_forward(shape(c)), {ref(l.attention_in, j)}, {out, ref(l.lse, j)});
}

void latent_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef normed) {
  const Widths w = widths(c);
  const LatentTransients& t = c.latent;
  const LatentBuffers& m = l.latent;
  const ParameterIds& id = c.id;
  const bool f8 = c.narrow();
  const BufferRef x = narrowed(b, c, phase, normed, ref(l.norm1_f8, j));
  if (w.q_rank > 0) {
    narrow(b, c, "q down", phase, x, id.q_down, j, ref(m.q_down, j), w.q_rank);
    b.compute("q norm", phase, rank_norm(c, Kernel::norm_forward, w.q_rank),
              {ref(m.q_down, j), c.weight(id.q_down_gamma, j)}, {ref(m.q_normed, j), ref(m.q_stats, j)});
    const BufferRef in = narrowed(b, c, phase, ref(m.q_normed, j), ref(m.q_normed_f8, j));
    const BufferRef full = enter_region(b, c, in, ref(f8 ? t.q_full_f8 : t.q_full, j), phase);
    linear(b, c, "q up", phase, full, id.q_up, -1, j, ref(t.q, j), w.q, w.q_rank);
  } else {
    const BufferRef full = enter_region(b, c, x, ref(f8 ? c.tmp.norm1_full_f8 : c.tmp.norm1_full, j), phase);
    linear(b, c, "q up", phase, full, id.q_up, -1, j, ref(t.q, j), w.q, c.n.h);
  }
  narrow(b, c, "kv down", phase, x, id.kv_down, j, ref(t.kv_rope, j), w.kv_rank + w.rope);
  b.compute("split kv", phase, columns(c, Kernel::split_latent, w.kv_rank, w.rope), {ref(t.kv_rope, j)},
            {ref(m.kv_down, j), ref(t.k_rope, j)});
  b.compute("kv norm", phase, rank_norm(c, Kernel::norm_forward, w.kv_rank),
            {ref(m.kv_down, j), c.weight(id.kv_down_gamma, j)}, {ref(m.kv_normed, j), ref(m.kv_stats, j)});
  const BufferRef rope = enter_region(b, c, ref(t.k_rope, j), ref(t.k_rope_full, j), phase);
  const BufferRef in = narrowed(b, c, phase, ref(m.kv_normed, j), ref(m.kv_normed_f8, j));
  const BufferRef full = enter_region(b, c, in, ref(f8 ? t.kv_full_f8 : t.kv_full, j), phase);
  linear(b, c, "kv up", phase, full, id.kv_up, -1, j, ref(t.kv, j), w.kv, w.kv_rank);
  b.compute("assemble qkv", phase, assemble(c, Kernel::latent_assemble), {ref(t.q, j), ref(t.kv, j), rope},
            {ref(l.attention_in, j)});
  latent_core(b, c, l, j, phase, ref(l.attention, j));
}

BufferRef latent_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef normed,
                          BufferRef d) {
  const bool f8 = c.narrow();
  const BufferRef x = f8 ? ref(l.norm1_f8, j) : normed;
  const Widths w = widths(c);
  const LatentTransients& t = c.latent;
  const LatentBuffers& m = l.latent;
  const ParameterIds& id = c.id;
  const Phase input = Phase::backward_input;
  b.compute("attention backward", input, latent_attention_backward(shape(c)),
            {d, ref(l.attention_in, j), ref(l.attention, j), ref(l.lse, j)}, {ref(c.tmp.d_qkv, j)});
  b.compute("scatter qkv", input, assemble(c, Kernel::latent_scatter), {ref(c.tmp.d_qkv, j)},
            {ref(t.d_q, j), ref(t.d_kv, j), ref(t.d_k_rope_full, j)});
  const BufferRef d_rope = leave_region(b, c, ref(t.d_k_rope_full, j), ref(t.d_k_rope, j), input);
  const BufferRef kv_full =
      enter_region(b, c, ref(f8 ? m.kv_normed_f8 : m.kv_normed, j), ref(f8 ? t.kv_full_f8 : t.kv_full, j), input);
  const BufferRef d_kv_up = narrowed(b, c, input, ref(t.d_kv, j), ref(t.d_kv_f8, j));
  linear_input(b, c, "kv up dgrad", d_kv_up, id.kv_up, j, ref(t.d_kv_full, j), w.kv, w.kv_rank);
  const BufferRef d_kv = leave_region(b, c, ref(t.d_kv_full, j), ref(t.d_kv_normed, j), input);
  linear_weight(b, c, "kv up wgrad", d_kv_up, kv_full, id.kv_up, -1, j, w.kv, w.kv_rank, 0);
  b.compute("kv norm backward", input, rank_norm(c, Kernel::norm_backward, w.kv_rank),
            {d_kv, ref(m.kv_down, j), c.weight(id.kv_down_gamma, j), ref(m.kv_stats, j)},
            {ref(t.d_kv_down, j), c.gradient(id.kv_down_gamma, j)});
  b.compute("join kv", input, columns(c, Kernel::join_latent, w.kv_rank, w.rope), {ref(t.d_kv_down, j), d_rope},
            {ref(t.d_kv_rope, j)});
  narrow_backward(b, c, "kv down", narrowed(b, c, input, ref(t.d_kv_rope, j), ref(t.d_kv_rope_f8, j)), x, id.kv_down, j,
                  ref(t.d_x_kv, j), w.kv_rank + w.rope);
  BufferRef d_x_q = ref(t.d_x_q, j);
  const BufferRef d_q_up = narrowed(b, c, input, ref(t.d_q, j), ref(t.d_q_f8, j));
  if (w.q_rank > 0) {
    const BufferRef q_full =
        enter_region(b, c, ref(f8 ? m.q_normed_f8 : m.q_normed, j), ref(f8 ? t.q_full_f8 : t.q_full, j), input);
    linear_input(b, c, "q up dgrad", d_q_up, id.q_up, j, ref(t.d_q_full, j), w.q, w.q_rank);
    const BufferRef d_q = leave_region(b, c, ref(t.d_q_full, j), ref(t.d_q_normed, j), input);
    linear_weight(b, c, "q up wgrad", d_q_up, q_full, id.q_up, -1, j, w.q, w.q_rank, 0);
    b.compute("q norm backward", input, rank_norm(c, Kernel::norm_backward, w.q_rank),
              {d_q, ref(m.q_down, j), c.weight(id.q_down_gamma, j), ref(m.q_stats, j)},
              {ref(t.d_q_down, j), c.gradient(id.q_down_gamma, j)});
    narrow_backward(b, c, "q down", narrowed(b, c, input, ref(t.d_q_down, j), ref(t.d_q_down_f8, j)), x, id.q_down, j,
                    d_x_q, w.q_rank);
  } else {
    const BufferRef full = enter_region(b, c, x, ref(f8 ? c.tmp.norm1_full_f8 : c.tmp.norm1_full, j), input);
    linear_input(b, c, "q up dgrad", d_q_up, id.q_up, j, ref(t.d_q_full, j), w.q, c.n.h);
    d_x_q = leave_region(b, c, ref(t.d_q_full, j), d_x_q, input);
    linear_weight(b, c, "q up wgrad", d_q_up, full, id.q_up, -1, j, w.q, c.n.h, 0);
  }
  b.compute("add latent", input, add(c, c.n.rows), {d_x_q, ref(t.d_x_kv, j)}, {ref(t.d_x, j)});
  return ref(t.d_x, j);
}

}  // namespace wt::lower
