// What a trace holds of a rank: which of its ranks stands for one that was folded away, and which variant of the step ran.
// For traces that passed check_against_plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::trace {

/// The rank itself, else one at its pipeline stage that runs its program; `rank` must be one of the plan's.
inline std::optional<uint32_t> stand_in(const plan::Plan& plan, const std::vector<uint32_t>& held, uint32_t rank) {
  const std::optional<AxisId> pp = plan.mesh.find("pp");
  const auto stage = [&](uint32_t r) { return pp ? plan.mesh.coordinate(RankId{r}, *pp) : 0; };
  std::optional<uint32_t> like;
  for (const uint32_t other : held) {
    if (other == rank) return rank;
    if (!like && stage(other) == stage(rank) &&
        plan::program_of(plan, RankId{other}) == plan::program_of(plan, RankId{rank}))
      like = other;
  }
  return like;
}

/// Which variant ran is not stored: the one whose length fits. Null: none does.
inline const plan::StepOrder* order_of(const plan::Plan& plan, uint32_t rank, size_t spans) {
  for (const plan::StepOrder& variant : plan.programs[plan::program_of(plan, RankId{rank}).v].steps) {
    size_t n = 0;
    for (const plan::Invocation& i : variant.order) n += static_cast<size_t>(plan.block(i.block).op_instances());
    if (n == spans) return &variant;
  }
  return nullptr;
}

}  // namespace wt::trace
