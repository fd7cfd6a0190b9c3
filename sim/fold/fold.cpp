#include "sim/fold/fold.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/check.hpp"

namespace wt::sim {
namespace {

using plan::Direction;
using plan::Plan;

struct Uses {
  std::vector<uint8_t> groups;  // [GroupId]
  std::vector<int64_t> message_bytes;
  bool messages = false;
};

Uses uses_of(const Plan& plan) {
  Uses uses;
  uses.groups.assign(plan.groups.size(), 0);
  std::vector<uint8_t> seen(plan.blocks.size(), 0);
  for (const plan::Program& program : plan.programs)
    for (const plan::Invocation& invocation : program.steps.at(0).order) {
      if (std::exchange(seen[invocation.block.v], uint8_t{1})) continue;
      for (const plan::Op& op : plan.block(invocation.block).ops) {
        if (const auto* collective = std::get_if<plan::Collective>(&op.body)) uses.groups[collective->group.v] = 1;
        if (const auto* send = std::get_if<plan::Send>(&op.body)) uses.message_bytes.push_back(send->bytes);
        if (const auto* receive = std::get_if<plan::Receive>(&op.body)) uses.message_bytes.push_back(receive->bytes);
      }
    }
  uses.messages = !uses.message_bytes.empty();
  std::sort(uses.message_bytes.begin(), uses.message_bytes.end());
  uses.message_bytes.erase(std::unique(uses.message_bytes.begin(), uses.message_bytes.end()), uses.message_bytes.end());
  return uses;
}

/// Whether every cell of `ranks` consecutive ranks is a block of the mesh: all inner axes whole, one axis cut evenly,
/// outer axes fixed. Then the cell of a rank is a function of its digits and translations map cells onto cells.
bool fits(const plan::Mesh& mesh, int64_t cell) {
  if (cell <= 1) return true;  // 0: one cell for all
  int64_t stride = 1;
  for (size_t i = mesh.axes.size(); i-- > 0;) {
    const int64_t next = stride * mesh.axes[i].size;
    if (cell <= next) return cell % stride == 0 && next % cell == 0;
    stride = next;
  }
  return true;  // the cell holds the whole mesh
}

/// First rank that the group's filter admits.
RankId first_rank(const plan::Mesh& mesh, const plan::Group& group) {
  if (!group.filter) return RankId{0};
  return RankId{static_cast<uint32_t>(group.filter->values.at(0) * mesh.stride(group.filter->axis))};
}

uint32_t intern(std::vector<GroupShape>& shapes, const GroupShape& shape) {
  const auto it = std::find(shapes.begin(), shapes.end(), shape);
  if (it != shapes.end()) return static_cast<uint32_t>(it - shapes.begin());
  shapes.push_back(shape);
  return static_cast<uint32_t>(shapes.size() - 1);
}

}  // namespace

uint32_t Fold::unit_of(RankId rank) const {
  int64_t unit = 0;
  for (const Digit& d : digits) unit += rank.v / d.stride % d.size * d.unit_stride;
  return static_cast<uint32_t>(unit);
}

Time message_time(const Plan& plan, const Pricing& pricing, int64_t bytes, RankId from, RankId to) {
  const int64_t node = pricing.cells().node, ranks = plan.mesh.ranks();
  const int64_t first = node ? from.v / node * node : 0, last = node ? std::min(first + node, ranks) : ranks;
  const auto axis = plan.mesh.find("pp");
  int64_t concurrent = last - first;
  if (axis) {
    const int64_t stride = plan.mesh.stride(*axis), size = plan.mesh.axes[axis->v].size;
    const int64_t mine = from.v / stride % size;
    concurrent = 0;
    for (int64_t r = first; r < last; ++r) concurrent += r / stride % size == mine;
  }
  return pricing.message(bytes, from, to, concurrent);
}

Fold fold_ranks(const Plan& plan, const Pricing& pricing, bool all_ranks) {
  const plan::Mesh& mesh = plan.mesh;
  const Uses uses = uses_of(plan);
  const size_t axes = mesh.axes.size(), groups = plan.groups.size();
  const auto ranks = static_cast<uint32_t>(mesh.ranks());

  std::vector<uint8_t> kept(axes, all_ranks);
  for (const plan::Program& program : plan.programs)
    if (program.when.axis.valid()) kept[program.when.axis.v] = 1;
  for (size_t g = 0; g < groups; ++g)
    if (uses.groups[g] && plan.groups[g].filter) kept[plan.groups[g].filter->axis.v] = 1;
  if (uses.messages)
    if (const auto pp = mesh.find("pp")) kept[pp->v] = 1;

  Fold fold;
  fold.message_bytes = uses.message_bytes;
  const MachineCells cells = pricing.cells();
  fold.shapes_uniform = fits(mesh, cells.node) && fits(mesh, cells.domain) && fits(mesh, cells.leaf);

  std::vector<uint32_t> rank_shape;  // [group * ranks + rank] where shapes differ
  if (fold.shapes_uniform) {
    fold.shape_of.assign(groups, 0);
    for (size_t g = 0; g < groups; ++g)
      if (uses.groups[g])
        fold.shape_of[g] = intern(
            fold.shapes, pricing.shape_of(group_members(mesh, plan.groups[g], first_rank(mesh, plan.groups[g]))));
  } else {
    // Label every rank with all that the models say of it; an axis along which labels change is kept.
    rank_shape.assign(groups * ranks, 0);
    for (size_t g = 0; g < groups; ++g) {
      if (!uses.groups[g]) continue;
      std::vector<uint8_t> done(ranks, 0);
      for (uint32_t r = 0; r < ranks; ++r) {
        if (done[r]) continue;
        const std::vector<RankId> members = group_members(mesh, plan.groups[g], RankId{r});
        if (members.empty()) continue;
        const uint32_t shape = intern(fold.shapes, pricing.shape_of(members));
        for (RankId m : members) {
          done[m.v] = 1;
          rank_shape[g * ranks + m.v] = shape;
        }
      }
    }
    std::vector<std::vector<int64_t>> labels(ranks);
    for (uint32_t r = 0; r < ranks; ++r) {
      for (size_t g = 0; g < groups; ++g) labels[r].push_back(rank_shape[g * ranks + r]);
      for (int64_t bytes : uses.message_bytes)
        for (int64_t chunk = 0; chunk < plan.placement.chunks; ++chunk)
          for (Direction d : {Direction::next_stage, Direction::previous_stage})
            if (const auto peer = peer_of(plan, RankId{r}, chunk, d))
              labels[r].push_back(message_time(plan, pricing, bytes, RankId{r}, peer->rank).count_ps());
    }
    for (uint32_t a = 0; a < axes; ++a) {
      const int64_t stride = mesh.stride(AxisId{a});
      for (uint32_t r = 0; r < ranks && !kept[a]; ++r)
        kept[a] = labels[r] != labels[r - mesh.coordinate(RankId{r}, AxisId{a}) * stride];
    }
  }

  int64_t units = 1;
  std::vector<int64_t> unit_stride(axes, 0);  // 0: folded
  for (size_t a = axes; a-- > 0;) {
    if (!kept[a]) {
      fold.stands_for *= static_cast<uint32_t>(mesh.axes[a].size);
      continue;
    }
    unit_stride[a] = units;
    fold.digits.push_back({mesh.stride(AxisId{static_cast<uint32_t>(a)}), mesh.axes[a].size, units});
    units *= mesh.axes[a].size;
  }
  fold.rank_of.resize(static_cast<size_t>(units));
  for (int64_t u = 0; u < units; ++u) {
    int64_t rank = 0;
    for (const Fold::Digit& d : fold.digits) rank += u / d.unit_stride % d.size * d.stride;
    fold.rank_of[static_cast<size_t>(u)] = static_cast<uint32_t>(rank);
  }
  if (!fold.shapes_uniform) {
    fold.shape_of.resize(groups * fold.units());
    for (size_t g = 0; g < groups; ++g)
      for (uint32_t u = 0; u < fold.units(); ++u)
        fold.shape_of[g * fold.units() + u] = rank_shape[g * ranks + fold.rank_of[u]];
  }

  fold.groups.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    if (!uses.groups[g]) continue;
    const plan::Group& group = plan.groups[g];
    UnitGroup& out = fold.groups[g];
    std::vector<AxisId> inside = group.axes;
    std::sort(inside.begin(), inside.end());
    out.offsets = {0};
    for (AxisId a : inside) {
      if (!unit_stride[a.v]) continue;
      std::vector<int64_t> values;
      if (group.filter && group.filter->axis == a)
        values = group.filter->values;
      else
        for (int64_t v = 0; v < mesh.axes[a.v].size; ++v) values.push_back(v);
      std::vector<uint32_t> next;
      next.reserve(out.offsets.size() * values.size());
      for (uint32_t o : out.offsets)
        for (int64_t v : values) next.push_back(o + static_cast<uint32_t>(v * unit_stride[a.v]));
      out.offsets = std::move(next);
    }
    out.size = static_cast<uint32_t>(out.offsets.size());
    const uint32_t lead = out.offsets[0];  // the filter may leave out coordinate 0
    for (uint32_t& o : out.offsets) o -= lead;
    out.base.resize(fold.units());
    for (uint32_t u = 0; u < fold.units(); ++u) {
      int64_t base = u;
      for (AxisId a : inside)
        if (unit_stride[a.v]) base -= u / unit_stride[a.v] % mesh.axes[a.v].size * unit_stride[a.v];
      out.base[u] = static_cast<uint32_t>(base) + lead;
      if (group.filter) {
        const int64_t at = mesh.coordinate(RankId{fold.rank_of[u]}, group.filter->axis);
        if (!std::binary_search(group.filter->values.begin(), group.filter->values.end(), at))
          out.base[u] = UnitGroup::kNone;
      }
    }
  }
  return fold;
}

}  // namespace wt::sim
