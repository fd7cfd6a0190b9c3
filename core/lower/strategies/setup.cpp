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
  part.load = block("load", [&](BlockBuilder& b) {
    for (const auto& k : part.buckets) {
      b.op("load weights", Phase::load, Stream::compute, plan::Join{}, {}, {ref(k.weight)});
      b.reserve_here(ref(k.weight));
    }
    if (!c.narrow() || part.layers == 0) return;
    b.segment(0, 1, part.layers);
    b.op("fp8 weights", Phase::load, Stream::compute, plan::Join{}, {}, {});
    for (const Parameter& q : c.parameters)
      if (q.narrow.valid()) {
        b.reserve_here(ref(q.narrow));
        b.reserve_here(ref(q.narrow_transposed));
      }
  });
  // Megatron and DDP allocate gradient buffers with the model; DeepSpeed's appear with the first backward.
  const bool late_gradients = c.strategy().data_parallel == DataParallel::zero1;
  part.build = block(late_gradients ? "gradients" : "model", [&](BlockBuilder& b) {
    for (const auto& k : part.buckets) {
      zero(b, "gradient buffer", Phase::model, k.gradient);
      if (k.low_gradient.valid()) zero(b, "low gradients", Phase::model, k.low_gradient);
    }
  });
  part.master = block("master weights", [&](BlockBuilder& b) {
    for (const auto& k : part.buckets) {
      if (k.main_gradient.valid() && c.plan.buffer(k.main_gradient).scope == plan::Scope::persistent)
        zero(b, "fp32 gradients", Phase::optimizer_state, k.main_gradient);
      if (!k.master.valid()) continue;
      const plan::Buffer& m = c.plan.buffer(k.master);
      plan::Compute cast =
          streaming(Kernel::cast, DType::f32, 1, m.elements(), m.elements() * size_of(c.act), m.bytes().n, 0);
      cast.dims = {m.elements()};
      b.compute("master weights", Phase::optimizer_state, cast, {ref(k.weight_shard)}, {ref(k.master)});
      b.reserve_here(ref(k.master));
    }
  });
  part.moments = block("optimizer states", [&](BlockBuilder& b) {
    for (const auto& k : part.buckets) {
      if (k.moment1.valid()) zero(b, "moment 1", Phase::optimizer_state, k.moment1);
      if (k.moment2.valid()) zero(b, "moment 2", Phase::optimizer_state, k.moment2);
    }
  });
}

}  // namespace wt::lower
