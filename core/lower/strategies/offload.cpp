// Optimizer state, weights and gradients outside the device: what moves, and what the host's cores do.
//   megatron, distributed_optimizer, ddp  the optimizer's state on the host (Megatron's CPU optimizer)
//   zero1, zero2, zero3                   ZeRO-Offload: the same; stage 3 also its shards of the weights; both on files
//                                         (ZeRO-Infinity)
//   fsdp, fsdp2                           CPU offload: shards, gradients and the update on the host
//
//   device | gradient -> (fp32)                                    weights <- (16 bit)
//   copies |          \-- to host --\                      /-- to device --/
//   host   |                         Adam on master weights ----- the host issues nothing meanwhile
//
// Host work is an op on Stream::host whose operands lie in host memory. A copy of pinned memory runs beside everything; one
// of pageable memory holds the host. Files are read and written by the host (DeepSpeed's aio is awaited at once), unless
// `overlap` puts them on the streams of copies. (facts DS-8, DS-13 to DS-15, FS1-9, FS2-8, MG-19)
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/schedule.hpp"
#include "core/lower/work.hpp"
#include "core/spec/names.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Space;
using plan::Stream;
using plan::Wait;

namespace {

bool is_torch(const StrategySpec& s) {
  return s.data_parallel == DataParallel::fsdp || s.data_parallel == DataParallel::fsdp2;
}
/// DeepSpeed's stages 1 and 2 bring the fp32 weights to the device and cast them there; everything else is cast on the host.
bool casts_on_device(const StrategySpec& s) {
  return s.data_parallel == DataParallel::zero1 || s.data_parallel == DataParallel::zero2;
}

Wait of_op(uint32_t op) { return {Wait::Kind::op, op}; }
const plan::Buffer& buffer(const Context& c, BufferRef r) { return c.plan.buffer(r.buffer); }

Compute host_cast(const Context& c, BufferRef from, BufferRef to) {
  const plan::Buffer &x = buffer(c, from), &y = buffer(c, to);
  return flat(x.dtype == y.dtype ? Kernel::copy : Kernel::cast, y.dtype, y.elements(), x.bytes().n, y.bytes().n, 0);
}

}  // namespace

bool norm_on_host(const StrategySpec& s) { return updates_on_host(s) && is_torch(s); }

Space host_space(const StrategySpec& s) { return s.offload.pinned ? Space::pinned : Space::pageable; }
Space state_space(const StrategySpec& s) {
  switch (s.offload.optimizer) {
    case OffloadDevice::none: return Space::device;
    case OffloadDevice::cpu: return host_space(s);
    case OffloadDevice::nvme: return Space::nvme;
  }
  return Space::device;
}
Space shard_space(const StrategySpec& s) {
  switch (s.offload.parameters) {
    case OffloadDevice::none: return Space::device;
    case OffloadDevice::cpu: return host_space(s);
    case OffloadDevice::nvme: return Space::nvme;
  }
  return Space::device;
}

std::vector<JobFault> offload_faults(const JobSpec& j) {
  const StrategySpec& s = j.strategy;
  const OffloadSpec& o = s.offload;
  std::vector<JobFault> out;
  const auto kind = to_text(s.data_parallel);
  const bool zero3 = s.data_parallel == DataParallel::zero3, torch = is_torch(s);
  if (o.parameters != OffloadDevice::none && !zero3 && !torch)
    out.push_back({"strategy.offload.parameters",
                   fmt::format("weights that are whole cannot leave the device ({})", kind),
                   "legal: none, or data_parallel: zero3, fsdp, fsdp2"});
  if (torch && (o.parameters == OffloadDevice::none) != (o.optimizer == OffloadDevice::none))
    out.push_back({"strategy.offload.optimizer",
                   "FSDP's CPU offload moves shards, gradients and the update: one without the other is none",
                   "legal: optimizer: cpu with parameters: cpu, or both none"});
  for (const auto& [key, device] :
       {std::pair{"strategy.offload.optimizer", o.optimizer}, {"strategy.offload.parameters", o.parameters}})
    if (device == OffloadDevice::nvme && !zero3)
      out.push_back({key, fmt::format("{} keeps nothing on files: DeepSpeed does at stage 3", kind),
                     "legal: none, cpu, or data_parallel: zero3"});
  if (zero3 && o.parameters != OffloadDevice::none && o.optimizer == OffloadDevice::none)
    out.push_back({"strategy.offload.optimizer", "DeepSpeed refuses offload_param without offload_optimizer",
                   "legal: cpu, nvme"});
  if (torch && s.fsdp.no_sync && updates_on_host(s))
    out.push_back(
        {"strategy.fsdp.no_sync", "FSDP refuses gradients that add up whole beside CPU offload", "legal: false"});
  if (torch && s.fsdp.sharding == ShardingKind::no_shard && updates_on_host(s))
    out.push_back({"strategy.offload.optimizer", "weights that are whole cannot leave the device (no_shard)",
                   "legal: fsdp.sharding: full_shard"});
  if (o.activation_layers > 0) {
    const lower::Schedule* schedule = find_schedule(s.schedule);
    if (schedule && schedule->splits_backward)
      out.push_back({"strategy.offload.activation_layers",
                     fmt::format("{} splits the backward: activations on the host cannot be planned yet", s.schedule),
                     "legal: 0, or schedule: 1f1b, interleaved"});
    if (s.recompute.kind == RecomputeKind::full && s.recompute.method == RecomputeMethod::uniform &&
        s.recompute.layers > 1)
      out.push_back({"strategy.offload.activation_layers", "with checkpoints of several layers cannot be planned yet",
                     "legal: 0, or recompute.layers: 1"});
    const int64_t layers = j.model.layers / std::max<int64_t>(1, s.pipeline * s.virtual_stages);
    if (o.activation_layers > layers)
      out.push_back({"strategy.offload.activation_layers",
                     fmt::format("{} layers of chunks of {}", o.activation_layers, layers),
                     fmt::format("legal: 0 to {}", layers)});
  }
  if (updates_on_host(s) && j.training.fp8_params)
    out.push_back({"strategy.offload.optimizer", "with fp8_params cannot be planned yet", "legal: fp8_params: false"});
  if ((updates_on_host(s) || o.parameters != OffloadDevice::none) && j.training.lora.rank > 0)
    out.push_back({"strategy.offload.optimizer", "with adapters beside frozen weights cannot be planned yet",
                   "legal: none, or lora.rank: 0"});
  if (updates_on_host(s) && s.expert > 1)
    out.push_back(
        {"strategy.offload.optimizer", "an update of experts on the host cannot be planned yet", "legal: none"});
  if (updates_on_host(s) && o.ratio < 1) {
    const bool deepspeed = s.data_parallel == DataParallel::zero1 || s.data_parallel == DataParallel::zero2;
    const bool whole =
        s.data_parallel == DataParallel::megatron || s.data_parallel == DataParallel::distributed_optimizer;
    if (deepspeed)
      out.push_back(
          {"strategy.offload.ratio", fmt::format("DeepSpeed offloads a part at stage 3 only ({})", kind), "legal: 1"});
    else if (!whole)
      out.push_back({"strategy.offload.ratio", fmt::format("a part of the optimizer of {} cannot be planned yet", kind),
                     "legal: 1, or data_parallel: distributed_optimizer, megatron"});
    if (whole && gradient_copies(s) != GradientCopies::none)
      out.push_back({"strategy.offload.ratio", "with copies of the gradients cannot be planned yet",
                     "legal: 1, or gradient_copies: none"});
    if (o.ratio == 0)
      out.push_back({"strategy.offload.ratio", "0: nothing is on the host", "legal: above 0, or optimizer: none"});
  }
  if (updates_on_host(s) && s.overlap_param_gather)
    out.push_back({"strategy.offload.optimizer", "with overlap_param_gather cannot be planned yet",
                   "legal: overlap_param_gather: false"});
  return out;
}

uint32_t host_copy(BlockBuilder& b, const Context& c, std::string_view name, Phase phase, Stream stream, BufferRef from,
                   BufferRef to, std::span<const Wait> waits) {
  const plan::Buffer &x = buffer(c, from), &y = buffer(c, to);
  WT_CHECK(x.dtype == y.dtype && x.elements() == y.elements(), "'{}' copies {} to {}", name, x.name, y.name);
  const uint32_t op =
      b.beside(name, phase, stream, plan::Copy{x.space, y.space, x.bytes().n}, Refs{from}, Refs{to}, waits);
  if (x.space != Space::pageable && y.space != Space::pageable) return op;
  return b.beside("copy on host", phase, stream, plan::HostWait{}, {}, {}, {});
}

uint32_t host_kernel(BlockBuilder& b, std::string_view name, Phase phase, Compute op, std::span<const BufferRef> reads,
                     std::span<const BufferRef> writes, std::span<const Wait> waits) {
  const uint32_t index = b.beside(name, phase, Stream::host, std::move(op), reads, writes, waits);
  b.beside("host busy", phase, Stream::host, plan::HostWait{}, {}, {}, {});
  return index;
}

void norm_to_host(BlockBuilder& b, const Context& c) {
  const Wait known[] = {tail(Stream::compute), tail(Stream::data)};
  host_copy(b, c, "norm to host", Phase::optimizer, Stream::copy_out, ref(c.grad_norm), ref(c.host_norm), known);
}

namespace {

/// State that lies on a file is read for its update and written after it.
struct State {
  BufferRef master, moment1, moment2;
};

class Update {
 public:
  Update(BlockBuilder& b, const Context& c) : b_(b), c_(c), t_(c.training()) {}

  /// The gradient, in what the host adds up, on its way to it; the op that it is there after.
  std::optional<uint32_t> send(const HostUpdate& u) {
    if (!u.gradient.buffer.valid()) return std::nullopt;
    BufferRef from = u.gradient;
    std::vector<Wait> waits{tail(Stream::compute), tail(Stream::data), tail(Stream::replica)};
    if (u.host->wide.valid() && buffer(c_, from).dtype != DType::f32) {
      const BufferRef wide = ref(u.host->wide);
      b_.compute("gradients to fp32", Phase::optimizer, host_cast(c_, from, wide), {from}, {wide});
      waits = {tail(Stream::compute)};
      from = wide;
    }
    return host_copy(b_, c_, "gradients to host", Phase::optimizer, Stream::copy_out, from, ref(u.host->gradient),
                     waits);
  }

  /// `sent`: of what it waits for; nothing: for all that moves.
  void update(const HostUpdate& u, std::optional<uint32_t> sent) {
    const State s = read(u);
    const BufferRef g = ref(u.host->gradient);
    const bool clipped = t_.gradient_clipping > 0, adam_kind = t_.optimizer == OptimizerKind::adam;
    Refs reads{g};
    if (clipped) reads.push_back(ref(c_.host_norm));
    reads.push_back(s.master);
    Refs writes{s.master, s.master};
    const plan::Buffer& m = buffer(c_, s.master);
    const int64_t n = m.elements(), gradient = size_of(buffer(c_, g).dtype), state = size_of(m.dtype);
    Compute op;
    if (adam_kind) {
      for (const BufferRef& x : {s.moment1, s.moment2}) {
        reads.push_back(x);
        writes.push_back(x);
      }
      op = adam(n, {gradient, state, 2 * size_of(t_.moment_dtype), 0}, t_.fused_optimizer, clipped);
    } else {
      op = flat(Kernel::sgd, DType::f32, n, n * (gradient + state), n * state, 2);
    }
    op.scalar = t_.gradient_clipping;
    std::vector<Wait> there{tail(Stream::copy_out), tail(Stream::replica)};
    if (sent) there = {of_op(*sent)};
    host_kernel(b_, adam_kind ? "adam on host" : "sgd on host", Phase::optimizer, op, reads, writes, there);
    back(u, s.master);  // before the state leaves: the copy to a file is then what releases its room
    write(u, s);
  }

 private:
  bool on_file(BufferId id) const { return id.valid() && c_.plan.buffer(id).space == Space::nvme; }
  /// DeepSpeed awaits a file at once; pipeline_write lets a write run beside the host.
  Stream writes_on() const { return c_.strategy().offload.overlap ? Stream::copy_out : Stream::host; }

  State read(const HostUpdate& u) {
    State s{ref(u.master), ref(u.moment1), ref(u.moment2)};
    for (const auto& [of, swap] :
         {std::pair{&s.master, u.host->master}, {&s.moment1, u.host->moment1}, {&s.moment2, u.host->moment2}}) {
      if (!on_file(of->buffer)) continue;
      host_copy(b_, c_, "read state", Phase::optimizer, Stream::host, *of, ref(swap), {});
      *of = ref(swap);
    }
    return s;
  }
  void write(const HostUpdate& u, const State& s) {
    const Wait updated[] = {tail(Stream::host)};
    for (const auto& [id, from] : {std::pair{u.master, s.master}, {u.moment1, s.moment1}, {u.moment2, s.moment2}})
      if (on_file(id)) host_copy(b_, c_, "write state", Phase::optimizer, writes_on(), from, ref(id), updated);
  }
  /// The new weights to where the model finds them.
  void back(const HostUpdate& u, BufferRef master) {
    if (!u.weights.buffer.valid()) return;
    const Wait updated[] = {tail(Stream::host)};
    const plan::Buffer& w = buffer(c_, u.weights);
    const bool same = w.dtype == buffer(c_, master).dtype;
    if (w.space == Space::nvme) {
      const BufferRef swapped = ref(u.host->swapped);
      host_kernel(b_, "weights on host", Phase::optimizer, host_cast(c_, master, swapped), Refs{master}, Refs{swapped},
                  {});
      host_copy(b_, c_, "write weights", Phase::optimizer, writes_on(), swapped, u.weights, updated);
    } else if (w.space != Space::device) {
      host_kernel(b_, "weights on host", Phase::optimizer, host_cast(c_, master, u.weights), Refs{master},
                  Refs{u.weights}, {});
    } else if (same) {
      host_copy(b_, c_, "weights to device", Phase::optimizer, Stream::copy_in, master, u.weights, updated);
      await_weights();
    } else if (casts_on_device(c_.strategy())) {
      const BufferRef wide = ref(u.host->wide);
      const uint32_t op =
          host_copy(b_, c_, "weights to device", Phase::optimizer, Stream::copy_in, master, wide, updated);
      await_weights();
      b_.before_next_compute(of_op(op));
      b_.compute("weights to 16 bits", Phase::optimizer, host_cast(c_, wide, u.weights), {wide}, {u.weights});
    } else {
      const BufferRef narrow = ref(u.host->weight);
      host_kernel(b_, "weights on host", Phase::optimizer, host_cast(c_, master, narrow), Refs{master}, Refs{narrow},
                  {});
      host_copy(b_, c_, "weights to device", Phase::optimizer, Stream::copy_in, narrow, u.weights, updated);
      await_weights();
    }
  }
  /// Without overlap the host goes on when the weights are back.
  void await_weights() {
    if (!c_.strategy().offload.overlap)
      b_.beside("weights back", Phase::optimizer, Stream::copy_in, plan::HostWait{}, {}, {}, {});
  }

  BlockBuilder& b_;
  const Context& c_;
  const TrainingSpec& t_;
};

}  // namespace

void update_on_host(BlockBuilder& b, const Context& c, std::span<const HostUpdate> all,
                    const std::function<void()>& beside) {
  // Without overlap the host begins when everything is there.
  Update update(b, c);
  std::vector<std::optional<uint32_t>> sent;
  for (const HostUpdate& u : all) sent.push_back(update.send(u));
  if (beside) beside();
  for (size_t i = 0; i < all.size(); ++i) update.update(all[i], c.strategy().offload.overlap ? sent[i] : std::nullopt);
}

void master_on_host(BlockBuilder& b, const Context& c, BufferRef weights, BufferId master, const HostSide& host) {
  const Phase phase = Phase::optimizer_state;
  const Wait loaded[] = {tail(Stream::compute), tail(Stream::host)};
  const plan::Buffer& w = buffer(c, weights);
  const bool on_file = c.plan.buffer(master).space == Space::nvme;
  const BufferRef to = ref(on_file ? host.master : master);
  b.op("master weights", phase, Stream::compute, plan::Join{}, {}, {});
  b.reserve_here(ref(master));
  BufferRef from = weights;
  if (w.space == Space::device || w.space == Space::nvme) {
    const BufferRef here = w.dtype == DType::f32 ? to : ref(w.space == Space::nvme ? host.swapped : host.weight);
    const Stream stream = w.space == Space::nvme ? Stream::host : Stream::copy_out;
    host_copy(b, c, "weights to host", phase, stream, weights, here, loaded);
    from = here;
  }
  const Wait here[] = {tail(Stream::copy_out), tail(Stream::compute)};
  if (from != to) host_kernel(b, "master weights", phase, host_cast(c, from, to), Refs{from}, Refs{to}, here);
  if (on_file) {
    const Wait made[] = {tail(Stream::host), tail(Stream::copy_out)};
    host_copy(b, c, "write state", phase, Stream::host, to, ref(master), made);
  }
}

void moment_on_host(BlockBuilder& b, const Context& c, BufferId moment, const char* name) {
  const plan::Buffer& m = c.plan.buffer(moment);
  const BufferRef writes[] = {ref(moment)};
  b.beside(name, Phase::optimizer_state, Stream::host,
           flat(Kernel::fill_zero, m.dtype, m.elements(), 0, m.bytes().n, 0), {}, writes, {});
  b.reserve_here(ref(moment));
}

}  // namespace wt::lower
