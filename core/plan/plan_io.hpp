// Text form, digest and validation of a plan. parse(print(p)) == p for every valid plan; a kept text of every released
// version must load for ever (tests/kept/).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"

namespace wt::plan {

/// Stable, diffable text of a few pages: golden tests hold it. Orders are folded ("29x{ F.0[3+i] B.0[i] }").
std::string print(const Plan&);

/// Errors name line and column of `where`.
Result<Plan> parse_plan(std::string_view text, std::string_view where = "plan");

/// Names the plan inside every trace: a hash of the content, equal for equal plans, on every machine. The name of the
/// plan is no part of it: the same work under another name is the same plan.
uint64_t digest(const Plan&);
/// Whether a trace that says `value` is of this plan. Traces of the first versions hashed the name too.
bool is_digest_of(uint64_t value, const Plan&);

/// Everything in plan.hpp's invariant, all faults at once; a plan that cannot make progress names every stuck rank
/// and op. The dry run uses one rank of each set of ranks that differ only on axes no program or filter looks at.
Status validate(const Plan&);

}  // namespace wt::plan
