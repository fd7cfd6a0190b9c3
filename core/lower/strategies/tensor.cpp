// Tensor and sequence parallelism (arXiv:1909.08053, arXiv:2205.05198): what stands between the
// replicated hidden state and the products whose weights are cut over the tensor group.
// Without sequence parallelism: nothing on entry, all-reduce on leaving. With it: all-gather and reduce-scatter of
// sequence rows. The collective runs on the tensor stream; what may run beside it follows from the order of issue.
#include "core/lower/context.hpp"

namespace wt::lower {

namespace {
int64_t bytes_of(const Context& c, plan::BufferRef r) { return c.plan.buffer(r.buffer).bytes().n; }

/// An adapter reads the gathered rows, and adds to the result, whole.
bool cuts(const Context& c) {
  return c.strategy().tensor_overlap && c.n.sequence_parallel && c.training().lora.rank == 0;
}
}  // namespace

int64_t gather_pieces(const Context& c) {
  return cuts(c) ? c.n.t : 1;  // ring exchange: one piece from each rank
}

int64_t scatter_pieces(const Context& c) {
  constexpr int64_t kScatterPieces = 4;  // Transformer Engine's default for pipelined reduce-scatter
  return cuts(c) ? kScatterPieces : 1;
}

plan::BufferRef enter_region(BlockBuilder& b, const Context& c, plan::BufferRef x, plan::BufferRef x_full,
                             plan::Phase phase, Beside beside) {
  if (!c.n.sequence_parallel) return x;
  plan::Collective gather{plan::CollectiveKind::all_gather, plan::Reduction::sum, c.plan.buffer(x.buffer).dtype, c.tp,
                          bytes_of(c, x_full)};
  b.op("tp all-gather", phase, plan::Stream::tensor, gather, {x}, {x_full});
  if (beside == Beside::cut && gather_pieces(c) > 1) b.pipeline_next(static_cast<uint32_t>(gather_pieces(c)));
  return x_full;
}

plan::BufferRef leave_region(BlockBuilder& b, const Context& c, plan::BufferRef partial, plan::BufferRef sum,
                             plan::Phase phase, Beside beside) {
  if (c.n.t == 1) return partial;
  if (!c.n.sequence_parallel) {
    plan::Collective reduce{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.act, c.tp, bytes_of(c, partial)};
    b.op("tp all-reduce", phase, plan::Stream::tensor, reduce, {partial}, {partial});
    return partial;
  }
  plan::Collective scatter{plan::CollectiveKind::reduce_scatter, plan::Reduction::sum, c.act, c.tp,
                           bytes_of(c, partial)};
  if (beside == Beside::cut && scatter_pieces(c) > 1) b.pipeline_next(static_cast<uint32_t>(scatter_pieces(c)));
  b.op("tp reduce-scatter", phase, plan::Stream::tensor, scatter, {partial}, {sum});
  return sum;
}

}  // namespace wt::lower
