// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, 2.2; Megatron-Core's --mtp-num-layers): on the last stage, behind the
// final norm, one more transformer layer for each depth, which predicts one token further than the one before.
//
//   embedding of the tokens 1, 2 .. further -> norm
//   what the last norm wrote                -> norm -> join [2h] -> projection [h] -> layer -> norm -> shared head -> loss
//
// Embedding and head are those of the model: where the first and the last stage differ, the last has a copy of the table and
// their gradients are summed. The projection is cut by its rows over the tensor group and gathered (Megatron-Core
// multi_token_prediction.py, _concat_embeddings). Tokens and labels of all depths are one row of labels that is read from
// 0, 1, 2 .. positions further: Megatron rolls them on the device and masks the end, which costs next to nothing.
#include <fmt/format.h>

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
using plan::Stream;

namespace {

/// What the mean loss of all depths counts for beside that of the model: Megatron's default of --mtp-loss-scaling-factor.
constexpr double kLossFactor = 0.1;

}  // namespace

std::vector<JobFault> multi_token_faults(const JobSpec& j) {
  std::vector<JobFault> out;
  const ModelSpec& m = j.model;
  const StrategySpec& s = j.strategy;
  if (m.mtp_layers == 0) return out;
  const auto add = [&](const char* key, std::string what, const char* hint) {
    out.push_back({key, "multi-token prediction " + std::move(what), hint});
  };
  if (m.position == Position::learned || m.embedding_norm || !m.final_norm || m.parallel_block)
    add("model.mtp_layers",
        "with learned positions, a norm of the embedding, parallel blocks or without a final norm cannot be planned",
        "legal: 0");
  if (has_units(s) || s.data_parallel == DataParallel::zero1)
    add("strategy.data_parallel", "in sharded units or with DeepSpeed's engines cannot be planned yet",
        "legal: ddp, megatron, distributed_optimizer");
  if (const Schedule* k = find_schedule(s.schedule); k && k->splits_backward)
    add("strategy.schedule", "with a schedule that splits the backward cannot be planned yet",
        "legal: 1f1b, interleaved, gpipe");
  if (s.context > 1) add("strategy.context", "with context parallelism cannot be planned yet", "legal: 1");
  if (s.keep_gathered) add("strategy.keep_gathered", "keeps shards of what it gathers", "legal: false");
  if (s.offload.activation_layers > 0)
    add("strategy.offload.activation_layers", "with activations on the host cannot be planned yet", "legal: 0");
  const TrainingSpec& t = j.training;
  if (t.loss_chunk > 0 || t.loss != LossKind::vocabulary_parallel)
    add("training.loss", "with a loss in pieces or over the full vocabulary cannot be planned yet",
        "legal: vocabulary_parallel, loss_chunk: 0");
  if (t.lora.rank > 0) add("training.lora", "with adapters cannot be planned yet", "legal: rank: 0");
  if (t.dropout) add("training.dropout", "with dropout cannot be planned yet", "legal: false");
  return out;
}

void make_multi_token_parameters(Context& c) {
  const Sizes& n = c.n;
  const ModelSpec& m = c.model_spec();
  const auto gains = [&](int depth, const char* name, int& gamma, int& beta) {
    gamma = add_parameter(c, fmt::format("mtp{}.{}.gamma", depth, name), {n.h}, {}, false, plan::Init::ones, 0);
    if (m.norm == Norm::layer_norm)
      beta = add_parameter(c, fmt::format("mtp{}.{}.beta", depth, name), {n.h}, {}, false, plan::Init::zeros, 0);
    if (!n.sequence_parallel) return;
    for (const int k : {gamma, beta})
      if (k >= 0) c.parameters[static_cast<size_t>(k)].partial_over_tensor = true;
  };
  for (int depth = 0; depth < m.mtp_layers; ++depth) {
    MultiToken& x = c.mtp.emplace_back();
    gains(depth, "embedding_norm", x.embedding_gamma, x.embedding_beta);
    gains(depth, "hidden_norm", x.hidden_gamma, x.hidden_beta);
    const auto rows = n.t > 1 ? std::vector<plan::Shard>{{0, c.tp, 1}} : std::vector<plan::Shard>{};
    x.proj = add_parameter(c, fmt::format("mtp{}.proj", depth), {n.h / n.t, 2 * n.h}, rows, false, plan::Init::normal,
                           kSigma);
    gains(depth, "final_norm", x.final_gamma, x.final_beta);
  }
}

void make_multi_token_buffers(Context& c) {
  const Sizes& n = c.n;
  const ModelSpec& m = c.model_spec();
  if (m.mtp_layers == 0) return;
  const int64_t stats = m.norm == Norm::layer_norm ? 2 : 1;
  for (int64_t depth = 0; depth <= m.mtp_layers; ++depth) {
    Buffer b;
    b.name = fmt::format("labels_ahead{}", depth);
    b.role = Role::labels;
    b.dtype = DType::i32;
    b.scope = Scope::micro_batch;
    b.view = true;
    b.shape = {n.tokens};
    c.edge.labels_ahead.push_back(c.add_buffer(std::move(b)));
  }
  for (size_t depth = 0; depth < c.mtp.size(); ++depth) {
    MultiToken& x = c.mtp[depth];
    const std::string suffix = fmt::format(".mtp{}", depth);
    const auto make = [&](const char* name, Role role, Scope scope, DType dtype, std::vector<int64_t> shape) {
      Buffer b;
      b.name = name + suffix;
      b.role = role;
      b.scope = scope;
      b.dtype = dtype;
      b.shape = std::move(shape);
      return c.add_buffer(std::move(b));
    };
    const auto kept = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
      return make(name, Role::activation, Scope::micro_batch, dtype, std::move(shape));
    };
    const auto tmp = [&](const char* name, std::vector<int64_t> shape) {
      return make(name, Role::transient, Scope::invocation, c.act, std::move(shape));
    };
    x.embedded_full = tmp("embedded", {n.tokens, n.h});
    x.embedded = kept("embedded_rows", c.act, {n.rows, n.h});
    x.embedding_stats = kept("embedding_stats", DType::f32, {n.rows, stats});
    x.embedding_normed = tmp("embedding_normed", {n.rows, n.h});
    x.hidden_stats = kept("hidden_stats", DType::f32, {n.rows, stats});
    x.hidden_normed = tmp("hidden_normed", {n.rows, n.h});
    x.joined = kept("joined", c.act, {n.rows, 2 * n.h});
    x.joined_full = tmp("joined_full", {n.tokens, 2 * n.h});
    x.projected = tmp("projected", {n.tokens, n.h / n.t});
    x.pieces = tmp("projected_pieces", {n.t, n.tokens, n.h / n.t});
    x.projected_full = tmp("projected_full", {n.tokens, n.h});
    x.in = kept("layer_in", c.act, {n.rows, n.h});
    x.d_in = tmp("d_layer_in", {n.rows, n.h});
    x.d_in_full = tmp("d_layer_in_full", {n.tokens, n.h});
    x.d_projected = tmp("d_projected", {n.tokens, n.h / n.t});
    x.d_joined_full = tmp("d_joined_full", {n.tokens, 2 * n.h});
    x.d_joined = tmp("d_joined", {n.rows, 2 * n.h});
    x.d_embedding_normed = tmp("d_embedding_normed", {n.rows, n.h});
    x.d_hidden_normed = tmp("d_hidden_normed", {n.rows, n.h});
    x.d_embedded = tmp("d_embedded_rows", {n.rows, n.h});
    x.d_embedded_full = tmp("d_embedded_all", {n.tokens, n.h});
    x.d_hidden = tmp("d_hidden", {n.rows, n.h});
    make_head_buffers(c, x.head, suffix, c.edge.loss);
  }
}

void place_labels_ahead(Context& c, const ChunkPart& part) {
  if (part.mtp == 0) return;
  int64_t first = 0;
  for (const BufferId view : c.edge.labels_ahead) {  // rows are sequence-major: a position further is a batch of rows
    c.plan.parts[part.id.v].views.push_back({view, c.edge.labels, 0, 0, first, 0, {}});
    first += c.n.b;
  }
}

namespace {

int table_of(const Context& c) { return c.id.embedding_copy >= 0 ? c.id.embedding_copy : c.id.embedding; }

/// What the depth reads: the rows that the norm before it wrote.
BufferRef before(const Context& c, size_t depth) {
  return ref(depth == 0 ? c.edge.final_norm : c.mtp[depth - 1].head.final_norm);
}

Compute columns(const Context& c, Kernel kernel) {
  const int64_t size = c.n.rows * 2 * c.n.h * size_of(c.act);
  Compute op = streaming(kernel, c.act, c.n.rows, 2 * c.n.h, size, size, 0);
  op.dims = {c.n.rows, c.n.h, c.n.h};
  return op;
}

plan::Collective over_tensor(const Context& c, plan::CollectiveKind kind, BufferRef full) {
  return {kind, plan::Reduction::sum, c.act, c.tp, bytes(c, full)};
}

void embed(BlockBuilder& b, const Context& c, const MultiToken& x, BufferRef tokens) {
  const Phase f = Phase::forward;
  const BufferRef rows = ref(x.embedded), full = c.n.sequence_parallel ? ref(x.embedded_full) : rows;
  b.compute("mtp embedding", f, embedding_lookup(c), {tokens, c.weight(table_of(c))}, {full});
  if (c.n.t == 1) return;
  const bool scattered = c.n.sequence_parallel;
  b.op(scattered ? "tp reduce-scatter" : "tp all-reduce", f, Stream::tensor,
       over_tensor(c, scattered ? plan::CollectiveKind::reduce_scatter : plan::CollectiveKind::all_reduce, full),
       {full}, {rows});
}

/// [rows, 2h] -> [rows, h]
void project(BlockBuilder& b, const Context& c, const MultiToken& x) {
  const Sizes& n = c.n;
  const Phase f = Phase::forward;
  const BufferRef full = enter_region(b, c, ref(x.joined), ref(x.joined_full), f);
  if (n.t == 1) return linear(b, c, "mtp proj", f, full, x.proj, -1, 0, ref(x.in), n.h, 2 * n.h);
  linear(b, c, "mtp proj", f, full, x.proj, -1, 0, ref(x.projected), n.h / n.t, 2 * n.h);
  b.op("tp all-gather", f, Stream::tensor, over_tensor(c, plan::CollectiveKind::all_gather, ref(x.pieces)),
       {ref(x.projected)}, {ref(x.pieces)});
  const BufferRef rows = n.sequence_parallel ? ref(x.projected_full) : ref(x.in);
  const int64_t size = bytes(c, rows), own = n.rows * n.h * size_of(c.act);
  Compute concat = streaming(Kernel::concat_columns, c.act, n.tokens, n.h / n.t, size, size, 0);
  concat.group = c.tp;
  b.compute("mtp concatenate", f, concat, {ref(x.pieces)}, {rows});
  if (!n.sequence_parallel) return;
  Compute slice = streaming(Kernel::copy, c.act, n.rows, n.h, own, own, 0);
  slice.group = c.tp;
  b.compute("mtp scatter", f, slice, {rows}, {ref(x.in)});
}

void project_backward(BlockBuilder& b, const Context& c, const MultiToken& x) {
  const Sizes& n = c.n;
  const Phase input = Phase::backward_input;
  BufferRef d = ref(x.d_in);
  if (n.sequence_parallel) {
    b.op("tp all-gather", input, Stream::tensor, over_tensor(c, plan::CollectiveKind::all_gather, ref(x.d_in_full)),
         {d}, {ref(x.d_in_full)});
    d = ref(x.d_in_full);
  }
  if (n.t > 1) {
    const int64_t own = n.tokens * n.h / n.t * size_of(c.act);
    Compute slice = streaming(Kernel::slice_columns, c.act, n.tokens, n.h / n.t, own, own, 0);
    slice.group = c.tp;
    b.compute("mtp slice", input, slice, {d}, {ref(x.d_projected)});
    d = ref(x.d_projected);
  }
  const BufferRef full = enter_region(b, c, ref(x.joined), ref(x.joined_full), input);
  linear_input(b, c, "mtp proj dgrad", d, x.proj, 0, ref(x.d_joined_full), n.h / n.t, 2 * n.h);
  const BufferRef joined = leave_region(b, c, ref(x.d_joined_full), ref(x.d_joined), input);
  linear_weight(b, c, "mtp proj wgrad", d, full, x.proj, -1, 0, n.h / n.t, 2 * n.h, 0);
  b.compute("mtp split", input, columns(c, Kernel::split_latent), {joined},
            {ref(x.d_embedding_normed), ref(x.d_hidden_normed)});
}

NormKept final_kept(const HeadBuffers& h) { return {h.final_stats, h.final_normed, h.final_wide}; }

void depth_forward(BlockBuilder& b, const Context& c, const ChunkPart& part, size_t depth) {
  const MultiToken& x = c.mtp[depth];
  const Phase f = Phase::forward;
  const auto j = static_cast<int>(depth);
  embed(b, c, x, ref(c.edge.labels_ahead[depth]));
  norm_forward(b, c, "mtp embedding norm", f, ref(x.embedded), x.embedding_gamma, x.embedding_beta, 0,
               ref(x.embedding_normed), {x.embedding_stats});
  norm_forward(b, c, "mtp hidden norm", f, before(c, depth), x.hidden_gamma, x.hidden_beta, 0, ref(x.hidden_normed),
               {x.hidden_stats});
  b.compute("mtp join", f, columns(c, Kernel::join_latent), {ref(x.embedding_normed), ref(x.hidden_normed)},
            {ref(x.joined)});
  project(b, c, x);
  const BufferRef out = ref(c.edge.hidden, j + 1);
  lone_layer_forward(b, c, j, part.kinds[static_cast<size_t>(part.stack()) + depth], ref(x.in), out);
  norm_forward(b, c, "mtp final norm", f, out, x.final_gamma, x.final_beta, 0, ref(x.head.final_norm),
               final_kept(x.head));
}

/// `d`: the gradient of what its final norm wrote. Leaves that of what it read in d_hidden.
void depth_backward(BlockBuilder& b, const Context& c, const ChunkPart& part, size_t depth, BufferRef d) {
  const MultiToken& x = c.mtp[depth];
  const Phase input = Phase::backward_input;
  const auto j = static_cast<int>(depth);
  const BufferRef d_out = ref(c.tmp.d_hidden, j + 1), tokens = ref(c.edge.labels_ahead[depth]);
  norm_backward(b, c, "mtp final norm backward", d, ref(c.edge.hidden, j + 1), x.final_gamma, x.final_beta, 0,
                final_kept(x.head), d_out);
  lone_layer_backward(b, c, j, part.kinds[static_cast<size_t>(part.stack()) + depth], ref(x.in), d_out, ref(x.d_in));
  project_backward(b, c, x);
  norm_backward(b, c, "mtp hidden norm backward", ref(x.d_hidden_normed), before(c, depth), x.hidden_gamma,
                x.hidden_beta, 0, {x.hidden_stats}, ref(x.d_hidden));
  norm_backward(b, c, "mtp embedding norm backward", ref(x.d_embedding_normed), ref(x.embedded), x.embedding_gamma,
                x.embedding_beta, 0, {x.embedding_stats}, ref(x.d_embedded));
  BufferRef rows = ref(x.d_embedded);
  if (c.n.sequence_parallel) {
    b.op("tp all-gather", input, Stream::tensor,
         over_tensor(c, plan::CollectiveKind::all_gather, ref(x.d_embedded_full)), {rows}, {ref(x.d_embedded_full)});
    rows = ref(x.d_embedded_full);
  }
  b.compute("mtp embedding backward", Phase::backward_weight, embedding_gradient(c), {rows, tokens},
            {c.gradient(table_of(c))});
}

double share(const Context& c) { return kLossFactor / static_cast<double>(c.mtp.size()); }

}  // namespace

void multi_token_forward(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  for (size_t k = 0; k < c.mtp.size(); ++k) depth_forward(b, c, part, k);
  for (size_t k = 0; k < c.mtp.size(); ++k)
    head_loss(b, c, c.mtp[k].head, ref(c.mtp[k].head.final_norm), ref(c.edge.labels_ahead[k + 1]), share(c));
}

void multi_token_backward(BlockBuilder& b, const Context& c, const ChunkPart& part, BufferRef d) {
  const auto join = [&](BufferRef into, size_t depth) {
    b.compute("mtp add", Phase::backward_input, add(c, c.n.rows), {into, ref(c.mtp[depth].d_hidden)}, {into});
  };
  for (size_t k = c.mtp.size(); k-- > 0;) {
    const HeadBuffers& h = c.mtp[k].head;
    const BufferRef of_loss = head_loss_backward(b, c, h, ref(h.final_norm), ref(c.edge.labels_ahead[k + 1]), share(c));
    if (k + 1 < c.mtp.size()) join(of_loss, k + 1);
    depth_backward(b, c, part, k, of_loss);
  }
  b.keep_out(c.edge.labels);
  b.release_here(ref(c.edge.labels));
  join(d, 0);
}

}  // namespace wt::lower
