#include "exec/comm/mpi.hpp"

#include <cstdlib>

#if defined(WT_HAVE_MPI)

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "exec/comm/reduce.hpp"
#include "exec/device/thread_pool.hpp"

namespace wt::exec {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kLargestMessage = int64_t{1} << 30;  // an MPI count is an int
/// A waiting thread looks this often without a pause (a message within a machine takes microseconds), then sleeps between
/// looks: it must not take the core from the compute thread.
constexpr int kEagerLooks = 64;
constexpr long kPauseNs = 20'000;
/// A rank that does not say what it is doing within this time is stopped, dead or cut off.
constexpr milliseconds kAnswerTime{1000};
/// Between a rank's failure and the end of all: the others hear why and say so.
constexpr milliseconds kFarewell{500};

std::atomic<bool> failed_machine{false};  // MPI_Finalize would wait for ranks that hang

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

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
  std::map<int, int> place;  // world rank -> rank in comm
  int tag = 0;
};

/// What a thread waits for, for whoever asks.
struct Waiting {
  std::string op;
  std::vector<int> peers;
  Clock::time_point since;
};

/// What all threads of a rank share: the verdict, who waits for whom, and the thread that listens to other ranks.
class Control {
 public:
  Control(MPI_Comm comm, int rank, int size, milliseconds timeout)
      : rank_(rank), size_(size), timeout_(timeout), comm_(comm), answers_(static_cast<size_t>(size)) {
    thread_ = std::thread([this] { listen(); });
  }
  ~Control() {
    over_ = true;
    thread_.join();
  }

  milliseconds timeout() const { return timeout_; }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  Diagnostic reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  /// Called once, with the reason that another rank gave.
  void on_stop(std::function<void(const Diagnostic&)> hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }

  /// This rank has failed: all are told. The first reason stays.
  void stop(const Diagnostic& why) {
    if (!keep(why)) return;
    for (int r = 0; r < size_; ++r)
      if (r != rank_) post(r, kStop + why.where + '\0' + why.what + '\0' + why.hint);
  }

  /// Messages that are under way are given this long to leave.
  void flush(milliseconds most) {
    const auto until = Clock::now() + most;
    while (Clock::now() < until) {
      {
        const std::lock_guard lock(post_mutex_);
        if (outbox_.empty()) return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  using Place = std::list<Waiting>::iterator;
  Place begin_wait(Waiting w) {
    const std::lock_guard lock(mutex_);
    return waiting_.insert(waiting_.end(), std::move(w));
  }
  void end_wait(Place place) {
    const std::lock_guard lock(mutex_);
    waiting_.erase(place);
  }

  /// `peers` have not come in time: why, as far as the others can say.
  Diagnostic explain(std::string_view op, const std::vector<int>& peers) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& a : answers_) a.reset();
    }
    for (int r = 0; r < size_; ++r)
      if (r != rank_) post(r, kAsk);
    const auto until = Clock::now() + kAnswerTime;
    auto all_answered = [&] {
      const std::lock_guard lock(mutex_);
      for (int r = 0; r < size_; ++r)
        if (r != rank_ && !answers_[static_cast<size_t>(r)]) return false;
      return true;
    };
    while (Clock::now() < until && !stopped() && !all_answered()) std::this_thread::sleep_for(milliseconds(2));
    Diagnostic d;
    d.where = fmt::format("rank {}, op '{}'", rank_, op);
    d.what = fmt::format("waited {:.1f} s for rank {}", std::chrono::duration<double>(timeout_).count(), list(peers));
    d.hint = "a rank that is slow, stopped or stuck; --timeout allows more";
    const std::lock_guard lock(mutex_);
    std::vector<int> silent;
    std::string told;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const auto& answer = answers_[static_cast<size_t>(r)];
      if (!answer)
        silent.push_back(r);
      else
        told += fmt::format("; rank {} {}", r, *answer);
    }
    if (!silent.empty())
      d.what += fmt::format("; rank {} do{} not answer: stopped, dead or cut off", list(silent),
                            silent.size() == 1 ? "es" : "");
    d.what += told;
    return d;
  }

 private:
  static constexpr char kStop = 'S', kAskLetter = 'Q', kAnswer = 'A';
  inline static const std::string kAsk = "Q";

  static std::string list(const std::vector<int>& ranks) {
    std::string out;
    for (const int r : ranks) out += fmt::format("{}{}", out.empty() ? "" : ", ", r);
    return out;
  }

  bool keep(const Diagnostic& why) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    reason_ = why;
    stopped_.store(true, std::memory_order_release);
    return true;
  }

  struct Letter {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void post(int to, std::string text) {
    const std::lock_guard lock(post_mutex_);
    Letter& l = outbox_.emplace_back(Letter{std::move(text), MPI_REQUEST_NULL});
    MPI_Isend(l.text.data(), static_cast<int>(l.text.size()), MPI_CHAR, to, 0, comm_, &l.request);
  }

  void listen() {
    while (!over_) {
      int there = 0;
      MPI_Status from;
      MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &there, &from);
      if (there) {
        int size = 0;
        MPI_Get_count(&from, MPI_CHAR, &size);
        std::string text(static_cast<size_t>(size), '\0');
        MPI_Recv(text.data(), size, MPI_CHAR, from.MPI_SOURCE, 0, comm_, MPI_STATUS_IGNORE);
        read(from.MPI_SOURCE, text);
        continue;
      }
      {
        const std::lock_guard lock(post_mutex_);
        std::erase_if(outbox_, [](Letter& l) {
          int sent = 0;
          MPI_Test(&l.request, &sent, MPI_STATUS_IGNORE);
          return sent != 0;
        });
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  void read(int from, const std::string& text) {
    if (text.empty()) return;
    if (text[0] == kAskLetter) {
      post(from, kAnswer + doing());
    } else if (text[0] == kAnswer) {
      const std::lock_guard lock(mutex_);
      answers_[static_cast<size_t>(from)] = text.substr(1);
    } else if (text[0] == kStop) {
      const size_t first = text.find('\0'), second = text.find('\0', first + 1);
      const Diagnostic why{text.substr(1, first - 1), text.substr(first + 1, second - first - 1),
                           text.substr(second + 1)};
      if (!keep(why)) return;
      std::function<void(const Diagnostic&)> hook;
      {
        const std::lock_guard lock(mutex_);
        hook = hook_;
      }
      if (hook) hook(why);
    }
  }

  std::string doing() const {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const Waiting& w : waiting_)
      out += fmt::format("{} for rank {} in op '{}' ({:.1f} s)", out.empty() ? "waits" : " and", list(w.peers), w.op,
                         std::chrono::duration<double>(Clock::now() - w.since).count());
    return out.empty() ? "waits for nobody" : out;
  }

  const int rank_, size_;
  const milliseconds timeout_;
  const MPI_Comm comm_;
  mutable std::mutex mutex_;
  Diagnostic reason_;
  std::atomic<bool> stopped_{false}, over_{false};
  std::function<void(const Diagnostic&)> hook_;
  std::list<Waiting> waiting_;
  std::vector<std::optional<std::string>> answers_;
  std::mutex post_mutex_;
  std::list<Letter> outbox_;
  std::thread thread_;
};

enum class Patience { yields, spins };  // spins: while clocks are compared

/// Starts all parts and returns when they are over. Parts with one peer match in their order.
Status exchange(Control& control, int self, std::string_view op, const Lane& lane, std::span<const Part> parts,
                Patience patience = Patience::yields) {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  for (const bool sends : {false, true})  // receives first: what comes then has its place
    for (const Part& p : parts) {
      if (p.sends != sends) continue;
      int64_t at = 0;
      do {
        const auto count = static_cast<int>(std::min(kLargestMessage, p.bytes - at));
        char* data = static_cast<char*>(p.data) + at;
        MPI_Request r = MPI_REQUEST_NULL;
        const int peer = lane.place.empty() ? p.peer : lane.place.at(p.peer);
        const int code = sends ? MPI_Isend(data, count, MPI_BYTE, peer, lane.tag, lane.comm, &r)
                               : MPI_Irecv(data, count, MPI_BYTE, peer, lane.tag, lane.comm, &r);
        if (code != MPI_SUCCESS)
          return Diagnostic{
              fmt::format("rank {}, op '{}'", self, op),
              fmt::format("{} rank {}: {}", sends ? "MPI_Isend to" : "MPI_Irecv from", p.peer, text_of(code)), ""};
        requests.push_back(r);
        peers.push_back(p.peer);
        at += count;
      } while (at < p.bytes);
    }
  if (requests.empty()) return ok_status();

  const auto since = Clock::now();
  std::optional<Control::Place> told;
  auto leave = [&](Status s) {
    if (told) control.end_wait(*told);
    return s;
  };
  std::vector<MPI_Status> states(requests.size());
  for (int look = 0;; ++look) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, states.data());
    if (code != MPI_SUCCESS) {
      for (size_t i = 0; i < states.size(); ++i)
        if (const int error = states[i].MPI_ERROR;
            code == MPI_ERR_IN_STATUS && error != MPI_SUCCESS && error != MPI_ERR_PENDING)
          return leave(Diagnostic{fmt::format("rank {}, op '{}'", self, op),
                                  fmt::format("a message with rank {}: {}", peers[i], text_of(error)), ""});
      return leave(Diagnostic{fmt::format("rank {}, op '{}'", self, op), "MPI_Testall: " + text_of(code), ""});
    }
    if (done) return leave(ok_status());
    if (patience == Patience::spins && look < 1'000'000) continue;
    if (look < kEagerLooks) {
      ::sched_yield();
      continue;
    }
    if (control.stopped()) return leave(control.reason());
    auto missing = [&] {
      std::vector<int> out;
      for (size_t i = 0; i < requests.size(); ++i)
        if (requests[i] != MPI_REQUEST_NULL && std::find(out.begin(), out.end(), peers[i]) == out.end()) {
          int over = 0;
          MPI_Request_get_status(requests[i], &over, MPI_STATUS_IGNORE);
          if (!over) out.push_back(peers[i]);
        }
      std::sort(out.begin(), out.end());
      return out;
    };
    const auto waited = Clock::now() - since;
    if (!told && waited > milliseconds(100)) told = control.begin_wait({std::string(op), missing(), since});
    if (waited > control.timeout()) {
      const Diagnostic why = control.explain(op, missing());
      return leave(control.stopped() ? control.reason() : why);
    }
    const timespec pause{0, waited > milliseconds(20) ? 10 * kPauseNs : kPauseNs};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
}

/// The collectives of one channel, put together from messages.
class Channels {
 public:
  struct Side {
    Lane lane;
    std::vector<int> members;
    int64_t index = 0;
    std::vector<std::byte> scratch, more;  // of the stream's thread
  };

  Channels(Control& control, int self, Side& side, const Transfer& t)
      : control_(control), self_(self), side_(side), t_(t) {}

  Status run() {
    for (size_t i = 0; i < t_.writes.size(); ++i)
      if (const Status s = check(i); !s) return s;
    // Small operands travel together: one wait for the whole call in place of one for each.
    switch (kind()) {
      case plan::CollectiveKind::all_gather: return gather();
      case plan::CollectiveKind::broadcast: return broadcast();
      case plan::CollectiveKind::all_to_all: return all_to_all();
      case plan::CollectiveKind::shift_up:
      case plan::CollectiveKind::shift_down: return shift();
      case plan::CollectiveKind::reduce_scatter:
      case plan::CollectiveKind::all_reduce: return reduce();
    }
    return ok_status();
  }

 private:
  plan::CollectiveKind kind() const { return t_.collective->kind; }
  int64_t n() const { return static_cast<int64_t>(side_.members.size()); }
  int64_t me() const { return side_.index; }

  Status fail(std::string what) const {
    return Diagnostic{fmt::format("rank {}, op '{}' ({})", self_, t_.op, plan::to_text(kind())), std::move(what), ""};
  }
  Status check(size_t i) const {
    const Operand &in = t_.reads[i], &out = t_.writes[i];
    int64_t wanted = in.elements;
    if (kind() == plan::CollectiveKind::all_gather) wanted = in.elements * n();
    if (kind() == plan::CollectiveKind::reduce_scatter) wanted = in.elements / n();
    if (out.elements != wanted || out.dtype != in.dtype)
      return fail(fmt::format("writes {} elements, {} come out", out.elements, wanted));
    return ok_status();
  }

  Status send_and_receive(std::span<const Part> parts) { return exchange(control_, self_, t_.op, side_.lane, parts); }

  static std::byte* at(const Operand& x, int64_t element) {
    return static_cast<std::byte*>(x.data) + element * size_of(x.dtype);
  }
  static void move(const void* from, void* to, int64_t bytes) {
    if (from != to && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  Status gather() {
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, at(out, me() * in.elements), in.bytes());
      for (int64_t k = 0; k < n(); ++k) {
        if (k == me()) continue;
        const int peer = side_.members[static_cast<size_t>(k)];
        parts.push_back({peer, false, at(out, k * in.elements), in.bytes()});
        parts.push_back({peer, true, at(out, me() * in.elements), in.bytes()});
      }
    }
    return send_and_receive(parts);
  }

  Status broadcast() {
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      if (me() == 0) {
        move(in.data, out.data, in.bytes());
        for (int64_t k = 1; k < n(); ++k)
          parts.push_back({side_.members[static_cast<size_t>(k)], true, out.data, out.bytes()});
      } else {
        parts.push_back({side_.members[0], false, out.data, out.bytes()});
      }
    }
    return send_and_receive(parts);
  }

  Status all_to_all() {
    int64_t bytes = 0;
    for (const Operand& x : t_.reads) bytes += x.bytes();
    std::byte* copy = room(side_.scratch, bytes);  // reads and writes may be one buffer
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, copy, in.bytes());
      const int64_t each = in.elements / n(), size = each * size_of(in.dtype);
      for (int64_t k = 0; k < n(); ++k) {
        const int peer = side_.members[static_cast<size_t>(k)];
        if (k == me()) {
          move(copy + k * size, at(out, k * each), size);
        } else {
          parts.push_back({peer, false, at(out, k * each), size});
          parts.push_back({peer, true, copy + k * size, size});
        }
      }
      copy += in.bytes();
    }
    return send_and_receive(parts);
  }

  Status shift() {
    int64_t bytes = 0;
    for (const Operand& x : t_.reads) bytes += x.bytes();
    std::byte* copy = room(side_.scratch, bytes);  // reads and writes may be one buffer
    const int64_t up = kind() == plan::CollectiveKind::shift_up ? 1 : n() - 1;
    const int to = side_.members[static_cast<size_t>((me() + up) % n())];
    const int from = side_.members[static_cast<size_t>((me() + n() - up) % n())];
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, copy, in.bytes());
      if (n() == 1) {
        move(copy, out.data, in.bytes());
      } else {
        parts.push_back({from, false, out.data, out.bytes()});
        parts.push_back({to, true, copy, in.bytes()});
      }
      copy += in.bytes();
    }
    return send_and_receive(parts);
  }

  /// Each member adds up its share of the elements, in the order of the members; of an all-reduce the sums then travel.
  Status reduce() {
    const bool everywhere = kind() == plan::CollectiveKind::all_reduce;
    auto share = [&](const Operand& in, int64_t k) {  // [begin, end) of member k
      const int64_t each = (in.elements + n() - 1) / n();
      return std::pair(std::min(in.elements, k * each), std::min(in.elements, (k + 1) * each));
    };
    int64_t bytes = 0;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      bytes += (end - begin) * size_of(in.dtype);
    }
    // What the others bring for my share, and the sums: the inputs stay whole until they have been sent.
    std::byte* brought = room(side_.scratch, bytes * n());
    std::byte* sums = room(side_.more, bytes);
    std::vector<Part> parts;
    std::byte* place = brought;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      for (int64_t k = 0; k < n(); ++k) {
        const int peer = side_.members[static_cast<size_t>(k)];
        const auto [from, to] = share(in, k);
        if (k == me()) continue;
        parts.push_back(
            {peer, false, place + k * (end - begin) * size_of(in.dtype), (end - begin) * size_of(in.dtype)});
        parts.push_back({peer, true, at(in, from), (to - from) * size_of(in.dtype)});
      }
      place += n() * (end - begin) * size_of(in.dtype);
    }
    if (const Status s = send_and_receive(parts); !s) return s;

    place = brought;
    std::byte* sum = sums;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      const int64_t size = (end - begin) * size_of(in.dtype);
      std::vector<const void*> inputs;
      for (int64_t k = 0; k < n(); ++k) inputs.push_back(k == me() ? at(in, begin) : place + k * size);
      if (const Status s = reduce_elements(inputs, sum, end - begin, in.dtype, t_.collective->reduction); !s)
        return fail(s.errors()[0].what);
      place += n() * size;
      sum += size;
    }
    parts.clear();
    sum = sums;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      const auto [begin, end] = share(in, me());
      const int64_t size = (end - begin) * size_of(in.dtype);
      move(sum, everywhere ? at(out, begin) : at(out, 0), size);
      sum += size;
      for (int64_t k = 0; everywhere && k < n(); ++k) {
        if (k == me()) continue;
        const int peer = side_.members[static_cast<size_t>(k)];
        const auto [from, to] = share(in, k);
        parts.push_back({peer, false, at(out, from), (to - from) * size_of(in.dtype)});
        parts.push_back({peer, true, at(out, begin), size});
      }
    }
    return send_and_receive(parts);
  }

  static std::byte* room(std::vector<std::byte>& scratch, int64_t bytes) {
    if (static_cast<int64_t>(scratch.size()) < bytes) scratch.resize(static_cast<size_t>(bytes));
    return scratch.data();
  }

  Control& control_;
  const int self_;
  Side& side_;
  const Transfer& t_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(CpuDevice& device, milliseconds timeout) : device_(device) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_dup(MPI_COMM_WORLD, &control_comm_);
    MPI_Comm_dup(MPI_COMM_WORLD, &host_.comm);
    MPI_Comm_dup(MPI_COMM_WORLD, &messages_);
    for (const MPI_Comm c : {control_comm_, host_.comm, messages_}) MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
    control_ = std::make_unique<Control>(control_comm_, rank_, size_, timeout);
    // The device's first failure is told to all; theirs is the device's.
    device_.on_failure([this](const Diagnostic& why) { control_->stop(why); });
    control_->on_stop([this](const Diagnostic& why) { device_.fail(why); });
  }

  ~MpiCommunicator() override {
    device_.on_failure({});
    (void)device_.synchronize();  // work that waits for messages uses what is freed below
    const bool healthy = !control_->stopped();
    control_->flush(milliseconds(500));
    control_.reset();
    if (!healthy) {  // requests may be open, and freeing a communicator waits for its other ranks
      failed_machine = true;
      return;
    }
    for (auto& side : sides_)
      if (side->lane.comm != MPI_COMM_NULL) MPI_Comm_free(&side->lane.comm);
    for (MPI_Comm* c : {&control_comm_, &host_.comm, &messages_}) MPI_Comm_free(c);
  }

  std::string_view kind() const override { return "mpi"; }
  RankId rank() const override { return {static_cast<uint32_t>(rank_)}; }
  int64_t size() const override { return size_; }

  Status connect(std::span<const Channel> channels) override {
    if (const Status s = barrier(); !s) return s;  // all are there: what follows may block
    MPI_Group world;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    sides_.clear();
    for (const Channel& c : channels) {
      auto side = std::make_unique<Channels::Side>();
      side->index = c.index;
      for (const RankId m : c.members) {
        side->lane.place[static_cast<int>(m.v)] = static_cast<int>(side->members.size());
        side->members.push_back(static_cast<int>(m.v));
      }
      if (c.members.size() > 1) {
        MPI_Group group;
        MPI_Group_incl(world, static_cast<int>(side->members.size()), side->members.data(), &group);
        const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, static_cast<int>(c.stream), &side->lane.comm);
        MPI_Group_free(&group);
        if (code != MPI_SUCCESS) return failed("connect", "MPI_Comm_create_group: " + text_of(code));
        MPI_Comm_set_errhandler(side->lane.comm, MPI_ERRORS_RETURN);
      }
      sides_.push_back(std::move(side));
    }
    MPI_Group_free(&world);
    return barrier();
  }

  void start(const Transfer& t, plan::Stream stream, Ticket ticket) override {
    if (t.kind == Transfer::Kind::collective) {
      Channels::Side& side = *sides_[t.channel];
      device_.enqueue(stream, ticket, t.op, [this, &side, t] { return Channels(*control_, rank_, side, t).run(); });
      return;
    }
    device_.enqueue(stream, ticket, t.op, [this, t] {
      const bool sends = t.kind == Transfer::Kind::send;
      std::vector<Part> parts;
      for (const Operand& x : sends ? t.reads : t.writes)
        parts.push_back({static_cast<int>(t.peer.v), sends, x.data, x.bytes()});
      Lane lane;
      lane.comm = messages_;
      lane.tag = static_cast<int>(t.lane);
      return exchange(*control_, rank_, t.op, lane, parts);
    });
  }

  Status barrier() override {
    auto all = collect("", "barrier");
    return all ? ok_status() : Status(all.errors());
  }

  Result<std::vector<double>> reduce(std::span<const double> values, plan::Reduction how) override {
    auto all = collect({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, "reduce");
    if (!all) return all.errors();
    return reduce_gathered(all.value(), static_cast<int64_t>(values.size()), how);
  }

  Result<std::vector<std::string>> gather(std::string_view bytes) override { return collect(bytes, "gather"); }

  /// The quickest of many round trips with rank 0: half of it is how wrong the offset can be.
  Result<ClockOffset> clock_offset() override {
    constexpr int kTrips = 64;
    ClockOffset best{0, rank_ == 0 ? 0 : std::numeric_limits<int64_t>::max()};
    for (int r = 1; r < size_; ++r) {
      if (rank_ != 0 && rank_ != r) continue;
      const int peer = rank_ == 0 ? r : 0;
      for (int trip = 0; trip < kTrips; ++trip) {
        int64_t theirs = 0;
        if (rank_ == 0) {
          if (const Status s = host_part({peer, false, &theirs, sizeof theirs}); !s) return s.errors();
          theirs = now_ps();
          if (const Status s = host_part({peer, true, &theirs, sizeof theirs}); !s) return s.errors();
          continue;
        }
        const int64_t before = now_ps();
        theirs = before;
        if (const Status s = host_part({peer, true, &theirs, sizeof theirs}); !s) return s.errors();
        if (const Status s = host_part({peer, false, &theirs, sizeof theirs}); !s) return s.errors();
        const int64_t after = now_ps(), half = (after - before) / 2;
        if (half < best.uncertainty_ps) best = {before + half - theirs, half};
      }
    }
    if (const Status s = barrier(); !s) return s.errors();
    return best;
  }

  void stop(const Diagnostic& why) override {
    control_->stop(why);
    device_.fail(why);
  }

 private:
  Diagnostic failed(const char* call, std::string what) const {
    return {fmt::format("rank {}, {}", rank_, call), std::move(what), ""};
  }

  Status host_part(Part p) { return exchange(*control_, rank_, "clock_offset", host_, {&p, 1}, Patience::spins); }

  /// Everyone's bytes on every rank: first how many, then they.
  Result<std::vector<std::string>> collect(std::string_view mine, const char* call) {
    struct Buffers {
      std::vector<int64_t> sizes;
      std::vector<std::string> texts;
    };
    auto b = std::make_unique<Buffers>();
    const auto me = static_cast<size_t>(rank_);
    b->sizes.resize(static_cast<size_t>(size_));
    b->texts.resize(static_cast<size_t>(size_));
    b->sizes[me] = static_cast<int64_t>(mine.size());
    b->texts[me] = mine;
    std::vector<Part> parts;
    auto with_others = [&](auto f) {
      parts.clear();
      for (int r = 0; r < size_; ++r)
        if (r != rank_) f(r, static_cast<size_t>(r));
      Status s = exchange(*control_, rank_, call, host_, parts);
      if (!s) {
        stop(s.errors()[0]);
        abandoned_.push_back(std::shared_ptr<Buffers>(std::move(b)));
      }
      return s;
    };
    Status s = with_others([&](int r, size_t i) {
      parts.push_back({r, false, &b->sizes[i], sizeof(int64_t)});
      parts.push_back({r, true, &b->sizes[me], sizeof(int64_t)});
    });
    if (!s) return s.errors();
    s = with_others([&](int r, size_t i) {
      b->texts[i].resize(static_cast<size_t>(b->sizes[i]));
      if (b->sizes[i] > 0) parts.push_back({r, false, b->texts[i].data(), b->sizes[i]});
      if (b->sizes[me] > 0) parts.push_back({r, true, b->texts[me].data(), b->sizes[me]});
    });
    if (!s) return s.errors();
    return std::move(b->texts);
  }

  CpuDevice& device_;
  int rank_ = 0, size_ = 1;
  MPI_Comm control_comm_ = MPI_COMM_NULL, messages_ = MPI_COMM_NULL;
  Lane host_;
  std::unique_ptr<Control> control_;
  std::vector<std::unique_ptr<Channels::Side>> sides_;
  std::vector<std::shared_ptr<void>> abandoned_;  // buffers of exchanges that failed: MPI may still write there
};

MPI_Comm node_comm() {
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  return node;
}

}  // namespace

bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name)) return true;
  return false;
}

Result<MpiSession> MpiSession::open(int* argc, char*** argv) {
  int provided = MPI_THREAD_SINGLE;
  if (const int code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided); code != MPI_SUCCESS)
    return Diagnostic{"MPI_Init_thread", text_of(code), ""};
  MpiSession s;
  s.open_ = true;
  if (provided < MPI_THREAD_MULTIPLE)
    return Diagnostic{"MPI_Init_thread", "this MPI does not allow several threads (MPI_THREAD_MULTIPLE)",
                      "Open MPI as Debian packages it does"};
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return s;
}

MpiSession::MpiSession(MpiSession&& other) noexcept : open_(std::exchange(other.open_, false)) {}
MpiSession& MpiSession::operator=(MpiSession&& other) noexcept {
  std::swap(open_, other.open_);
  return *this;
}
MpiSession::~MpiSession() {
  if (open_ && !failed_machine) MPI_Finalize();
}

RankId MpiSession::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return {static_cast<uint32_t>(rank)};
}
int64_t MpiSession::size() const {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
int64_t MpiSession::ranks_here() const {
  MPI_Comm node = node_comm();
  int size = 1;
  MPI_Comm_size(node, &size);
  MPI_Comm_free(&node);
  return size;
}

Result<Machine> MpiSession::machine(const MpiOptions& options) {
  MPI_Comm node = node_comm();
  int here = 0, all_here = 1;
  MPI_Comm_rank(node, &here);
  MPI_Comm_size(node, &all_here);
  // A launcher that binds gives each rank cores of its own; else the ranks of a machine take them in turn.
  const std::vector<int> cores = usable_cores();
  cpu_set_t mine, common;
  CPU_ZERO(&mine);
  for (const int c : cores) CPU_SET(c, &mine);
  MPI_Allreduce(&mine, &common, sizeof mine, MPI_BYTE, MPI_BAND, node);
  MPI_Comm_free(&node);
  const bool bound = !CPU_EQUAL(&mine, &common);
  CpuOptions cpu;
  cpu.rank = rank();
  cpu.threads = std::max(1, options.threads_per_rank);
  cpu.kernel = options.kernel;
  const auto threads = static_cast<size_t>(cpu.threads), first = bound ? 0 : static_cast<size_t>(here) * threads;
  if (options.pin && (bound ? threads : threads * static_cast<size_t>(all_here)) <= cores.size())
    cpu.cores.assign(cores.begin() + static_cast<std::ptrdiff_t>(first),
                     cores.begin() + static_cast<std::ptrdiff_t>(first + threads));
  auto device = std::make_unique<CpuDevice>(std::move(cpu));
  auto communicator = std::make_unique<MpiCommunicator>(*device, options.timeout);
  return Machine{std::move(device), std::move(communicator)};
}

void MpiSession::end_all(int code) {
  failed_machine = true;
  std::this_thread::sleep_for(kFarewell);
  MPI_Abort(MPI_COMM_WORLD, code);
}

}  // namespace wt::exec

#else  // built without MPI

namespace wt::exec {

bool started_by_mpi() { return false; }

Result<MpiSession> MpiSession::open(int*, char***) {
  return Diagnostic{"MPI", "this program was built without MPI", "build where libopenmpi-dev is installed (WT_MPI=ON)"};
}
MpiSession::MpiSession(MpiSession&&) noexcept = default;
MpiSession& MpiSession::operator=(MpiSession&&) noexcept = default;
MpiSession::~MpiSession() = default;
RankId MpiSession::rank() const { return {0}; }
int64_t MpiSession::size() const { return 1; }
int64_t MpiSession::ranks_here() const { return 1; }
Result<Machine> MpiSession::machine(const MpiOptions&) { return open(nullptr, nullptr).errors(); }
void MpiSession::end_all(int) {}

}  // namespace wt::exec

#endif
