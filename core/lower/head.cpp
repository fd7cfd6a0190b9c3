// From a hidden state to the loss: final norm, product with the vocabulary, cross entropy; forward and backward. The model
// has one such head, multi-token prediction one more for each depth, which reads the same weight.
#include "core/lower/context.hpp"
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

void make_head_buffers(Context& c, HeadBuffers& e, const std::string& suffix, BufferId loss) {
  const Sizes& n = c.n;
  const ModelSpec& m = c.model_spec();
  const auto make = [&](const char* name, Role role, Scope scope, DType dtype, std::vector<int64_t> shape) {
    Buffer b;
    b.name = name + suffix;
    b.role = role;
    b.scope = scope;
    b.dtype = dtype;
    b.shape = std::move(shape);
    return c.add_buffer(std::move(b));
  };
  const auto kept = [&](const char* name, DType dtype, std::vector<int64_t> shape, bool is_kept = true) {
    return make(name, Role::activation, is_kept ? Scope::micro_batch : Scope::invocation, dtype, std::move(shape));
  };
  const auto tmp = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
    return make(name, Role::transient, Scope::invocation, dtype, std::move(shape));
  };
  const int64_t stats = m.norm == Norm::layer_norm ? 2 : 1;
  const bool gathered = n.sequence_parallel && c.strategy().keep_gathered;
  const bool head_kept = !c.frozen(c.id.head) && c.training().loss_chunk == 0;  // a loss in pieces needs the rows once
  e.final_norm = kept("final_norm_out", c.act, {n.rows, n.h}, !gathered && head_kept);
  e.final_stats = kept("final_norm_stats", DType::f32, {n.rows, stats});
  const NormKernel norm = m.norm == Norm::rms_norm ? c.training().norm_kernel : NormKernel::fused;
  if (norm != NormKernel::fused) e.final_normed = kept("final_norm_normed", c.act, {n.rows, n.h});
  if (norm == NormKernel::eager_fp32) e.final_wide = kept("final_norm_in_f32", DType::f32, {n.rows, n.h});
  e.final_full = make("final_norm_full", gathered ? Role::activation : Role::transient,
                      gathered && head_kept ? Scope::micro_batch : Scope::invocation, c.act, {n.tokens, n.h});
  // The fused loss keeps the logits themselves; the others compute in fp32, in place of a copy.
  const bool whole = c.training().loss == LossKind::full_vocabulary, pieces = whole && n.t > 1;
  const bool upcast = !c.training().fused_loss && c.act != DType::f32;
  const int64_t columns = whole ? n.padded_vocab : n.vocab;
  e.logits = kept("logits", c.act, {n.tokens, n.vocab}, !upcast && !pieces);
  e.logits_full = e.logits;
  if (pieces) {
    e.logits_pieces = tmp("logits_gathered", c.act, {n.t, n.tokens, n.vocab});
    e.logits_full = kept("logits_full", c.act, {n.tokens, columns}, !upcast);
    e.d_logits_full = tmp("d_logits_full", c.act, {n.tokens, columns});
  }
  e.logits32 = e.logits_full;
  if (upcast) e.logits32 = kept("logits_f32", DType::f32, {n.tokens, columns});
  // Where the engine keeps fp32 logits (kept_outputs), they are those that the loss reads.
  if (!c.training().fused_loss && (whole || kept_outputs(c) == 0))
    e.exponentials = tmp("logits_exponentials", DType::f32, {n.tokens, columns});
  if (whole) {
    e.d_log_probs = tmp("d_logits_log_probs", DType::f32, {n.tokens, columns});
    e.d_logits32 = tmp("d_logits_f32", DType::f32, {n.tokens, columns});
  }
  e.loss_max = kept("loss_max", DType::f32, {n.tokens});
  e.loss_sums = kept("loss_sums", DType::f32, {2, n.tokens});
  e.loss = loss.valid() ? loss : make("loss", Role::loss, Scope::rank, DType::f32, {1});
  e.d_logits = tmp("d_logits", c.act, {n.tokens, n.vocab});
  e.d_final_full = tmp("d_final_full", c.act, {n.tokens, n.h});
  e.d_final = tmp("d_final", c.act, {n.rows, n.h});
}

namespace {

/// A kernel of the loss: over the rank's columns of the logits, or over all of them.
Compute loss_kernel(const Context& c, const HeadBuffers& e, Kernel k, int64_t read, int64_t written, double flops,
                    int launches, double share) {
  const int64_t columns = c.plan.buffer(e.logits32).shape.back();
  Compute op = streaming(k, DType::f32, c.n.tokens, columns, read, written, flops, launches);
  op.dims = {c.n.tokens, c.job.model.vocab, columns};
  if (columns < c.n.padded_vocab) op.group = c.tp;
  op.scalar = share;
  return op;
}

/// Rows of all logits on every tensor rank: torch's all_gather into a list fills one flat buffer, copies it to the list and
/// cat makes rows of it.
BufferRef gather_logits(BlockBuilder& b, const Context& c, const HeadBuffers& e) {
  if (e.logits_full == e.logits) return ref(e.logits);
  const BufferRef pieces = ref(e.logits_pieces), full = ref(e.logits_full);
  const int64_t all = bytes(c, full);
  b.op("tp all-gather logits", Phase::forward, Stream::tensor,
       plan::Collective{plan::CollectiveKind::all_gather, plan::Reduction::sum, c.act, c.tp, all}, {ref(e.logits)},
       {pieces});
  Compute concat = streaming(Kernel::concat_columns, c.act, c.n.tokens, c.n.vocab, 2 * all, 2 * all, 0, 2);
  concat.group = c.tp;
  b.compute("concatenate logits", Phase::forward, concat, {pieces}, {full});
  return full;
}

BufferRef slice_logits(BlockBuilder& b, const Context& c, const HeadBuffers& e, BufferRef d_logits) {
  if (e.logits_full == e.logits) return d_logits;
  const int64_t own = c.n.tokens * c.n.vocab * size_of(c.act);
  Compute slice = streaming(Kernel::slice_columns, c.act, c.n.tokens, c.n.vocab, own, own, 0);
  slice.group = c.tp;
  b.compute("slice logits gradient", Phase::backward_input, slice, {d_logits}, {ref(e.d_logits)});
  return ref(e.d_logits);
}

/// What only a log reads. torch's cross entropy under autocast: a cast to fp32, then log_softmax, which finds a row in L2
/// once it has read it. The copies are not held: the values are those of the loss, and nobody reads them.
void loss_metrics(BlockBuilder& b, const Context& c, const HeadBuffers& e, BufferRef full_logits, BufferRef labels) {
  const BufferRef logits = ref(e.logits32), max = ref(e.loss_max), sums = ref(e.loss_sums);
  const int64_t elements = c.plan.buffer(e.logits32).elements(), cast = elements * 4;
  for (int64_t metric = 0; metric < c.training().loss_metrics; ++metric) {
    b.compute("metric cast", Phase::forward,
              streaming(Kernel::copy, c.act, c.n.tokens, elements / c.n.tokens, elements * size_of(c.act), cast, 0),
              {full_logits}, {full_logits});
    b.compute("metric loss", Phase::forward, loss_kernel(c, e, Kernel::loss_sums, cast, cast, 4, 2, 0),
              {logits, max, labels}, {sums});
  }
}

/// The first of `labels_ahead` lies at its begin.
BufferRef labels_of(const EdgeBuffers& e) { return ref(e.labels_ahead.empty() ? e.labels : e.labels_ahead[0]); }

}  // namespace

void head_loss(BlockBuilder& b, const Context& c, const HeadBuffers& e, BufferRef x, BufferRef labels, double share) {
  const Sizes& n = c.n;
  const Phase f = Phase::forward;
  const BufferRef full = enter_region(b, c, x, ref(e.final_full), f);
  linear(b, c, "logits", f, full, c.id.head, c.id.head_bias, 0, ref(e.logits), n.vocab, n.h);
  // Without a final norm nothing in the backward reads the rows once the gathered ones are kept.
  if (x == ref(c.edge.hidden) && !(full == x) && c.strategy().keep_gathered) b.release_here(x);
  const BufferRef full_logits = gather_logits(b, c, e), logits = ref(e.logits32);
  const int64_t elements = c.plan.buffer(e.logits32).elements(), wide = bytes(c, logits);
  if (!(logits == full_logits))
    b.compute("logits cast", f,
              streaming(Kernel::cast, DType::f32, n.tokens, elements / n.tokens, elements * size_of(c.act), wide, 0),
              {full_logits}, {logits});
  const BufferRef max = ref(e.loss_max), sums = ref(e.loss_sums);
  const bool fused = c.training().fused_loss;
  const bool parallel = n.t > 1 && c.training().loss == LossKind::vocabulary_parallel;
  b.compute("loss max", f, loss_kernel(c, e, Kernel::loss_max, wide, n.tokens * 4, 1, 1, share), {logits}, {max});
  if (parallel)
    b.op("tp all-reduce loss", f, Stream::tensor,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::max, DType::f32, c.tp, n.tokens * 4},
         {max}, {max});
  // Unfused: subtract, exponentiate and sum are passes of their own over the fp32 logits, and the exponentials (torch:
  // the log probabilities) are a tensor beside them until the function returns.
  b.compute(
      "loss sums", f,
      loss_kernel(c, e, Kernel::loss_sums, fused ? wide : 3 * wide, fused ? 0 : 2 * wide, 4, fused ? 1 : 5, share),
      {logits, max, labels}, {sums});
  if (e.exponentials.valid()) b.reserve_here(ref(e.exponentials));
  if (e.loss_sums == c.edge.loss_sums) loss_metrics(b, c, e, full_logits, labels);
  if (parallel)
    b.op("tp all-reduce loss", f, Stream::tensor,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, DType::f32, c.tp, n.tokens * 8},
         {sums}, {sums});
  b.compute("loss", f, loss_kernel(c, e, Kernel::loss_forward, n.tokens * 12, 4, 0, 3, share), {sums, max},
            {ref(e.loss)});
  if (e.exponentials.valid()) b.release_here(ref(e.exponentials));
}

BufferRef head_loss_backward(BlockBuilder& b, const Context& c, const HeadBuffers& e, BufferRef x, BufferRef labels,
                             double share) {
  const Sizes& n = c.n;
  const auto& id = c.id;
  const Phase input = Phase::backward_input;
  const BufferRef logits = ref(e.logits32);
  const int64_t elements = c.plan.buffer(e.logits32).elements(), wide = bytes(c, logits);
  // In place of what the forward kept.
  b.compute("loss backward", input, loss_kernel(c, e, Kernel::loss_backward, wide, wide, 4, 1, share),
            {logits, ref(e.loss_max), ref(e.loss_sums), labels}, {logits});
  for (const BufferId d : {e.d_log_probs, e.d_logits32})  // torch: gradients of nll_loss and of log_softmax
    if (d.valid()) {
      b.reserve_here(ref(d));
      b.release_here(ref(d));
    }
  BufferRef d_logits = logits;
  if (e.logits32 != e.logits_full) {
    d_logits = ref(e.logits_full == e.logits ? e.d_logits : e.d_logits_full);
    b.compute("logits cast backward", input,
              streaming(Kernel::cast, c.act, n.tokens, elements / n.tokens, wide, elements * size_of(c.act), 0),
              {logits}, {d_logits});
  }
  d_logits = slice_logits(b, c, e, d_logits);
  const bool normed = c.has(id.final_gamma);
  const bool kept = n.sequence_parallel && c.strategy().keep_gathered;
  const bool frozen = c.frozen(id.head);
  const BufferRef full = frozen ? x : kept ? ref(e.final_full) : enter_region(b, c, x, ref(e.final_full), input);
  const BufferRef d_hidden = ref(c.tmp.d_hidden);
  const bool direct = !normed && n.t == 1;
  linear_input(b, c, "logits dgrad", d_logits, id.head, 0, direct ? d_hidden : ref(e.d_final_full), n.vocab, n.h);
  const BufferRef d =
      direct ? d_hidden : leave_region(b, c, ref(e.d_final_full), normed ? ref(e.d_final) : d_hidden, input);
  linear_weight(b, c, "logits wgrad", d_logits, full, id.head, id.head_bias, 0, n.vocab, n.h, n.tokens);
  return d;
}

void head_forward(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  const EdgeBuffers& e = c.edge;
  const auto& id = c.id;
  const Phase f = Phase::forward;
  const int64_t size = bytes(c, ref(e.labels));
  const uint32_t labelled = b.op("labels", f, Stream::copy_in,
                                 plan::Copy{plan::Space::pinned, plan::Space::device, size}, {}, {ref(e.labels)});
  // Pieces are views, of which the rules know nothing: what they lie in is held from here to the last of them.
  const auto hold_whole = [&](BufferId whole) {
    b.keep_out(whole);
    b.reserve_here(ref(whole));
  };
  const bool pieces = !e.loss_pieces.empty(), ahead = !e.labels_ahead.empty();
  if (pieces || ahead) hold_whole(e.labels);
  BufferRef x = ref(e.hidden);
  if (c.has(id.final_gamma)) {
    norm_forward(b, c, "final norm", f, x, id.final_gamma, id.final_beta, 0, ref(e.final_norm),
                 {e.final_stats, e.final_normed, e.final_wide});
    x = ref(e.final_norm);
    if (pieces) hold_whole(e.final_norm);
  }
  if (pieces || ahead) b.before_next_compute({plan::Wait::Kind::op, labelled});
  if (pieces) return chunked_head_forward(b, c);
  if (part.mtp > 0) multi_token_forward(b, c, part);
  head_loss(b, c, e, x, labels_of(e), 0);
}

void head_backward(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  const EdgeBuffers& e = c.edge;
  const auto& id = c.id;
  const Phase input = Phase::backward_input;
  const BufferRef d_hidden = ref(c.tmp.d_hidden);
  const bool normed = c.has(id.final_gamma);
  const NormKept kept{e.final_stats, e.final_normed, e.final_wide};
  if (!e.loss_pieces.empty()) {
    norm_backward(b, c, "final norm backward", chunked_head_backward(b, c), ref(e.hidden), id.final_gamma,
                  id.final_beta, 0, kept, d_hidden);
    return;
  }
  const BufferRef d = head_loss_backward(b, c, e, normed ? ref(e.final_norm) : ref(e.hidden), labels_of(e), 0);
  if (part.mtp > 0) multi_token_backward(b, c, part, d);
  if (normed)
    norm_backward(b, c, "final norm backward", d, ref(e.hidden), id.final_gamma, id.final_beta, 0, kept, d_hidden);
  else if (!(d == d_hidden))
    b.compute("copy gradient", input, streaming(Kernel::copy, c.act, c.n.rows, c.n.h, 0, 0, 0), {d}, {d_hidden});
}

}  // namespace wt::lower
