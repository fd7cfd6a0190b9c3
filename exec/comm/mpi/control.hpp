// What the threads of one rank over MPI share: whether the job has failed and why, and who waits for whom. One thread of each
// rank listens to the letters of others and answers them, also while the rest hangs. Not for tensors.
// Invariant: the first reason to stop is kept, and every other rank is told of it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/result.hpp"

namespace wt::exec {

/// What MPI says about an error code.
std::string mpi_error(int code);

/// What a thread waits for, for whoever asks.
struct Waiting {
  std::string op;
  std::vector<int> peers;
  std::chrono::steady_clock::time_point since;
};

class Control {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  Control(MPI_Comm, int rank, int size, milliseconds timeout);
  ~Control();

  milliseconds timeout() const { return timeout_; }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  Diagnostic reason() const;
  /// Called once, with the reason that another rank gave.
  void on_stop(std::function<void(const Diagnostic&)> hook);

  /// This rank has failed: all are told. The first reason stays.
  void stop(const Diagnostic& why);
  /// Messages that are under way are given this long to leave.
  void flush(milliseconds most);

  using Place = std::list<Waiting>::iterator;
  Place begin_wait(Waiting);
  void end_wait(Place);

  /// `peers` have not come in time: why, as far as the others can say within a second.
  Diagnostic explain(std::string_view op, const std::vector<int>& peers);

 private:
  struct Letter {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool keep(const Diagnostic& why);
  void tell_device(const Diagnostic& why);
  void ask_all();
  std::string said() const;  // under the lock
  void last_words();
  void post(int to, std::string text);
  void listen();
  void read(int from, const std::string& text);
  std::string doing() const;

  const int rank_, size_;
  const milliseconds timeout_;
  const MPI_Comm comm_;
  mutable std::mutex mutex_;
  Diagnostic reason_;
  std::atomic<bool> stopped_{false}, over_{false};
  std::function<void(const Diagnostic&)> hook_;
  std::list<Waiting> waiting_;
  std::vector<std::optional<std::string>> answers_;
  std::optional<Clock::time_point> ends_;  // of the listener: since when it knows that the rank is told to end
  bool catches_ = false;                   // SIGTERM
  std::mutex post_mutex_;
  std::list<Letter> outbox_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace wt::exec
