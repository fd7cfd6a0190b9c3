// A plan by hand for the tests of core/plan: two pipeline stages of one layer, two data-parallel replicas, two
// micro-batches. Small enough to read; every kind of op but copies is in it. Valid: each test breaks one thing.
#pragma once

#include <initializer_list>
#include <string>

#include "core/plan/plan.hpp"

namespace wt::plan {

/// Appends ops to a block and keeps the pools.
class Blocks {
 public:
  explicit Blocks(Block& b) : b_(b) {}
  Blocks& segment(int32_t first_layer = -1, int32_t step = 0, uint32_t iterations = 1) {
    b_.segments.push_back({static_cast<uint32_t>(b_.ops.size()), 0, iterations, first_layer, step});
    return *this;
  }
  Blocks& op(std::string name, Phase phase, Stream stream, Body body, std::initializer_list<BufferRef> reads,
             std::initializer_list<BufferRef> writes, std::initializer_list<BufferRef> reserves = {},
             std::initializer_list<BufferRef> releases = {}, std::initializer_list<Wait> waits = {}) {
    auto list = [&](std::initializer_list<BufferRef> refs) {
      const Range r{static_cast<uint32_t>(b_.refs.size()), static_cast<uint32_t>(refs.size())};
      b_.refs.insert(b_.refs.end(), refs.begin(), refs.end());
      return r;
    };
    Op o;
    o.name = std::move(name);
    o.phase = phase;
    o.stream = stream;
    o.body = std::move(body);
    o.waits = {static_cast<uint32_t>(b_.waits.size()), static_cast<uint32_t>(waits.size())};
    b_.waits.insert(b_.waits.end(), waits.begin(), waits.end());
    o.reads = list(reads);
    o.writes = list(writes);
    o.reserves = list(reserves);
    o.releases = list(releases);
    b_.ops.push_back(std::move(o));
    ++b_.segments.back().op_count;
    return *this;
  }

 private:
  Block& b_;
};

inline Compute kernel(Kernel k, std::initializer_list<int64_t> dims = {}) {
  Compute c;
  c.kernel = k;
  c.dtype = DType::f32;
  std::copy(dims.begin(), dims.end(), c.dims.begin());
  return c;
}

inline Invocation invoke(uint32_t block, int chunk = -1, int micro_batch = 0) {
  Invocation v;
  v.block = BlockId{block};
  v.bindings = chunk < 0 ? 0 : 1;
  if (chunk >= 0) v.binding[0] = {static_cast<uint16_t>(chunk), static_cast<uint16_t>(micro_batch)};
  return v;
}

/// Names of what small_plan holds, for the tests that break it.
enum SmallBuffers : uint32_t { kFlat, kWeight, kGradients, kGradient, kHidden, kOut, kDOut, kDHidden, kSmallBuffers };
enum SmallBlocks : uint32_t { kSetup, kForward0, kBackward0, kForward1, kBackward1, kUpdate };

inline Plan small_plan() {
  Plan p;
  p.name = "small";
  p.seed = 7;
  p.mesh.axes = {{"pp", 2}, {"dp", 2}};
  p.placement = {PlacementKind::loop, 2, 1};
  p.micro_batches = 2;
  p.sequence = 4;
  p.groups = {{"dp", {AxisId{1}}, {}}, {"ends", {AxisId{0}}, AxisFilter{AxisId{0}, {0, 1}}}};

  auto buffer = [&](std::string name, Role role, Scope scope, std::vector<int64_t> shape) -> Buffer& {
    Buffer b;
    b.name = std::move(name);
    b.role = role;
    b.dtype = DType::f32;
    b.scope = scope;
    b.shape = std::move(shape);
    p.buffers.push_back(std::move(b));
    return p.buffers.back();
  };
  buffer("flat", Role::bucket, Scope::persistent, {12});
  {
    Buffer& w = buffer("weight", Role::weight, Scope::persistent, {2, 4});
    w.per_layer = w.view = true;
    w.init = Init::normal;
    w.init_scale = 0.02;
  }
  buffer("gradients", Role::bucket, Scope::persistent, {12});
  {
    Buffer& g = buffer("weight grad", Role::gradient, Scope::persistent, {2, 4});
    g.per_layer = g.view = true;
  }
  buffer("hidden", Role::activation, Scope::micro_batch, {4, 4}).per_layer = true;
  buffer("out", Role::transient, Scope::invocation, {4, 2});
  buffer("d_out", Role::transient, Scope::invocation, {4, 2});
  buffer("d_hidden", Role::transient, Scope::invocation, {4, 4}).per_layer = true;

  Part part;
  part.layers = 1;
  part.parameters = 8;
  part.persistent = {BufferId{kFlat}, BufferId{kGradients}};
  part.views = {{BufferId{kWeight}, BufferId{kFlat}, 0, 1, 0, 0, {}},
                {BufferId{kGradient}, BufferId{kGradients}, 0, 1, 4, 0, {}}};
  part.name = "first";
  p.parts.push_back(part);
  part.name = "last";
  p.parts.push_back(part);

  const BufferRef flat{BufferId{kFlat}}, gradients{BufferId{kGradients}}, weight{BufferId{kWeight}},
      gradient{BufferId{kGradient}}, hidden{BufferId{kHidden}}, next_hidden{BufferId{kHidden}, 1}, out{BufferId{kOut}},
      d_out{BufferId{kDOut}}, d_hidden{BufferId{kDHidden}}, d_next{BufferId{kDHidden}, 1};
  const Wait compute_tail{Wait::Kind::tail, 0, 0, 0};
  auto block = [&](std::string name, uint32_t part_id) -> Block& {
    Block b;
    b.name = std::move(name);
    b.part = PartId{part_id};
    p.blocks.push_back(std::move(b));
    return p.blocks.back();
  };
  auto product = [](int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool add) {
    Compute c = kernel(Kernel::gemm, {m, n, k});
    c.transpose_a = ta;
    c.transpose_b = tb;
    c.accumulate = add;
    c.work = {2.0 * static_cast<double>(m * n * k), 4 * (m * k + k * n), 4 * m * n};
    return c;
  };
  auto setup = [&](uint32_t part_id) {
    Blocks(block(part_id ? "setup last" : "setup", part_id))
        .segment()
        .op("load", Phase::load, Stream::compute, Join{}, {}, {flat}, {flat})
        .op("gradients", Phase::model, Stream::compute, kernel(Kernel::fill_zero, {12}), {}, {gradients}, {gradients});
  };
  auto backward = [&](Blocks& b) {
    b.segment(0)
        .op("wgrad", Phase::backward_weight, Stream::compute, product(2, 4, 4, true, false, true), {d_out, hidden},
            {gradient})
        .op("dgrad", Phase::backward_input, Stream::compute, product(4, 4, 2, false, false, false), {d_out, weight},
            {d_hidden}, {d_hidden}, {d_out, hidden});
  };
  setup(0);
  Blocks(block("forward first", 0))
      .segment(0)
      .op("input", Phase::forward, Stream::compute, kernel(Kernel::fill_zero, {16}), {}, {hidden}, {hidden})
      .op("layer", Phase::forward, Stream::compute, kernel(Kernel::copy), {hidden}, {next_hidden}, {next_hidden})
      .op("send", Phase::forward, Stream::send_next, Send{Direction::next_stage, 64}, {next_hidden}, {}, {},
          {next_hidden}, {compute_tail});
  {
    Blocks b(block("backward first", 0));
    b.segment(0).op("receive", Phase::backward_input, Stream::receive_next, Receive{Direction::next_stage, 64}, {},
                    {d_next}, {d_next}, {});
    b.op("d_out", Phase::backward_input, Stream::compute, kernel(Kernel::copy), {d_next}, {d_out}, {d_out}, {d_next},
         {{Wait::Kind::op, 0, 0, 0}});
    backward(b);
    b.op("drop", Phase::backward_input, Stream::compute, Join{}, {}, {}, {}, {d_hidden});
  }
  Blocks(block("forward last", 1))
      .segment(0)
      .op("receive", Phase::forward, Stream::receive_previous, Receive{Direction::previous_stage, 64}, {}, {hidden},
          {hidden}, {})
      .op("layer", Phase::forward, Stream::compute, product(4, 2, 4, false, true, false), {hidden, weight}, {out},
          {out}, {out}, {{Wait::Kind::op, 0, 0, 0}});
  {
    Blocks b(block("backward last", 1));
    b.segment(0).op("loss", Phase::backward_input, Stream::compute, kernel(Kernel::fill_zero, {8}), {}, {d_out},
                    {d_out});
    backward(b);
    b.op("send", Phase::backward_input, Stream::send_previous, Send{Direction::previous_stage, 64}, {d_hidden}, {}, {},
         {d_hidden}, {compute_tail});
  }
  auto update = [&](uint32_t part_id) {
    Blocks(block(part_id ? "update last" : "update", part_id))
        .segment()
        .op("reduce", Phase::reduce, Stream::data,
            Collective{CollectiveKind::all_reduce, Reduction::average, DType::f32, GroupId{0}, 48}, {gradients},
            {gradients}, {}, {}, {compute_tail})
        .op("ends", Phase::reduce, Stream::data,
            Collective{CollectiveKind::all_reduce, Reduction::sum, DType::f32, GroupId{1}, 48}, {gradients},
            {gradients})
        .op("sgd", Phase::optimizer, Stream::compute, kernel(Kernel::sgd, {12}), {gradients, flat}, {flat, flat}, {},
            {}, {{Wait::Kind::op, 1, 0, 0}})
        .op("zero", Phase::optimizer, Stream::compute, kernel(Kernel::fill_zero, {12}), {}, {gradients})
        .op("done", Phase::optimizer, Stream::compute, HostWait{}, {}, {}, {}, {}, {compute_tail});
  };
  update(0);
  setup(1);
  update(1);

  auto program = [&](std::string name, int64_t pp, uint32_t set, uint32_t forward, uint32_t back, uint32_t up) {
    Program g;
    g.name = std::move(name);
    g.when = {AxisId{0}, {pp}};
    g.chunks = {PartId{static_cast<uint32_t>(pp)}};
    g.first_layer = {pp};
    g.setup = {invoke(set, 0)};
    StepOrder steady{
        "steady",
        {invoke(forward, 0, 0), invoke(forward, 0, 1), invoke(back, 0, 0), invoke(back, 0, 1), invoke(up, 0)}};
    g.steps = {steady};
    p.programs.push_back(std::move(g));
  };
  program("first", 0, kSetup, kForward0, kBackward0, kUpdate);
  program("last", 1, 6, kForward1, kBackward1, 7);
  p.assumptions = {"made by \"hand\"\nfor tests"};
  return p;
}

}  // namespace wt::plan
