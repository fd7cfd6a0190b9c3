// A backward in two blocks: input gradients, and weight gradients that a schedule runs later (zero bubble). The layers are
// built twice and each block keeps its half of the ops (BlockBuilder::Half); what a weight gradient reads lives until then:
// saved activations, and gradients that otherwise end with the layer. Not an order: that is the schedule's.
// Norms, positions and the embedding stay with the input gradients, as in sail-sg's zero-bubble: only products are put off.
#include <algorithm>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::Phase;
using plan::Scope;

void hand_on_for_weights(Context& c) {
  // Of the MLP and of attention: both wait now.
  const auto another = [&](BufferId id, const char* name) {
    plan::Buffer b = c.plan.buffer(id);
    b.name = name;
    return c.add_buffer(std::move(b));
  };
  c.tmp.attention_branch = another(c.tmp.branch, "d_attention_branch");
  c.tmp.attention_branch_full = another(c.tmp.branch_full, "d_attention_branch_full");
  ChunkPart part;
  part.head = true;
  part.layers = 1;
  part.kinds = {LayerKind::dense};
  BlockBuilder b(c.plan, "backward", {}, BlockBuilder::Lifetimes::backward);
  b.segment(1);
  head_backward(b, c, part);
  layers_backward(b, c, part, nullptr);
  const plan::Block block = b.finish();
  // What one weight gradient hands another ends with it.
  std::vector<BufferId> made;
  const auto each = [&](plan::Range plan::Op::*range, auto&& f) {
    for (const plan::Op& op : block.ops)
      if (op.phase == Phase::backward_weight)
        for (uint32_t i = 0; i < (op.*range).count; ++i) f(block.refs[(op.*range).begin + i].buffer);
  };
  each(&plan::Op::writes, [&](BufferId id) { made.push_back(id); });
  each(&plan::Op::reads, [&](BufferId id) {
    plan::Buffer& x = c.plan.buffers[id.v];
    if (x.scope != Scope::invocation || std::find(made.begin(), made.end(), id) != made.end()) return;
    x.scope = Scope::micro_batch;
    c.handed.push_back(id);
  });
}

void backward_halves(Context& c, ChunkPart& part, const std::string& name, P2p p2p) {
  using Half = BlockBuilder::Half;
  {
    BlockBuilder b(c.plan, "backward input " + name, part.id, BlockBuilder::Lifetimes::backward);
    b.hand_on(c.handed);
    begin_block(b, c, p2p);
    b.half(Half::input);
    if (part.head) {
      b.segment(part.layers);
      head_backward(b, c, part);
    } else {
      receive_gradient(b, c, part, p2p);
    }
    layers_backward(b, c, part, nullptr);
    b.half(Half::both);
    if (part.embedding) {
      b.segment(0);
      embedding_backward(b, c);
    } else {
      send_gradient(b, c, part);
    }
    release_edges(b, c, part);
    part.backward_input = c.add_block(b.finish());
  }
  for (const bool last : {false, true}) {
    if (last && !(c.n.dp > 1 && overlaps_reduce(c.strategy()))) continue;
    BlockBuilder b(c.plan, (last ? "backward weight reduce " : "backward weight ") + name, part.id,
                   BlockBuilder::Lifetimes::backward);
    b.hand_on(c.handed);
    b.half(Half::weight);
    ReduceHooks reduce(c, part);
    if (part.head) {
      b.segment(part.layers);
      head_backward(b, c, part);
    }
    layers_backward(b, c, part, last && part.split_buckets ? &reduce : nullptr);
    if (last) {
      b.segment(-1);
      reduce.finish(b);
    }
    (last ? part.backward_weight_last : part.backward_weight) = c.add_block(b.finish());
  }
}

}  // namespace wt::lower
