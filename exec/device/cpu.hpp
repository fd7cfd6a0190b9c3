// A rank's device made of threads: one for each stream that is used, in order, and helpers that share large kernels.
// Not a communicator; those that move bytes on a CPU device hand it their work (enqueue). Threads of streams other than
// compute sleep while they wait, so they cost little beside the compute thread, which is pinned.
// Invariant: each stream runs its work in the order given; a failure is kept, what comes after it is skipped.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "exec/backend.hpp"
#include "exec/kernels/cpu/workers.hpp"

namespace wt::exec {

using CpuKernel = std::function<Status(const plan::Compute&, std::span<const Operand> reads,
                                       std::span<const Operand> writes, const KernelContext&, Workers&)>;

struct CpuOptions {
  RankId rank{0};          // told in failures
  int threads = 1;         // that share a kernel, the compute stream's own among them
  std::vector<int> cores;  // the compute thread and its helpers are pinned to them, in order; empty: not pinned
  bool poison = false;     // memory starts as NaN, so that reading what nobody wrote is seen (tests)
  CpuKernel kernel;        // in place of run_cpu_kernel (measuring what the interpreter costs, planted bugs)
};

/// What the system could still give to processes; 0 if it does not say.
Bytes available_memory();

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuOptions);
  ~CpuDevice() override;  // ends when what was launched is over

  std::string_view kind() const override { return "cpu"; }
  std::string description() const override;
  std::optional<std::string> unsupported(const Launch&) const override;
  Result<std::byte*> allocate(plan::Space, Bytes) override;
  void launch(const Launch&, plan::Stream, Ticket) override;
  void copy(const CopyLaunch&, plan::Stream, Ticket) override;
  void wait(plan::Stream, Ticket) override;
  void submit() override;
  Status wait_host(Ticket) override;
  Status synchronize() override;
  Status read(const Operand& from, void* to) override;
  Status write(const void* from, const Operand& to) override;
  Result<Interval> interval(Ticket) override;

  // For communicators -----------------------------------------------------------------------------------------------

  /// Runs on the stream's thread when its turn has come; skipped after a failure.
  using Work = std::function<Status()>;
  void enqueue(plan::Stream, Ticket, std::string_view op, Work);
  /// Whether the compute stream has work that it could do now. What looks again and again leaves it the core while it has.
  bool computing() const;
  /// Sleeps until it has none, at most this long.
  void await_idle(std::chrono::microseconds most);
  /// Called by the compute stream's thread after every kernel: whoever must look now and then need not wake for it.
  void after_kernels(std::function<void()>);
  /// Keeps the first failure of the rank and calls the hook with it.
  void fail(const Diagnostic&);
  /// Called once, from the thread on which the rank failed.
  void on_failure(std::function<void(const Diagnostic&)> hook);
  RankId rank() const { return options_.rank; }

 private:
  struct Queue;
  struct Position {
    uint8_t stream = 0;
    uint32_t number = 0;
  };
  Queue& queue(plan::Stream);
  Status failure() const;

  CpuOptions options_;
  std::unique_ptr<Workers> workers_;
  std::array<std::unique_ptr<Queue>, plan::kStreams> queues_;
  std::atomic<Queue*> compute_{nullptr};  // of them, once it is there
  std::function<void()> after_kernel_;
  std::mutex idle_mutex_;
  std::condition_variable idle_;
  std::atomic<int> await_idle_{0};  // threads in await_idle
  std::vector<Position> tickets_;
  bool synchronized_ = true;
  size_t held_ = 0;  // commands that the queues' threads were not given yet
  mutable std::mutex failure_mutex_;
  std::optional<Diagnostic> failure_;
  std::atomic<bool> failed_{false};
  std::function<void(const Diagnostic&)> hook_;
  struct Freed {
    void operator()(std::byte*) const;
  };
  std::vector<std::unique_ptr<std::byte, Freed>> memory_;
};

}  // namespace wt::exec
