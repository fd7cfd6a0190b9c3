// One transfer between this rank and others as nonblocking messages, and the wait for them. Not a collective
// (collectives.hpp) and not a thread: whoever calls waits.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "exec/comm/mpi/control.hpp"

namespace wt::exec {

/// What one rank sends to or receives from another, as part of a transfer.
struct Part {
  int peer = 0;  // of the world
  bool sends = false;
  void* data = nullptr;
  int64_t bytes = 0;
};

/// A communicator of MPI and the places of the world's ranks in it.
struct Lane {
  MPI_Comm comm = MPI_COMM_NULL;
  std::map<int, int> place;  // world rank -> rank in comm; empty: they are the same
  int tag = 0;
};

enum class Patience { yields, spins };  // spins: while clocks are compared

/// Starts all parts and returns when they are over. Parts with one peer match in their order. `self`: of the world. Errors:
/// what MPI says, the reason another rank stopped for, or who has not come in time.
Status exchange(Control& control, int self, std::string_view op, const Lane& lane, std::span<const Part> parts,
                Patience patience = Patience::yields);

}  // namespace wt::exec
