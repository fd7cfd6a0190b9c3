#include "exec/comm/mpi/messages.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace wt::exec {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int64_t kLargestMessage = int64_t{1} << 30;  // an MPI count is an int

/// While nothing computes, a message within a machine takes microseconds: so many looks come one after the other. Then the
/// core is lent to whoever else is on it between two looks, for longer when nothing has come for long.
constexpr int kEagerLooks = 64;
constexpr microseconds kPause{20}, kLongPause{200};
constexpr milliseconds kLong{20};
/// While the rank computes, its compute thread looks between two kernels, no sooner than this after the look before. It
/// costs a call; to wake a thread for it costs 10 to 20 us of the core, so that is left for kernels that take long. What is
/// late by that is the next part of a message that is hidden: when the compute stream has nothing to do, others look.
constexpr int64_t kSeldomPs = 100'000'000;
constexpr microseconds kBesideKernel{5000};
/// A thread for which another looks sees to its timeout by itself.
constexpr milliseconds kSelf{20};
constexpr int kSpins = 1'000'000;

}  // namespace

/// One transfer: requests and whom they are with.
class Messages::Open {
 public:
  Open(std::string_view op, int self) : op_(op), self_(self) {}

  Status start(const Lane& lane, std::span<const Part> parts) {
    for (const bool sends : {false, true})  // receives first: what comes then has its place
      for (const Part& p : parts)
        if (p.sends == sends)
          if (const Status s = start(lane, p); !s) return s;
    states_.resize(requests_.size());
    return ok_status();
  }

  /// Also moves the bytes of all other transfers of the process. Once over, it stays so.
  void look() {
    if (over) return;
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, states_.data());
    if (code == MPI_SUCCESS) {
      if (done) over = ok_status();
      return;
    }
    over = fault("MPI_Testall: " + mpi_error(code));
    for (size_t i = 0; i < states_.size() && code == MPI_ERR_IN_STATUS; ++i)
      if (const int error = states_[i].MPI_ERROR; error != MPI_SUCCESS && error != MPI_ERR_PENDING) {
        over = fault(fmt::format("a message with rank {}: {}", peers_[i], mpi_error(error)));
        return;
      }
  }

  std::vector<int> missing() const {
    std::vector<int> out;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || std::find(out.begin(), out.end(), peers_[i]) != out.end()) continue;
      int there = 0;
      MPI_Request_get_status(requests_[i], &there, MPI_STATUS_IGNORE);
      if (!there) out.push_back(peers_[i]);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  std::string_view op() const { return op_; }
  const Control::Clock::time_point since = Control::Clock::now();
  std::optional<Status> over;
  std::optional<Control::Place> told;  // that it waits
  std::condition_variable wake;        // it is over, or nobody looks any more

 private:
  Diagnostic fault(std::string what) const {
    return {fmt::format("rank {}, op '{}'", self_, op_), std::move(what), ""};
  }

  Status start(const Lane& lane, const Part& p) {
    int64_t at = 0;
    do {
      const auto count = static_cast<int>(std::min(kLargestMessage, p.bytes - at));
      char* data = static_cast<char*>(p.data) + at;
      MPI_Request r = MPI_REQUEST_NULL;
      const int peer = lane.place.empty() ? p.peer : lane.place.at(p.peer);
      const int code = p.sends ? MPI_Isend(data, count, MPI_BYTE, peer, lane.tag, lane.comm, &r)
                               : MPI_Irecv(data, count, MPI_BYTE, peer, lane.tag, lane.comm, &r);
      if (code != MPI_SUCCESS)
        return fault(
            fmt::format("{} rank {}: {}", p.sends ? "MPI_Isend to" : "MPI_Irecv from", p.peer, mpi_error(code)));
      requests_.push_back(r);
      peers_.push_back(p.peer);
      at += count;
    } while (at < p.bytes);
    return ok_status();
  }

  const std::string_view op_;
  const int self_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<MPI_Status> states_;
};

Status Messages::exchange(std::string_view op, const Lane& lane, std::span<const Part> parts, Patience patience) {
  if (parts.empty()) return ok_status();
  Open mine(op, self_);
  if (const Status s = mine.start(lane, parts); !s) return s;
  const int looks = patience == Patience::spins ? kSpins : kEagerLooks;
  for (int i = 0; i < looks; ++i) {
    mine.look();
    if (mine.over) return *mine.over;
    if (patience == Patience::spins) continue;
    if (device_.computing()) break;
    ::sched_yield();
  }
  std::unique_lock lock(mutex_);
  const auto place = open_.insert(open_.end(), &mine);
  ++waiting_;
  while (!mine.over) {
    if (looking_)
      mine.wake.wait_for(lock, kSelf);
    else
      look_for_all(lock, mine);
    if (!mine.over) give_up_in_time(lock, mine);
  }
  open_.erase(place);
  --waiting_;
  if (mine.told) control_.end_wait(*mine.told);
  return *mine.over;
}

Messages::Messages(Control& control, CpuDevice& device, int self) : control_(control), device_(device), self_(self) {
  device_.after_kernels([this] { look_in_passing(); });
}

Messages::~Messages() { device_.after_kernels({}); }

void Messages::look_in_passing() {
  if (waiting_ == 0 || now_ps() - last_look_ps_ < kSeldomPs) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) look();
}

void Messages::look() {
  for (Open* o : open_) {
    if (o->over) continue;
    o->look();
    if (o->over) o->wake.notify_one();
  }
  last_look_ps_ = now_ps();
}

void Messages::look_for_all(std::unique_lock<std::mutex>& lock, Open& mine) {
  looking_ = true;
  for (int looks = 0;;) {
    look();
    if (!mine.over) give_up_in_time(lock, mine);
    if (mine.over) break;
    pause(lock, looks, mine.since);
  }
  looking_ = false;
  for (Open* o : open_)
    if (!o->over) {
      o->wake.notify_one();
      return;
    }
}

void Messages::pause(std::unique_lock<std::mutex>& lock, int& looks, Control::Clock::time_point since) {
  lock.unlock();
  if (device_.computing()) {
    device_.await_idle(kBesideKernel);
    looks = 0;
  } else if (++looks < kEagerLooks) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(Control::Clock::now() - since > kLong ? kLongPause : kPause);
  }
  lock.lock();
}

void Messages::give_up_in_time(std::unique_lock<std::mutex>& lock, Open& mine) {
  if (control_.stopped()) {
    mine.over = Status(control_.reason());
    return;
  }
  const auto waited = Control::Clock::now() - mine.since;
  if (!mine.told && waited > milliseconds(100))
    mine.told = control_.begin_wait({std::string(mine.op()), mine.missing(), mine.since});
  if (waited <= control_.timeout()) return;
  const std::vector<int> missing = mine.missing();
  lock.unlock();
  const Diagnostic why = control_.explain(mine.op(), missing);
  lock.lock();
  if (!mine.over) mine.over = Status(control_.stopped() ? control_.reason() : why);
}

}  // namespace wt::exec
