// Sharded data parallelism, what is cut: weights and gradients in units that are gathered and reduced on their own.
//   fsdp, fsdp2  PyTorch: a unit is a block (or the model); kept as fp32 shards, gathered in the dtype of compute
//   zero3        DeepSpeed: modules of a block, coalesced up to the prefetch bucket; small parameters are never released
//   zero2        whole weights, gradients and optimizer cut
// A unit's parameters lie flat, one behind the other, padded to the shard group, as FSDP 1 and DeepSpeed lay them; FSDP 2
// pads each by itself. With tensor parallelism those that are equal on all its ranks lie apart, so that the norm counts
// them once; both are moved by one collective.
// Not when they are moved: unit_passes.cpp; not the step: unit_step.cpp. (facts FS1-2, FS1-3, FS2-1, FS2-2, DS-3, DS-9, DS-12)
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::Role;
using plan::Scope;

bool has_units(const StrategySpec& s) {
  return s.data_parallel == DataParallel::zero2 || s.data_parallel == DataParallel::zero3 ||
         s.data_parallel == DataParallel::fsdp || s.data_parallel == DataParallel::fsdp2;
}

namespace {

bool is_fsdp(const StrategySpec& s) {
  return s.data_parallel == DataParallel::fsdp || s.data_parallel == DataParallel::fsdp2;
}

}  // namespace

ShardSizes shard_sizes(const JobSpec& job, int64_t data) {
  const StrategySpec& s = job.strategy;
  ShardSizes out;
  if (!has_units(s)) return out;
  out.shard = data;
  if (s.data_parallel == DataParallel::zero3) out.near = s.zero.secondary_shard;
  if (!is_fsdp(s)) return out;
  switch (s.fsdp.sharding) {
    case ShardingKind::full_shard:
    case ShardingKind::shard_grad_op: break;
    case ShardingKind::no_shard: out.shard = 1; break;
    case ShardingKind::hybrid_shard:
    case ShardingKind::hybrid_shard_zero2:
      out.shard = s.fsdp.shard_size > 0
                      ? s.fsdp.shard_size
                      : std::clamp<int64_t>(job.cluster.node.devices / std::max<int64_t>(1, s.tensor), 1, data);
      break;
  }
  if (s.data_parallel == DataParallel::fsdp2 && s.fsdp.reshard_after_forward > 1)
    out.near = s.fsdp.reshard_after_forward;
  return out;
}

bool reshards(const StrategySpec& s) {
  switch (s.data_parallel) {
    case DataParallel::zero3: return true;
    case DataParallel::fsdp2: return s.fsdp.reshard_after_forward != 0;
    case DataParallel::fsdp:
      return s.fsdp.sharding == ShardingKind::full_shard || s.fsdp.sharding == ShardingKind::hybrid_shard;
    default: return false;
  }
}

bool keeps_across_micro_batches(const Context& c) {
  const StrategySpec& s = c.strategy();
  // fully_shard leaves weights whole from one micro-batch to the next where torch's pipeline stages say so (stage.py,
  // backward_maybe_with_nosync: set_reshard_after_backward(False) but for the last).
  const bool stays = s.data_parallel == DataParallel::fsdp || (s.data_parallel == DataParallel::fsdp2 && c.n.p > 1);
  return stays && s.fsdp.no_sync && c.n.micro_batches > 1 && !reshards(s);
}

DType wire_dtype(const Context& c) { return c.strategy().gradient_dtype; }

DType kept_dtype(const Context& c) {
  const TrainingSpec& t = c.training();
  return is_fsdp(c.strategy()) && (t.master_weights || t.param_dtype == DType::f32) ? DType::f32 : c.act;
}

int64_t layer_elements(const Context& c) {
  int64_t n = 0;
  for (const Parameter& q : c.parameters)
    if (q.per_layer) n += q.elements;
  return n;
}

namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Draft {
  std::string name;
  Unit::Span span;
  std::vector<int> parameters;
  bool resident = false;
};

/// Parameters of a block, module by module, in the order in which the forward reads them.
std::vector<std::vector<int>> modules(const Context& c) {
  const ParameterIds& id = c.id;
  const auto& a = c.adapters;
  return {{id.norm1_gamma, id.norm1_beta}, {id.qkv, id.qkv_bias},   {a[0].a, a[0].b},
          {id.q_gamma, id.k_gamma},        {id.proj, id.proj_bias}, {a[1].a, a[1].b},
          {id.norm2_gamma, id.norm2_beta}, {id.fc1, id.fc1_bias},   {a[2].a, a[2].b},
          {id.fc2, id.fc2_bias},           {a[3].a, a[3].b}};
}

/// DeepSpeed gathers what the next modules need in one call until it has prefetch_elements; what is small stays.
void stage3_modules(const Context& c, std::vector<Draft>& out) {
  const ZeroSpec& z = c.strategy().zero;
  Draft small{"small", Unit::Span::layer, {}, true};
  int64_t open = 0;
  int count = 0;
  for (const auto& module : modules(c)) {
    std::vector<int> large;
    int64_t elements = 0;
    for (int k : module) {
      if (!c.has(k)) continue;
      const int64_t n = c.parameters[static_cast<size_t>(k)].elements;
      (n <= z.persistence_threshold ? small.parameters : large).push_back(k);
      if (n > z.persistence_threshold) elements += n;
    }
    if (large.empty()) continue;
    if (open == 0 || open >= z.prefetch_elements) {
      out.push_back({fmt::format("modules{}", count++), Unit::Span::layer, {}, false});
      open = 0;
    }
    auto& into = out.back().parameters;
    into.insert(into.end(), large.begin(), large.end());
    open += elements;
  }
  if (!small.parameters.empty()) out.push_back(small);
}

std::vector<Draft> drafts(const Context& c, const ChunkPart& part) {
  const StrategySpec& s = c.strategy();
  const ParameterIds& id = c.id;
  std::vector<Draft> out;
  auto add = [&](std::vector<int>& into, std::initializer_list<int> some) {
    for (int k : some)
      if (c.has(k) && std::find(into.begin(), into.end(), k) == into.end()) into.push_back(k);
  };
  std::vector<int> layer, first, last;
  for (size_t k = 0; k < c.parameters.size(); ++k)
    if (c.parameters[k].per_layer) layer.push_back(static_cast<int>(k));
  if (part.embedding) add(first, {id.embedding, id.position, id.embedding_gamma, id.embedding_beta});
  if (part.head) add(last, {id.final_gamma, id.final_beta, id.head, id.head_bias});
  const bool resident = s.data_parallel == DataParallel::zero2;
  const bool model = is_fsdp(s) && s.fsdp.wrap == WrapKind::model;
  if (s.data_parallel == DataParallel::zero3)
    stage3_modules(c, out);
  else if (!model)
    out.push_back({"block", Unit::Span::layer, layer, resident});
  const bool ends = s.data_parallel == DataParallel::zero3 || (is_fsdp(s) && s.fsdp.wrap == WrapKind::block_and_ends);
  if (ends && id.head != id.embedding) {
    if (part.embedding) out.push_back({"embedding", Unit::Span::embedding, first, false});
    if (part.head) out.push_back({"head", Unit::Span::head, last, false});
    return out;
  }
  // What is left on a last stage is norm and head alone: nothing needs it before the head.
  Draft root{model ? "model" : "root", part.embedding ? Unit::Span::root : Unit::Span::head, first, resident};
  if (model) root.parameters.insert(root.parameters.end(), layer.begin(), layer.end());
  for (int k : last) add(root.parameters, {k});
  if (!root.parameters.empty()) out.push_back(std::move(root));
  return out;
}

class Maker {
 public:
  Maker(Context& c, ChunkPart& part)
      : c_(c), part_(part), out_(c.plan.parts[part.id.v]), sizes_(shard_sizes(c.job, c.n.dp)) {}

  void make(const Draft& d) {
    Unit u;
    u.name = d.name;
    u.span = d.span;
    for (const auto& [frozen, duplicate] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      Flat f;
      f.frozen = frozen;
      f.tensor_duplicate = duplicate;
      f.resident = d.resident;
      lay_out(d, f);
      if (f.members.empty()) continue;
      buffers(u, f);
      views(u, f);
      u.flats.push_back(std::move(f));
    }
    part_.units.push_back(std::move(u));
  }

 private:
  const Parameter& parameter(int k) const { return c_.parameters[static_cast<size_t>(k)]; }

  /// In order; of a model's unit the blocks lie one behind the other.
  void lay_out(const Draft& d, Flat& f) {
    std::vector<int> mine;
    for (int k : d.parameters)
      if (parameter(k).tensor_duplicate == f.tensor_duplicate && parameter(k).frozen == f.frozen) mine.push_back(k);
    const bool stacked = d.span != Unit::Span::layer;
    if (stacked)
      for (int k : mine)
        if (parameter(k).per_layer) f.layer_elements += parameter(k).elements;
    int64_t at = 0;
    bool behind = false;
    for (int k : mine) {
      if (stacked && behind && !parameter(k).per_layer) at += f.layer_elements * (part_.layers - 1), behind = false;
      f.members.push_back({k, at});
      at += parameter(k).elements;
      behind |= stacked && parameter(k).per_layer;
    }
    if (behind) at += f.layer_elements * (part_.layers - 1);
    used_ = at;
    f.elements = round_up(std::max<int64_t>(at, 1), sizes_.shard * (sizes_.near > 1 ? sizes_.near : 1));
    if (d.span == Unit::Span::layer) {
      out_.parameters += at * part_.layers;
    } else {
      out_.parameters += at;
    }
  }

  BufferId make(const Unit& u, const Flat& f, const char* what, Role role, DType dtype, int64_t elements, Scope scope,
                bool owned, bool view = false) {
    Buffer b;
    b.name = fmt::format("{}.{}{}{}", u.name, what, f.frozen ? ".frozen" : "", f.tensor_duplicate ? ".duplicates" : "");
    if (c_.n.p > 1) b.name += "." + out_.name;  // each part of a stage has its own
    b.role = role;
    b.dtype = dtype;
    b.scope = scope;
    b.per_layer = u.per_layer();
    b.view = view;
    b.shape = {elements};
    const BufferId id = c_.add_buffer(std::move(b));
    if (owned) out_.persistent.push_back(id);
    return id;
  }

  void place(const Unit& u, BufferId buffer, BufferId base, int64_t offset, int64_t stride, GroupId shard) {
    const bool layered = c_.plan.buffer(buffer).per_layer;
    out_.views.push_back({buffer, base, 0, layered ? part_.layers : 0, offset, u.per_layer() ? 0 : stride, shard});
  }

  void buffers(const Unit& u, Flat& f) {
    const StrategySpec& s = c_.strategy();
    const TrainingSpec& t = c_.training();
    const bool fsdp = is_fsdp(s), fsdp2 = s.data_parallel == DataParallel::fsdp2;
    const int64_t whole = f.elements, piece = whole / sizes_.shard;
    const bool cut = sizes_.shard > 1;
    const DType kept = f.frozen ? c_.act : kept_dtype(c_), wire = wire_dtype(c_);
    const bool adam = t.optimizer == OptimizerKind::adam;
    const bool on_host = updates_on_host(s);
    if (fsdp && !cut && kept == c_.act && !on_host) f.resident = true;

    if (f.resident) {
      f.weights = make(u, f, "weights", Role::weight, c_.act, whole, Scope::persistent, true);
      f.shard = f.weights;
      if (cut && !f.frozen) {
        f.shard = make(u, f, "weights_shard", Role::weight, c_.act, piece, Scope::persistent, false, true);
        place(u, f.shard, f.weights, 0, 0, c_.shard);
      }
    } else {
      const Scope scope = keeps_across_micro_batches(c_) ? Scope::persistent : Scope::micro_batch;
      f.weights = make(u, f, "weights", Role::weight, c_.act, whole, scope, false);
      f.shard = make(u, f, "shard", kept == c_.act ? Role::weight : Role::master, kept, piece, Scope::persistent, true);
      place(u, f.shard, f.weights, 0, 0, cut ? c_.shard : GroupId{});
      if (kept != c_.act && cut)
        f.low = make(u, f, "shard_cast", Role::bucket, c_.act, piece, Scope::invocation, false);
      const bool coalesced = fsdp2 || f.members.size() > 1;
      if (cut && coalesced && (fsdp2 || s.data_parallel == DataParallel::zero3))
        f.gathered = make(u, f, "weights_gathered", Role::bucket, c_.act, whole, Scope::invocation, false);
      if (sizes_.near > 1 && u.per_layer())
        f.near = make(u, f, "weights_near", Role::weight, c_.act, whole / sizes_.near, Scope::micro_batch, false);
      if (cut && s.data_parallel == DataParallel::zero3 && s.zero.quantized_weights) {
        f.narrow = make(u, f, "shard_8bit", Role::bucket, DType::f8, piece, Scope::invocation, false);
        if (f.near.valid())
          f.near_narrow =
              make(u, f, "near_8bit", Role::bucket, DType::f8, whole / sizes_.near, Scope::invocation, false);
        f.narrow_gathered = make(u, f, "weights_8bit", Role::bucket, DType::f8, whole, Scope::invocation, false);
      }
    }
    if (f.frozen) return;
    // In fp32 the weights on the device are a copy of those that the host updates, unless they are there themselves.
    const bool copied = on_host && !fsdp && s.offload.parameters == OffloadDevice::none;
    if (!fsdp && ((t.master_weights && c_.act != DType::f32) || copied)) {
      f.master = make(u, f, "master", Role::master, DType::f32, piece, Scope::persistent, true);
      if (!f.resident) place(u, f.master, f.weights, 0, 0, c_.shard);
    }
    if (adam) {
      f.moment1 = make(u, f, "moment1", Role::moment1, t.moment_dtype, piece, Scope::persistent, true);
      f.moment2 = make(u, f, "moment2", Role::moment2, t.moment_dtype, piece, Scope::persistent, true);
    }

    if (!f.resident && shard_space(s) != plan::Space::device) move_shard(u, f, kept, piece);

    f.gradient = make(u, f, "grads", Role::gradient, c_.grad, whole, Scope::invocation, false);
    if (whole > used_) {
      f.padding = make(u, f, "grads_padding", Role::gradient, c_.grad, whole - used_, Scope::invocation, false, true);
      place(u, f.padding, f.gradient, used_, 0, {});
    }
    DType source = c_.grad;
    if (fsdp && s.fsdp.no_sync && c_.n.micro_batches > 1) {
      if (fsdp2) source = wire;
      f.accumulated = make(u, f, "grads_whole", Role::gradient, source, whole, Scope::persistent, false);
    }
    if (wire != source || (fsdp2 && cut))
      f.wire = make(u, f, "grads_wire", Role::bucket, wire, whole, Scope::invocation, false);
    const DType sum = fsdp ? kept : wire;
    if (on_host) return move_update(u, f, sum, piece);
    f.shard_gradient = make(u, f, "grads_shard", Role::gradient, sum, piece, Scope::persistent, false);
    f.direct = cut && wire == sum && !c_.replicas.valid() && s.data_parallel != DataParallel::zero2;
    const bool adds = c_.n.micro_batches > 1 && !f.accumulated.valid();  // several reductions in a step
    if (cut && (adds || (!f.direct && s.data_parallel != DataParallel::zero2)))
      f.reduced = make(u, f, "grads_reduced", Role::bucket, wire, piece, Scope::invocation, false);
    if (f.master.valid() && sum != DType::f32)
      f.main_gradient = make(u, f, "main_grads", Role::gradient, DType::f32, piece, Scope::invocation, false);
  }

  BufferId on(plan::Space space, BufferId id) {
    if (id.valid()) c_.plan.buffers[id.v].space = space;
    return id;
  }

  /// The shard lies on the host or in a file and comes to the device for each gather.
  void move_shard(const Unit& u, Flat& f, DType kept, int64_t piece) {
    const StrategySpec& s = c_.strategy();
    on(shard_space(s), f.shard);
    if (sizes_.shard > 1 || kept != c_.act)
      f.host.staged = make(u, f, "shard_staged", Role::bucket, kept, piece, Scope::invocation, false);
    if (shard_space(s) == plan::Space::nvme)
      f.host.swapped =
          on(host_space(s), make(u, f, "shard_swapped", Role::copy, kept, piece, Scope::invocation, false));
  }

  /// What strategies/offload.cpp and the reduction need of a flat whose update runs on the host. `sum`: the dtype in which
  /// gradients of micro-batches add up: FSDP adds on the host in that of the shard, DeepSpeed on the device in that of the
  /// wire and sends the host fp32 in the end.
  void move_update(const Unit& u, Flat& f, DType sum, int64_t piece) {
    const StrategySpec& s = c_.strategy();
    const bool fsdp = is_fsdp(s), several = c_.n.micro_batches > 1;
    const plan::Space host = host_space(s);
    const DType wire = wire_dtype(c_);
    for (BufferId* state : {&f.master, &f.moment1, &f.moment2}) on(state_space(s), *state);
    if (state_space(s) == plan::Space::nvme) {
      const DType trained = f.master.valid() ? DType::f32 : c_.plan.buffer(f.shard).dtype;
      const DType moment = c_.training().moment_dtype;
      auto swap = [&](const char* what, DType dtype) {
        return on(host, make(u, f, what, Role::copy, dtype, piece, Scope::invocation, false));
      };
      // Without master weights the shard itself is trained, wherever it lies.
      if (f.master.valid() || c_.plan.buffer(f.shard).space == plan::Space::nvme)
        f.host.master = swap("master_swapped", trained);
      if (f.moment1.valid()) f.host.moment1 = swap("moment1_swapped", moment);
      if (f.moment2.valid()) f.host.moment2 = swap("moment2_swapped", moment);
    }
    f.reduced = make(u, f, "grads_reduced", Role::bucket, wire, piece, Scope::invocation, false);
    const DType sent = fsdp ? sum : DType::f32;
    f.host.gradient = on(host, make(u, f, "host_grads", Role::gradient, sent, piece, Scope::persistent, true));
    if (fsdp && several)
      f.host.incoming = on(host, make(u, f, "host_grads_incoming", Role::copy, sent, piece, Scope::invocation, false));
    if (!fsdp && several) {
      f.host.before = make(u, f, "grads_before", Role::bucket, wire, piece, Scope::invocation, false);
      if (wire != sent)
        f.host.sum = on(host, make(u, f, "host_sums", Role::gradient, wire, piece, Scope::persistent, true));
    }
    const bool brings_wide = s.data_parallel == DataParallel::zero2 && c_.act != DType::f32;
    if (wire != sent || brings_wide)
      f.host.wide = make(u, f, "main_grads", Role::gradient, sent, piece, Scope::invocation, false);
    if (!fsdp && c_.act != DType::f32)
      f.host.weight = on(host, make(u, f, "host_weights", Role::copy, c_.act, piece, Scope::invocation, false));
  }

  void views(const Unit& u, const Flat& f) {
    for (const Flat::Member& m : f.members) {
      place(u, parameter(m.parameter).weight, f.weights, m.offset, f.layer_elements, {});
      if (!f.frozen) place(u, parameter(m.parameter).gradient, f.gradient, m.offset, f.layer_elements, {});
    }
  }

  Context& c_;
  ChunkPart& part_;
  plan::Part& out_;
  ShardSizes sizes_;
  int64_t used_ = 0;  // elements before the padding
};

/// DeepSpeed's stages 1 and 2 are one optimizer (stage_1_and_2.py): at start-up it clones what the rank owns for the master
/// weights, and makes its states in a step on fp32 gradients of zero, each in one piece.
void make_start_up_copies(Context& c, ChunkPart& part) {
  int64_t owned = 0;
  bool master = false;
  for (const Unit& u : part.units)
    for (const Flat& f : u.flats) {
      if (f.frozen) continue;
      owned += c.plan.buffer(f.shard).elements() * (u.per_layer() ? part.layers : 1);
      master |= f.master.valid();
    }
  auto make = [&](const char* what, DType dtype) {
    Buffer b;
    b.name = fmt::format("{}.{}", what, c.plan.parts[part.id.v].name);
    b.role = Role::copy;
    b.dtype = dtype;
    b.shape = {owned};
    return c.add_buffer(std::move(b));
  };
  if (master) part.clone = make("weights_clone", c.act);
  if (c.training().optimizer == OptimizerKind::adam) part.first_step = make("first_step", DType::f32);
}

}  // namespace

void make_units(Context& c, ChunkPart& part) {
  Maker maker(c, part);
  for (const Draft& d : drafts(c, part)) maker.make(d);
  // With offload the copies are the host's, before its buffers are pinned.
  if (c.strategy().data_parallel == DataParallel::zero2 && !updates_on_host(c.strategy()))
    make_start_up_copies(c, part);
}

}  // namespace wt::lower
