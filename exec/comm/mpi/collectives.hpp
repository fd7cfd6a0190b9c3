// The collectives of the plan put together from messages between pairs. Sums are taken in the order of the members and
// rounded once, like those of inproc, bit for bit. Not a choice among algorithms: each kind has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/backend.hpp"
#include "exec/comm/mpi/messages.hpp"

namespace wt::exec {

/// One rank's side of a channel.
struct MpiSide {
  Lane lane;
  std::vector<int> members;  // world ranks, in the group's order
  int64_t index = 0;
  std::vector<std::byte> scratch, more;  // of the stream's thread
};

/// Runs the collective `t` on its stream's thread. `self`: this rank of the world.
Status run_collective(Messages& messages, int self, MpiSide& side, const Transfer& t);

}  // namespace wt::exec
