// What a machine must offer to run a plan. `cpu` and `cuda` implement Device; `inproc` (threads), `mpi` and `nccl`
// implement Communicator for a device's streams. Pure-virtual = required. Not an interpreter (execute.hpp) and not a
// kernel (kernels/). Invariants: work on one stream runs in the order launched; a ticket is over when the work launched
// under it is over; the first failure on a rank is kept, later work on that rank is skipped, and synchronize returns it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/result.hpp"
#include "core/base/units.hpp"
#include "core/plan/plan.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// Names one task of a run on its rank: what others wait for, and what the trace asks the times of.
using Ticket = uint32_t;

/// A compute op with its operands resolved. What the spans and `op` point at lives until the ticket is over.
struct Launch {
  const plan::Compute* compute = nullptr;  // null: no work, the ticket is over when its turn on the stream has come
  std::string_view op;                     // its name in the plan; failures tell it
  std::span<const Operand> reads, writes;  // positional, as plan::Kernel says
  KernelContext context;
};

/// Bytes between memory spaces of one rank.
struct CopyLaunch {
  std::string_view op;
  std::span<const Operand> reads, writes;  // pairwise
  plan::Space from = plan::Space::device, to = plan::Space::device;
};

/// One set of ranks that issue collectives in the same order: a group of the plan on one stream. The order of a
/// channel's members is the plan's group order; `index` is this rank's place.
struct Channel {
  plan::Stream stream = plan::Stream::tensor;
  std::vector<RankId> members;
  int64_t index = 0;
};

/// A sequence of messages between this rank and another: what Transfer calls peer, lane and kind.
struct Pair {
  RankId peer;
  uint32_t lane = 0;
  bool sends = false;
  auto operator<=>(const Pair&) const = default;
};

/// A collective, send or receive with its operands resolved.
struct Transfer {
  enum class Kind : uint8_t { collective, send, receive };
  Kind kind = Kind::collective;
  std::string_view op;                           // its name in the plan; failures tell it
  const plan::Collective* collective = nullptr;  // kind collective
  uint32_t channel = 0;                          // collective: index into the channels given to connect()
  RankId peer;                                   // send, receive
  uint32_t lane = 0;  // send, receive: tells apart independent sequences between two ranks (one for each direction)
  std::span<const Operand> reads, writes;
};

/// On the rank's own clock: now_ps() of its host, whatever the device counts in.
struct Interval {
  int64_t begin_ps = 0, end_ps = 0;
};

/// The host's steady clock.
inline int64_t now_ps() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t).count() * 1000;
}

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view kind() const = 0;    // "cpu", "cuda"
  virtual std::string description() const = 0;  // "4 threads of AMD EPYC 7763", "NVIDIA H100 80GB HBM3, driver 555.42"

  /// Why the kernel cannot run with operands of these element types; nothing if it can. Asked for the whole plan before
  /// the first launch.
  virtual std::optional<std::string> unsupported(const Launch&) const = 0;

  /// Memory for a whole run, freed with the device. Fails with the bytes asked for and those free.
  virtual Result<std::byte*> allocate(plan::Space, Bytes) = 0;

  // Asynchronous; failures are reported by synchronize.
  virtual void launch(const Launch&, plan::Stream, Ticket) = 0;
  virtual void copy(const CopyLaunch&, plan::Stream, Ticket) = 0;
  /// Later work on `stream` starts only when `ticket`, launched before on another stream, is over.
  virtual void wait(plan::Stream stream, Ticket) = 0;
  /// What was launched is on its way when this returns: a device may keep back a little until then, or until the host waits.
  virtual void submit() {}
  /// The host waits until the ticket is over.
  virtual Status wait_host(Ticket) = 0;
  /// Everything launched is over; the first failure of the rank. Tickets start anew after it.
  virtual Status synchronize() = 0;

  /// Between host memory and an operand; after synchronize, or ordered by wait_host.
  virtual Status read(const Operand& from, void* to) = 0;
  virtual Status write(const void* from, const Operand& to) = 0;

  /// When the work under `ticket` ran; valid after synchronize, until the next launch.
  virtual Result<Interval> interval(Ticket) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view kind() const = 0;  // "inproc", "mpi", "nccl"
  virtual RankId rank() const = 0;
  virtual int64_t size() const = 0;

  /// Makes what the run's transfers need. Every rank of the job calls it once with its own channels, in the same order
  /// of groups. Collective: returns when all ranks are there, or a failure.
  virtual Status connect(std::span<const Channel>) = 0;
  /// The same for all the messages that will be sent or received, where they need to be known before (nccl). Collective.
  virtual Status connect_pairs(std::span<const Pair>) { return ok_status(); }

  /// Asynchronous, on the device's stream; transfers of one channel (or one peer, direction and lane) match in the order
  /// started. Failures are reported by Device::synchronize with rank, op and call.
  virtual void start(const Transfer&, plan::Stream, Ticket) = 0;

  /// Host-side agreement outside the plan (start-up, checkpoints, the verdict of a step).
  virtual Status barrier() = 0;
  /// Element-wise over all ranks, on every rank.
  virtual Result<std::vector<double>> reduce(std::span<const double>, plan::Reduction) = 0;
  /// Everyone's bytes on every rank, by rank.
  virtual Result<std::vector<std::string>> gather(std::string_view) = 0;

  /// This rank's clock less rank 0's, with half the round trip as its uncertainty.
  struct ClockOffset {
    int64_t offset_ps = 0, uncertainty_ps = 0;
  };
  virtual Result<ClockOffset> clock_offset() = 0;

  /// One rank failed: every rank stops within the timeout, with this reason. Does not return to a healthy state.
  virtual void stop(const Diagnostic&) = 0;
};

/// One rank's machine. The communicator is destroyed first.
struct Machine {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;
};

}  // namespace wt::exec
