#include "exec/device/thread_pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace wt::exec {

void pin_this_thread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < 0 || core >= CPU_SETSIZE) return;
  CPU_SET(core, &set);
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

namespace {
/// Linux's struct sched_attr in its first version, which the C library does not declare yet.
struct SchedulerRequest {
  uint32_t size = sizeof(SchedulerRequest), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};
static_assert(sizeof(SchedulerRequest) == 48);
}  // namespace

void take_turn(Turn turn) {
  int policy = SCHED_OTHER;
  sched_param priority{};
  if (pthread_getschedparam(pthread_self(), &policy, &priority) != 0) return;
  if (policy == SCHED_FIFO || policy == SCHED_RR) {  // one lower needs no right, one higher would
    if (turn == Turn::transfers || priority.sched_priority <= sched_get_priority_min(policy)) return;
    --priority.sched_priority;
    (void)pthread_setschedparam(pthread_self(), policy, &priority);
    return;
  }
  if (policy != SCHED_OTHER || turn == Turn::computes) return;
  // Linux 6.12 and later: who asks for a shorter slice runs when it wakes. Others take no notice.
  SchedulerRequest asked{};
  if (syscall(SYS_sched_getattr, 0, &asked, sizeof asked, 0) != 0) return;
  asked.runtime_ns = 100'000;  // the least that the system grants
  (void)syscall(SYS_sched_setattr, 0, &asked, 0);
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  (void)syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_one(std::atomic<uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty())
    for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core)
      cores.push_back(static_cast<int>(core));
  return cores;
}

ThreadPool::ThreadPool(int threads, std::vector<int> cores) {
  for (int i = 1; i < threads; ++i)
    helpers_.emplace_back([this, core = static_cast<size_t>(i) < cores.size() ? cores[static_cast<size_t>(i)] : -1] {
      pin_this_thread(core);
      help();
    });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& t : helpers_) t.join();
}

void ThreadPool::work() {
  for (;;) {
    const int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
    if (begin >= n_) return;
    try {
      (*body_)(begin, std::min(begin + piece_, n_));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

void ThreadPool::help() {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || job_ != seen; });
      if (stop_) return;
      seen = job_;
    }
    work();
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, RangeBody body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (helpers_.empty() || n <= grain) {
    body(0, n);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_.emplace(body);
    n_ = n;
    // A few pieces for each thread: one that is late does not hold up the rest.
    constexpr int64_t kPiecesPerThread = 4;
    piece_ = std::max(grain, (n + kPiecesPerThread * count() - 1) / (kPiecesPerThread * count()));
    next_.store(0, std::memory_order_relaxed);
    busy_ = helpers_.size();
    failure_ = nullptr;
    ++job_;
  }
  start_.notify_all();
  work();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace wt::exec
