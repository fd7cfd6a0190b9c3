#include "exec/checkpoint/plan_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/plan/values.hpp"

namespace wt::exec {

using namespace plan;

namespace {

/// A parameter of a chunk in its bucket.
struct Parameter {
  const Buffer* buffer = nullptr;
  int64_t layer = -1;  // of the model
  BufferId base;
  int64_t offset = 0;  // elements, in base
};

/// A run of elements of a buffer that owns its storage.
struct Run {
  BufferId base;
  int64_t offset = 0, count = 0;
  GroupId split_over;  // who holds the other runs
};

class Reader {
 public:
  Reader(const Plan& plan, RankId rank, const Locate& locate)
      : plan_(plan),
        rank_(rank),
        program_(plan.programs[program_of(plan, rank).v]),
        locate_(locate),
        vocabulary_(vocabulary_of(plan)) {
    for (const Block& b : plan.blocks)
      for (const Op& o : b.ops)
        if (const auto* c = std::get_if<Compute>(&o.body); c && c->kernel == Kernel::loss_max)
          vocabulary_shard_ = c->dims[2];
  }

  Result<std::vector<Holding>> run() {
    for (size_t chunk = 0; chunk < program_.chunks.size(); ++chunk) read_chunk(static_cast<int64_t>(chunk));
    if (!faults_.empty()) return faults_;
    return std::move(out_);
  }

 private:
  void read_chunk(int64_t chunk) {
    const PartId id = program_.chunks[static_cast<size_t>(chunk)];
    const Part& part = plan_.parts[id.v];
    for (const View& v : part.views)
      if (!plan_.buffer(v.buffer).view || plan_.buffer(v.base).per_layer) {
        faults_.push_back(
            {"checkpoint", fmt::format("'{}' is cut in units of layers", plan_.buffer(v.buffer).name),
             "FSDP and ZeRO 2 and 3 are not saved yet: train with another data_parallel to keep checkpoints"});
        return;
      }
    const std::vector<Parameter> parameters = parameters_of(part, program_.first_layer[static_cast<size_t>(chunk)]);
    const std::vector<Update> updates = updates_of(id);
    // Where a rank updates only a piece of its weights, the rest is out of date until the next step gathers it: the piece
    // is saved, the whole is loaded.
    for (const Parameter& p : parameters) {
      const Run whole{p.base, p.offset, p.buffer->elements(), {}};
      const bool in_pieces = std::any_of(updates.begin(), updates.end(), [&](const Update& u) {
        return u.weights.base == p.base && u.weights.split_over.valid();
      });
      Holding& h = add(p, Role::weight, whole, whole, chunk);
      if (in_pieces) h.written = false;
    }
    for (const Update& u : updates)
      for (const Parameter& p : parameters) {
        if (p.base != u.weights.base) continue;
        const int64_t from = std::max(u.weights.offset, p.offset),
                      until = std::min(u.weights.offset + u.weights.count, p.offset + p.buffer->elements());
        if (from >= until) continue;
        const Run piece{u.weights.base, from, until - from, u.weights.split_over};
        if (u.weights.split_over.valid()) add(p, Role::weight, piece, piece, chunk).loaded = false;
        for (const auto& [role, state] : u.states)
          add(p, role, piece, {state.base, state.offset + from - u.weights.offset, until - from, {}}, chunk);
      }
  }

  /// An op that updates a run of weights, and what the optimizer keeps of them.
  struct Update {
    Run weights;
    std::vector<std::pair<Role, Run>> states;
  };

  std::vector<Update> updates_of(PartId id) {
    const Part& part = plan_.parts[id.v];
    static constexpr Role kRoles[] = {Role::weight, Role::master, Role::moment1, Role::moment2};
    std::vector<Update> out;
    for (const Block& block : plan_.blocks) {
      if (block.part != id) continue;
      for (const Op& op : block.ops) {
        const auto* c = std::get_if<Compute>(&op.body);
        if (c && c->kernel == Kernel::cast && c->dtype == DType::f8 && op.writes.count > 0)
          if (const Buffer& b = plan_.buffer(block.refs[op.writes.begin].buffer); b.scope == Scope::persistent)
            faults_.push_back({"checkpoint", fmt::format("'{}' is a copy of weights in 8 bits", b.name),
                               "train without fp8 weights to keep checkpoints"});
        if (!c || (c->kernel != Kernel::adam && c->kernel != Kernel::sgd)) continue;
        auto written = [&](uint32_t i) { return run_of(part, block.refs[op.writes.begin + i].buffer); };
        Update u{written(0), {}};
        for (uint32_t i = 1; i < op.writes.count; ++i) {
          const Run state = written(i);
          if (state.base == u.weights.base) continue;  // no master copy
          WT_CHECK(state.count == u.weights.count, "'{}' and its weights", plan_.buffer(state.base).name);
          u.states.emplace_back(kRoles[i], state);
        }
        const bool known = std::any_of(out.begin(), out.end(), [&](const Update& other) {
          return other.weights.base == u.weights.base && other.weights.offset == u.weights.offset;
        });
        if (!known) out.push_back(std::move(u));  // variants of a step update in blocks of their own
      }
    }
    return out;
  }

  std::vector<Parameter> parameters_of(const Part& part, int64_t first_layer) const {
    std::vector<Parameter> out;
    for (const View& v : part.views) {
      const Buffer& b = plan_.buffer(v.buffer);
      if (b.role != Role::weight || v.shard_group.valid()) continue;
      if (v.layers == 0) out.push_back({&b, -1, v.base, v.offset});
      for (int64_t i = 0; i < v.layers; ++i)
        out.push_back({&b, first_layer + v.first_layer + i, v.base, v.offset + i * v.layer_stride});
    }
    return out;
  }

  Run run_of(const Part& part, BufferId id) const {
    const Buffer& b = plan_.buffer(id);
    if (!b.view) return {id, 0, b.elements(), {}};
    const auto v = std::find_if(part.views.begin(), part.views.end(), [&](const View& x) { return x.buffer == id; });
    WT_CHECK(v != part.views.end(), "'{}' is placed nowhere", b.name);
    return {v->base, view_offset(plan_, rank_, *v, v->first_layer), b.elements(), v->shard_group};
  }

  /// `in_weights`: which elements, by their place in the bucket of weights; `stored`: where they lie.
  Holding& add(const Parameter& p, Role role, const Run& in_weights, const Run& stored, int64_t chunk) {
    Holding h;
    h.tensor = {std::string(weight_name(*p.buffer)), p.layer, role};
    h.layout.shape = p.buffer->shape;
    for (const Shard& s : p.buffer->shards) {
      const Group& g = plan_.group(s.group);
      h.layout.cuts.push_back({s.dim, group_size(plan_.mesh, g), group_index(plan_.mesh, g, rank_), s.blocks});
    }
    h.layout.first = in_weights.offset - p.offset;
    h.layout.count = in_weights.count;
    // The last stage's copy of a tied table is the table; the first stage writes it.
    h.written = h.tensor.name == p.buffer->name && first_of_copies(*p.buffer, in_weights.split_over);
    if (vocabulary_ > 0 && p.buffer->shape[0] == vocabulary_shard_) {
      const std::vector<int64_t> whole = h.layout.global_shape();
      h.padding_from = vocabulary_;
      for (size_t d = 1; d < whole.size(); ++d) h.padding_from *= whole[d];
    }
    const Operand base = locate_(stored.base, chunk);
    WT_CHECK(base.data && stored.offset + stored.count <= base.elements, "'{}'", plan_.buffer(stored.base).name);
    h.operand = base;
    h.operand.data = static_cast<std::byte*>(base.data) + stored.offset * size_of(base.dtype);
    h.operand.elements = stored.count;
    h.operand.shape = {};
    return out_.emplace_back(std::move(h));
  }

  /// Ranks that differ only on axes along which the elements are not cut hold copies. Along "pp" other ranks hold others.
  bool first_of_copies(const Buffer& b, GroupId split_over) const {
    for (uint32_t a = 0; a < plan_.mesh.axes.size(); ++a) {
      if (plan_.mesh.axes[a].name == "pp" || plan_.mesh.coordinate(rank_, AxisId{a}) == 0) continue;
      auto over = [&](GroupId g) {
        const std::vector<AxisId>& axes = plan_.group(g).axes;
        return std::find(axes.begin(), axes.end(), AxisId{a}) != axes.end();
      };
      bool cut = split_over.valid() && over(split_over);
      for (const Shard& s : b.shards) cut |= over(s.group);
      if (!cut) return false;
    }
    return true;
  }

  const Plan& plan_;
  RankId rank_;
  const Program& program_;
  const Locate& locate_;
  int64_t vocabulary_, vocabulary_shard_ = 0;
  std::vector<Holding> out_;
  Diagnostics faults_;
};

}  // namespace

Result<std::vector<Holding>> holdings_of(const Plan& plan, RankId rank, const Locate& locate) {
  return Reader(plan, rank, locate).run();
}

}  // namespace wt::exec
