// The structure of a plan, and validate itself. Not the replay of storage (validate_storage.cpp) nor the dry run
// (validate_progress.cpp). Cost: linear in what the plan holds, never in its ranks.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/plan/kernels.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/validate_passes.hpp"

namespace wt::plan {

std::string describe(const Plan& plan, const Invocation& v) {
  std::string s = v.block.v < plan.blocks.size() ? plan.block(v.block).name : fmt::format("block ?{}", v.block.v);
  for (size_t i = 0; i < v.bindings && i < v.binding.size(); ++i)
    s += fmt::format("{} chunk {} micro-batch {}", i ? " &" : "", v.binding[i].chunk, v.binding[i].micro_batch);
  return s;
}

namespace {

class Structure {
 public:
  Structure(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    mesh();
    if (!faults_.empty()) return;  // sizes of groups need a sane mesh
    groups();
    buffers();
    if (!faults_.empty()) return;
    parts();
    if (!faults_.empty()) return;
    for (const Block& b : plan_.blocks) block(b);
    unique(plan_.blocks, "block");
    programs();
  }

 private:
  template <class... A>
  void add(std::string where, fmt::format_string<A...> what, A&&... args) {
    faults_.add(std::move(where), fmt::format(what, std::forward<A>(args)...));
  }
  template <class Tag, class T>
  static bool in(Id<Tag> id, const std::vector<T>& all) {
    return id.v < all.size();
  }
  template <class T>
  void unique(const std::vector<T>& all, std::string_view what, const std::string& where = "plan") {
    std::unordered_set<std::string_view> seen;
    for (const T& t : all) {
      if (t.name.empty()) add(where, "a {} has no name", what);
      if (!seen.insert(t.name).second) add(where, "two {}s are named '{}'", what, t.name);
    }
  }

  void mesh();
  bool filter(const AxisFilter&, const std::string& where);
  void groups();
  void buffers();
  void parts();
  void views(const Part&, const std::string& where);
  void block(const Block&);
  void op(const Block&, const Segment&, size_t segment, size_t index, const std::vector<size_t>& segment_of);
  bool refs(const Block&, const Segment&, Range, const std::string& where);
  void compute(const Compute&, const Op&, const std::string& where);
  void communication(const Block&, const Op&, const std::string& where);
  int64_t bytes_of(const Block&, Range) const;
  void programs();
  void order(const Program&, const std::vector<Invocation>&, const std::string& where);

  const Plan& plan_;
  Faults& faults_;
};

void Structure::mesh() {
  if (plan_.version != 1) add("plan", "version {} is not known", plan_.version);
  unique(plan_.mesh.axes, "axis");
  int64_t ranks = 1;
  for (const Axis& a : plan_.mesh.axes) {
    if (a.size < 1 || a.size > (int64_t{1} << 31) / ranks) {
      add("mesh", "axis '{}' has size {}: sizes are 1 or more and at most 2^31 ranks in all", a.name, a.size);
      return;
    }
    ranks *= a.size;
  }
  const Placement& p = plan_.placement;
  if (p.pipeline < 1 || p.chunks < 1 || p.pipeline > UINT16_MAX || p.chunks > UINT16_MAX)
    add("placement", "pipeline {} and chunks {} must be 1 to {}", p.pipeline, p.chunks, UINT16_MAX);
  else if (p.pipeline != plan_.mesh.size("pp"))
    add("placement", "pipeline is {} but the mesh's pp axis has {}", p.pipeline, plan_.mesh.size("pp"));
  if (plan_.micro_batches < 1 || plan_.micro_batches > UINT16_MAX + 1)
    add("plan", "micro_batches is {}: 1 to {}", plan_.micro_batches, UINT16_MAX + 1);
  if (plan_.micro_batch_size < 1 || plan_.sequence < 1 || plan_.micro_batch_size > INT32_MAX ||
      plan_.sequence > INT32_MAX)
    add("plan", "micro-batches of {} x {} tokens", plan_.micro_batch_size, plan_.sequence);
}

bool Structure::filter(const AxisFilter& f, const std::string& where) {
  if (!in(f.axis, plan_.mesh.axes))
    return add(where, "filters on axis {}, which the mesh does not have", f.axis.v), false;
  const Axis& a = plan_.mesh.axes[f.axis.v];
  if (f.values.empty()) return add(where, "filters on axis '{}' with no values", a.name), false;
  for (size_t i = 0; i < f.values.size(); ++i)
    if (f.values[i] < 0 || f.values[i] >= a.size || (i && f.values[i] <= f.values[i - 1]))
      return add(where, "value {} of its filter on '{}' is out of range or not ascending", f.values[i], a.name), false;
  return true;
}

void Structure::groups() {
  unique(plan_.groups, "group");
  for (const Group& g : plan_.groups) {
    const std::string where = fmt::format("group '{}'", g.name);
    for (size_t i = 0; i < g.axes.size(); ++i) {
      if (!in(g.axes[i], plan_.mesh.axes))
        add(where, "has axis {}, which the mesh does not have", g.axes[i].v);
      else if (std::find(g.axes.begin(), g.axes.begin() + static_cast<std::ptrdiff_t>(i), g.axes[i]) !=
               g.axes.begin() + static_cast<std::ptrdiff_t>(i))
        add(where, "has axis '{}' twice", plan_.mesh.axes[g.axes[i].v].name);
    }
    if (g.filter) filter(*g.filter, where);
  }
}

void Structure::buffers() {
  unique(plan_.buffers, "buffer");
  for (const Buffer& b : plan_.buffers) {
    const std::string where = fmt::format("buffer '{}'", b.name);
    int64_t room = int64_t{1} << 60;
    bool sane = true;
    for (int64_t d : b.shape) {
      if (d < 1 || d > room)
        sane = false;
      else
        room /= d;
    }
    if (!sane || room < size_of(b.dtype)) add(where, "shape [{}] is empty or too large", fmt::join(b.shape, ", "));
    for (const Shard& s : b.shards) {
      if (s.dim >= b.shape.size())
        add(where, "is sharded in dim {} of {}", s.dim, b.shape.size());
      else if (s.blocks < 1 || b.shape[s.dim] % s.blocks != 0)
        add(where, "dim {} of {} is not {} equal blocks", s.dim, b.shape[s.dim], s.blocks);
      if (!in(s.group, plan_.groups)) add(where, "is sharded over group {}, which does not exist", s.group.v);
    }
    if (!std::isfinite(b.init_scale) || b.init_scale < 0) add(where, "init scale {}", b.init_scale);
    if (b.per_layer && b.scope == Scope::rank) add(where, "is of the rank, which has no layers, and per_layer");
  }
}

void Structure::parts() {
  unique(plan_.parts, "part");
  for (const Part& p : plan_.parts) {
    const std::string where = fmt::format("part '{}'", p.name);
    if (p.layers < 0 || p.layers > kMostLayers) add(where, "{} layers", p.layers);
    if (p.parameters < 0) add(where, "{} parameters", p.parameters);
    for (BufferId id : p.persistent) {
      if (!in(id, plan_.buffers)) {
        add(where, "owns buffer {}, which does not exist", id.v);
        continue;
      }
      const Buffer& b = plan_.buffer(id);
      if (b.view) add(where, "owns '{}', which is a view", b.name);
      if (b.scope != Scope::persistent && b.scope != Scope::rank)
        add(where, "owns '{}', which is of scope {}", b.name, to_text(b.scope));
    }
    views(p, where);
  }
}

void Structure::views(const Part& p, const std::string& where) {
  std::set<std::pair<uint32_t, int64_t>> placed;  // (buffer, layer)
  std::set<std::pair<uint32_t, uint32_t>> edges;
  for (const View& v : p.views) {
    if (!in(v.buffer, plan_.buffers) || !in(v.base, plan_.buffers)) {
      add(where, "a view names a buffer that does not exist");
      continue;
    }
    const Buffer &b = plan_.buffer(v.buffer), &base = plan_.buffer(v.base);
    const std::string what = fmt::format("view of '{}' in '{}'", b.name, base.name);
    if (base.per_layer && (!b.per_layer || v.layer_stride != 0))
      add(where, "{}: the base is per_layer, so must be what lies in it, without a stride", what);
    if (b.view && b.dtype != base.dtype)
      add(where, "{}: element types {} and {}", what, wt::to_text(b.dtype), wt::to_text(base.dtype));
    if (b.per_layer != (v.layers > 0)) add(where, "{}: {} layers", what, v.layers);
    if (v.first_layer < 0 || v.layers < 0 || v.first_layer + v.layers > p.layers + 1) {
      add(where, "{}: layers {} + {} of {}", what, v.first_layer, v.layers, p.layers);
      continue;
    }
    int64_t pieces = 1;
    if (v.shard_group.valid()) {
      if (!in(v.shard_group, plan_.groups)) {
        add(where, "{}: pieces over a group that does not exist", what);
        continue;
      }
      pieces = group_size(plan_.mesh, plan_.group(v.shard_group));
    }
    const int64_t last = v.layers > 0 ? v.layers - 1 : 0;
    // 128 bits: offsets and strides may be anything a text can hold.
    const auto first_end = static_cast<__int128>(v.offset) + static_cast<__int128>(pieces) * b.elements();
    const auto last_begin = static_cast<__int128>(v.offset) + static_cast<__int128>(v.layer_stride) * last;
    const auto last_end = last_begin + static_cast<__int128>(pieces) * b.elements();
    if (v.offset < 0 || last_begin < 0 || first_end > base.elements() || last_end > base.elements())
      add(where, "{}: reaches beyond its {} elements", what, base.elements());
    for (int64_t layer = v.first_layer; layer <= v.first_layer + last; ++layer)
      if (!placed.emplace(v.buffer.v, layer).second) add(where, "{}: placed twice", what);
    if (b.view) edges.emplace(v.buffer.v, v.base.v);
  }
  // A chain of bases must end in storage: follow each for at most as many steps as there are edges.
  for (const auto& [buffer, base] : edges) {
    uint32_t at = base;
    size_t steps = 0;
    for (; steps <= edges.size() && plan_.buffers[at].view; ++steps) {
      const auto next = edges.lower_bound({at, 0});
      if (next == edges.end() || next->first != at) {
        add(where, "view of '{}' lies in '{}', a view that the part does not place", plan_.buffers[buffer].name,
            plan_.buffers[at].name);
        break;
      }
      at = next->second;
    }
    if (steps > edges.size()) add(where, "the views of '{}' go in a circle", plan_.buffers[buffer].name);
  }
}

void Structure::block(const Block& b) {
  const std::string where = fmt::format("block '{}'", b.name);
  if (b.part.valid() && !in(b.part, plan_.parts)) return add(where, "is of a part that does not exist");
  std::vector<size_t> segment_of(b.ops.size(), SIZE_MAX);
  int64_t next = 0, instances = 0;
  for (size_t i = 0; i < b.segments.size(); ++i) {
    const Segment& s = b.segments[i];
    if (s.first_op != next || next + s.op_count > static_cast<int64_t>(b.ops.size()))
      return add(where, "segment {} holds ops {} + {} of {}: segments follow each other", i, s.first_op, s.op_count,
                 b.ops.size());
    for (uint32_t k = 0; k < s.op_count; ++k) segment_of[s.first_op + k] = i;
    next += s.op_count;
    instances += int64_t{s.op_count} * s.iterations;
    if (s.iterations < 1 || s.iterations > kMostBlockOps || instances > kMostBlockOps)
      return add(where, "segment {} repeats {} times: 1 or more, and at most {} op instances in a block", i,
                 s.iterations, kMostBlockOps);
    if (s.first_layer < -1 || (s.first_layer == -1 && s.layer_step != 0))
      add(where, "segment {} starts at layer {} with step {}", i, s.first_layer, s.layer_step);
    if (s.first_layer >= 0 && !b.part.valid()) add(where, "segment {} has layers but the block is of no part", i);
    if (s.first_layer >= 0 && b.part.valid()) {
      const int64_t last = s.first_layer + int64_t{s.layer_step} * (s.iterations - 1);
      const int64_t layers = plan_.parts[b.part.v].layers;
      if (last < 0 || last > layers || s.first_layer > layers)
        add(where, "segment {} runs over layers {} to {} of a part with {}", i, s.first_layer, last, layers);
    }
  }
  if (next != static_cast<int64_t>(b.ops.size()))
    return add(where, "{} ops, {} of them in segments", b.ops.size(), next);
  for (size_t k = 0; k < b.ops.size(); ++k) op(b, b.segments[segment_of[k]], segment_of[k], k, segment_of);
}

bool Structure::refs(const Block& b, const Segment& s, Range range, const std::string& where) {
  if (uint64_t{range.begin} + range.count > b.refs.size()) return add(where, "operands beyond the block's list"), false;
  bool ok = true;
  for (uint32_t i = 0; i < range.count; ++i) {
    const BufferRef& r = b.refs[range.begin + i];
    if (!in(r.buffer, plan_.buffers)) {
      add(where, "names buffer {}, which does not exist", r.buffer.v);
      ok = false;
      continue;
    }
    const Buffer& buffer = plan_.buffer(r.buffer);
    if (r.binding > 1) add(where, "'{}' is of binding {}: an invocation binds at most 2", buffer.name, r.binding);
    if (!b.part.valid() && buffer.scope != Scope::rank && buffer.scope != Scope::invocation)
      add(where, "'{}' is {}, but the block is of no chunk", buffer.name, to_text(buffer.scope));
    if (!buffer.per_layer) {
      if (r.layer_offset != 0) add(where, "'{}' has no layers but an offset {}", buffer.name, r.layer_offset);
    } else if (s.first_layer < 0) {
      add(where, "'{}' is per_layer, but the segment is outside the layers", buffer.name);
    } else if (b.part.valid()) {
      // Hidden states have one more instance than layers; persistent ones do not.
      int64_t layers = plan_.parts[b.part.v].layers;
      if (r.binding > 0)  // of a part that the invocation names: Storage looks closer
        for (const Part& other : plan_.parts) layers = std::max(layers, other.layers);
      const int64_t most = buffer.scope == Scope::persistent ? layers - 1 : layers;
      const int64_t first = int64_t{s.first_layer} + r.layer_offset;
      const int64_t last = first + int64_t{s.layer_step} * (s.iterations - 1);
      if (std::min(first, last) < 0 || std::max(first, last) > most)
        add(where, "'{}' of layers {} to {}: there are 0 to {}", buffer.name, first, last, most);
    }
  }
  return ok;
}

void Structure::op(const Block& b, const Segment& s, size_t segment, size_t index,
                   const std::vector<size_t>& segment_of) {
  const Op& o = b.ops[index];
  const std::string where = where_op(b, index);
  if (o.name.empty()) add(where, "has no name");
  bool ok = true;
  for (Range Op::*list : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases}) ok &= refs(b, s, o.*list, where);
  if (uint64_t{o.waits.begin} + o.waits.count > b.waits.size()) return add(where, "waits beyond the block's list");
  for (uint32_t i = 0; i < o.waits.count; ++i) {
    const Wait& w = b.waits[o.waits.begin + i];
    if ((w.kind == Wait::Kind::piece) != (w.pieces > 0))
      add(where, "a wait for op {} with {} pieces", w.index, w.pieces);
    if (w.kind == Wait::Kind::piece &&
        (w.iterations_back || (w.index < b.ops.size() && segment_of[w.index] != segment)))
      add(where, "waits for a piece of op {}, which is not of the same segment and iteration", w.index);
    if (w.kind == Wait::Kind::tail) {
      if (w.index >= kStreams) add(where, "waits for stream {}", w.index);
      if (w.iterations_back) add(where, "waits for a tail {} iterations back", w.iterations_back);
      continue;
    }
    if (w.index >= b.ops.size()) {
      add(where, "waits for op {}, which does not exist", w.index);
    } else if (segment_of[w.index] > segment ||
               (segment_of[w.index] == segment && w.iterations_back == 0 && w.index >= index)) {
      add(where, "waits for op {} ({}), which comes later", w.index, b.ops[w.index].name);
    } else if (segment_of[w.index] < segment && w.iterations_back) {
      add(where, "waits for op {} of an earlier segment {} iterations back", w.index, w.iterations_back);
    }
  }
  if (!ok) return;
  if (const auto* c = std::get_if<Compute>(&o.body))
    compute(*c, o, where);
  else
    communication(b, o, where);
}

void Structure::compute(const Compute& c, const Op& o, const std::string& where) {
  KernelOperands want = operands_of(c.kernel);
  if (c.kernel == Kernel::cast && c.dtype == DType::f8) want.most_writes = 2;  // as stored, and transposed
  auto count = [&](uint32_t n, uint8_t least, uint8_t most, std::string_view what) {
    if (n >= least && (n <= most || most == 255)) return;
    if (most == 255)
      add(where, "{} {} {} buffers: {} or more", to_text(c.kernel), what, n, least);
    else if (least == most)
      add(where, "{} {} {} buffers: {}", to_text(c.kernel), what, n, least);
    else
      add(where, "{} {} {} buffers: {} to {}", to_text(c.kernel), what, n, least, most);
  };
  count(o.reads.count, want.least_reads, want.most_reads, "reads");
  count(o.writes.count, want.least_writes, want.most_writes, "writes");
  const bool adds = c.kernel == Kernel::gemm || c.kernel == Kernel::grouped_gemm ||
                    c.kernel == Kernel::block_attention_backward || want.accumulates != 0;
  if (c.accumulate && !adds) add(where, "{} cannot accumulate", to_text(c.kernel));
  if (c.group.valid() && !in(c.group, plan_.groups)) add(where, "is over group {}, which does not exist", c.group.v);
  for (int64_t d : c.dims)
    if (d < 0) add(where, "dim {}", d);
  if (!std::isfinite(c.scalar)) add(where, "scalar {}", c.scalar);
  if (!std::isfinite(c.work.flops) || c.work.flops < 0 || c.work.bytes_read < 0 || c.work.bytes_written < 0)
    add(where, "work {} flops, {} and {} bytes", c.work.flops, c.work.bytes_read, c.work.bytes_written);
}

int64_t Structure::bytes_of(const Block& b, Range range) const {
  __int128 n = 0;
  for (uint32_t i = 0; i < range.count; ++i) n += plan_.buffer(b.refs[range.begin + i].buffer).bytes().n;
  return n > INT64_MAX ? INT64_MAX : static_cast<int64_t>(n);
}

void Structure::communication(const Block& b, const Op& o, const std::string& where) {
  const int64_t read = bytes_of(b, o.reads), written = bytes_of(b, o.writes);
  if (const auto* s = std::get_if<Send>(&o.body)) {
    if (o.reads.count == 0 || o.writes.count != 0)
      add(where, "a send reads buffers and writes none");
    else if (read != s->bytes)
      add(where, "sends {} bytes, its buffers hold {}", s->bytes, read);
  } else if (const auto* r = std::get_if<Receive>(&o.body)) {
    if (o.writes.count == 0 || o.reads.count != 0)
      add(where, "a receive writes buffers and reads none");
    else if (written != r->bytes)
      add(where, "receives {} bytes, its buffers hold {}", r->bytes, written);
  } else if (const auto* c = std::get_if<Collective>(&o.body)) {
    if (!in(c->group, plan_.groups)) return add(where, "is over group {}, which does not exist", c->group.v);
    if (o.reads.count != o.writes.count || o.reads.count == 0)
      return add(where, "reads {} buffers and writes {}: a collective pairs them", o.reads.count, o.writes.count);
    const int64_t n = group_size(plan_.mesh, plan_.group(c->group));
    int64_t full = 0;
    for (uint32_t i = 0; i < o.reads.count; ++i) {
      const Buffer& from = plan_.buffer(b.refs[o.reads.begin + i].buffer);
      const Buffer& to = plan_.buffer(b.refs[o.writes.begin + i].buffer);
      if (from.dtype != c->dtype || to.dtype != c->dtype)
        add(where, "is of {}, its buffers of {} and {}", wt::to_text(c->dtype), wt::to_text(from.dtype),
            wt::to_text(to.dtype));
      int64_t wanted = from.elements();
      if (c->kind == CollectiveKind::all_gather) wanted *= n;
      if (c->kind == CollectiveKind::reduce_scatter) wanted = from.elements() % n ? -1 : from.elements() / n;
      if (wanted != to.elements())
        add(where, "{} over {} ranks from '{}' of {} elements to '{}' of {}", to_text(c->kind), n, from.name,
            from.elements(), to.name, to.elements());
      full += (c->kind == CollectiveKind::all_gather ? to : from).bytes().n;
    }
    if (c->copies < 0 || (c->copies > 0 && c->kind != CollectiveKind::all_to_all))
      add(where, "{} copies of a row: of an all-to-all alone, 0 or more", c->copies);
    if (full != c->bytes) add(where, "{} bytes, its buffers hold {}", c->bytes, full);
  } else if (const auto* copy = std::get_if<Copy>(&o.body)) {
    if (copy->bytes < 0) add(where, "moves {} bytes", copy->bytes);
  }
}

void Structure::programs() {
  unique(plan_.programs, "program");
  if (plan_.programs.empty()) add("plan", "there are no programs");
  for (const Program& p : plan_.programs) {
    const std::string where = fmt::format("program '{}'", p.name);
    if (p.when.axis.valid())
      filter(p.when, where);
    else if (!p.when.values.empty())
      add(where, "filters on no axis with {} values", p.when.values.size());
    if (static_cast<int64_t>(p.chunks.size()) != plan_.placement.chunks || p.first_layer.size() != p.chunks.size()) {
      add(where, "{} chunks and {} first layers: the placement has {} chunks", p.chunks.size(), p.first_layer.size(),
          plan_.placement.chunks);
      continue;
    }
    bool ok = true;
    for (PartId id : p.chunks)
      if (!in(id, plan_.parts)) add(where, "has a chunk of part {}, which does not exist", id.v), ok = false;
    if (!ok) continue;
    order(p, p.setup, where + ", setup");
    unique(p.steps, "step", where);
    if (p.steps.empty()) add(where, "has no step");
    bool alike = p.steps.size() == plan_.programs[0].steps.size();
    for (size_t i = 0; alike && i < p.steps.size(); ++i) alike = p.steps[i].name == plan_.programs[0].steps[i].name;
    if (!alike) add(where, "its steps are not those of program '{}'", plan_.programs[0].name);
    for (const StepOrder& s : p.steps) order(p, s.order, fmt::format("{}, step '{}'", where, s.name));
  }
}

void Structure::order(const Program& p, const std::vector<Invocation>& invocations, const std::string& where) {
  for (size_t i = 0; i < invocations.size(); ++i) {
    const Invocation& v = invocations[i];
    auto at = [&] { return fmt::format("{}, invocation {} ({})", where, i, describe(plan_, v)); };
    if (!in(v.block, plan_.blocks)) {
      add(at(), "the block does not exist");
      continue;
    }
    const Block& b = plan_.block(v.block);
    if (v.bindings > 2 || (v.bindings > 0) != b.part.valid()) {
      add(at(), "binds {} chunks, its block is of {}", v.bindings, b.part.valid() ? "a part" : "no part");
      continue;
    }
    for (size_t k = 0; k < v.binding.size(); ++k) {
      const Binding& bound = v.binding[k];
      if (k >= v.bindings) {
        if (bound != Binding{}) add(at(), "a binding beyond the {} that it has", v.bindings);
      } else if (bound.chunk >= p.chunks.size() || bound.micro_batch >= plan_.micro_batches) {
        add(at(), "there are {} chunks and {} micro-batches", p.chunks.size(), plan_.micro_batches);
      } else if (k == 0 && p.chunks[bound.chunk] != b.part) {
        add(at(), "chunk {} is a '{}', the block is of '{}'", bound.chunk, plan_.parts[p.chunks[bound.chunk].v].name,
            plan_.parts[b.part.v].name);
      }
    }
  }
}

}  // namespace

void check_structure(const Plan& plan, Faults& faults) { Structure(plan, faults).run(); }

Status validate(const Plan& plan) {
  Faults faults;
  check_structure(plan, faults);
  if (faults.empty()) {
    check_storage(plan, faults);
    check_progress(plan, faults);
  }
  return status_of(faults.take());
}

}  // namespace wt::plan
