// Ranks as processes with a CUDA device each, over NCCL. Only in a build with CUDA (target wt_cuda). Not run on a GPU yet.
#pragma once

#include <chrono>
#include <memory>

#include "exec/comm/nccl/rendezvous.hpp"

namespace wt::exec {

struct NcclOptions {
  int device = 0;  // among those that CUDA_VISIBLE_DEVICES shows; usually the local rank
  std::chrono::milliseconds timeout{60'000};
};

/// This rank's machine. Collective over the ranks of the rendezvous, which may be torchrun's (Rendezvous::join) or the
/// caller's own, over MPI.
Result<Machine> open_nccl(std::unique_ptr<Rendezvous>, const NcclOptions&);

}  // namespace wt::exec
