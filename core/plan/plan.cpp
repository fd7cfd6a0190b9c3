// Arithmetic of mesh, groups and placement, and the spellings. No policy and no checks of user input:
// everything here takes a valid plan (validate.cpp) and CHECKs at most.
#include "core/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.hpp"
#include "core/plan/names.hpp"

namespace wt::plan {

// ------------------------------------------------------------------------------------------ mesh and groups

int64_t Mesh::ranks() const {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.size;
  return n;
}

int64_t Mesh::stride(AxisId axis) const {
  WT_CHECK(axis.v < axes.size());
  int64_t n = 1;
  for (size_t i = axis.v + 1; i < axes.size(); ++i) n *= axes[i].size;
  return n;
}

int64_t Mesh::coordinate(RankId rank, AxisId axis) const { return int64_t{rank.v} / stride(axis) % axes[axis.v].size; }

std::optional<AxisId> Mesh::find(std::string_view name) const {
  for (uint32_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return AxisId{i};
  return std::nullopt;
}

int64_t Mesh::size(std::string_view name) const {
  const auto axis = find(name);
  return axis ? axes[axis->v].size : 1;
}

int64_t Mesh::data_ranks() const {
  int64_t n = 1;
  for (const Axis& a : axes)
    if (a.name.starts_with("dp")) n *= a.size;
  return n;
}

int64_t Mesh::data_coordinate(RankId rank) const {
  int64_t at = 0;
  for (uint32_t i = 0; i < axes.size(); ++i)
    if (axes[i].name.starts_with("dp")) at = at * axes[i].size + coordinate(rank, AxisId{i});
  return at;
}

int64_t Mesh::context_ranks() const {
  int64_t n = 1;
  for (const Axis& a : axes)
    if (a.name.starts_with("cp")) n *= a.size;
  return n;
}

int64_t Mesh::context_coordinate(RankId rank) const {
  int64_t at = 0;
  for (uint32_t i = 0; i < axes.size(); ++i)
    if (axes[i].name.starts_with("cp")) at = at * axes[i].size + coordinate(rank, AxisId{i});
  return at;
}

namespace {

bool admits(const Mesh& mesh, const AxisFilter& filter, RankId rank) {
  return std::binary_search(filter.values.begin(), filter.values.end(), mesh.coordinate(rank, filter.axis));
}

/// Axes of the group, outermost first: ranks then come out in order.
std::vector<AxisId> ordered_axes(const Group& g) {
  std::vector<AxisId> axes = g.axes;
  std::sort(axes.begin(), axes.end());
  return axes;
}

}  // namespace

int64_t group_size(const Mesh& mesh, const Group& g) {
  int64_t n = 1;
  for (AxisId a : g.axes)
    n *= g.filter && g.filter->axis == a ? static_cast<int64_t>(g.filter->values.size()) : mesh.axes[a.v].size;
  return n;
}

std::vector<RankId> group_members(const Mesh& mesh, const Group& g, RankId rank) {
  if (g.filter && !admits(mesh, *g.filter, rank)) return {};
  const std::vector<AxisId> axes = ordered_axes(g);
  int64_t base = rank.v;
  for (AxisId a : axes) base -= mesh.coordinate(rank, a) * mesh.stride(a);
  std::vector<RankId> members{RankId{static_cast<uint32_t>(base)}};
  members.reserve(static_cast<size_t>(group_size(mesh, g)));
  // Innermost axis last, so each pass replaces every member by its run along one more inner axis.
  for (AxisId a : axes) {
    const int64_t stride = mesh.stride(a);
    std::vector<RankId> next;
    next.reserve(members.capacity());
    for (RankId m : members) {
      if (g.filter && g.filter->axis == a)
        for (int64_t v : g.filter->values) next.push_back({static_cast<uint32_t>(m.v + v * stride)});
      else
        for (int64_t v = 0; v < mesh.axes[a.v].size; ++v) next.push_back({static_cast<uint32_t>(m.v + v * stride)});
    }
    members = std::move(next);
  }
  return members;
}

int64_t group_index(const Mesh& mesh, const Group& g, RankId rank) {
  WT_CHECK(!g.filter || admits(mesh, *g.filter, rank), "rank {} is not in group '{}'", rank.v, g.name);
  int64_t index = 0;
  for (AxisId a : ordered_axes(g)) {
    const int64_t at = mesh.coordinate(rank, a);
    if (g.filter && g.filter->axis == a) {
      const auto& values = g.filter->values;
      index = index * static_cast<int64_t>(values.size()) +
              (std::lower_bound(values.begin(), values.end(), at) - values.begin());
    } else {
      index = index * mesh.axes[a.v].size + at;
    }
  }
  return index;
}

// ------------------------------------------------------------------------------------------------ placement

Placement::Slot Placement::slot(int64_t stage) const {
  const int64_t chunk = stage / pipeline, at = stage % pipeline;
  const bool back = kind == PlacementKind::zigzag && chunk % 2 == 1;
  return {back ? pipeline - 1 - at : at, chunk};
}

int64_t Placement::stage(Slot s) const {
  const bool back = kind == PlacementKind::zigzag && s.chunk % 2 == 1;
  return s.chunk * pipeline + (back ? pipeline - 1 - s.pp : s.pp);
}

ProgramId program_of(const Plan& plan, RankId rank) {
  for (uint32_t i = 0; i < plan.programs.size(); ++i) {
    const AxisFilter& when = plan.programs[i].when;
    if (!when.axis.valid() || admits(plan.mesh, when, rank)) return ProgramId{i};
  }
  check_failed(__FILE__, __LINE__, "program_of", fmt::format("rank {} has no program", rank.v));
}

std::optional<Peer> peer_of(const Plan& plan, RankId rank, int64_t chunk, Direction direction) {
  const auto axis = plan.mesh.find("pp");
  const int64_t pp = axis ? plan.mesh.coordinate(rank, *axis) : 0;
  const int64_t stage = plan.placement.stage({pp, chunk}) + (direction == Direction::next_stage ? 1 : -1);
  if (stage < 0 || stage >= plan.placement.stages()) return std::nullopt;
  const Placement::Slot to = plan.placement.slot(stage);
  const int64_t stride = axis ? plan.mesh.stride(*axis) : 1;
  return Peer{RankId{static_cast<uint32_t>(rank.v + (to.pp - pp) * stride)}, to.chunk};
}

// -------------------------------------------------------------------------------------------- small things

int64_t Buffer::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t Block::op_instances() const {
  int64_t n = 0;
  for (const Segment& s : segments) n += int64_t{s.op_count} * s.iterations;
  return n;
}

bool Block::operator==(const Block& o) const {
  if (name != o.name || part != o.part || segments != o.segments || ops.size() != o.ops.size()) return false;
  auto same = [](const auto& pool, Range r, const auto& other_pool, Range other) {
    return r.count == other.count &&
           std::equal(pool.begin() + r.begin, pool.begin() + r.begin + r.count, other_pool.begin() + other.begin);
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op &a = ops[i], &b = o.ops[i];
    if (a.name != b.name || a.phase != b.phase || a.stream != b.stream || a.body != b.body) return false;
    if (!same(waits, a.waits, o.waits, b.waits)) return false;
    for (Range Op::*list : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases})
      if (!same(refs, a.*list, o.refs, b.*list)) return false;
  }
  return true;
}

std::string_view to_text(Kernel v) { return kKernelNames[static_cast<size_t>(v)]; }
std::string_view to_text(CollectiveKind v) { return kCollectiveNames[static_cast<size_t>(v)]; }
std::string_view to_text(Reduction v) { return kReductionNames[static_cast<size_t>(v)]; }
std::string_view to_text(Phase v) { return kPhaseNames[static_cast<size_t>(v)]; }
std::string_view to_text(Stream v) { return kStreamNames[static_cast<size_t>(v)]; }
std::string_view to_text(Role v) { return kRoleNames[static_cast<size_t>(v)]; }
std::string_view to_text(Scope v) { return kScopeNames[static_cast<size_t>(v)]; }
std::string_view to_text(Space v) { return kSpaceNames[static_cast<size_t>(v)]; }
std::string_view to_text(Direction v) { return kDirectionNames[static_cast<size_t>(v)]; }
std::string_view to_text(Init v) { return kInitNames[static_cast<size_t>(v)]; }
std::string_view to_text(PlacementKind v) { return kPlacementNames[static_cast<size_t>(v)]; }

}  // namespace wt::plan
