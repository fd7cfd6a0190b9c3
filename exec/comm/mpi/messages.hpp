// Transfers between this rank and others as nonblocking messages, and the waits for them. Not a collective
// (collectives.hpp) and not a thread: of the threads that wait, one looks for all.
// Invariants: MPI moves bytes only while somebody looks, so as long as a transfer is open somebody does; while the rank
// computes that is seldom, for both share a core.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string_view>

#include "exec/comm/mpi/control.hpp"
#include "exec/device/cpu.hpp"

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

class Messages {
 public:
  /// `self`: this rank of the world. Both outlive this.
  Messages(Control&, CpuDevice&, int self);
  ~Messages();

  /// Starts all parts and returns when they are over. Parts with one peer match in their order. Any thread, several at
  /// once. Errors: what MPI says, the reason another rank stopped for, or who has not come in time.
  Status exchange(std::string_view op, const Lane& lane, std::span<const Part> parts,
                  Patience patience = Patience::yields);

 private:
  class Open;
  /// Of the thread that computes, between two kernels.
  void look_in_passing();
  /// Under the lock.
  void look();
  /// Looks for all until `mine` is over.
  void look_for_all(std::unique_lock<std::mutex>&, Open& mine);
  /// Between two looks; the lock is free meanwhile.
  void pause(std::unique_lock<std::mutex>&, int& looks, Control::Clock::time_point since);
  /// Ends `mine` if the job has failed or it waits for too long.
  void give_up_in_time(std::unique_lock<std::mutex>&, Open& mine);

  Control& control_;
  CpuDevice& device_;
  const int self_;
  std::mutex mutex_;  // the requests of what is in open_
  std::list<Open*> open_;
  bool looking_ = false;            // a thread is in look_for_all
  std::atomic<size_t> waiting_{0};  // transfers in open_
  std::atomic<int64_t> last_look_ps_{0};
};

}  // namespace wt::exec
