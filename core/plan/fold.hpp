// Finds the repeats of an order: "29x{ F.0[3+i] B.0[i] }" instead of 58 invocations.
// Not a general compressor: a repeat is a run of equal invocations (block, chunks) whose micro-batches all move by one
// constant from one period to the next; folds are folded again, so rounds of rounds come out nested.
// Invariant: expanding the nodes in order gives back the order; the result depends on its content alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::plan {

/// An invocation (count 0), or `count` repeats of `body`: repeat i adds stride * i to every micro-batch below it.
struct FoldNode {
  Invocation invocation;
  uint32_t count = 0;
  int64_t stride = 0;
  std::vector<FoldNode> body;
};

/// Linear in the order: a few comparisons for each invocation, up to 64 for each repeat that is left. Nesting at most kFoldDepth.
std::vector<FoldNode> fold(std::span<const Invocation> order);

inline constexpr int kFoldDepth = 3;

}  // namespace wt::plan
