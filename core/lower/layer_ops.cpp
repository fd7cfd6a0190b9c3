// What one op of a layer reads, writes and costs; see layer_ops.hpp.
#include "core/lower/layer_ops.hpp"

#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Stream;

namespace {

Compute norm(const Context& c, Kernel kernel, int64_t rows) {
  const int64_t e = size_of(c.act), tile = rows * c.n.h * e, stats = rows * 8;
  const bool backward = kernel == Kernel::norm_backward;
  Compute n = streaming(kernel, c.act, rows, c.n.h, backward ? 2 * tile + stats : tile, backward ? tile : tile + stats,
                        backward ? 12 : 6, backward ? 2 : 1);
  n.function = static_cast<uint8_t>(c.model_spec().norm);
  n.scalar = 1e-5;
  return n;
}

/// The same arithmetic with each of torch's plain ops a kernel of its own: square, mean, rsqrt, two products, and in fp32
/// the casts. The rows are passed over once for each.
void add_eager_passes(Compute& op, const Context& c, const NormKept& kept, bool backward) {
  if (!kept.normed.valid()) return;
  const int64_t tile = c.n.rows * c.n.h * size_of(kept.wide.valid() ? DType::f32 : c.act);
  const int more = (backward ? 6 : 4) + (kept.wide.valid() ? 2 : 0);
  op.work.bytes_read += more * tile;
  op.work.bytes_written += more * tile;
  op.launches = static_cast<uint16_t>(op.launches + more);
}

}  // namespace

void hold(BlockBuilder& b, const Context& c, BufferId id, int j, Phase phase) {
  if (!id.valid()) return;
  b.reserve_here(ref(id, j));
  // A forward that will be run again keeps nothing.
  if (phase == Phase::forward && c.plan.buffer(id).scope == plan::Scope::invocation) b.release_here(ref(id, j));
}
void let_go(BlockBuilder& b, BufferId id, int j) {
  if (id.valid()) b.release_here(ref(id, j));
}

void norm_forward(BlockBuilder& b, const Context& c, const char* name, Phase phase, BufferRef x, int gamma, int beta,
                  int j, BufferRef y, const NormKept& kept) {
  Compute op = norm(c, Kernel::norm_forward, c.n.rows);
  add_eager_passes(op, c, kept, false);
  Refs reads{x, c.weight(gamma, j)};
  if (beta >= 0) reads.push_back(c.weight(beta, j));
  const BufferRef writes[] = {y, ref(kept.stats, j)};
  b.op(name, phase, Stream::compute, op, reads, writes);
  hold(b, c, kept.normed, j, phase);
  hold(b, c, kept.wide, j, phase);
}

void norm_backward(BlockBuilder& b, const Context& c, const char* name, BufferRef dy, BufferRef x, int gamma, int beta,
                   int j, const NormKept& kept, BufferRef dx) {
  Compute op = norm(c, Kernel::norm_backward, c.n.rows);
  add_eager_passes(op, c, kept, true);
  const BufferRef reads[] = {dy, x, c.weight(gamma, j), ref(kept.stats, j)};
  Refs writes{dx};
  for (const int k : {gamma, beta})
    if (k >= 0 && !c.frozen(k)) writes.push_back(c.gradient(k, j));
  b.op(name, Phase::backward_input, Stream::compute, op, reads, writes);
  let_go(b, kept.normed, j);
  let_go(b, kept.wide, j);
}

BufferRef narrowed(BlockBuilder& b, const Context& c, Phase phase, BufferRef x, BufferRef x_f8) {
  if (!c.narrow()) return x;
  const int64_t n = c.plan.buffer(x.buffer).elements(), passes = narrowing_passes(c);
  Compute op =
      streaming(Kernel::cast, DType::f8, n / c.plan.buffer(x.buffer).shape.back(), c.plan.buffer(x.buffer).shape.back(),
                passes * n * size_of(c.act), 2 * n, 2, static_cast<int>(passes));
  b.compute("fp8 cast", phase, op, {x}, {x_f8});
  return x_f8;
}

void linear(BlockBuilder& b, const Context& c, const char* name, Phase phase, BufferRef x, int weight, int bias, int j,
            BufferRef y, int64_t out, int64_t in, int64_t pieces) {
  widen_packed(b, c, weight, j, phase);
  Compute g = gemm(c.n.tokens, out, in, dtype(c, x), c.act, false, true, false);
  g.pieces = g.launches = static_cast<uint16_t>(pieces);
  if (bias >= 0)
    b.compute(name, phase, g, {x, c.operand(weight, j), c.weight(bias, j)}, {y});
  else
    b.compute(name, phase, g, {x, c.operand(weight, j)}, {y});
}

void linear_input(BlockBuilder& b, const Context& c, const char* name, BufferRef dy, int weight, int j, BufferRef dx,
                  int64_t out, int64_t in, int64_t pieces) {
  widen_packed(b, c, weight, j, Phase::backward_input);
  Compute g = gemm(c.n.tokens, in, out, dtype(c, dy), c.act, false, false, false);
  g.pieces = g.launches = static_cast<uint16_t>(pieces);
  b.compute(name, Phase::backward_input, g, {dy, c.operand(weight, j)}, {dx});
}

void linear_weight(BlockBuilder& b, const Context& c, const char* name, BufferRef dy, BufferRef x, int weight, int bias,
                   int j, int64_t out, int64_t in, int64_t bias_rows) {
  if (c.frozen(weight)) return;
  const BufferId fresh = c.parameters[static_cast<size_t>(weight)].fresh;
  if (fresh.valid()) {
    const int64_t elements = out * in, read = elements * (size_of(c.act) + size_of(c.grad));
    b.compute(name, Phase::backward_weight, gemm(out, in, c.n.tokens, dtype(c, dy), c.act, true, false, false), {dy, x},
              {ref(fresh, j)});
    b.compute("accumulate gradient", Phase::backward_weight,
              streaming(Kernel::add, c.grad, out, in, read, elements * size_of(c.grad), 1),
              {c.gradient(weight, j), ref(fresh, j)}, {c.gradient(weight, j)});
  } else {
    b.compute(name, Phase::backward_weight,
              gemm(out, in, c.n.tokens, dtype(c, dy), c.grad, true, false, !c.fresh_gradients), {dy, x},
              {c.gradient(weight, j)});
  }
  if (bias >= 0 && bias_rows > 0) {
    const int64_t e = size_of(c.act);
    b.compute(std::string(name) + " bias", Phase::backward_weight,
              streaming(Kernel::bias_gradient, c.act, bias_rows, out, bias_rows * out * e, out * size_of(c.grad), 1),
              {dy}, {c.gradient(bias, j)});
  }
}

BufferRef input_of_region(BlockBuilder& b, const Context& c, BufferId kept, BufferId shard, BufferId full, int j,
                          Phase phase) {
  return kept.valid() ? ref(kept, j) : enter_region(b, c, ref(shard, j), ref(full, j), phase);
}

Compute embedding_lookup(const Context& c) {
  const int64_t tile = c.n.tokens * c.n.h * size_of(c.act);
  Compute op = streaming(Kernel::embedding_forward, c.act, c.n.tokens, c.n.h, tile, tile, 0);
  op.dims = {c.n.tokens, c.n.h, c.n.vocab};
  if (c.n.t > 1) op.group = c.tp;
  return op;
}

Compute embedding_gradient(const Context& c) {
  const int64_t tile = c.n.tokens * c.n.h * size_of(c.act), sum = c.n.tokens * c.n.h * size_of(c.grad);
  Compute op = streaming(Kernel::embedding_backward, c.act, c.n.tokens, c.n.h, tile + sum, sum, 1, 2);
  op.dims = {c.n.tokens, c.n.h, c.n.vocab};
  if (c.n.t > 1) op.group = c.tp;
  return op;
}

Compute add(const Context& c, int64_t rows) {
  const int64_t tile = rows * c.n.h * size_of(c.act);
  return streaming(Kernel::add, c.act, rows, c.n.h, 2 * tile, tile, 1);
}

}  // namespace wt::lower
