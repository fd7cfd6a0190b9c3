// Threads that share the ranges of one kernel at a time, each kept on its core. The caller works too. Not a queue: streams
// (cpu.hpp) decide what runs when. Invariant: parallel_for returns when every range is done and no thread looks at the
// body any more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "exec/kernels/cpu/workers.hpp"

namespace wt::exec {

/// Keeps the calling thread on this core. Without effect where the core does not exist or the system does not allow it.
void pin_this_thread(int core);

/// How the threads of a rank share its core. A thread that moves bytes works seldom and briefly: when it wakes it goes before
/// the one that computes, which would else keep the core until it blocks (real-time priorities) or for whole milliseconds.
enum class Turn { computes, transfers };
/// Without effect where the system does not allow it.
void take_turn(Turn);

/// Sleeps while `word` has this value; may wake early. Unlike std::atomic::wait it does not yield first: where others want the
/// core, Linux 6.18 takes a whole slice from a thread for every time that it yields, which adds up to seconds.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value);
/// Wakes the thread that sleeps on it.
void wake_one(std::atomic<uint32_t>& word);

/// Cores that this process may use, in order.
std::vector<int> usable_cores();

class ThreadPool final : public Workers {
 public:
  /// `threads` counts the caller; the others are pinned to `cores[1..]` where given.
  explicit ThreadPool(int threads, std::vector<int> cores = {});
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int64_t count() const override { return static_cast<int64_t>(helpers_.size()) + 1; }
  void parallel_for(int64_t n, int64_t grain, RangeBody body) override;

 private:
  void help();
  void work();

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  uint64_t job_ = 0;  // counts calls; a helper joins each once
  bool stop_ = false;
  size_t busy_ = 0;
  std::exception_ptr failure_;

  // Of the call that runs.
  std::optional<RangeBody> body_;
  int64_t n_ = 0, piece_ = 1;
  std::atomic<int64_t> next_{0};
};

}  // namespace wt::exec
