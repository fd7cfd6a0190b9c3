// The end of the step: what is left of the gradient reductions, gradients that tensor ranks or the two
// copies of a tied embedding share, the global norm, the update, and the gathering of updated weights.
#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Stream;
using plan::Wait;

namespace {

/// Gradients of the part that `wanted` picks, one ref for each layer.
template <class Wanted>
Refs gradients_of(const Context& c, const ChunkPart& part, Wanted wanted) {
  Refs refs;
  for (const auto& bucket : part.buckets)
    for (const auto& m : bucket.members)
      if (wanted(m.parameter)) refs.push_back(c.gradient(m.parameter, static_cast<int>(std::max<int64_t>(m.layer, 0))));
  return refs;
}

int64_t bytes_of(const Context& c, const Refs& refs) {
  int64_t n = 0;
  for (const auto& r : refs) n += c.plan.buffer(r.buffer).bytes().n;
  return n;
}

void zero_block(Context& c, ChunkPart& part, const std::string& name) {
  BlockBuilder b(c.plan, "zero gradients " + name, part.id, BlockBuilder::Lifetimes::other);
  b.segment(-1);
  for (const auto& k : part.buckets)
    b.compute("zero gradients", Phase::optimizer,
              flat(Kernel::fill_zero, c.grad, k.elements, 0, k.elements * size_of(c.grad), 0), {}, {ref(k.gradient)});
  part.zero = c.add_block(b.finish());
}

void narrow_block(Context& c, ChunkPart& part, const std::string& name) {
  if (!c.narrow() || part.layers == 0) return;
  BlockBuilder b(c.plan, "cast weights " + name, part.id, BlockBuilder::Lifetimes::other);
  each_run(part, [&](int64_t first, int64_t layers, LayerKind kind) {
    b.segment(first, 1, layers);
    narrow_layer(b, c, kind, 0);
  });
  part.narrow_weights = c.add_block(b.finish());
}

void tail_block(Context& c, ChunkPart& part, const std::string& name) {
  BlockBuilder b(c.plan, "finish gradients " + name, part.id, BlockBuilder::Lifetimes::other);
  b.segment(0);
  const Refs shared =
      gradients_of(c, part, [&](int k) { return c.parameters[static_cast<size_t>(k)].partial_over_tensor; });
  if (!shared.empty()) {
    const int64_t n = bytes_of(c, shared);
    Compute flatten = streaming(Kernel::copy, c.grad, 1, n / size_of(c.grad), n, n, 0,
                                static_cast<int>(std::min<size_t>(shared.size(), 60000)));
    b.before_next_compute(tail(Stream::data));
    b.op("flatten norm gradients", Phase::reduce, Stream::compute, flatten, shared, shared);
    b.op("tp all-reduce norms", Phase::reduce, Stream::tensor,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.grad, c.tp, n}, shared, shared);
    b.op("unflatten norm gradients", Phase::reduce, Stream::compute, flatten, shared, shared);
  }
  const int table = part.embedding ? c.id.embedding : c.id.embedding_copy;
  if (c.embedding.valid() && (part.embedding || part.head) && !c.frozen(table)) {
    const BufferRef g = c.gradient(table);
    const Wait after_reduction[] = {tail(Stream::data)};
    const BufferRef operand[] = {g};
    b.op("embedding all-reduce", Phase::reduce, Stream::data,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.grad, c.embedding,
                          c.plan.buffer(g.buffer).bytes().n},
         operand, operand, after_reduction);
  }
  part.tail = c.add_block(b.finish());
}

void norm_block(Context& c, ChunkPart& part, const std::string& name) {
  if (c.training().gradient_clipping <= 0) return;
  BlockBuilder b(c.plan, "gradient norm " + name, part.id, BlockBuilder::Lifetimes::other);
  b.segment(0);
  b.before_next_compute(tail(Stream::data));
  b.before_next_compute(tail(Stream::tensor));
  if (part.norm_copy.valid()) {
    // get_grad_norm_direct: g.data.double().norm(2), tensor by tensor. One op stands for the copies of all of them; it
    // writes the largest, and nobody reads what is in it.
    int64_t owned = 0;
    for (const auto& k : part.buckets) owned += c.plan.buffer(k.gradient_shard).elements();
    Compute copies = flat(Kernel::fill_zero, DType::f64, owned, owned * size_of(c.grad), owned * 8, 0);
    copies.dims = {c.plan.buffer(part.norm_copy).elements()};
    b.compute("gradients to 64 bits", Phase::optimizer, copies, {}, {ref(part.norm_copy)});
    b.discard(ref(part.norm_copy));
  }
  for (const auto& k : part.buckets) {
    const int64_t n = c.plan.buffer(k.gradient_shard).elements();
    Compute op = flat(Kernel::square_sum, c.grad, n, n * size_of(c.grad), 4, 2);
    Refs reads{ref(k.gradient_shard)};
    if (c.n.t > 1) op.group = c.tp;
    for (const auto& m : k.members)
      if (c.n.t > 1 && c.parameters[static_cast<size_t>(m.parameter)].tensor_duplicate)
        reads.push_back(c.gradient(m.parameter, static_cast<int>(std::max<int64_t>(m.layer, 0))));
    for (const auto& m : k.members)  // the last stage's copy of the table is counted on the first
      if (c.embedding.valid() && part.head && m.parameter == c.id.embedding_copy) {
        reads.push_back(c.gradient(m.parameter));
        op.function = 1;
      }
    const BufferRef sum[] = {ref(k.expert ? c.expert_grad_norm : c.grad_norm)};
    b.op("gradient norm", Phase::optimizer, Stream::compute, op, reads, sum);
  }
  part.sum_squares = c.add_block(b.finish());
}

void widen_gradient(BlockBuilder& b, const Context& c, const ChunkPart::Bucket& k) {
  const int64_t n = c.plan.buffer(k.gradient_shard).elements();
  b.compute("gradients to fp32", Phase::optimizer, flat(Kernel::cast, DType::f32, n, n * size_of(c.grad), n * 4, 0),
            {ref(k.flat_step.valid() ? k.flat_step : k.gradient_shard)}, {ref(k.main_gradient)});
}

/// Adam or SGD on the device, of what the rank owns of a bucket.
void update_bucket(BlockBuilder& b, const Context& c, const ChunkPart::Bucket& k) {
  const bool clipped = c.training().gradient_clipping > 0;
  const int64_t n = c.plan.buffer(k.gradient_shard).elements(), moment = size_of(c.training().moment_dtype);
  const bool wide = k.main_gradient.valid();
  const BufferRef g = ref(wide ? k.main_gradient : k.gradient_shard);
  const int64_t gradient_size = wide ? 4 : size_of(c.grad);
  const BufferRef w = ref(k.weight_shard), master = k.master.valid() ? ref(k.master) : w;
  const int64_t stored = size_of(weight_dtype(c, k)), state = k.master.valid() ? 4 : stored;
  Refs reads{g};
  if (clipped) reads.push_back(ref(c.grad_norm));
  reads.push_back(master);
  Refs writes{w, master};
  Compute op;
  const bool adam_kind = c.training().optimizer == OptimizerKind::adam;
  if (adam_kind) {
    for (const BufferId m : {k.moment1, k.moment2}) {
      reads.push_back(ref(m));
      writes.push_back(ref(m));
    }
    op = adam(n, {gradient_size, state, 2 * moment, k.master.valid() ? stored : 0}, c.training().fused_optimizer,
              clipped);
  } else {
    op = flat(Kernel::sgd, DType::f32, n, n * (gradient_size + state), n * state, 2);
  }
  op.scalar = c.training().gradient_clipping;
  b.op(adam_kind ? "adam" : "sgd", Phase::optimizer, Stream::compute, op, reads, writes);
}

/// Optimizer state that lies outside the device (strategies/offload.cpp), and what stays there beside it.
void host_update_block(Context& c, ChunkPart& part, const std::string& name) {
  BlockBuilder b(c.plan, "update " + name, part.id, BlockBuilder::Lifetimes::forward);
  b.segment(-1);
  b.op("gradients ready", Phase::optimizer, Stream::compute, plan::Join{}, {}, {},
       {tail(Stream::data), tail(Stream::tensor)});
  std::vector<HostUpdate> all;
  for (const auto& k : part.buckets)
    if (k.on_host) all.push_back({ref(k.gradient_shard), ref(k.weight_shard), k.master, k.moment1, k.moment2, &k.host});
  update_on_host(b, c, all, [&] {
    for (const auto& k : part.buckets) {
      if (k.on_host) continue;
      if (k.main_gradient.valid()) widen_gradient(b, c, k);
      update_bucket(b, c, k);
    }
  });
  b.op("weights back", Phase::optimizer, Stream::compute, plan::Join{}, {}, {}, {tail(Stream::copy_in)});
  part.update = c.add_block(b.finish());
}

void update_block(Context& c, ChunkPart& part, const std::string& name) {
  BlockBuilder b(c.plan, "update " + name, part.id, BlockBuilder::Lifetimes::forward);
  b.segment(-1);
  b.before_next_compute(tail(Stream::data));
  b.before_next_compute(tail(Stream::tensor));
  // All that the rank owns is updated at once: its gradients widened (with DeepSpeed flattened before), each copy whole.
  const bool at_once = part.step_main.valid();
  if (at_once && part.step_list.valid()) {  // [p.grad.to(fp32) for p in group], then flattened
    for (const auto& k : part.buckets) {
      const int64_t n = c.plan.buffer(k.list_step).elements();
      b.compute("gradients to fp32", Phase::optimizer, flat(Kernel::cast, DType::f32, n, n * size_of(c.grad), n * 4, 0),
                {ref(k.gradient_shard)}, {ref(k.list_step)});
      if (&k == &part.buckets.front()) b.reserve_here(ref(part.step_list));
    }
    for (const auto& k : part.buckets) {
      const int64_t n = c.plan.buffer(k.list_step).elements();
      b.compute("flatten gradients", Phase::optimizer, flat(Kernel::copy, DType::f32, n, n * 4, n * 4, 0),
                {ref(k.list_step)}, {ref(k.main_gradient)});
      if (&k == &part.buckets.front()) b.reserve_here(ref(part.step_main));
    }
    b.release_here(ref(part.step_list));
  } else if (at_once) {
    bool first = true;
    for (const auto& k : part.buckets)
      if (k.flat_step.valid()) {
        const int64_t n = c.plan.buffer(k.flat_step).elements(), bytes = n * size_of(c.grad);
        b.compute("flatten gradients", Phase::optimizer, flat(Kernel::copy, c.grad, n, bytes, bytes, 0),
                  {ref(k.gradient_shard)}, {ref(k.flat_step)});
        if (first) b.reserve_here(ref(part.step_flat));
        first = false;
      }
    first = true;
    for (const auto& k : part.buckets)
      if (k.main_gradient.valid()) {
        widen_gradient(b, c, k);
        if (first) b.reserve_here(ref(part.step_main));
        first = false;
      }
    if (part.step_flat.valid())
      b.op("flat gradients free", Phase::optimizer, Stream::compute, plan::Join{}, {ref(part.step_flat)}, {});
  }
  for (const auto& k : part.buckets) {
    if (k.main_gradient.valid() && !at_once) widen_gradient(b, c, k);
    update_bucket(b, c, k);
  }
  if (part.step_main.valid()) b.release_here(ref(part.step_main));
  part.update = c.add_block(b.finish());
}

}  // namespace

void narrow_layer(BlockBuilder& b, const Context& c, LayerKind kind, int offset, Phase phase) {
  for (size_t k = 0; k < c.parameters.size(); ++k) {
    const Parameter& q = c.parameters[k];
    if (!q.narrow_transposed.valid() || !c.of_layer(static_cast<int>(k), kind)) continue;
    if (q.kept_narrow) {
      b.compute("fp8 weights", phase, flat(Kernel::cast, DType::f8, q.elements, q.elements, q.elements, 0),
                {c.weight(static_cast<int>(k), offset)}, {ref(q.narrow_transposed, offset)});
      continue;
    }
    const int64_t passes = narrowing_passes(c);
    Compute op = flat(Kernel::cast, DType::f8, q.elements, passes * q.elements * size_of(c.act), 2 * q.elements, 2);
    op.launches = static_cast<uint16_t>(passes);
    b.compute("fp8 weights", phase, op, {c.weight(static_cast<int>(k), offset)},
              {ref(q.narrow, offset), ref(q.narrow_transposed, offset)});
    if (has_units(c.strategy())) b.discard(ref(q.narrow_transposed, offset));  // made again in each pass, read by no op
  }
}

void optimizer_blocks(Context& c, ChunkPart& part) {
  const std::string name = c.plan.parts[part.id.v].name;
  using Lifetimes = BlockBuilder::Lifetimes;
  zero_block(c, part, name);
  if (!(overlaps_gather(c.strategy()) && c.replicated())) narrow_block(c, part, name);
  if (!overlaps_reduce(c.strategy())) {
    BlockBuilder b(c.plan, "reduce " + name, part.id, Lifetimes::other);
    b.segment(-1);
    for (size_t i = 0; i < part.buckets.size(); ++i) reduce_bucket(b, c, part, i);
    part.reduce = c.add_block(b.finish());
  }
  tail_block(c, part, name);
  norm_block(c, part, name);
  updates_on_host(c.strategy()) ? host_update_block(c, part, name) : update_block(c, part, name);
  if (!part.split_buckets || !overlaps_gather(c.strategy())) {
    BlockBuilder b(c.plan, "gather " + name, part.id, Lifetimes::other);
    b.segment(-1);
    for (size_t i = 0; i < part.buckets.size(); ++i) gather_bucket(b, c, part, i);
    if (!overlaps_gather(c.strategy()) && !b.empty())
      b.op("weights ready", Phase::optimizer, Stream::compute, plan::Join{}, {}, {}, {tail(Stream::data)});
    part.gather = c.add_block(b.finish());
  }
}

RankBlocks rank_blocks(Context& c) {
  using Lifetimes = BlockBuilder::Lifetimes;
  RankBlocks out;
  const bool clipped = c.training().gradient_clipping > 0;
  const bool scaled = c.training().compute_dtype == DType::f16;
  {
    BlockBuilder b(c.plan, "rank setup", {}, Lifetimes::other);
    b.segment(-1);
    b.op("scalars", Phase::load, Stream::compute, plan::Join{}, {}, {});
    b.reserve_here(ref(c.edge.loss));
    if (clipped) b.reserve_here(ref(c.grad_norm));
    if (clipped && c.expert_grad_norm.valid()) b.reserve_here(ref(c.expert_grad_norm));
    if (c.host_norm.valid()) b.reserve_here(ref(c.host_norm));
    if (scaled) b.reserve_here(ref(c.overflow));
    out.setup = c.add_block(b.finish());
  }
  {
    BlockBuilder b(c.plan, "begin step", {}, Lifetimes::other);
    b.segment(-1);
    b.compute("zero loss", Phase::optimizer, flat(Kernel::fill_zero, DType::f32, 1, 0, 4, 0), {}, {ref(c.edge.loss)});
    if (clipped)
      b.compute("zero norm", Phase::optimizer, flat(Kernel::fill_zero, DType::f32, 1, 0, 4, 0), {}, {ref(c.grad_norm)});
    if (clipped && c.expert_grad_norm.valid())
      b.compute("zero expert norm", Phase::optimizer, flat(Kernel::fill_zero, DType::f32, 1, 0, 4, 0), {},
                {ref(c.expert_grad_norm)});
    if (norm_on_host(c.strategy()) && c.host_norm.valid()) {
      const BufferRef norm[] = {ref(c.host_norm)};
      host_kernel(b, "zero norm", Phase::optimizer, flat(Kernel::fill_zero, DType::f32, 1, 0, 4, 0), {}, norm, {});
    }
    if (scaled)
      b.compute("zero overflow", Phase::optimizer, flat(Kernel::fill_zero, DType::f32, 1, 0, 4, 0), {},
                {ref(c.overflow)});
    out.begin = c.add_block(b.finish());
  }
  {
    BlockBuilder b(c.plan, "global norm", {}, Lifetimes::other);
    b.segment(-1);
    const GroupId group = c.norm;
    const int64_t members = plan::group_size(c.plan.mesh, c.plan.group(group));
    if (updates_on_host(c.strategy())) b.before_next_compute(tail(Stream::replica));  // where units sum squares
    if (norm_on_host(c.strategy()) && c.host_norm.valid()) {
      const Wait summed[] = {tail(Stream::host), tail(Stream::compute)};
      const uint32_t op = host_copy(b, c, "norm to device", Phase::optimizer, Stream::copy_in, ref(c.host_norm),
                                    ref(c.grad_norm), summed);
      b.op("norm on device", Phase::optimizer, Stream::compute, plan::Join{}, {}, {}, {{Wait::Kind::op, op}});
    }
    if (scaled && members > 1)  // did any rank see an infinity? then the step is skipped everywhere
      b.op("overflow all-reduce", Phase::optimizer, Stream::data,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::max, DType::f32, group, 4},
           {ref(c.overflow)}, {ref(c.overflow)});
    if (clipped && members > 1)
      b.op("norm all-reduce", Phase::optimizer, Stream::data,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, DType::f32, group, 4},
           {ref(c.grad_norm)}, {ref(c.grad_norm)});
    if (clipped && c.expert_grad_norm.valid()) {
      b.op("expert norm all-reduce", Phase::optimizer, Stream::data,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, DType::f32, c.expert_norm, 4},
           {ref(c.expert_grad_norm)}, {ref(c.expert_grad_norm)});
      b.compute("add norms", Phase::optimizer, streaming(Kernel::add, DType::f32, 1, 1, 8, 4, 1),
                {ref(c.grad_norm), ref(c.expert_grad_norm)}, {ref(c.grad_norm)});
    }
    if (clipped || scaled)  // the host reads the norm before it issues the update
      b.op("norm to host", Phase::optimizer, Stream::compute, plan::HostWait{}, {}, {}, {tail(Stream::data)});
    if (c.host_norm.valid()) norm_to_host(b, c);
    out.norm = c.add_block(b.finish());
  }
  return out;
}

}  // namespace wt::lower
