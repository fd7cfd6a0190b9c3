// Ranks as processes that find each other over TCP, as torchrun starts them: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
// What the host must agree on goes this way: NCCL's ids, barriers, verdicts, clocks, the reason to stop. Not for tensors.
// Invariants: exchanges are collective and in the same order on every rank; nothing waits longer than the timeout; a rank
// that stops, dies or is cut off stops every rank with that reason.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/backend.hpp"

namespace wt::exec {

struct RendezvousPlace {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  // LOCAL_RANK: which of the machine's devices; 0 where it is not set
  std::string address = "127.0.0.1";
  int port = 29500;
};

/// Every fault of the variables at once.
Result<RendezvousPlace> rendezvous_from_environment(const std::function<const char*(const char*)>& variable);
Result<RendezvousPlace> rendezvous_from_environment();

/// A place for the ranks of another communicator to meet at, which they agree on through it: rank 0's host and a port that
/// is free there; the local rank counts the ranks before on the same host. Collective.
Result<RendezvousPlace> rendezvous_over(Communicator&);
/// A port of this host that nobody listens on; someone else may take it before it is used.
Result<int> free_port();

class Rendezvous {
 public:
  /// Collective: returns when all ranks are there. Rank 0 listens on the port.
  static Result<std::unique_ptr<Rendezvous>> join(const RendezvousPlace&, std::chrono::milliseconds timeout);
  virtual ~Rendezvous() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Everyone's bytes on every rank, by rank.
  virtual Result<std::vector<std::string>> exchange(std::string_view mine) = 0;
  /// This rank's clock less rank 0's: the best of some round trips.
  virtual Result<Communicator::ClockOffset> clock_offset() = 0;

  /// Called once, from a thread of its own, with the reason that another rank gave or with whose connection was lost.
  virtual void on_stop(std::function<void(const Diagnostic&)> hook) = 0;
  /// Tells all ranks; the first reason stays.
  virtual void stop(const Diagnostic&) = 0;
};

}  // namespace wt::exec
