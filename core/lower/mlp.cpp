// The dense MLP of a layer, forward and backward, as ops. Input- and weight-gradient products are separate ops; the
// reduction of the input gradient is issued before the weight-gradient product (transformer.cpp).
#include "core/lower/layer_ops.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;

BufferRef mlp_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef in, BufferRef x,
                      Phase phase, bool to_last_kept) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;
  const bool one_norm = id.norm2_gamma < 0, f8 = c.narrow(), parallel = c.model_spec().parallel_block;
  BufferRef y = x;  // a parallel block with one norm feeds the MLP from norm1
  if (!one_norm) {
    norm_forward(b, c, "norm2", phase, parallel ? in : ref(l.residual, j), id.norm2_gamma, id.norm2_beta, j,
                 ref(l.norm2, j), {l.stats2, l.norm2_normed, l.norm2_wide});
    const BufferRef in2 = narrowed(b, c, phase, ref(l.norm2, j), ref(l.norm2_f8, j));
    const BufferId full2 = f8 ? t.norm2_full_f8 : l.norm2_full.valid() ? l.norm2_full : t.norm2_full;
    y = enter_region(b, c, in2, ref(full2, j), phase, Beside::cut);
  }
  linear(b, c, "fc1", phase, y, id.fc1, id.fc1_bias, j, ref(l.fc1, j), n.fc1, n.h, one_norm ? 1 : gather_pieces(c));
  adapter_forward(b, c, l, Product::fc1, j, phase, y, ref(l.fc1, j));
  {
    const int64_t e = size_of(c.act), in_bytes = n.tokens * n.fc1 * e, out_bytes = n.tokens * n.ffn * e;
    const int kernels =
        c.training().fused_kernels ? 1 : (id.fc1_bias >= 0 ? 2 : 1) + (c.model_spec().gated_mlp ? 1 : 0);
    Compute op = streaming(Kernel::activation_forward, c.act, n.tokens, n.ffn, kernels * in_bytes,
                           out_bytes + (kernels - 1) * in_bytes, 8, kernels);
    op.gated = c.model_spec().gated_mlp;
    op.function = static_cast<uint8_t>(c.model_spec().activation);
    b.compute("activation", phase, op, {ref(l.fc1, j)}, {ref(l.activation, j)});
    hold(b, c, l.gate, j, phase);
  }
  const BufferRef activated = narrowed(b, c, phase, ref(l.activation, j), ref(l.activation_f8, j));
  if (to_last_kept) return {};
  linear(b, c, "fc2", phase, activated, id.fc2, -1, j, ref(t.fc2, j), n.h, n.ffn, scatter_pieces(c));
  adapter_forward(b, c, l, Product::fc2, j, phase, activated, ref(t.fc2, j));
  return leave_region(b, c, ref(t.fc2, j), ref(t.fc2_sum, j), phase, Beside::cut);
}

BufferRef mlp_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef d) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const TransientBuffers& t = c.tmp;
  const Phase input = Phase::backward_input;
  const bool one_norm = id.norm2_gamma < 0;
  const int64_t e = size_of(c.act);
  const bool f8 = c.narrow();
  const BufferRef branch_full = ref(f8 ? t.branch_full_f8 : t.branch_full, j);
  const BufferRef d_full =
      enter_region(b, c, narrowed(b, c, input, d, ref(t.branch_f8, j)), branch_full, input, Beside::cut);
  linear_input(b, c, "fc2 dgrad", d_full, id.fc2, j, ref(t.d_activation, j), n.h, n.ffn, gather_pieces(c));
  adapter_input(b, c, l, Product::fc2, j, d_full, ref(t.d_activation, j));
  const BufferRef activated = ref(f8 ? l.activation_f8 : l.activation, j);
  linear_weight(b, c, "fc2 wgrad", d_full, activated, id.fc2, -1, j, n.h, n.ffn, 0);
  adapter_weight(b, c, l, Product::fc2, j, d_full, activated);
  if (id.fc2_bias >= 0 && !c.frozen(id.fc2_bias))  // added after the reduction: each rank sums its own rows
    b.compute("fc2 wgrad bias", Phase::backward_weight,
              streaming(Kernel::bias_gradient, c.act, n.rows, n.h, n.rows * n.h * e, n.h * size_of(c.grad), 1), {d},
              {c.gradient(id.fc2_bias, j)});
  {
    const int64_t wide = n.tokens * n.fc1 * e, narrow = n.tokens * n.ffn * e;
    const int kernels = c.training().fused_kernels ? 1 : (c.model_spec().gated_mlp ? 3 : 1);
    Compute op = streaming(Kernel::activation_backward, c.act, n.tokens, n.ffn, narrow + kernels * wide, kernels * wide,
                           12, kernels);
    op.gated = c.model_spec().gated_mlp;
    op.function = static_cast<uint8_t>(c.model_spec().activation);
    b.compute("activation backward", input, op, {ref(t.d_activation, j), ref(l.fc1, j)}, {ref(t.d_fc1, j)});
    let_go(b, l.gate, j);
  }
  const bool reads_input = c.keeps_input(id.fc1, Product::fc1);
  const BufferRef mlp_full = !reads_input ? BufferRef{}
                             : one_norm   ? input_of_region(b, c, l.norm1_full, f8 ? l.norm1_f8 : l.norm1,
                                                          f8 ? t.norm1_full_f8 : t.norm1_full, j, input)
                                          : input_of_region(b, c, l.norm2_full, f8 ? l.norm2_f8 : l.norm2,
                                                          f8 ? t.norm2_full_f8 : t.norm2_full, j, input);
  const BufferRef d_fc1 = narrowed(b, c, input, ref(t.d_fc1, j), ref(t.d_fc1_f8, j));
  linear_input(b, c, "fc1 dgrad", d_fc1, id.fc1, j, ref(t.d_norm2_full, j), n.fc1, n.h);
  adapter_input(b, c, l, Product::fc1, j, d_fc1, ref(t.d_norm2_full, j));
  auto fc1_weight = [&] {
    linear_weight(b, c, "fc1 wgrad", d_fc1, mlp_full, id.fc1, id.fc1_bias, j, n.fc1, n.h, n.tokens);
    adapter_weight(b, c, l, Product::fc1, j, d_fc1, mlp_full);
  };
  if (!c.strategy().tensor_async_backward) fc1_weight();
  const BufferRef d_norm2 = leave_region(b, c, ref(t.d_norm2_full, j), ref(t.d_norm2, j), input);
  if (c.strategy().tensor_async_backward) fc1_weight();
  return d_norm2;
}

}  // namespace wt::lower
