// What a rank of a plan holds of weights, master weights and moments, as tensors that do not know the plan's buckets, its
// stages or its sharded optimizer. Not storage and not files. Read from the plan's views and the operands of its updates,
// so it has no rule of its own about who holds what.
#pragma once

#include <functional>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "exec/checkpoint/holding.hpp"

namespace wt::exec {

/// Storage of a buffer that lives through the run, on this rank; `layer` of the chunk where there is one for each, else -1.
using Locate = std::function<Operand(BufferId, int64_t chunk, int64_t layer)>;

/// What is made again in every step is no state: whole weights of a unit whose shards are kept, copies in 8 bits.
std::vector<Holding> holdings_of(const plan::Plan& plan, RankId rank, const Locate& locate);

}  // namespace wt::exec
