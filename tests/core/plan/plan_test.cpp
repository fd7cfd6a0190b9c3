// Arithmetic of mesh, groups and placement against plain enumeration over all ranks.
#include "core/plan/plan.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "tests/core/plan/small_plan.hpp"

namespace wt::plan {
namespace {

TEST(Mesh, LastAxisVariesFastest) {
  const Mesh m{{{"pp", 2}, {"dp", 3}, {"tp", 4}}};
  EXPECT_EQ(m.ranks(), 24);
  EXPECT_EQ(m.stride({0}), 12);
  EXPECT_EQ(m.stride({2}), 1);
  EXPECT_EQ(m.coordinate({13}, {0}), 1);
  EXPECT_EQ(m.coordinate({13}, {1}), 0);
  EXPECT_EQ(m.coordinate({13}, {2}), 1);
  EXPECT_EQ(m.find("dp"), AxisId{1});
  EXPECT_FALSE(m.find("ep"));
  EXPECT_EQ(m.size("tp"), 4);
  EXPECT_EQ(m.size("ep"), 1);
}

TEST(Group, MembersSizeAndIndexAgreeWithEnumeration) {
  ASSERT_TRUE(rc::check([] {
    Mesh m;
    const auto axes = *rc::gen::inRange<uint32_t>(1, 5);
    for (uint32_t i = 0; i < axes; ++i)
      m.axes.push_back({std::string(1, static_cast<char>('a' + i)), *rc::gen::inRange(1, 5)});
    Group g{"g", {}, {}};
    for (uint32_t i = 0; i < axes; ++i)
      if (*rc::gen::arbitrary<bool>()) g.axes.insert(g.axes.begin(), AxisId{i});  // not in order on purpose
    if (*rc::gen::arbitrary<bool>()) {
      AxisFilter f{AxisId{*rc::gen::inRange(0u, axes)}, {}};
      for (int64_t v = 0; v < m.axes[f.axis.v].size; ++v)
        if (*rc::gen::arbitrary<bool>()) f.values.push_back(v);
      if (f.values.empty()) f.values.push_back(0);
      g.filter = f;
    }
    const RankId rank{*rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(m.ranks()))};
    auto admitted = [&](RankId r) {
      return !g.filter || std::count(g.filter->values.begin(), g.filter->values.end(), m.coordinate(r, g.filter->axis));
    };
    std::vector<RankId> expected;
    for (uint32_t r = 0; r < m.ranks() && admitted(rank); ++r) {
      bool member = admitted({r});
      for (uint32_t a = 0; a < axes; ++a)
        if (std::find(g.axes.begin(), g.axes.end(), AxisId{a}) == g.axes.end())
          member &= m.coordinate({r}, {a}) == m.coordinate(rank, {a});
      if (member) expected.push_back({r});
    }
    RC_ASSERT(group_members(m, g, rank) == expected);
    if (expected.empty()) return;
    RC_ASSERT(group_size(m, g) == static_cast<int64_t>(expected.size()));
    RC_ASSERT(group_index(m, g, rank) == std::find(expected.begin(), expected.end(), rank) - expected.begin());
  }));
}

TEST(Placement, SlotAndStageAreInverse) {
  for (auto kind : {PlacementKind::loop, PlacementKind::zigzag}) {
    const Placement p{kind, 4, 3};
    for (int64_t g = 0; g < p.stages(); ++g) EXPECT_EQ(p.stage(p.slot(g)), g);
  }
  const Placement zigzag{PlacementKind::zigzag, 4, 2};
  EXPECT_EQ(zigzag.slot(3), (Placement::Slot{3, 0}));
  EXPECT_EQ(zigzag.slot(4), (Placement::Slot{3, 1}));  // the turn of the V stays on its rank
  EXPECT_EQ(zigzag.slot(7), (Placement::Slot{0, 1}));
}

TEST(Peer, FollowsTheStages) {
  Plan p = small_plan();
  p.mesh.axes = {{"pp", 2}, {"dp", 2}, {"tp", 3}};
  p.placement.chunks = 2;
  const auto next = peer_of(p, {4}, 0, Direction::next_stage);  // pp 0, dp 1, tp 1
  ASSERT_TRUE(next);
  EXPECT_EQ(next->rank.v, 10u);
  EXPECT_EQ(next->chunk, 0);
  const auto wrapped = peer_of(p, {10}, 0, Direction::next_stage);
  ASSERT_TRUE(wrapped);
  EXPECT_EQ(wrapped->rank.v, 4u);
  EXPECT_EQ(wrapped->chunk, 1);
  EXPECT_FALSE(peer_of(p, {4}, 0, Direction::previous_stage));
  EXPECT_FALSE(peer_of(p, {10}, 1, Direction::next_stage));
  // For every slot the way there and back is none.
  for (auto kind : {PlacementKind::loop, PlacementKind::zigzag}) {
    p.placement.kind = kind;
    for (uint32_t r = 0; r < p.mesh.ranks(); ++r)
      for (int64_t c = 0; c < 2; ++c)
        if (const auto there = peer_of(p, {r}, c, Direction::next_stage)) {
          const auto back = peer_of(p, there->rank, there->chunk, Direction::previous_stage);
          ASSERT_TRUE(back);
          EXPECT_EQ(back->rank.v, r);
          EXPECT_EQ(back->chunk, c);
        }
  }
}

TEST(Program, IsChosenByCoordinate) {
  const Plan p = small_plan();
  EXPECT_EQ(program_of(p, {1}), ProgramId{0});
  EXPECT_EQ(program_of(p, {2}), ProgramId{1});
}

TEST(Block, EqualWhateverThePoolsLookLike) {
  Plan a = small_plan(), b = a;
  b.blocks[kForward0].refs.insert(b.blocks[kForward0].refs.begin(), BufferRef{});
  for (Op& o : b.blocks[kForward0].ops)
    for (Range Op::*list : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases}) ++(o.*list).begin;
  EXPECT_EQ(a, b);
  ++b.blocks[kForward0].ops[1].reads.begin;
  EXPECT_NE(a, b);
  EXPECT_EQ(a.blocks[kBackward0].op_instances(), 5);
}

}  // namespace
}  // namespace wt::plan
