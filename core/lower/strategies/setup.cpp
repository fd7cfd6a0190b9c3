// Before the first step: what a rank reserves when it loads weights, builds the model and the optimizer. Each is a block of
// its own, so that a report can name the phase of a peak and compare with what frameworks print between them.
#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Kernel;
using plan::Phase;
using plan::Stream;

void setup_blocks(Context& c, ChunkPart& part) {
  const std::string name = c.plan.parts[part.id.v].name;
  auto block = [&](const char* what, auto&& fill) {
    BlockBuilder b(c.plan, std::string(what) + " " + name, part.id, BlockBuilder::Lifetimes::other);
    b.segment(-1);
    fill(b);
    return c.add_block(b.finish());
  };
  auto zero = [&](BlockBuilder& b, const char* op, Phase phase, BufferId id) {
    const plan::Buffer& x = c.plan.buffer(id);
    plan::Compute k = streaming(Kernel::fill_zero, x.dtype, 1, x.elements(), 0, x.bytes().n, 0);
    k.dims = {x.elements()};
    b.compute(op, phase, k, {}, {ref(id)});
    b.reserve_here(ref(id));
  };
  // Where the report reads what a phase holds once its copies are gone.
  auto reached = [](BlockBuilder& b, const char* what, Phase phase) {
    b.segment(-1);
    b.op(what, phase, Stream::compute, plan::Join{}, {}, {});
  };
  // DeepSpeed flattens the weights of a model that is built: its fp16 optimizer on the host (move_to_cpu), its bf16
  // optimizer on the device, where both are for a moment.
  const bool deepspeed = c.strategy().data_parallel == DataParallel::zero1;
  const bool on_device = deepspeed && c.grad == DType::f32;
  auto each_loaded = [&](BlockBuilder& b, auto&& act) {
    auto one = [&](int parameter) {
      if (parameter >= 0 && c.parameters[static_cast<size_t>(parameter)].loaded.valid())
        act(c.parameters[static_cast<size_t>(parameter)].loaded);
    };
    b.segment(0);
    b.op("weights", Phase::load, Stream::compute, plan::Join{}, {}, {});
    if (part.embedding)
      for (const int k : {c.id.embedding, c.id.position, c.id.embedding_gamma, c.id.embedding_beta}) one(k);
    if (part.head) {
      for (const int k : {c.id.final_gamma, c.id.final_beta, c.id.head_bias}) one(k);
      if (!(part.embedding && c.id.head == c.id.embedding)) one(c.id.head);
    }
    if (part.layers == 0) return;
    b.segment(0, 1, part.layers);
    b.op("weights", Phase::load, Stream::compute, plan::Join{}, {}, {});
    for (size_t k = 0; k < c.parameters.size(); ++k)
      if (c.parameters[k].per_layer) one(static_cast<int>(k));
  };
  part.load = block("load", [&](BlockBuilder& b) {
    const auto reserve = [&](BufferId id) { b.reserve_here(ref(id)); };
    const auto release = [&](BufferId id) { b.release_here(ref(id)); };
    if (deepspeed) {
      each_loaded(b, reserve);
      if (!on_device) each_loaded(b, release);
      b.segment(-1);
    }
    for (const BufferId id : {part.frozen, part.frozen_packed}) {
      if (!id.valid()) continue;
      b.op("load frozen weights", Phase::load, Stream::compute, plan::Join{}, {}, {ref(id)});
      b.reserve_here(ref(id));
    }
    for (const auto& k : part.buckets) {
      b.op("load weights", Phase::load, Stream::compute, plan::Join{}, {}, {ref(k.weight)});
      b.reserve_here(ref(k.weight));
      if (!k.right.valid()) continue;
      b.op("powersgd q", Phase::load, Stream::compute, plan::Join{}, {}, {ref(k.right)});
      b.reserve_here(ref(k.right));
    }
    if (on_device) {
      each_loaded(b, release);
      reached(b, "weights loaded", Phase::load);
    }
    if (!c.narrow()) return;
    each_run(part, [&](int64_t first, int64_t layers, LayerKind kind) {
      b.segment(first, 1, layers);
      b.op("fp8 weights", Phase::load, Stream::compute, plan::Join{}, {}, {});
      for (size_t k = 0; k < c.parameters.size(); ++k)
        if (const Parameter& q = c.parameters[k];
            q.narrow_transposed.valid() && c.of_layer(static_cast<int>(k), kind)) {
          if (q.narrow.valid()) b.reserve_here(ref(q.narrow));
          b.reserve_here(ref(q.narrow_transposed));
        }
    });
  });
  // Megatron and DDP allocate gradient buffers with the model; DeepSpeed's appear with the first backward.
  const bool late_gradients = c.strategy().data_parallel == DataParallel::zero1;
  part.build = block(late_gradients ? "gradients" : "model", [&](BlockBuilder& b) {
    if (part.used.valid()) zero(b, "used parameters", Phase::model, part.used);
    for (const auto& k : part.buckets) {
      zero(b, "gradient buffer", Phase::model, k.gradient);
      if (k.bucket.valid()) zero(b, "bucket", Phase::model, k.bucket);
      if (k.error.valid()) zero(b, "powersgd error", Phase::model, k.error);
      if (k.low_gradient.valid()) zero(b, "low gradients", Phase::model, k.low_gradient);
    }
  });
  part.master = block("master weights", [&](BlockBuilder& b) {
    for (const auto& k : part.buckets)
      if (k.on_host) master_on_host(b, c, ref(k.weight_shard), k.master, k.host);
    for (const auto& k : part.buckets) {
      if (!k.on_host) continue;
      b.op("gradients on host", Phase::optimizer_state, Stream::compute, plan::Join{}, {}, {});
      b.reserve_here(ref(k.host.gradient));
    }
    for (const auto& k : part.buckets)
      if (k.clone.valid()) {
        const int64_t bytes = c.plan.buffer(k.clone).bytes().n;
        plan::Compute copy = streaming(Kernel::copy, c.act, 1, c.plan.buffer(k.clone).elements(), bytes, bytes, 0);
        b.compute("clone weights", Phase::optimizer_state, copy, {ref(k.weight_shard)}, {ref(k.clone)});
        if (&k == &part.buckets.front()) b.reserve_here(ref(part.clone));
      }
    for (const auto& k : part.buckets) {
      if (!k.master.valid() || k.on_host) continue;
      const plan::Buffer& m = c.plan.buffer(k.master);
      plan::Compute cast = streaming(Kernel::cast, DType::f32, 1, m.elements(),
                                     m.elements() * size_of(weight_dtype(c, k)), m.bytes().n, 0);
      cast.dims = {m.elements()};
      b.compute("master weights", Phase::optimizer_state, cast, {ref(k.clone.valid() ? k.clone : k.weight_shard)},
                {ref(k.master)});
      b.reserve_here(ref(k.master));
    }
    if (part.clone.valid()) {
      b.release_here(ref(part.clone));
      reached(b, "master weights made", Phase::optimizer_state);
    }
  });
  part.moments = block("optimizer states", [&](BlockBuilder& b) {
    // DeepSpeed's fp16 optimizer makes its states in a step on gradients of zero (initialize_optimizer_states).
    const bool first_step = deepspeed && gradient_copies(c.strategy()) == GradientCopies::flat;
    if (first_step && part.step_main.valid()) {
      b.op("gradients of zero", Phase::optimizer_state, Stream::compute, plan::Join{}, {}, {});
      b.reserve_here(ref(part.first_step));
    }
    for (const auto& k : part.buckets) {
      if (k.on_host) {
        if (k.moment1.valid()) moment_on_host(b, c, k.moment1, "moment 1");
        if (k.moment2.valid()) moment_on_host(b, c, k.moment2, "moment 2");
        continue;
      }
      if (k.moment1.valid()) zero(b, "moment 1", Phase::optimizer_state, k.moment1);
      if (k.moment2.valid()) zero(b, "moment 2", Phase::optimizer_state, k.moment2);
    }
    if (first_step && part.step_main.valid()) {
      b.release_here(ref(part.first_step));
      reached(b, "states made", Phase::optimizer_state);
    }
  });
  part.outputs = block("kept outputs", [&](BlockBuilder& b) {
    if (part.kept_outputs.valid()) zero(b, "kept outputs", Phase::forward, part.kept_outputs);
  });
}

}  // namespace wt::lower
