// Context parallelism: ranks share sequences, and attention brings their queries and keys together. Everything else sees
// fewer tokens only. As Transformer Engine does it (attention/dot_product_attention/context_parallel.py):
//   ring        keys and values go round; step k is attention on those of the rank k places before, beside the message of
//               step k + 1; results are merged by their log-sum-exp. Backward runs the ring the other way from where it
//               ended; the gradients of keys travel one message behind, and arrive where they belong.
//   all_gather  of keys and values, again in the backward, where their gradients are reduced and scattered
//   all_to_all  (Ulysses) whole sequences of a share of the heads; with a ring of such groups: hierarchical
// A rank has an early and a late piece of each sequence (plan::sequence_position), so that causal work is alike.
#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Collective;
using plan::CollectiveKind;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Role;
using plan::Scope;
using plan::Stream;

int64_t attention_window(const JobSpec& job) {
  const ModelSpec& m = job.model;
  const bool every_layer = m.sliding_window > 0 && m.sliding_period == 1 && m.full_period == 0;
  return every_layer && m.sliding_window < job.training.seq_len ? m.sliding_window : 0;
}

bool has_window(const JobSpec& job, int64_t layer) {
  const ModelSpec& m = job.model;
  if (m.sliding_window == 0 || m.sliding_window >= job.training.seq_len || job.strategy.context > 1) return false;
  if (m.full_period > 0) return (layer + 1) % m.full_period != 0;
  return m.sliding_period > 1 && layer % m.sliding_period == 0;
}

void make_context_sizes(Context& c) {
  const StrategySpec& s = c.strategy();
  c.n.cp = s.context;
  c.n.heads_cut = s.context_exchange == ContextExchange::all_to_all ? s.context : s.context_all_to_all;
  c.n.ring = c.n.cp / c.n.heads_cut;
}

namespace {

bool gathers(const Context& c) { return c.strategy().context_exchange == ContextExchange::all_gather; }

/// What attention itself sees of a rank: with heads cut, longer sequences of fewer heads.
AttentionShape inner_shape(const Context& c) {
  const Sizes& n = c.n;
  return {n.b,   n.s * n.heads_cut,     n.heads / n.heads_cut,  n.kv_heads / n.heads_cut, n.d,
          c.act, c.model_spec().causal, attention_window(c.job)};
}
int64_t kv_columns(const Context& c) { return 2 * c.n.kv_heads / c.n.heads_cut * c.n.d; }
int64_t inner_tokens(const Context& c) { return c.n.tokens * c.n.heads_cut; }
int64_t bytes(const Context& c, BufferRef r) { return c.plan.buffer(r.buffer).bytes().n; }

struct Maker {
  Context& c;
  std::string suffix;
  Scope scope;
  BufferId operator()(const std::string& name, DType dtype, std::vector<int64_t> shape) const {
    return c.add_layer_buffer(name + suffix, scope == Scope::invocation ? Role::transient : Role::activation, scope,
                              dtype, std::move(shape));
  }
};

}  // namespace

void make_context_layer(Context& c, LayerBuffers& l, const std::string& suffix, Scope kept) {
  const Sizes& n = c.n;
  const Maker keep{c, suffix, kept}, pass{c, suffix, Scope::invocation};
  const int64_t tokens = inner_tokens(c);
  if (n.heads_cut > 1) {
    l.cp.qkv_heads = (n.ring > 1 ? pass : keep)("qkv_heads", c.act, {tokens, n.qkv / n.heads_cut});
    l.cp.out_heads = keep("attention_heads", c.act, {tokens, n.attention / n.heads_cut});
  }
  if (n.ring == 1) return;
  l.cp.q = keep("q", c.act, {tokens, n.attention / n.heads_cut});
  l.cp.kv = (gathers(c) ? keep : pass)("kv", c.act, {tokens, kv_columns(c)});
  if (!gathers(c)) l.cp.kv_last = keep("kv_last", c.act, {tokens, kv_columns(c)});
}

void make_context_transients(Context& c) {
  const Sizes& n = c.n;
  const Maker make{c, "", Scope::invocation};
  ContextTransients& x = c.exchange;
  const int64_t tokens = inner_tokens(c), q = n.attention / n.heads_cut, kv = kv_columns(c);
  if (n.heads_cut > 1) {
    x.qkv_sent = make("qkv_sent", c.act, {n.heads_cut, n.tokens, n.qkv / n.heads_cut});
    x.qkv_received = make("qkv_received", c.act, {n.heads_cut, n.tokens, n.qkv / n.heads_cut});
    x.out_sent = make("out_sent", c.act, {n.heads_cut, n.tokens, q});
    x.out_received = make("out_received", c.act, {n.heads_cut, n.tokens, q});
    x.d_out_heads = make("d_attention_heads", c.act, {tokens, q});
    x.d_qkv_heads = make("d_qkv_heads", c.act, {tokens, n.qkv / n.heads_cut});
  }
  if (n.ring == 1) return;
  x.d_q = make("d_q", c.act, {tokens, q});
  x.d_kv_part = make("d_kv_part", c.act, {tokens, kv});
  if (gathers(c)) {
    x.kv_all = make("kv_all", c.act, {n.ring, tokens, kv});
    x.d_kv_all = make("d_kv_all", c.act, {n.ring, tokens, kv});
    return;
  }
  for (int64_t k = 1; k + 1 < n.ring; ++k) x.kv.push_back(make("kv_ring" + std::to_string(k), c.act, {tokens, kv}));
  x.part = make("attention_part", c.act, {tokens, q});
  x.part_lse = make("attention_part_lse", DType::f32, {n.b * n.heads / n.heads_cut, n.s * n.heads_cut});
  for (int i = 0; i < 2; ++i) {
    x.kv_ring[i] = make("kv_back" + std::to_string(i), c.act, {tokens, kv});
    x.d_kv[i] = make("d_kv" + std::to_string(i), c.act, {tokens, kv});
  }
}

namespace {

Collective over(const Context& c, CollectiveKind kind, GroupId group, int64_t bytes) {
  return {kind, plan::Reduction::sum, c.act, group, bytes};
}

/// A copy of `x` in another order of its rows or columns.
void reorder(BlockBuilder& b, const Context& c, const char* name, Phase phase, Kernel kernel, BufferRef x, BufferRef y,
             int64_t columns) {
  const int64_t n = bytes(c, x);
  Compute op = streaming(kernel, c.act, c.n.tokens, columns, n, n, 0);
  op.dims = {c.n.tokens, columns, c.n.b};
  op.group = c.heads;
  b.compute(name, phase, op, {x}, {y});
}

/// Rows of all heads become whole sequences of the rank's share of them.
void to_heads(BlockBuilder& b, const Context& c, Phase phase, BufferRef x, BufferRef sent, BufferRef received,
              BufferRef y) {
  const int64_t columns = c.plan.buffer(sent.buffer).shape.back();
  reorder(b, c, "cp pack", phase, Kernel::split_columns, x, sent, columns);
  b.op("cp all-to-all", phase, Stream::context, over(c, CollectiveKind::all_to_all, c.heads, bytes(c, sent)), {sent},
       {received});
  reorder(b, c, "cp order", phase, Kernel::gather_sequence, received, y, columns);
}
void from_heads(BlockBuilder& b, const Context& c, Phase phase, BufferRef y, BufferRef sent, BufferRef received,
                BufferRef x) {
  const int64_t columns = c.plan.buffer(sent.buffer).shape.back();
  reorder(b, c, "cp order", phase, Kernel::deal_sequence, y, sent, columns);
  b.op("cp all-to-all", phase, Stream::context, over(c, CollectiveKind::all_to_all, c.heads, bytes(c, sent)), {sent},
       {received});
  reorder(b, c, "cp unpack", phase, Kernel::concat_columns, received, x, columns);
}

Compute in_ring(const Context& c, Compute op) {
  op.group = c.ring;
  return op;
}

/// Where the keys of step k of the forward lie.
BufferRef ring_kv(const Context& c, const LayerBuffers& l, int64_t k, int j) {
  if (k == 0) return ref(l.cp.kv, j);
  return ref(k + 1 == c.n.ring ? l.cp.kv_last : c.exchange.kv[static_cast<size_t>(k - 1)], j);
}

void ring_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef qkv,
                  BufferRef out) {
  const AttentionShape a = inner_shape(c);
  const BufferRef q = ref(l.cp.q, j), lse = ref(l.lse, j), part = ref(c.exchange.part, j),
                  part_lse = ref(c.exchange.part_lse, j);
  const uint32_t split =
      b.compute("split qkv", phase, reorder_qkv(Kernel::split_qkv, a), {qkv}, {q, ring_kv(c, l, 0, j)});
  // The list of received tensors lives until the function returns; the last one until the backward.
  auto hold = [&](BufferRef kv) {
    b.keep_out(kv.buffer);
    b.reserve_here(kv);
  };
  hold(ring_kv(c, l, 0, j));
  for (int64_t k = 0; k < c.n.ring; ++k) {
    const BufferRef kv = ring_kv(c, l, k, j);
    if (k + 1 < c.n.ring) {
      const BufferRef next[] = {ring_kv(c, l, k + 1, j)}, from[] = {kv};
      const plan::Wait waits[] = {{plan::Wait::Kind::op, split}};
      b.beside("cp shift kv", phase, Stream::context, over(c, CollectiveKind::shift_up, c.ring, bytes(c, kv)), from,
               next, std::span(waits, k == 0 ? 1 : 0));
      hold(next[0]);
    }
    const Compute op = in_ring(c, block_attention_forward(a, static_cast<uint8_t>(k), c.n.ring));
    if (k == 0) {
      b.compute("attention", phase, op, {q, kv}, {out, lse});
    } else {
      b.compute("attention", phase, op, {q, kv}, {part, part_lse});
      b.compute("attention merge", phase, merge_attention(a), {part, part_lse, out, lse}, {out, lse});
    }
  }
  const bool forgets = phase == Phase::forward && c.plan.buffer(l.cp.kv_last).scope == Scope::invocation;
  for (int64_t k = 0; k < c.n.ring; ++k)
    if (k + 1 < c.n.ring || forgets) b.release_here(ring_kv(c, l, k, j));
}

void ring_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef out, BufferRef d_out,
                   BufferRef d_qkv) {
  const Phase phase = Phase::backward_input;
  const AttentionShape a = inner_shape(c);
  const ContextTransients& x = c.exchange;
  const BufferRef q = ref(l.cp.q, j), lse = ref(l.lse, j), d_q = ref(x.d_q, j), part = ref(x.d_kv_part, j);
  BufferRef kv = ref(l.cp.kv_last, j);
  uint32_t summed = 0;  // the op that completed the gradients which travel next
  for (const BufferId id : {l.cp.kv_last, x.kv_ring[0], x.kv_ring[1]}) b.keep_out(id);
  for (int64_t i = 0; i < c.n.ring; ++i) {
    const BufferRef next = ref(x.kv_ring[i % 2], j), d_kv = ref(x.d_kv[i % 2], j), before = ref(x.d_kv[(i + 1) % 2], j);
    Refs from, to;
    if (i + 1 < c.n.ring) from.push_back(kv), to.push_back(next);
    if (i > 0) from.push_back(before), to.push_back(d_kv);
    int64_t sent = 0;
    for (const BufferRef& r : from) sent += bytes(c, r);
    const plan::Wait waits[] = {i > 0 ? plan::Wait{plan::Wait::Kind::op, summed} : tail(Stream::compute)};
    b.beside(i == 0 ? "cp shift kv" : "cp shift kv and gradient", phase, Stream::context,
             over(c, CollectiveKind::shift_down, c.ring, sent), from, to, waits);
    if (i + 1 < c.n.ring) b.reserve_here(next);
    const Compute op = in_ring(c, block_attention_backward(a, static_cast<uint8_t>(c.n.ring - 1 - i), c.n.ring, i > 0));
    summed = b.compute("attention backward", phase, op, {d_out, q, kv, out, lse}, {d_q, i == 0 ? d_kv : part});
    if (i > 0) {
      const int64_t n = bytes(c, part), columns = kv_columns(c);
      summed = b.compute("add key gradients", phase,
                         streaming(Kernel::add, c.act, inner_tokens(c), columns, 2 * n, n, 1), {d_kv, part}, {d_kv});
      // It has waited for the message of this step, the last that reads the keys.
      if (i == 1) b.release_here(ref(l.cp.kv_last, j));
      b.release_here(kv);
    }
    kv = next;
  }
  b.compute("join qkv", phase, reorder_qkv(Kernel::join_qkv, a), {d_q, ref(x.d_kv[(c.n.ring - 1) % 2], j)}, {d_qkv});
}

/// kv_all: keys and values of all ranks, in their order.
void gather_keys(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase) {
  const BufferRef all = ref(c.exchange.kv_all, j);
  b.op("cp all-gather kv", phase, Stream::context, over(c, CollectiveKind::all_gather, c.ring, bytes(c, all)),
       {ref(l.cp.kv, j)}, {all});
}

void gather_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef qkv,
                    BufferRef out) {
  const AttentionShape a = inner_shape(c);
  const BufferRef q = ref(l.cp.q, j);
  b.compute("split qkv", phase, reorder_qkv(Kernel::split_qkv, a), {qkv}, {q, ref(l.cp.kv, j)});
  gather_keys(b, c, l, j, phase);
  b.compute("attention", phase, in_ring(c, block_attention_forward(a, plan::kAllBlocks, c.n.ring)),
            {q, ref(c.exchange.kv_all, j)}, {out, ref(l.lse, j)});
}

void gather_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef out, BufferRef d_out,
                     BufferRef d_qkv) {
  const Phase phase = Phase::backward_input;
  const AttentionShape a = inner_shape(c);
  const ContextTransients& x = c.exchange;
  const BufferRef d_kv = ref(x.d_kv_part, j), d_kv_all = ref(x.d_kv_all, j), d_q = ref(x.d_q, j);
  gather_keys(b, c, l, j, phase);
  b.compute("attention backward", phase, in_ring(c, block_attention_backward(a, plan::kAllBlocks, c.n.ring, false)),
            {d_out, ref(l.cp.q, j), ref(x.kv_all, j), out, ref(l.lse, j)}, {d_q, d_kv_all});
  b.op("cp reduce-scatter kv", phase, Stream::context,
       over(c, CollectiveKind::reduce_scatter, c.ring, bytes(c, d_kv_all)), {d_kv_all}, {d_kv});
  b.compute("join qkv", phase, reorder_qkv(Kernel::join_qkv, a), {d_q, d_kv}, {d_qkv});
}

}  // namespace

void context_attention_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase,
                               BufferRef out) {
  const bool cut = c.n.heads_cut > 1;
  const ContextTransients& x = c.exchange;
  BufferRef qkv = ref(l.attention_in, j);
  if (cut) {
    to_heads(b, c, phase, qkv, ref(x.qkv_sent, j), ref(x.qkv_received, j), ref(l.cp.qkv_heads, j));
    qkv = ref(l.cp.qkv_heads, j);
  }
  const BufferRef inner = cut ? ref(l.cp.out_heads, j) : out;
  if (c.n.ring == 1)
    b.compute("attention", phase, attention_forward(inner_shape(c)), {qkv}, {inner, ref(l.lse, j)});
  else
    (gathers(c) ? gather_forward : ring_forward)(b, c, l, j, phase, qkv, inner);
  if (cut) from_heads(b, c, phase, inner, ref(x.out_sent, j), ref(x.out_received, j), out);
}

void context_attention_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef d_out,
                                BufferRef d_qkv) {
  const Phase phase = Phase::backward_input;
  const bool cut = c.n.heads_cut > 1;
  const ContextTransients& x = c.exchange;
  const BufferRef out = ref(cut ? l.cp.out_heads : l.attention, j), inner = cut ? ref(x.d_qkv_heads, j) : d_qkv;
  if (cut) {
    to_heads(b, c, phase, d_out, ref(x.out_sent, j), ref(x.out_received, j), ref(x.d_out_heads, j));
    d_out = ref(x.d_out_heads, j);
  }
  if (c.n.ring == 1)
    b.compute("attention backward", phase, attention_backward(inner_shape(c)),
              {d_out, ref(l.cp.qkv_heads, j), out, ref(l.lse, j)}, {inner});
  else
    (gathers(c) ? gather_backward : ring_backward)(b, c, l, j, out, d_out, inner);
  if (cut) from_heads(b, c, phase, inner, ref(x.qkv_sent, j), ref(x.qkv_received, j), d_qkv);
}

}  // namespace wt::lower
