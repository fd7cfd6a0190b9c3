// Data parallelism: gradients and weights lie in flat buckets; who reduces and gathers them, and when.
//   ddp                    PyTorch: buckets close after the tensor that reaches the byte limit; all-reduce beside backward
//   megatron               one buffer, all-reduce after the last backward
//   distributed_optimizer  element-sized buckets, reduce-scatter, all-gather of the updated weights
//   zero1                  DeepSpeed: buckets close before the tensor that would exceed 5e8 elements; all-reduce
// Some frameworks move gradients through copies on the way (GradientCopies).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Phase;
using plan::Role;
using plan::Scope;
using plan::Stream;

bool shards_optimizer(const StrategySpec& s) {
  return s.data_parallel == DataParallel::distributed_optimizer || s.data_parallel == DataParallel::zero1;
}
GradientCopies gradient_copies(const StrategySpec& s) {
  if (s.gradient_copies != GradientCopies::automatic) return s.gradient_copies;
  if (s.data_parallel != DataParallel::zero1) return GradientCopies::none;
  return s.gradient_dtype == DType::f32 ? GradientCopies::narrow : GradientCopies::flat;
}
bool overlaps_reduce(const StrategySpec& s) {
  return s.data_parallel == DataParallel::ddp || (s.overlap_grad_reduce && s.data_parallel != DataParallel::zero1);
}
bool overlaps_gather(const StrategySpec& s) {
  return s.data_parallel == DataParallel::distributed_optimizer && s.overlap_param_gather;
}

namespace {

/// Parameters of the part in registration order.
std::vector<std::pair<int, int64_t>> registration(const Context& c, const ChunkPart& part) {
  std::vector<std::pair<int, int64_t>> order;
  auto add = [&](int parameter) {
    if (parameter >= 0) order.emplace_back(parameter, -1);
  };
  if (part.embedding) {
    add(c.id.embedding);
    add(c.id.position);
    add(c.id.embedding_gamma);
    add(c.id.embedding_beta);
  }
  if (part.head && c.id.embedding_copy != c.id.head) add(c.id.embedding_copy);
  for (int64_t layer = 0; layer < part.layers; ++layer)
    for (size_t k = 0; k < c.parameters.size(); ++k)
      if (c.parameters[k].per_layer && c.of_layer(static_cast<int>(k), part.kinds[static_cast<size_t>(layer)]))
        order.emplace_back(static_cast<int>(k), layer);
  if (part.head) {
    for (const MultiToken& x : c.mtp)
      for (const int k :
           {x.embedding_gamma, x.embedding_beta, x.hidden_gamma, x.hidden_beta, x.proj, x.final_gamma, x.final_beta})
        add(k);
    add(c.id.final_gamma);
    add(c.id.final_beta);
    if (!(part.embedding && c.id.head == c.id.embedding)) add(c.id.head);
    add(c.id.head_bias);
  }
  return order;
}

struct BucketRule {
  double limit = std::numeric_limits<double>::infinity(), first_limit = 0;  // elements or bytes
  int64_t unit = 1;                                                         // 1: elements; element size: bytes
  bool close_before = false;
  int64_t align = 1, pad = 1;
};

/// `copies`: ranks that hold what the bucket holds.
BucketRule rule_of(const Context& c, const ChunkPart& part, int64_t copies) {
  const auto& s = c.strategy();
  BucketRule r;
  switch (s.data_parallel) {
    case DataParallel::ddp:
      r.limit = static_cast<double>(s.ddp_bucket.n);
      r.first_limit = static_cast<double>(s.ddp_first_bucket.n);
      r.unit = size_of(c.grad);
      break;
    case DataParallel::megatron:
    case DataParallel::distributed_optimizer:
      if (part.split_buckets)
        r.limit = s.bucket_elements > 0 ? static_cast<double>(s.bucket_elements)
                                        : std::max(40e6, 1e6 * static_cast<double>(copies));
      r.first_limit = r.limit;
      r.align = 64;
      r.pad = s.data_parallel == DataParallel::distributed_optimizer ? std::lcm(copies, int64_t{128}) : 1;
      break;
    case DataParallel::zero1:
      r.limit = r.first_limit = s.bucket_elements > 0 ? static_cast<double>(s.bucket_elements) : 5e8;
      r.close_before = true;
      r.pad = std::lcm(copies, int64_t{2});
      break;
    case DataParallel::zero2:
    case DataParallel::zero3:
    case DataParallel::fsdp:
    case DataParallel::fsdp2: break;  // units.cpp
  }
  return r;
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Where a parameter of a layer (-1: of none) lies.
struct Place {
  int64_t layer, offset;
  BufferId base, gradient;  // invalid: it has none
};
/// A parameter's views: runs of layers at a constant distance in one buffer become one entry.
void place_runs(plan::Part& out, const Parameter& q, BufferId weight, std::vector<Place> list) {
  std::sort(list.begin(), list.end(), [](const Place& a, const Place& b) { return a.layer < b.layer; });
  for (size_t i = 0; i < list.size();) {
    size_t end = i + 1;
    const int64_t stride = end < list.size() && list[end].base == list[i].base ? list[end].offset - list[i].offset : 0;
    while (end < list.size() && list[end].base == list[i].base && list[end].layer == list[end - 1].layer + 1 &&
           list[end].offset - list[end - 1].offset == stride)
      ++end;
    const int64_t layers = q.per_layer ? static_cast<int64_t>(end - i) : 0;
    const int64_t first = q.per_layer ? list[i].layer : 0;
    const int64_t step = layers > 1 ? stride : 0;
    out.views.push_back({weight, list[i].base, first, layers, list[i].offset, step, {}});
    if (list[i].gradient.valid())
      out.views.push_back({q.gradient, list[i].gradient, first, layers, list[i].offset, step, {}});
    i = end;
  }
}

using Instances = std::vector<std::pair<int, int64_t>>;

/// What is not trained lies by itself, behind one another: as kernels read it, or in 4 bits.
void place_frozen(Context& c, ChunkPart& part, const Instances& frozen) {
  plan::Part& out = c.plan.parts[part.id.v];
  std::map<int, std::vector<Place>> places;
  int64_t plain = 0, packed = 0;
  for (const auto& [parameter, layer] : frozen) {
    const Parameter& q = c.parameters[static_cast<size_t>(parameter)];
    int64_t& at = q.packed.valid() ? packed : plain;
    places[parameter].push_back({layer, at, {}, {}});
    at += q.packed.valid() ? c.plan.buffer(q.packed).elements() : q.elements;
    out.parameters += q.elements;
  }
  const auto base = [&](const char* name, DType dtype, int64_t elements) {
    if (elements == 0) return BufferId{};
    Buffer b;
    b.name = fmt::format("{}.{}", name, out.name);
    b.role = Role::weight;
    b.dtype = dtype;
    b.scope = Scope::persistent;
    b.shape = {elements};
    out.persistent.push_back(c.add_buffer(std::move(b)));
    return out.persistent.back();
  };
  part.frozen = base("weights_frozen", c.act, plain);
  part.frozen_packed = base("weights_nf4", DType::u8, packed);
  for (auto& [parameter, list] : places) {
    const Parameter& q = c.parameters[static_cast<size_t>(parameter)];
    for (Place& p : list) p.base = q.packed.valid() ? part.frozen_packed : part.frozen;
    place_runs(out, q, q.packed.valid() ? q.packed : q.weight, std::move(list));
  }
}

}  // namespace

void make_buckets(Context& c, ChunkPart& part) {
  auto order = registration(c, part);
  const auto trained =
      std::stable_partition(order.begin(), order.end(), [&](const auto& p) { return c.frozen(p.first); });
  place_frozen(c, part, {order.begin(), trained});
  order.erase(order.begin(), trained);
  // Gradients become ready from the loss backwards. With find_unused_parameters DDP never rebuilds the buckets that it made
  // of the parameters as registered (facts DDP-4): the small one holds the first parameters and is reduced last.
  const bool registered = c.strategy().data_parallel == DataParallel::ddp && c.strategy().ddp.find_unused;
  if (!registered) std::reverse(order.begin(), order.end());

  // Gradients of experts, reduced over other ranks, fill buckets of their own beside those of the rest, and so do 8-bit
  // weights (Megatron: a buffer for each dtype of parameters). Whichever closes first stands first: its gradients are ready
  // before those of the next.
  std::vector<ChunkPart::Bucket>& buckets = part.buckets;
  // The two copies of a tied table meet after the reduce-scatter: alone in a bucket, both are cut in the same pieces
  // (Megatron's shared_embedding rule).
  auto alone = [&](int parameter) {
    return c.strategy().data_parallel == DataParallel::distributed_optimizer && c.embedding.valid() &&
           (parameter == c.id.embedding || parameter == c.id.embedding_copy);
  };
  struct Filling {
    BucketRule rule;
    ChunkPart::Bucket bucket;
    bool open = false;
    double size = 0;
    int64_t begun = 0;
  };
  // The last to close, the first here, has the embedding.
  std::array<Filling, 4> filling;
  for (size_t i = 0; i < filling.size(); ++i) filling[i].rule = rule_of(c, part, i % 2 == 0 ? c.n.dp : c.n.edp);
  auto close = [&](Filling& f) {
    if (!f.open) return;
    f.bucket.elements = round_up(f.bucket.elements, f.rule.pad);
    buckets.push_back(std::move(f.bucket));
    f.open = false;
  };
  // Of a part of the optimizer on the host: the parameters that were registered first, the last here (Megatron's
  // HybridDeviceOptimizer walks them in that order). No bucket is on both sides.
  const bool offloads = updates_on_host(c.strategy());
  double left = 0;
  for (const auto& [parameter, layer] : order)
    left += static_cast<double>(c.parameters[static_cast<size_t>(parameter)].elements);
  const double host_part = offloads ? c.strategy().offload.ratio * left : 0;
  for (const auto& [parameter, layer] : order) {
    const Parameter& q = c.parameters[static_cast<size_t>(parameter)];
    const bool on_host = offloads && left <= host_part;
    left -= static_cast<double>(q.elements);
    Filling& f = filling[(q.expert ? 1 : 0) + (q.kept_narrow ? 2 : 0)];
    const double units = static_cast<double>(q.elements * f.rule.unit);
    if (alone(parameter) || f.bucket.on_host != on_host) close(f);
    if (f.rule.close_before && f.size + units > (f.begun <= 1 ? f.rule.first_limit : f.rule.limit)) close(f);
    if (!f.open) {
      f.bucket = {};
      f.bucket.expert = q.expert;
      f.bucket.narrow_weights = q.kept_narrow;
      f.bucket.on_host = on_host;
      f.size = 0;
      f.open = true;
      ++f.begun;
    }
    f.bucket.elements = round_up(f.bucket.elements, f.rule.align);
    f.bucket.members.push_back({parameter, layer, f.bucket.elements});
    f.bucket.elements += q.elements;
    f.size += units;
    const double close_at = f.begun <= 1 ? f.rule.first_limit : f.rule.limit;
    if ((!f.rule.close_before && f.size >= close_at) || alone(parameter)) close(f);
  }
  for (size_t i = filling.size(); i-- > 0;) close(filling[i]);  // the embedding's gradient is the last
  if (registered) std::reverse(buckets.begin(), buckets.end());

  plan::Part& out = c.plan.parts[part.id.v];
  const GradientCopies copies = gradient_copies(c.strategy());
  int64_t largest = 0, owned = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    ChunkPart::Bucket& k = buckets[i];
    const bool sharded = shards_optimizer(c.strategy()) && c.copies(k) > 1;
    const int64_t shard = sharded ? k.elements / c.copies(k) : k.elements;
    auto make = [&](const char* what, Role role, DType dtype, int64_t elements, bool view = false,
                    Scope scope = Scope::persistent) {
      Buffer b;
      b.name = fmt::format("{}.{}.bucket{}", what, part.id.v < c.plan.parts.size() ? out.name : "", i);
      b.role = role;
      b.dtype = dtype;
      b.scope = scope;
      b.view = view;
      b.shape = {elements};
      const BufferId id = c.add_buffer(std::move(b));
      if (!view && scope == Scope::persistent) out.persistent.push_back(id);
      return id;
    };
    k.weight = make("weights", Role::weight, weight_dtype(c, k), k.elements);
    k.gradient = make("grads", Role::gradient, c.grad, k.elements);
    if (sharded) {
      k.weight_shard = make("weights_shard", Role::weight, weight_dtype(c, k), shard, true);
      k.gradient_shard = make("grads_shard", Role::gradient, c.grad, shard, true);
      out.views.push_back({k.weight_shard, k.weight, 0, 0, 0, 0, c.copies_group(k)});
      out.views.push_back({k.gradient_shard, k.gradient, 0, 0, 0, 0, c.copies_group(k)});
    } else {
      k.weight_shard = k.weight;
      k.gradient_shard = k.gradient;
    }
    const bool on_host = k.on_host;
    if (on_host || (c.training().master_weights && c.act != DType::f32))
      k.master = make("master", Role::master, DType::f32, shard);
    if (c.training().optimizer == OptimizerKind::adam) {
      k.moment1 = make("moment1", Role::moment1, c.training().moment_dtype, shard);
      k.moment2 = make("moment2", Role::moment2, c.training().moment_dtype, shard);
    }
    if (on_host) {
      for (const BufferId id : {k.master, k.moment1, k.moment2})
        if (id.valid()) c.plan.buffers[id.v].space = state_space(c.strategy());
      // DeepSpeed sends gradients to the host in fp32 and brings fp32 weights back (facts DS-8).
      const bool wide = c.strategy().data_parallel == DataParallel::zero1;
      k.host.gradient = make("host_grads", Role::gradient, wide ? DType::f32 : c.grad, shard);
      k.host.weight = make("host_weights", Role::copy, c.act, shard, false, Scope::invocation);
      for (const BufferId id : {k.host.gradient, k.host.weight}) c.plan.buffers[id.v].space = host_space(c.strategy());
      if (wide && (c.act != DType::f32 || c.grad != DType::f32))
        k.host.wide = make("main_grads", Role::gradient, DType::f32, shard, false, Scope::invocation);
    }
    // 16-bit gradients become fp32 for the update, all that the rank owns at once: Megatron drops the copy when it zeroes
    // gradients for the next step (zero_grad with set_to_none), DeepSpeed after the update.
    if (k.master.valid() && c.grad != DType::f32 && !on_host) {
      const bool at_once = c.strategy().data_parallel != DataParallel::ddp && !offloads;
      k.main_gradient = make("main_grads", Role::gradient, DType::f32, shard, at_once, Scope::invocation);
      if (at_once && copies == GradientCopies::flat)
        k.flat_step = make("grads_flat_step", Role::transient, c.grad, shard, true, Scope::invocation);
      if (copies == GradientCopies::flat_step)
        k.list_step = make("main_grads_list", Role::transient, DType::f32, shard, true, Scope::invocation);
    }
    if (k.master.valid() && c.strategy().data_parallel == DataParallel::zero1 && !on_host)
      k.clone = make("weights_clone", Role::copy, c.act, shard, true, Scope::invocation);
    if (copies == GradientCopies::narrow && c.act != DType::f32)
      k.narrow = make("grads_narrow", Role::bucket, c.act, k.elements, true, Scope::invocation);
    // DeepSpeed's bf16 optimizer: autograd's gradients stay beside the fp32 ones until the next backward.
    if (c.strategy().data_parallel == DataParallel::zero1 && c.grad == DType::f32 && c.act != DType::f32)
      k.low_gradient = make("low_grads", Role::gradient, c.act, k.elements);
    if ((copies == GradientCopies::flat || copies == GradientCopies::flat_wide) && c.n.dp > 1) {
      if (k.members.size() > 1)  // flattening one tensor is a view
        k.flat = make("grads_flat", Role::bucket, c.grad, k.elements, false, Scope::invocation);
      if (copies == GradientCopies::flat_wide && c.grad != DType::f32)
        k.wide = make("grads_wide", Role::bucket, DType::f32, k.elements, false, Scope::invocation);
    }
    make_ddp_buffers(c, part, k, i);
    for (const auto& m : k.members)
      largest = std::max(largest, c.parameters[static_cast<size_t>(m.parameter)].elements);
    owned += shard;
  }

  make_used_map(c, part);
  std::map<int, std::vector<Place>> places;
  for (const auto& k : buckets)
    for (const auto& m : k.members) places[m.parameter].push_back({m.layer, m.offset, k.weight, k.gradient});
  for (auto& [parameter, list] : places) {
    const Parameter& q = c.parameters[static_cast<size_t>(parameter)];
    out.parameters += q.elements * static_cast<int64_t>(list.size());
    place_runs(out, q, q.weight, std::move(list));
  }
  if (copies == GradientCopies::flat && c.grad != DType::f32 && c.training().gradient_clipping > 0) {
    Buffer b;
    b.name = fmt::format("norm_copy.{}", out.name);
    b.role = Role::transient;
    b.dtype = DType::f64;
    b.shape = {std::min(largest, owned)};  // the owned part is one piece of the whole, not of each bucket
    part.norm_copy = c.add_buffer(std::move(b));
  }
  auto in_one_piece = [&](const char* what, Role role, DType dtype, BufferId ChunkPart::Bucket::*member) {
    if (buckets.empty() || !(buckets[0].*member).valid() || !c.plan.buffer(buckets[0].*member).view) return BufferId{};
    Buffer b;
    b.name = fmt::format("{}.{}", what, out.name);
    b.role = role;
    b.dtype = dtype;
    b.shape = {0};
    for (const auto& k : buckets) b.shape[0] += c.plan.buffer(k.*member).elements();
    const BufferId base = c.add_buffer(std::move(b));
    int64_t offset = 0;
    for (const auto& k : buckets) {
      out.views.push_back({k.*member, base, 0, 0, offset, 0, {}});
      offset += c.plan.buffer(k.*member).elements();
    }
    return base;
  };
  part.step_main = in_one_piece("main_grads", Role::gradient, DType::f32, &ChunkPart::Bucket::main_gradient);
  part.step_flat = in_one_piece("grads_flat_step", Role::transient, c.grad, &ChunkPart::Bucket::flat_step);
  part.step_list = in_one_piece("main_grads_list", Role::transient, DType::f32, &ChunkPart::Bucket::list_step);
  if (part.step_main.valid()) {
    Buffer b = c.plan.buffer(part.step_main);
    b.name = fmt::format("first_step.{}", out.name);
    b.role = Role::copy;
    part.first_step = c.add_buffer(std::move(b));
  }
  part.clone = in_one_piece("weights_clone", Role::copy, c.act, &ChunkPart::Bucket::clone);
  part.narrow = in_one_piece("grads_narrow", Role::bucket, c.act, &ChunkPart::Bucket::narrow);
  if (!buckets.empty() && buckets[0].low_gradient.valid()) {
    Buffer b;
    b.name = fmt::format("accumulated_f32.{}", out.name);
    b.dtype = DType::f32;
    b.shape = {largest};
    part.accumulated = c.add_buffer(std::move(b));
  }
  if (part.head && kept_outputs(c) > 0) {
    // As the model returns them: gathered in the dtype of the weights, or its columns in fp32 (float16_to_fp32).
    const bool whole = c.training().loss == LossKind::full_vocabulary;
    Buffer b = c.plan.buffer(whole ? c.edge.logits_full : c.edge.logits32);
    b.name = fmt::format("kept_logits.{}", out.name);
    b.scope = Scope::persistent;
    b.shape.insert(b.shape.begin(), kept_outputs(c));
    part.kept_outputs = c.add_buffer(std::move(b));
    out.persistent.push_back(part.kept_outputs);
  }
}

void reduce_bucket(BlockBuilder& b, const Context& c, const ChunkPart& part, size_t index) {
  const ChunkPart::Bucket& k = part.buckets[index];
  if (has_ddp_path(c.strategy()) && c.copies(k) > 1) return reduce_ddp_bucket(b, c, part, index);
  if (c.n.dp == 1 && c.copies(k) == 1 && !k.narrow.valid())
    return;  // BF16_Optimizer makes its copy for a group of one too
  const int64_t bytes = k.elements * size_of(c.grad);
  auto move = [&](const char* name, plan::Kernel kernel, DType dtype, int64_t read, int64_t written, BufferRef from,
                  BufferRef to) {
    plan::Compute op = streaming(kernel, dtype, 1, k.elements, read, written, 0);
    op.dims = {k.elements};
    b.compute(name, Phase::reduce, op, {from}, {to});
  };
  const BufferRef g = ref(k.gradient), x = k.flat.valid() ? ref(k.flat) : g;
  if (k.narrow.valid()) {
    const int64_t narrow = k.elements * size_of(c.act);
    const BufferRef y = ref(k.narrow);
    move("narrow gradients", plan::Kernel::cast, c.act, bytes, narrow, g, y);
    if (index == 0) b.reserve_here(ref(part.narrow));
    if (c.n.dp > 1) {
      b.op(fmt::format("dp all-reduce {}", index), Phase::reduce, Stream::data,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.act, c.dp, narrow}, {y}, {y});
      plan::Compute scale = streaming(plan::Kernel::scale, c.act, 1, k.elements, narrow, narrow, 1);
      scale.dims = {k.elements};
      scale.scalar = 1.0 / static_cast<double>(c.n.dp);
      b.compute("scale gradients", Phase::reduce, scale, {y}, {y});
    }
    move("widen gradients", plan::Kernel::cast, c.grad, narrow, bytes, y, g);
    if (index + 1 == part.buckets.size()) b.release_here(ref(part.narrow));
    return;
  }
  if (k.flat.valid()) move("flatten gradients", plan::Kernel::copy, c.grad, bytes, bytes, g, x);
  plan::Compute scale = streaming(plan::Kernel::scale, c.grad, 1, k.elements, bytes, bytes, 1);
  scale.dims = {k.elements};
  scale.scalar = 1.0 / static_cast<double>(c.n.dp);  // of experts too: their rows come from all of these ranks
  b.compute("scale gradients", Phase::reduce, scale, {x}, {x});
  if (c.copies(k) == 1) return;
  if (k.flat.valid() || k.wide.valid()) {
    const int64_t wide = k.elements * 4;
    const BufferRef y = k.wide.valid() ? ref(k.wide) : x;
    if (k.wide.valid()) move("widen gradients", plan::Kernel::cast, DType::f32, bytes, wide, x, y);
    b.op(fmt::format("dp all-reduce {}", index), Phase::reduce, Stream::data,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, k.wide.valid() ? DType::f32 : c.grad,
                          c.dp, k.wide.valid() ? wide : bytes},
         {y}, {y});
    if (k.wide.valid()) move("narrow gradients", plan::Kernel::cast, c.grad, wide, bytes, y, x);
    if (k.flat.valid()) move("unflatten gradients", plan::Kernel::copy, c.grad, bytes, bytes, x, g);
    return;
  }
  const bool scatter = c.strategy().data_parallel == DataParallel::distributed_optimizer;
  plan::Collective body{scatter ? plan::CollectiveKind::reduce_scatter : plan::CollectiveKind::all_reduce,
                        plan::Reduction::sum, c.grad, c.copies_group(k), bytes};
  b.op(fmt::format("{} {} {}", k.expert ? "edp" : "dp", scatter ? "reduce-scatter" : "all-reduce", index),
       Phase::reduce, Stream::data, body, {g}, {scatter ? ref(k.gradient_shard) : g});
}

void ReduceHooks::after_backward(BlockBuilder& b, const LayerPlace& at) {
  while (next_ < part_.buckets.size() && ready(next_, at.layer)) reduce_bucket(b, c_, part_, next_++);
}

void ReduceHooks::finish(BlockBuilder& b) {
  while (next_ < part_.buckets.size()) reduce_bucket(b, c_, part_, next_++);
  finish_ddp(b, c_, part_);
}

bool ReduceHooks::ready(size_t bucket, int64_t layer) const {
  const auto& members = part_.buckets[bucket].members;
  return std::all_of(members.begin(), members.end(), [&](const auto& m) {
    return m.layer >= layer ||
           (m.layer < 0 && part_.head &&
            (m.parameter == c_.id.final_gamma || m.parameter == c_.id.final_beta || m.parameter == c_.id.head_bias ||
             (m.parameter == c_.id.head && c_.id.head != c_.id.embedding)));
  });
}

std::optional<uint32_t> gather_bucket(BlockBuilder& b, const Context& c, const ChunkPart& part, size_t index) {
  const ChunkPart::Bucket& k = part.buckets[index];
  if (c.copies(k) == 1 || !shards_optimizer(c.strategy())) return std::nullopt;
  const DType dtype = weight_dtype(c, k);
  plan::Collective body{plan::CollectiveKind::all_gather, plan::Reduction::sum, dtype, c.copies_group(k),
                        k.elements * size_of(dtype)};
  return b.op(fmt::format("{} all-gather {}", k.expert ? "edp" : "dp", index), Phase::optimizer, Stream::data, body,
              {ref(k.weight_shard)}, {ref(k.weight)});
}

}  // namespace wt::lower
