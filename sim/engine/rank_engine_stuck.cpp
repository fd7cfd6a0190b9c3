// Of RankEngine: what it says of a plan that cannot go on.
#include <fmt/format.h>

#include "sim/engine/rank_engine.hpp"

namespace wt::sim {

std::string RankEngine::describe(uint32_t u) const {
  const Unit& unit = units_[u];
  const UnitClass& cls = priced_.classes[unit.cls];
  if (unit.invocation >= cls.order.size()) return "the end of the step";
  const plan::Invocation& invocation = plan_.programs[cls.program.v].steps[0].order[unit.invocation];
  const FlatBlock& flat = priced_.blocks[cls.order[unit.invocation].block];
  std::string text;
  // A merge belongs to the op behind it.
  uint32_t at = unit.op;
  while (at + 1 < flat.ops.size() && flat.ops[at].kind == OpKind::merge) ++at;
  const uint32_t wanted = flat.ops[at].instance;
  for_each_op(plan_.block(invocation.block), [&](const plan::Op& op, uint32_t, int64_t layer, uint32_t instance) {
    if (instance != wanted) return;
    text = fmt::format("op {} '{}'", instance, op.name);
    if (layer >= 0) text += fmt::format(" of layer {}", layer);
  });
  text += fmt::format(" of invocation {} '{}'", unit.invocation, plan_.block(invocation.block).name);
  for (uint32_t b = 0; b < invocation.bindings; ++b)
    text += fmt::format(" (chunk {}, micro-batch {})", invocation.binding[b].chunk, invocation.binding[b].micro_batch);
  return text;
}

Diagnostics RankEngine::describe_stuck() const {
  Diagnostics out;
  for (uint32_t u = 0; u < fold_.units(); ++u) {
    const Unit& unit = units_[u];
    if (unit.stalled_on < kUnknown) continue;
    const auto stream = static_cast<plan::Stream>((unit.stalled_on - kUnknown) % plan::kStreams);
    std::string where = fmt::format("rank {}", fold_.rank_of[u]);
    if (fold_.stands_for > 1) where += fmt::format(" and {} ranks like it", fold_.stands_for - 1);
    out.push_back({where, fmt::format("stuck before {}: waits for the {} stream", describe(u), to_text(stream)),
                   "an op posted there never meets its partner"});
  }
  return out;
}

}  // namespace wt::sim
