// Ranks as processes that MPI started, for CPU devices: on one machine or many. Every transfer is nonblocking messages
// between pairs, so the rank that is missing when one takes too long is known; sums are taken in the order of the members
// and rounded once, like those of inproc, bit for bit.
// Invariants: MPI is asked for MPI_THREAD_MULTIPLE: each stream's thread waits for its own messages, and one thread of each
// rank listens for the reason when a rank stops. After a failure nothing is waited for longer than the timeout.
#pragma once

#include <chrono>
#include <memory>

#include "exec/device/cpu.hpp"

namespace wt::exec {

/// Whether mpirun or srun started this process (with more than one rank or not).
bool started_by_mpi();

struct MpiOptions {
  int threads_per_rank = 1;
  bool pin = true;  // ranks of a machine share its usable cores in turn; without effect when there are too few
  std::chrono::milliseconds timeout{60'000};
  CpuKernel kernel;  // CpuOptions
};

/// MPI from start to end of the process: one at a time, made by the main thread.
class MpiSession {
 public:
  /// Errors: this program was built without MPI; MPI cannot be started, or not for several threads.
  static Result<MpiSession> open(int* argc, char*** argv);
  MpiSession(MpiSession&&) noexcept;
  MpiSession& operator=(MpiSession&&) noexcept;
  /// Ends MPI together with the other ranks; where a machine has failed it is left running: see end_all.
  ~MpiSession();

  RankId rank() const;
  int64_t size() const;
  int64_t ranks_here() const;  // on this machine

  /// This rank's machine, once. Collective. The session must outlive it.
  Result<Machine> machine(const MpiOptions& options);

  /// Ends the processes of all ranks, this one, hung and stopped ones too, with this exit code.
  void end_all(int code);

 private:
  MpiSession() = default;
  bool open_ = false;
};

}  // namespace wt::exec
