// Head and cross entropy in one, a piece of the tokens at a time (Liger's fused linear cross entropy, arXiv:2410.10989): the
// logits of all tokens are never there. The forward already makes the gradients, of the rows in the place where they are
// needed and of the weight in a sum of its own, since the logits are gone when the backward comes; the backward takes them.
//   for each piece:  logits = x W^T; loss; dlogits in place; dx = dlogits W; dW += dlogits^T x
// One rank must have all columns of the vocabulary.
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/layer_ops.hpp"
#include "core/lower/schedule.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Role;
using plan::Scope;

std::vector<JobFault> chunked_loss_faults(const JobSpec& j) {
  std::vector<JobFault> out;
  const TrainingSpec& t = j.training;
  if (t.loss_chunk == 0) return out;
  if (j.strategy.tensor > 1)
    out.push_back({"training.loss_chunk", "the fused loss reads whole rows of logits, which tensor parallelism cuts",
                   "legal: 0, or tensor: 1"});
  if (t.loss != LossKind::vocabulary_parallel || t.loss_metrics > 0)
    out.push_back({"training.loss_chunk", "with another loss beside it cannot be planned",
                   "legal with loss: vocabulary_parallel and loss_metrics: 0"});
  if (!j.model.final_norm || j.model.head_bias)
    out.push_back(
        {"training.loss_chunk", "without a final norm, or with a bias of the head, cannot be planned yet", "legal: 0"});
  if (const Schedule* s = find_schedule(j.strategy.schedule); s && s->splits_backward)
    out.push_back({"training.loss_chunk", "with a schedule that splits the backward cannot be planned yet",
                   "legal: 0, or 1f1b, interleaved, gpipe"});
  if (j.strategy.data_parallel == DataParallel::zero1 && j.strategy.pipeline > 1)
    out.push_back({"training.loss_chunk", "DeepSpeed's pipeline engine keeps the logits", "legal: 0"});
  return out;
}

void make_loss_pieces(Context& c) {
  const TrainingSpec& t = c.training();
  if (t.loss_chunk == 0) return;
  EdgeBuffers& e = c.edge;
  int64_t tokens = std::min(t.loss_chunk, c.n.tokens);
  while (c.n.tokens % tokens != 0) --tokens;  // pieces are alike
  e.piece_tokens = tokens;
  const auto make = [&](std::string name, Role role, DType dtype, Scope scope, std::vector<int64_t> shape,
                        bool view = false) {
    Buffer b;
    b.name = std::move(name);
    b.role = role;
    b.dtype = dtype;
    b.scope = scope;
    b.view = view;
    b.shape = std::move(shape);
    return c.add_buffer(std::move(b));
  };
  e.piece_logits = make("logits_piece", Role::transient, c.act, Scope::invocation, {tokens, c.n.vocab});
  e.piece_max = make("loss_max_piece", Role::transient, DType::f32, Scope::invocation, {tokens});
  e.piece_sums = make("loss_sums_piece", Role::transient, DType::f32, Scope::invocation, {2, tokens});
  e.kept_d_final = make("d_final_kept", Role::activation, c.act, Scope::micro_batch, {c.n.tokens, c.n.h});
  if (!c.frozen(c.id.head))
    e.kept_d_head = make("d_head_kept", Role::activation, c.act, Scope::micro_batch, {c.n.vocab, c.n.h});
  for (int64_t i = 0; i < c.n.tokens / tokens; ++i)
    e.loss_pieces.push_back(
        {make(fmt::format("final_rows{}", i), Role::activation, c.act, c.plan.buffer(e.final_norm).scope,
              {tokens, c.n.h}, true),
         make(fmt::format("labels{}", i), Role::labels, DType::i32, Scope::invocation, {tokens}, true),
         make(fmt::format("d_final_rows{}", i), Role::activation, c.act, Scope::micro_batch, {tokens, c.n.h}, true)});
}

void place_loss_pieces(Context& c, const ChunkPart& part) {
  if (!part.head) return;
  const EdgeBuffers& e = c.edge;
  auto& views = c.plan.parts[part.id.v].views;
  int64_t first = 0;
  for (const auto& p : e.loss_pieces) {
    views.push_back({p.rows, e.final_norm, 0, 0, first * c.n.h, 0, {}});
    views.push_back({p.labels, e.labels, 0, 0, first, 0, {}});
    views.push_back({p.d_rows, e.kept_d_final, 0, 0, first * c.n.h, 0, {}});
    first += e.piece_tokens;
  }
}

void chunked_head_forward(BlockBuilder& b, const Context& c) {
  const EdgeBuffers& e = c.edge;
  const int64_t rows = e.piece_tokens, columns = c.n.vocab, h = c.n.h;
  const int64_t tile = rows * columns * size_of(c.act);
  const Phase f = Phase::forward;
  const BufferRef logits = ref(e.piece_logits), max = ref(e.piece_max), sums = ref(e.piece_sums);
  const auto kernel = [&](Kernel k, int64_t read, int64_t written, double flops) {
    Compute op = streaming(k, DType::f32, rows, columns, read, written, flops);
    op.dims = {rows, c.model_spec().vocab, columns};
    op.scalar = static_cast<double>(rows) / static_cast<double>(c.n.tokens);
    return op;
  };
  const BufferRef weight = c.operand(c.id.head);
  if (e.kept_d_head.valid()) {
    const int64_t bytes = c.plan.buffer(e.kept_d_head).bytes().n;
    b.compute("zero head gradient", f, flat(Kernel::fill_zero, c.act, columns * h, 0, bytes, 0), {},
              {ref(e.kept_d_head)});
  }
  for (const auto& p : e.loss_pieces) {
    b.compute("logits", f, gemm(rows, columns, h, c.act, c.act, false, true, false), {ref(p.rows), weight}, {logits});
    // One kernel with a row in registers: it reads the logits twice and writes their gradient over them.
    b.compute("loss max", f, kernel(Kernel::loss_max, tile, rows * 4, 1), {logits}, {max});
    b.compute("loss sums", f, kernel(Kernel::loss_sums, rows * 8, rows * 8, 4), {logits, max, ref(p.labels)}, {sums});
    b.compute("loss", f, kernel(Kernel::loss_forward, rows * 12, 4, 0), {sums, max}, {ref(e.loss)});
    b.compute("loss backward", f, kernel(Kernel::loss_backward, tile, tile, 4), {logits, max, sums, ref(p.labels)},
              {logits});
    b.compute("logits dgrad", f, gemm(rows, h, columns, c.act, c.act, false, false, false), {logits, weight},
              {ref(p.d_rows)});
    if (&p == &e.loss_pieces.front()) b.reserve_here(ref(e.kept_d_final));
    if (e.kept_d_head.valid())
      b.compute("logits wgrad", f, gemm(columns, h, rows, c.act, c.act, true, false, true), {logits, ref(p.rows)},
                {ref(e.kept_d_head)});
  }
  b.release_here(ref(e.final_norm));
  b.release_here(ref(e.labels));
}

BufferRef chunked_head_backward(BlockBuilder& b, const Context& c) {
  const EdgeBuffers& e = c.edge;
  if (e.kept_d_head.valid()) {
    const BufferRef made = ref(e.kept_d_head), sum = c.gradient(c.id.head);
    const int64_t n = c.n.vocab * c.n.h, from = n * size_of(c.act), to = n * size_of(c.grad);
    if (c.fresh_gradients)
      b.compute("head gradient", Phase::backward_weight, flat(Kernel::cast, c.grad, n, from, to, 0), {made}, {sum});
    else
      b.compute("add head gradient", Phase::backward_weight,
                streaming(Kernel::add, c.grad, c.n.vocab, c.n.h, from + to, to, 1), {sum, made}, {sum});
  }
  return ref(e.kept_d_final);
}

}  // namespace wt::lower
