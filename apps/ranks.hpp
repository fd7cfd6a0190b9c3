// The ranks of `run`: threads or processes, CPU or CUDA devices, and the machines that they run on. Not a launcher: who started
// the processes has done so. Invariant: what goes wrong on one rank is an error on all.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.hpp"
#include "exec/backend.hpp"
#include "exec/comm/mpi.hpp"
#include "exec/comm/nccl/rendezvous.hpp"

namespace wt::apps {

/// How this process was started: all ranks are its threads, or it is one of several.
struct Ranks {
  exec::MpiSession* mpi = nullptr;
  std::optional<exec::RendezvousPlace> torchrun;

  bool processes() const { return mpi != nullptr || torchrun; }
  uint32_t rank() const { return mpi ? mpi->rank().v : torchrun ? static_cast<uint32_t>(torchrun->rank) : 0; }
  /// Ranks that were started; `planned` where they are threads.
  int64_t size(int64_t planned) const { return mpi ? mpi->size() : torchrun ? torchrun->size : planned; }
  /// Of them on this machine; as far as torchrun's variables say.
  int64_t here(int64_t planned) const { return mpi ? mpi->ranks_here() : torchrun ? 1 : planned; }
};

struct MachineOptions {
  bool cuda = false;
  int threads_per_rank = 1;  // CPU
  std::chrono::milliseconds timeout{60'000};
};

/// Of each rank of this process: one among several, or all `ranks`. Collective over processes. Errors: no GPU, fewer than
/// ranks, or a program built without CUDA; ranks that cannot find each other.
Result<std::vector<exec::Machine>> open_machines(const Ranks&, int64_t ranks, const MachineOptions&);

}  // namespace wt::apps
