#include "exec/checkpoint/plan_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/plan/values.hpp"

namespace wt::exec {

using namespace plan;

namespace {

/// One buffer of a chunk, of one layer where there is one for each.
struct Base {
  BufferId buffer;
  int64_t layer = -1;  // of the chunk
  bool operator==(const Base&) const = default;
};

/// A parameter of a chunk in its bucket.
struct Parameter {
  const Buffer* buffer = nullptr;
  int64_t layer = -1;  // of the model
  Base base;
  int64_t offset = 0;  // elements, in base
};

/// A run of elements.
struct Run {
  Base base;
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

  std::vector<Holding> run() {
    for (size_t chunk = 0; chunk < program_.chunks.size(); ++chunk) read_chunk(static_cast<int64_t>(chunk));
    return std::move(out_);
  }

 private:
  void read_chunk(int64_t chunk) {
    const PartId id = program_.chunks[static_cast<size_t>(chunk)];
    const Part& part = plan_.parts[id.v];
    const std::vector<Parameter> parameters = parameters_of(part, program_.first_layer[static_cast<size_t>(chunk)]);
    const std::vector<Update> updates = updates_of(id);
    // Where a rank updates only a piece of its weights, the rest is out of date until the next step gathers it: the piece
    // is saved, the whole is loaded. Where the whole is there only while it is used, the piece is all.
    for (const Parameter& p : parameters) {
      if (std::find(part.persistent.begin(), part.persistent.end(), p.base.buffer) == part.persistent.end()) continue;
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
        if (u.in_place && u.weights.split_over.valid()) add(p, Role::weight, piece, piece, chunk).loaded = false;
        for (const State& s : u.states) {
          const Run stored{s.run.base, s.run.offset + from - u.weights.offset, until - from, {}};
          Holding& h = add(p, s.role, piece, stored, chunk);
          h.written = h.written && !s.copy;
        }
      }
  }

  struct State {
    Role role = Role::weight;
    Run run;
    bool copy = false;  // of weights that are saved from elsewhere: those of the host where they are fp32 on the device
  };
  /// An op that updates a run of weights, and what it keeps of them.
  struct Update {
    Run weights;                // which elements, by their place in the bucket of weights
    bool in_place = true;       // what it writes is a view of the bucket, not a shard with storage of its own
    std::vector<State> states;  // where master weights, moments and such a shard lie
  };

  /// The weights that an update on the host ends in, through casts and copies of the master weights that it wrote.
  std::optional<BufferRef> copied_to(const Block& block, const Op& update) const {
    std::vector<BufferId> from{block.refs[update.writes.begin].buffer};
    for (size_t k = static_cast<size_t>(&update - block.ops.data()) + 1; k < block.ops.size(); ++k) {
      const Op& op = block.ops[k];
      if (op.reads.count != 1 || op.writes.count != 1) continue;
      if (std::find(from.begin(), from.end(), block.refs[op.reads.begin].buffer) == from.end()) continue;
      const BufferRef to = block.refs[op.writes.begin];
      if (plan_.buffer(to.buffer).role == Role::weight) return to;
      from.push_back(to.buffer);
    }
    return std::nullopt;
  }

  std::vector<Update> updates_of(PartId id) {
    const Part& part = plan_.parts[id.v];
    std::vector<Update> out;
    for (const Block& block : plan_.blocks) {
      if (block.part != id) continue;
      for (const Op& op : block.ops) {
        const auto* c = std::get_if<Compute>(&op.body);
        if (!c || (c->kernel != Kernel::adam && c->kernel != Kernel::sgd)) continue;
        std::vector<BufferRef> written(block.refs.begin() + op.writes.begin,
                                       block.refs.begin() + op.writes.begin + op.writes.count);
        if (op.stream == Stream::host)  // it writes the master weights alone
          if (const auto weights = copied_to(block, op)) written[0] = *weights;
        const bool layered = plan_.buffer(written[0].buffer).per_layer;
        for (int64_t layer = layered ? 0 : -1; layer < (layered ? part.layers : 0); ++layer) {
          Update u = update_of(part, written, layer);
          const bool known = std::any_of(out.begin(), out.end(), [&](const Update& other) {
            return other.weights.base == u.weights.base && other.weights.offset == u.weights.offset;
          });
          if (!known) out.push_back(std::move(u));  // variants of a step update in blocks of their own
        }
      }
    }
    return out;
  }

  Update update_of(const Part& part, std::span<const BufferRef> written, int64_t layer) const {
    const Buffer& first = plan_.buffer(written[0].buffer);
    Update u{place_of(part, written[0].buffer, layer), first.view || !view_of(part, written[0].buffer, layer), {}};
    for (size_t i = u.in_place ? 1 : 0; i < written.size(); ++i) {
      const Buffer& b = plan_.buffer(written[i].buffer);
      if (i > 0 && written[i].buffer == written[0].buffer) continue;  // no master copy
      const Run state = b.view ? place_of(part, written[i].buffer, layer)
                               : Run{{written[i].buffer, b.per_layer ? layer : -1}, 0, b.elements(), {}};
      if (state.base == u.weights.base) continue;
      WT_CHECK(state.count == u.weights.count, "'{}' and its weights", b.name);
      const bool copy = b.role == Role::master && first.role == Role::weight && b.dtype == first.dtype;
      u.states.push_back({copy ? Role::weight : b.role, state, copy});
    }
    return u;
  }

  std::vector<Parameter> parameters_of(const Part& part, int64_t first_layer) const {
    std::vector<Parameter> out;
    for (const View& v : part.views) {
      const Buffer& b = plan_.buffer(v.buffer);
      if (b.role != Role::weight || !b.view || v.shard_group.valid()) continue;
      const bool layered = plan_.buffer(v.base).per_layer;
      if (v.layers == 0) out.push_back({&b, -1, {v.base, -1}, v.offset});
      for (int64_t i = 0; i < v.layers; ++i)
        out.push_back({&b,
                       first_layer + v.first_layer + i,
                       {v.base, layered ? v.first_layer + i : -1},
                       v.offset + i * v.layer_stride});
    }
    return out;
  }

  /// Where the elements of a buffer lie in its bucket; of one that is placed nowhere, in itself.
  Run place_of(const Part& part, BufferId id, int64_t layer) const {
    const Buffer& b = plan_.buffer(id);
    const View* v = view_of(part, id, layer);
    WT_CHECK(v != nullptr || !b.view, "'{}' is placed nowhere", b.name);
    if (v == nullptr) return {{id, b.per_layer ? layer : -1}, 0, b.elements(), {}};
    return {{v->base, plan_.buffer(v->base).per_layer ? layer : -1},
            view_offset(plan_, rank_, *v, layer >= 0 ? layer : v->first_layer),
            b.elements(),
            v->shard_group};
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
    const Operand base = locate_(stored.base.buffer, chunk, stored.base.layer);
    WT_CHECK(base.data && stored.offset + stored.count <= base.elements, "'{}'", plan_.buffer(stored.base.buffer).name);
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
};

}  // namespace

std::vector<Holding> holdings_of(const Plan& plan, RankId rank, const Locate& locate) {
  return Reader(plan, rank, locate).run();
}

}  // namespace wt::exec
