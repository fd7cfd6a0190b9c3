// One decoder layer and the embedding, forward and backward, as ops. The math is the same under every
// strategy; where tensor parallelism cuts it, enter_region and leave_region stand.
//
//   hidden[l] -> norm1 -> (gather) qkv -> rope -> attention -> proj (reduce) -> + -> residual
//   residual  -> norm2 -> (gather) fc1 -> activation -> fc2 (reduce)         -> + -> hidden[l+1]
//
// Input-gradient and weight-gradient products are separate ops. In backward the re-gathered input of a product is
// issued before the input-gradient product and the reduction of the input gradient before the weight-gradient product,
// so each collective has one product to hide behind.
#include <utility>

#include "core/lower/context.hpp"
#include "core/lower/layer_ops.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Stream;

namespace {

/// out = x + branch (+ bias, dropout).
void residual_forward(BlockBuilder& b, const Context& c, const char* name, Phase phase, BufferRef branch, BufferRef x,
                      int bias, int j, BufferRef out, BufferId mask) {
  const int64_t tile = c.n.rows * c.n.h * size_of(c.act);
  const bool dropout = mask.valid();
  const int kernels = c.training().fused_kernels ? 1 : 1 + (bias >= 0) + dropout;
  Compute op = streaming(Kernel::residual_forward, c.act, c.n.rows, c.n.h, (1 + kernels) * tile,
                         kernels * tile + (dropout ? c.n.rows * c.n.h : 0), 3, kernels);
  op.scalar = dropout ? 0.1 : 0;
  Refs reads{branch, x};
  if (bias >= 0) reads.push_back(c.weight(bias, j));
  Refs writes{out};
  if (dropout) writes.push_back(ref(mask, j));
  b.op(name, phase, Stream::compute, op, reads, writes);
}

/// The gradient of the branch: through its dropout, or the same tensor.
BufferRef residual_backward(BlockBuilder& b, const Context& c, const char* name, BufferRef dy, BufferId mask, int j,
                            BufferRef branch) {
  if (!mask.valid()) return dy;
  const int64_t tile = c.n.rows * c.n.h * size_of(c.act);
  Compute op = streaming(Kernel::residual_backward, c.act, c.n.rows, c.n.h, tile + c.n.rows * c.n.h, tile, 1);
  op.scalar = 0.1;
  b.compute(name, Phase::backward_input, op, {dy, ref(mask, j)}, {branch});
  return branch;
}

AttentionShape attention_shape(const Context& c, LayerKind kind) {
  const auto& m = c.model_spec();
  const int64_t window = is_windowed(kind) ? m.sliding_window : attention_window(c.job);
  return {c.n.b, c.n.s, c.n.heads, c.n.kv_heads, c.n.d, c.act, m.causal, window, c.n.document};
}

Compute rope(const Context& c, Kernel kernel) {
  const int64_t columns = (c.n.heads + c.n.kv_heads) * c.n.d, tile = c.n.tokens * columns * size_of(c.act);
  // Plain ops move ten times the bytes of q and k: x cos + rotate_half(x) sin (transformers: negate, join, two products, a
  // sum), or complex products in fp32 between casts (torchtitan); 6 to 10 kernels.
  const bool fused = c.training().fused_kernels;
  const int64_t passes = fused ? 1 : 5;
  Compute op = streaming(kernel, c.act, c.n.tokens, columns, passes * tile, passes * tile, 3, fused ? 1 : 8);
  op.dims = {c.n.b, c.n.s, c.n.heads, c.n.kv_heads, c.n.d};
  op.group = c.cp;
  return op;
}

/// Scores to context: from qkv to the attention output and what its backward needs.
void core_attention(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind, Phase phase,
                    BufferRef out) {
  if (c.n.cp > 1) return context_attention_forward(b, c, l, j, phase, out);
  const AttentionShape a = attention_shape(c, kind);
  const BufferRef qkv = ref(l.attention_in, j);
  if (l.lse.valid()) {
    b.compute("attention", phase, attention_forward(a), {qkv}, {out, ref(l.lse, j)});
    return;
  }
  const BufferRef scores = ref(l.scores, j), probs = ref(l.probs, j);
  b.compute("attention scores", phase, scores_forward(a), {qkv}, {scores});
  b.compute("softmax", phase, softmax_forward(a, c.training().fused_kernels), {scores}, {probs});
  if (l.attention_mask.valid()) {
    const int64_t n = bytes(c, probs), elements = n / size_of(c.act);
    Compute op = streaming(Kernel::dropout_forward, c.act, a.batch * a.heads * a.seq, a.seq, n, n + elements, 1);
    op.scalar = 0.1;
    b.compute("attention dropout", phase, op, {probs}, {ref(l.dropped, j), ref(l.attention_mask, j)});
    b.compute("attention context", phase, context_forward(a), {ref(l.dropped, j), qkv}, {out});
  } else {
    b.compute("attention context", phase, context_forward(a), {probs, qkv}, {out});
  }
  // Batched products leave [heads, rows, columns]; the projection reads rows.
  const int64_t tile = bytes(c, out);
  b.compute("transpose context", phase, streaming(Kernel::copy, c.act, c.n.tokens, c.n.attention, tile, tile, 0), {out},
            {out});
}

/// From the rows after norm1 to the attention output. Returns what the first product read.
BufferRef attention_branch_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind,
                                   Phase phase) {
  if (c.model_spec().mla) {
    latent_forward(b, c, l, j, phase, ref(l.norm1, j));
    return ref(l.norm1, j);
  }
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;
  const bool f8 = c.narrow();
  const BufferRef in1 = narrowed(b, c, phase, ref(l.norm1, j), ref(l.norm1_f8, j));
  const BufferId full1 = f8 ? t.norm1_full_f8 : l.norm1_full.valid() ? l.norm1_full : t.norm1_full;
  const BufferRef x = enter_region(b, c, in1, ref(full1, j), phase, Beside::cut);
  linear(b, c, "qkv", phase, x, id.qkv, id.qkv_bias, j, ref(l.qkv, j), n.qkv, n.h, gather_pieces(c));
  adapter_forward(b, c, l, Product::qkv, j, phase, x, ref(l.qkv, j));
  if (l.qk_stats.valid()) {
    const int64_t columns = (n.heads + n.kv_heads) * n.d, tile = n.tokens * columns * size_of(c.act);
    Compute op = streaming(Kernel::qk_norm_forward, c.act, n.tokens, columns, tile, tile, 6, 2);
    op.dims = {n.b, n.s, n.heads, n.kv_heads, n.d};
    op.scalar = 1e-6;
    b.compute("qk norm", phase, op, {ref(l.qkv, j), c.weight(id.q_gamma, j), c.weight(id.k_gamma, j)},
              {ref(l.attention_in, j), ref(l.qk_stats, j)});
  }
  if (c.model_spec().position == Position::rotary) {
    b.compute("rope", phase, rope(c, Kernel::rope_forward), {ref(l.attention_in, j)}, {ref(l.attention_in, j)});
    hold(b, c, l.unrotated, j, phase);
  }
  core_attention(b, c, l, j, kind, phase, ref(l.attention, j));
  return x;
}

/// From the gradient of the attention output to that of what norm1 wrote.
BufferRef attention_branch_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;
  const Phase input = Phase::backward_input;
  const bool f8 = c.narrow();
  const int64_t e = size_of(c.act);
  const AttentionShape a = attention_shape(c, kind);
  const BufferRef qkv = ref(l.attention_in, j), d_qkv = ref(t.d_qkv, j), d_attention = ref(t.d_attention, j);
  if (c.n.cp > 1) {
    context_attention_backward(b, c, l, j, d_attention, d_qkv);
  } else if (l.lse.valid()) {
    b.compute("attention backward", input, attention_backward(a),
              {d_attention, qkv, ref(l.attention, j), ref(l.lse, j)}, {d_qkv});
  } else {
    const BufferRef probs = ref(l.probs, j), d_probs = ref(t.d_probs, j), d_scores = ref(t.d_scores, j);
    const BufferRef used = l.dropped.valid() ? ref(l.dropped, j) : probs;  // what multiplied v in forward
    b.compute("attention context backward", input, context_backward(a), {d_attention, used, qkv}, {d_probs, d_qkv});
    if (l.dropped.valid()) {
      const int64_t probs_bytes = bytes(c, probs);
      Compute op = streaming(Kernel::dropout_backward, c.act, a.batch * a.heads * a.seq, a.seq,
                             probs_bytes + probs_bytes / e, probs_bytes, 1);
      op.scalar = 0.1;
      b.compute("attention dropout backward", input, op, {d_probs, ref(l.attention_mask, j)}, {d_probs});
    }
    b.compute("softmax backward", input, softmax_backward(a, c.training().fused_kernels), {d_probs, probs}, {d_scores});
    b.compute("attention scores backward", input, scores_backward(a), {d_scores, qkv}, {d_qkv});
  }
  if (c.training().packed_qkv && !c.training().packed_qkv_gradient) {
    const int64_t tile = n.tokens * n.qkv * e;
    b.compute("join qkv gradients", input, streaming(Kernel::copy, c.act, n.tokens, n.qkv, tile, tile, 0), {d_qkv},
              {d_qkv});
  }
  let_go(b, l.unrotated, j);  // v, a column of the same tensor, is needed up to here
  if (c.model_spec().position == Position::rotary)
    b.compute("rope backward", input, rope(c, Kernel::rope_backward), {d_qkv}, {d_qkv});
  if (l.qk_stats.valid()) {
    const int64_t columns = (n.heads + n.kv_heads) * n.d, tile = n.tokens * columns * e;
    Compute op = streaming(Kernel::qk_norm_backward, c.act, n.tokens, columns, 2 * tile, tile, 12, 4);
    op.dims = {n.b, n.s, n.heads, n.kv_heads, n.d};
    op.scalar = 1e-6;
    const BufferRef reads[] = {d_qkv, ref(l.qkv, j), c.weight(id.q_gamma, j), c.weight(id.k_gamma, j),
                               ref(l.qk_stats, j)};
    Refs writes{d_qkv};
    for (const int k : {id.q_gamma, id.k_gamma})
      if (!c.frozen(k)) writes.push_back(c.gradient(k, j));
    b.op("qk norm backward", input, Stream::compute, op, reads, writes);
  }
  BufferRef x;
  if (c.keeps_input(id.qkv, Product::qkv))
    x = input_of_region(b, c, l.norm1_full, f8 ? l.norm1_f8 : l.norm1, f8 ? t.norm1_full_f8 : t.norm1_full, j, input);
  const BufferRef d_qkv_in = narrowed(b, c, input, d_qkv, ref(t.d_qkv_f8, j));
  linear_input(b, c, "qkv dgrad", d_qkv_in, id.qkv, j, ref(t.d_norm1_full, j), n.qkv, n.h);
  adapter_input(b, c, l, Product::qkv, j, d_qkv_in, ref(t.d_norm1_full, j));
  auto qkv_weight = [&] {
    linear_weight(b, c, "qkv wgrad", d_qkv_in, x, id.qkv, id.qkv_bias, j, n.qkv, n.h, n.tokens);
    adapter_weight(b, c, l, Product::qkv, j, d_qkv_in, x);
  };
  if (!c.strategy().tensor_async_backward) qkv_weight();
  const BufferRef d_norm1 = leave_region(b, c, ref(t.d_norm1_full, j), ref(t.d_norm1, j), input);
  if (c.strategy().tensor_async_backward) qkv_weight();
  return d_norm1;
}

}  // namespace

void layer_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind, BufferRef in,
                   BufferRef out, Phase phase, bool to_last_kept) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;

  norm_forward(b, c, "norm1", phase, in, id.norm1_gamma, id.norm1_beta, j, ref(l.norm1, j),
               {l.stats1, l.norm1_normed, l.norm1_wide});
  const BufferRef x = attention_branch_forward(b, c, l, j, kind, phase);
  const BufferRef attention_in = narrowed(b, c, phase, ref(l.attention, j), ref(l.attention_f8, j));
  linear(b, c, "proj", phase, attention_in, id.proj, -1, j, ref(t.projection, j), n.h, n.attention, scatter_pieces(c));
  adapter_forward(b, c, l, Product::proj, j, phase, attention_in, ref(t.projection, j));
  const BufferRef attended = leave_region(b, c, ref(t.projection, j), ref(t.projection_sum, j), phase, Beside::cut);
  residual_forward(b, c, "residual1", phase, attended, in, id.proj_bias, j, ref(l.residual, j), l.residual_mask);

  BufferRef mixed;
  const bool experts = without_window(kind) == LayerKind::experts;
  if (experts) {
    norm_forward(b, c, "norm2", phase, ref(l.residual, j), id.norm2_gamma, id.norm2_beta, j, ref(l.moe.in, j),
                 {l.stats2, l.norm2_normed, l.norm2_wide});
    mixed = experts_forward(b, c, l, j, phase, ref(l.moe.in, j), to_last_kept);
  } else {
    mixed = mlp_forward(b, c, l, j, in, x, phase, to_last_kept);
  }
  if (to_last_kept) return;
  residual_forward(b, c, "residual2", phase, mixed, ref(l.residual, j), experts ? -1 : id.fc2_bias, j, out,
                   l.output_mask);
}

void layer_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind, BufferRef in,
                    BufferRef d_out, BufferRef d_in) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;
  const Phase input = Phase::backward_input;
  const bool one_norm = id.norm2_gamma < 0;
  const bool parallel = c.model_spec().parallel_block;
  const int64_t e = size_of(c.act);

  // MLP branch.
  remake(b, c, l, j, kind, in, 0);
  BufferRef d = residual_backward(b, c, "dropout2 backward", d_out, l.output_mask, j, ref(t.branch, j));
  const bool f8 = c.narrow();
  const BufferRef d_norm2 = without_window(kind) == LayerKind::experts
                                ? experts_backward(b, c, l, j, ref(l.moe.in, j), d)
                                : mlp_backward(b, c, l, j, d);
  BufferRef d_residual = d_out;  // gradient that reaches the residual after attention
  if (!one_norm) {
    norm_backward(b, c, "norm2 backward", d_norm2, parallel ? in : ref(l.residual, j), id.norm2_gamma, id.norm2_beta, j,
                  {l.stats2, l.norm2_normed, l.norm2_wide}, ref(t.d_residual_norm, j));
    if (!parallel) {
      b.compute("add residual", input, add(c, n.rows), {d_out, ref(t.d_residual_norm, j)}, {ref(t.d_residual, j)});
      d_residual = ref(t.d_residual, j);
    }
  }

  // Attention branch.
  d = residual_backward(b, c, "dropout1 backward", d_residual, l.residual_mask, j, ref(t.attention_branch, j));
  const BufferRef d_full = enter_region(b, c, narrowed(b, c, input, d, ref(t.branch_f8, j)),
                                        ref(f8 ? t.branch_full_f8 : t.attention_branch_full, j), input, Beside::cut);
  linear_input(b, c, "proj dgrad", d_full, id.proj, j, ref(t.d_attention, j), n.h, n.attention, gather_pieces(c));
  adapter_input(b, c, l, Product::proj, j, d_full, ref(t.d_attention, j));
  const BufferRef attended = ref(f8 ? l.attention_f8 : l.attention, j);
  linear_weight(b, c, "proj wgrad", d_full, attended, id.proj, -1, j, n.h, n.attention, 0);
  adapter_weight(b, c, l, Product::proj, j, d_full, attended);
  if (id.proj_bias >= 0 && !c.frozen(id.proj_bias))
    b.compute("proj wgrad bias", Phase::backward_weight,
              streaming(Kernel::bias_gradient, c.act, n.rows, n.h, n.rows * n.h * e, n.h * size_of(c.grad), 1), {d},
              {c.gradient(id.proj_bias, j)});

  remake(b, c, l, j, kind, in, 1);
  const BufferRef d_norm1 = c.model_spec().mla ? latent_backward(b, c, l, j, ref(l.norm1, j), ref(t.d_attention, j))
                                               : attention_branch_backward(b, c, l, j, kind);
  if (one_norm) b.compute("add mlp", input, add(c, n.rows), {d_norm1, d_norm2}, {d_norm1});
  norm_backward(b, c, "norm1 backward", d_norm1, in, id.norm1_gamma, id.norm1_beta, j,
                {l.stats1, l.norm1_normed, l.norm1_wide}, ref(t.d_hidden_norm, j));
  if (parallel && !one_norm)
    b.compute("add norms", input, add(c, n.rows), {ref(t.d_hidden_norm, j), ref(t.d_residual_norm, j)},
              {ref(t.d_hidden_norm, j)});
  b.compute("add hidden", input, add(c, n.rows), {d_residual, ref(t.d_hidden_norm, j)}, {d_in});
}

void embedding_forward(BlockBuilder& b, const Context& c) {
  const Sizes& n = c.n;
  const EdgeBuffers& e = c.edge;
  const auto& id = c.id;
  const int64_t size = size_of(c.act), tile = n.tokens * n.h * size, rows_tile = n.rows * n.h * size;
  const Phase f = Phase::forward;
  b.op("tokens", f, Stream::copy_in, plan::Copy{plan::Space::pinned, plan::Space::device, n.tokens * 4}, {},
       {ref(e.tokens)});
  const bool learned = c.has(id.position), scattered = n.sequence_parallel;
  const bool normed = c.has(id.embedding_gamma), dropped = e.embedding_mask.valid();
  const BufferRef hidden = ref(e.hidden);
  const BufferRef after_embedding = normed ? ref(e.normed_embedding) : hidden;

  const BufferRef x = learned || scattered ? ref(e.embedded) : after_embedding;
  b.compute("embedding", f, embedding_lookup(c), {ref(e.tokens), c.weight(id.embedding)}, {x});
  if (n.t > 1) {
    if (scattered && !learned) {
      b.op("tp reduce-scatter", f, Stream::tensor,
           plan::Collective{plan::CollectiveKind::reduce_scatter, plan::Reduction::sum, c.act, c.tp, tile}, {x},
           {after_embedding});
    } else {
      b.op("tp all-reduce", f, Stream::tensor,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.act, c.tp, tile}, {x}, {x});
    }
  }
  if (learned) {
    Compute add_rows = streaming(Kernel::position_forward, c.act, n.tokens, n.h, 2 * tile, tile, 1);
    add_rows.dims = {n.tokens, n.h, n.b};
    add_rows.group = c.cp;
    const BufferRef y = scattered ? ref(e.positioned) : after_embedding;
    b.compute("position", f, add_rows, {x, c.weight(id.position)}, {y});
    if (scattered) {
      Compute slice = streaming(Kernel::copy, c.act, n.rows, n.h, rows_tile, rows_tile, 0);
      slice.group = c.tp;
      b.compute("scatter", f, slice, {y}, {after_embedding});
    }
  }
  if (normed)
    norm_forward(b, c, "embedding norm", f, after_embedding, id.embedding_gamma, id.embedding_beta, 0, hidden,
                 {e.embedding_stats});
  if (dropped) {
    Compute op = streaming(Kernel::dropout_forward, c.act, n.rows, n.h, rows_tile, rows_tile + n.rows * n.h, 1);
    op.scalar = 0.1;
    b.compute("embedding dropout", f, op, {hidden}, {hidden, ref(e.embedding_mask)});
  }
}

void embedding_backward(BlockBuilder& b, const Context& c) {
  const Sizes& n = c.n;
  const EdgeBuffers& e = c.edge;
  const auto& id = c.id;
  const int64_t size = size_of(c.act), tile = n.tokens * n.h * size, rows_tile = n.rows * n.h * size;
  BufferRef d = ref(c.tmp.d_hidden);
  if (c.frozen(id.embedding)) {
    b.op("input gradient", Phase::backward_input, Stream::compute, plan::Join{}, {d},
         {});  // of the first layer: nobody's
    return;
  }
  if (e.embedding_mask.valid()) {
    Compute op = streaming(Kernel::dropout_backward, c.act, n.rows, n.h, rows_tile + n.rows * n.h, rows_tile, 1);
    op.scalar = 0.1;
    b.compute("embedding dropout backward", Phase::backward_input, op, {d, ref(e.embedding_mask)}, {d});
  }
  if (c.has(id.embedding_gamma)) {
    norm_backward(b, c, "embedding norm backward", d, ref(e.normed_embedding), id.embedding_gamma, id.embedding_beta, 0,
                  {e.embedding_stats}, ref(e.d_embedded));
    d = ref(e.d_embedded);
  }
  if (n.sequence_parallel) {
    b.op("tp all-gather", Phase::backward_input, Stream::tensor,
         plan::Collective{plan::CollectiveKind::all_gather, plan::Reduction::sum, c.act, c.tp, tile}, {d},
         {ref(e.d_positioned)});
    d = ref(e.d_positioned);
  }
  if (c.has(id.position)) {
    Compute op = streaming(Kernel::position_backward, c.act, n.tokens, n.h, tile, n.s * n.h * size_of(c.grad), 1);
    op.dims = {n.tokens, n.h, n.b};
    op.group = c.cp;
    b.compute("position backward", Phase::backward_weight, op, {d}, {c.gradient(id.position)});
  }
  b.compute("embedding backward", Phase::backward_weight, embedding_gradient(c), {d, ref(e.tokens)},
            {c.gradient(id.embedding)});
}

}  // namespace wt::lower
