// A trace as Chakra execution traces (MLCommons; schema/protobuf/et_def.proto, version 0.0.4), so that other simulators can
// run the plan: <prefix>.<rank>.et for each rank, <prefix>.comm_group.json with the members of every communicator.
//
// A node is an op of one step: COMP with its FLOPs and bytes, COMM_COLL with kind, size and communicator, COMM_SEND and
// COMM_RECV with peer and a tag that both sides share, MEM_LOAD and MEM_STORE for copies. ctrl_deps are the order of a
// stream and the waits of the host, data_deps the waits of the op; a node's id is its place in the order of issue.
// Not lossless: Chakra counts whole microseconds. They are rounded so that each stream's sum is right to one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/trace/trace.hpp"

namespace wt::trace {

struct ChakraWritten {
  size_t files = 0;
  int64_t nodes = 0;
};

/// The last step of each of `ranks` (empty: of all ranks of the plan); ranks that were folded away have the times of the
/// one that stands for them. Sizes are the input of a rank, as PyTorch's traces have them: of an all-gather its shard.
/// Errors: the trace is not of the plan, a rank is not in it, more than `most_nodes`, not writable.
Result<ChakraWritten> write_chakra(const std::string& prefix, const Trace& trace, const plan::Plan& plan,
                                   std::vector<uint32_t> ranks = {}, int64_t most_nodes = 20'000'000);

}  // namespace wt::trace
