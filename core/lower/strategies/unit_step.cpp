// Sharded data parallelism, beside the micro-batches: what a rank loads and keeps, the norm, the update of its shard, and
// for weights that are whole all the time (ZeRO 2, small parameters of ZeRO 3) the gathering of what was updated.
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

/// Calls f for the flats of the layers, in a segment that runs over them, then for the others.
template <class F>
void each_flat(BlockBuilder& b, const ChunkPart& part, F&& f) {
  auto some = [&](bool per_layer) {
    for (const Unit& u : part.units)
      if (u.per_layer() == per_layer)
        for (const Flat& x : u.flats) f(x);
  };
  if (part.layers > 0) {
    b.segment(0, 1, part.layers);
    some(true);
  }
  b.segment(-1);
  some(false);
}

const plan::Buffer& buffer(const Context& c, BufferId id) { return c.plan.buffer(id); }

/// What the optimizer updates, and the copy of it that the model computes with.
BufferId trained(const Flat& f) { return f.master.valid() ? f.master : f.shard; }

}  // namespace

void unit_setup_blocks(Context& c, ChunkPart& part) {
  const std::string& name = c.plan.parts[part.id.v].name;
  // `copy` is held while all is filled, if it is valid.
  auto block = [&](const char* what, auto&& fill, BufferId copy = {}, Phase phase = {}) {
    BlockBuilder b(c.plan, std::string(what) + " " + name, part.id, BlockBuilder::Lifetimes::other);
    if (copy.valid()) {
      b.segment(-1);
      b.op("copy for the start", phase, Stream::compute, plan::Join{}, {}, {});
      b.reserve_here(ref(copy));
    }
    each_flat(b, part, [&](const Flat& f) { fill(b, f); });
    if (copy.valid()) {
      if (c.training().lora.rank > 0) {  // the last of the flats may be frozen: nothing was made of it
        b.segment(-1);
        b.op("states made", phase, Stream::compute, plan::Join{}, {}, {});
      }
      b.release_here(ref(copy));
      b.segment(-1);
      b.op("copy dropped", phase, Stream::compute, plan::Join{}, {}, {});  // where the report reads what stays
    }
    return c.add_block(b.finish());
  };
  part.load = block("load", [&](BlockBuilder& b, const Flat& f) {
    const BufferId kept = f.resident ? f.weights : f.shard;
    b.op("load weights", Phase::load, Stream::compute, plan::Join{}, {}, {ref(kept)});
    b.reserve_here(ref(kept));
  });
  const bool on_host = updates_on_host(c.strategy());
  part.master = block(
      "master weights",
      [&](BlockBuilder& b, const Flat& f) {
        if (on_host) {
          b.op("gradients on host", Phase::optimizer_state, Stream::compute, plan::Join{}, {}, {});
          for (const BufferId id : {f.host.gradient, f.host.sum})
            if (id.valid()) b.reserve_here(ref(id));
          if (f.master.valid()) master_on_host(b, c, ref(f.shard), f.master, f.host);
          return;
        }
        if (!f.master.valid()) return;
        const plan::Buffer& m = buffer(c, f.master);
        b.compute("master weights", Phase::optimizer_state,
                  flat(Kernel::cast, DType::f32, m.elements(), m.elements() * size_of(c.act), m.bytes().n, 0),
                  {ref(f.shard)}, {ref(f.master)});
        b.reserve_here(ref(f.master));
      },
      part.clone, Phase::optimizer_state);
  part.moments = block(
      "optimizer states",
      [&](BlockBuilder& b, const Flat& f) {
        for (const BufferId id : {f.moment1, f.moment2}) {
          if (!id.valid()) continue;
          if (on_host) {
            moment_on_host(b, c, id, id == f.moment1 ? "moment 1" : "moment 2");
            continue;
          }
          const plan::Buffer& m = buffer(c, id);
          b.compute(id == f.moment1 ? "moment 1" : "moment 2", Phase::optimizer_state,
                    flat(Kernel::fill_zero, m.dtype, m.elements(), 0, m.bytes().n, 0), {}, {ref(id)});
          b.reserve_here(ref(id));
        }
      },
      part.first_step, Phase::optimizer_state);
}

void unit_step_blocks(Context& c, ChunkPart& part) {
  const std::string& name = c.plan.parts[part.id.v].name;
  const TrainingSpec& t = c.training();
  const bool clipped = t.gradient_clipping > 0;
  auto begin = [&](BlockBuilder& b) {
    for (const Stream s : {Stream::data, Stream::replica, Stream::tensor}) b.before_next_compute(tail(s));
  };
  const bool on_host = updates_on_host(c.strategy());
  if (clipped && on_host && norm_on_host(c.strategy())) {
    BlockBuilder b(c.plan, "gradient norm " + name, part.id, BlockBuilder::Lifetimes::other);
    each_flat(b, part, [&](const Flat& f) {
      const plan::Buffer& g = buffer(c, f.host.gradient);
      Compute op = flat(Kernel::square_sum, g.dtype, g.elements(), g.bytes().n, 4, 2);
      Refs reads{ref(f.host.gradient)};
      if (f.tensor_duplicate) {
        op.group = c.tp;
        reads.push_back(ref(f.host.gradient));
      }
      const BufferRef sum[] = {ref(c.host_norm)};
      const Wait there[] = {tail(Stream::replica)};
      host_kernel(b, "gradient norm on host", Phase::optimizer, op, reads, sum, there);
    });
    part.sum_squares = c.add_block(b.finish());
  }
  if (clipped && !on_host) {
    BlockBuilder b(c.plan, "gradient norm " + name, part.id, BlockBuilder::Lifetimes::other);
    begin(b);
    each_flat(b, part, [&](const Flat& f) {
      if (f.frozen) return;
      const plan::Buffer& g = buffer(c, f.shard_gradient);
      Compute op = flat(Kernel::square_sum, g.dtype, g.elements(), g.bytes().n, 4, 2);
      Refs reads{ref(f.shard_gradient)};
      if (f.tensor_duplicate) {
        op.group = c.tp;
        reads.push_back(ref(f.shard_gradient));
      }
      const BufferRef sum[] = {ref(c.grad_norm)};
      b.op("gradient norm", Phase::optimizer, Stream::compute, op, reads, sum);
    });
    part.sum_squares = c.add_block(b.finish());
  }
  if (on_host) {
    BlockBuilder b(c.plan, "update " + name, part.id, BlockBuilder::Lifetimes::other);
    each_flat(b, part, [&](const Flat& f) {
      HostUpdate u{{}, {}, trained(f), f.moment1, f.moment2, &f.host};
      if (f.master.valid()) u.weights = ref(f.shard);
      update_on_host(b, c, {&u, 1});
    });
    b.segment(-1);
    b.op("weights back", Phase::optimizer, Stream::compute, plan::Join{}, {}, {},
         {tail(Stream::copy_in), tail(Stream::copy_out)});
    part.update = c.add_block(b.finish());
  } else {
    BlockBuilder b(c.plan, "update " + name, part.id, BlockBuilder::Lifetimes::other);
    begin(b);
    // DeepSpeed widens all that the rank owns before it updates any of it: 18 bytes a parameter of the part, as its own
    // estimators count (DS-7).
    each_flat(b, part, [&](const Flat& f) {
      if (!f.main_gradient.valid()) return;
      const plan::Buffer& g = buffer(c, f.shard_gradient);
      b.compute("gradients to fp32", Phase::optimizer,
                flat(Kernel::cast, DType::f32, g.elements(), g.bytes().n, g.elements() * 4, 0), {ref(f.shard_gradient)},
                {ref(f.main_gradient)});
    });
    each_flat(b, part, [&](const Flat& f) {
      if (f.frozen) return;
      const plan::Buffer& p = buffer(c, trained(f));
      const BufferRef g = ref(f.main_gradient.valid() ? f.main_gradient : f.shard_gradient);
      const BufferRef master = ref(trained(f)), w = ref(f.shard);
      const int64_t n = p.elements(), gradient = size_of(buffer(c, g.buffer).dtype), state = size_of(p.dtype);
      const int64_t copy = f.master.valid() ? size_of(c.act) : 0;
      Refs reads{g};
      if (clipped) reads.push_back(ref(c.grad_norm));
      reads.push_back(master);
      Refs writes{w, master};
      Compute op;
      if (t.optimizer == OptimizerKind::adam) {
        for (const BufferId m : {f.moment1, f.moment2}) {
          reads.push_back(ref(m));
          writes.push_back(ref(m));
        }
        op = adam(n, {gradient, state, 2 * size_of(t.moment_dtype), copy}, t.fused_optimizer, clipped);
      } else {
        op = flat(Kernel::sgd, DType::f32, n, n * (gradient + state), n * (state + copy), 2);
      }
      op.scalar = t.gradient_clipping;
      b.op(t.optimizer == OptimizerKind::adam ? "adam" : "sgd", Phase::optimizer, Stream::compute, op, reads, writes);
      b.release_here(ref(f.shard_gradient));
    });
    part.update = c.add_block(b.finish());
  }
  // One call for all, as DeepSpeed gathers a parameter group.
  Refs from, to;
  int64_t bytes = 0;
  for (const Unit& u : part.units)
    for (const Flat& f : u.flats) {
      if (!f.resident || f.shard == f.weights) continue;
      for (int64_t layer = 0; layer < (u.per_layer() ? part.layers : 1); ++layer) {
        from.push_back(ref(f.shard, layer));
        to.push_back(ref(f.weights, layer));
        bytes += buffer(c, f.weights).bytes().n;
      }
    }
  if (from.empty()) return;
  BlockBuilder b(c.plan, "gather " + name, part.id, BlockBuilder::Lifetimes::other);
  b.segment(0);
  b.op("dp all-gather", Phase::optimizer, Stream::data,
       plan::Collective{plan::CollectiveKind::all_gather, plan::Reduction::sum, c.act, c.shard, bytes}, from, to);
  b.op("weights ready", Phase::optimizer, Stream::compute, plan::Join{}, {}, {}, {tail(Stream::data)});
  part.gather = c.add_block(b.finish());
}

}  // namespace wt::lower
