// Which ranks have to be simulated. Ranks that differ only on axes that nobody looks at (no program, no group filter,
// no peer map, no cost) behave alike: translation along such an axis maps programs, groups, peers and costs onto
// themselves, so one of them, a *unit*, stands for all. Exact, not an approximation; it changes no time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "sim/price/pricing.hpp"

namespace wt::sim {

/// A group as the units see it: its members without the folded axes.
struct UnitGroup {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t size = 0;              // members; 1: every member is the unit itself; 0: no op uses the group
  std::vector<uint32_t> offsets;  // members of an instance, from its first one
  std::vector<uint32_t> base;     // [unit] first member of its instance, which names the instance; kNone: excluded
};

struct Fold {
  std::vector<uint32_t> rank_of;   // [unit] the rank that is simulated
  uint32_t stands_for = 1;         // ranks behind each unit
  std::vector<UnitGroup> groups;   // [GroupId]
  std::vector<GroupShape> shapes;  // distinct ones
  std::vector<uint32_t> shape_of;  // [group * units + unit], or [group] where shapes_uniform
  bool shapes_uniform = true;
  std::vector<int64_t> message_bytes;  // distinct sizes, sorted

  uint32_t units() const { return static_cast<uint32_t>(rank_of.size()); }
  uint32_t shape(uint32_t group, uint32_t unit) const {
    return shape_of[shapes_uniform ? group : size_t{group} * units() + unit];
  }
  uint32_t unit_of(RankId rank) const;

  struct Digit {
    int64_t stride = 1, size = 1, unit_stride = 1;
  };  // of one kept axis
  std::vector<Digit> digits;
};

/// Looks at what steps[0] of every program uses. With `all_ranks` every axis is kept.
Fold fold_ranks(const plan::Plan&, const Pricing&, bool all_ranks);

/// Time of one message; it shares the NICs of its node with those of the ranks at the same stage there.
Time message_time(const plan::Plan&, const Pricing&, int64_t bytes, RankId from, RankId to);

}  // namespace wt::sim
