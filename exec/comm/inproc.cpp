#include "exec/comm/inproc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "core/base/check.hpp"
#include "exec/comm/reduce.hpp"
#include "exec/device/thread_pool.hpp"

namespace wt::exec {

namespace {

using Clock = std::chrono::steady_clock;

/// The verdict that all ranks share: running, or stopped for a reason. Waiters of every meeting are told.
class Verdict {
 public:
  std::optional<Diagnostic> reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  void stop(const Diagnostic& why) {
    std::vector<std::pair<std::mutex*, std::condition_variable*>> waiters;
    {
      const std::lock_guard lock(mutex_);
      if (reason_) return;
      reason_ = why;
      stopped_.store(true, std::memory_order_release);
      waiters = waiters_;
    }
    for (const auto& [mutex, wake] : waiters) {  // not under our own: a waiter asks for the reason under its own
      const std::lock_guard inner(*mutex);
      wake->notify_all();
    }
  }
  /// Both live as long as the world does.
  void tell(std::mutex& mutex, std::condition_variable& wake) {
    const std::lock_guard lock(mutex_);
    waiters_.emplace_back(&mutex, &wake);
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Diagnostic> reason_;
  std::atomic<bool> stopped_{false};
  std::vector<std::pair<std::mutex*, std::condition_variable*>> waiters_;
};

/// "1, 3, 4 and 12 more".
std::string few(const std::vector<RankId>& ranks) {
  constexpr size_t kTold = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kTold); ++i) text += fmt::format("{}{}", i ? ", " : "", ranks[i].v);
  if (ranks.size() > kTold) text += fmt::format(" and {} more", ranks.size() - kTold);
  return text;
}

/// Where the members of a group meet, twice in each collective: all have posted, all are done.
class Meeting {
 public:
  Meeting(Verdict& verdict, std::vector<RankId> members, std::chrono::milliseconds timeout)
      : members_(std::move(members)),
        verdict_(verdict),
        timeout_(timeout),
        present_(members_.size()),
        posted_(members_.size()) {
    scratch_[0].resize(members_.size());
    scratch_[1].resize(members_.size());
    verdict_.tell(mutex_, wake_);
  }

  size_t size() const { return members_.size(); }
  const std::vector<RankId>& members() const { return members_; }
  const Transfer& posted(size_t member) const { return posted_[member]; }

  /// What the member brings, visible to all after the next arrive().
  void post(size_t member, const Transfer& t) { posted_[member] = t; }

  /// Results of one member that others will read. Two sets in turn: the last readers of one have left when it comes again.
  std::byte* scratch(size_t member, uint64_t call, size_t bytes) {
    auto& s = scratch_[call % 2][member];
    if (s.size() < bytes) s.resize(bytes);
    return s.data();
  }
  const std::byte* scratch_of(size_t member, uint64_t call) const { return scratch_[call % 2][member].data(); }

  /// Returns when all members have arrived, or when the job has stopped.
  Status arrive(size_t member, std::string_view op) {
    std::unique_lock lock(mutex_);
    const uint64_t mine = generation_;
    if (last_to_come(member)) return ok_status();
    const bool in_time = wake_.wait_for(lock, timeout_, [&] { return generation_ != mine || verdict_.stopped(); });
    if (generation_ != mine) return ok_status();
    std::vector<RankId> missing;
    for (size_t i = 0; i < members_.size(); ++i)
      if (!present_[i]) missing.push_back(members_[i]);
    // Whoever goes without the others takes what it brought along: a member that still comes must not find all present.
    present_[member] = false;
    --arrived_;
    if (in_time) return *verdict_.reason();
    return Diagnostic{
        fmt::format("rank {}, op '{}'", members_[member].v, op),
        fmt::format("waited {:.1f} s for rank {}", std::chrono::duration<double>(timeout_).count(), few(missing)),
        "a rank that is slow, stopped or stuck; --timeout allows more"};
  }

  /// Returns when all members are done with what the others brought, even if the job has stopped meanwhile: nobody may free
  /// what another still reads. Each comes, for between the two it waits for nobody. `whole`: this member did its part;
  /// the answer: every member did.
  bool leave(size_t member, bool whole) {
    std::unique_lock lock(mutex_);
    const uint64_t mine = generation_;
    broken_ = broken_ || !whole;
    if (!last_to_come(member)) wake_.wait(lock, [&] { return generation_ != mine; });
    return !broken_;
  }

 private:
  bool last_to_come(size_t member) {  // under the lock
    present_[member] = true;
    if (++arrived_ < members_.size()) return false;
    arrived_ = 0;
    std::fill(present_.begin(), present_.end(), false);
    ++generation_;
    wake_.notify_all();
    return true;
  }

  const std::vector<RankId> members_;
  Verdict& verdict_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<bool> present_;
  size_t arrived_ = 0;
  uint64_t generation_ = 0;
  bool broken_ = false;  // for good: the job ends
  std::vector<Transfer> posted_;
  std::array<std::vector<std::vector<std::byte>>, 2> scratch_;
};

/// Between a sender and a receiver: the sender offers, the receiver copies.
class Mailbox {
 public:
  Mailbox(Verdict& verdict, std::chrono::milliseconds timeout) : verdict_(verdict), timeout_(timeout) {
    verdict_.tell(mutex_, wake_);
  }

  Status send(RankId self, const Transfer& t) {
    std::unique_lock lock(mutex_);
    offered_.push_back(&t);
    const uint64_t mine = ++sent_;
    wake_.notify_all();
    Status taken = wait(lock, self, t, [&] { return received_ >= mine; });
    if (!taken) std::erase(offered_, &t);
    return taken;
  }

  Status receive(RankId self, const Transfer& t) {
    std::unique_lock lock(mutex_);
    const Status there = wait(lock, self, t, [&] { return !offered_.empty(); });
    if (!there) return there;
    const Transfer& from = *offered_.front();
    bool equal = from.reads.size() == t.writes.size();
    for (size_t i = 0; equal && i < t.writes.size(); ++i) equal = from.reads[i].bytes() == t.writes[i].bytes();
    for (size_t i = 0; equal && i < t.writes.size(); ++i)
      std::memcpy(t.writes[i].data, from.reads[i].data, static_cast<size_t>(t.writes[i].bytes()));
    offered_.pop_front();
    ++received_;
    wake_.notify_all();
    if (equal) return ok_status();
    return Diagnostic{fmt::format("rank {}, op '{}'", self.v, t.op),
                      fmt::format("rank {} sends another size than is received", t.peer.v), ""};
  }

 private:
  template <class Over>
  Status wait(std::unique_lock<std::mutex>& lock, RankId self, const Transfer& t, Over over) {
    const bool in_time = wake_.wait_for(lock, timeout_, [&] { return over() || verdict_.stopped(); });
    if (over()) return ok_status();
    if (in_time) return *verdict_.reason();
    return Diagnostic{
        fmt::format("rank {}, op '{}'", self.v, t.op),
        fmt::format("waited {:.1f} s for rank {}", std::chrono::duration<double>(timeout_).count(), t.peer.v),
        "a rank that is slow, stopped or stuck; --timeout allows more"};
  }

  Verdict& verdict_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<const Transfer*> offered_;
  uint64_t sent_ = 0, received_ = 0;
};

/// What the ranks of a job share.
class World {
 public:
  World(int64_t ranks, std::chrono::milliseconds timeout)
      : timeout_(timeout), host_(verdict, everyone(ranks), timeout), texts_(static_cast<size_t>(ranks)) {}

  Meeting& meeting(const Channel& c) {
    const std::lock_guard lock(mutex_);
    auto& m = meetings_[{c.stream, c.members}];
    if (!m) m = std::make_unique<Meeting>(verdict, c.members, timeout_);
    return *m;
  }
  Mailbox& mailbox(RankId from, RankId to, uint32_t lane) {
    const std::lock_guard lock(mutex_);
    auto& m = mailboxes_[{from.v, to.v, lane}];
    if (!m) m = std::make_unique<Mailbox>(verdict, timeout_);
    return *m;
  }

  Result<std::vector<std::string>> exchange(RankId rank, std::string_view text, const char* call) {
    texts_[rank.v] = text;
    if (const Status s = host_.arrive(rank.v, call); !s) return s.errors();
    std::vector<std::string> all = texts_;
    if (const Status s = host_.arrive(rank.v, call); !s) return s.errors();
    return all;
  }

  int64_t ranks() const { return static_cast<int64_t>(texts_.size()); }
  Verdict verdict;

 private:
  static std::vector<RankId> everyone(int64_t ranks) {
    std::vector<RankId> all;
    for (uint32_t r = 0; r < ranks; ++r) all.push_back({r});
    return all;
  }

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::pair<plan::Stream, std::vector<RankId>>, std::unique_ptr<Meeting>> meetings_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::unique_ptr<Mailbox>> mailboxes_;
  Meeting host_;
  std::vector<std::string> texts_;
};

void move_bytes(const void* from, void* to, int64_t bytes) {
  if (from != to) std::memmove(to, from, static_cast<size_t>(bytes));
}

/// One rank's side of a channel.
struct Side {
  Meeting* meeting = nullptr;
  size_t index = 0;
  uint64_t calls = 0;  // of the stream's thread
};

class Collectives {
 public:
  Collectives(Side& side, const Transfer& t) : side_(side), t_(t), me_(side.index), n_(side.meeting->size()) {}

  Status run() {
    Meeting& m = *side_.meeting;
    const uint64_t call = side_.calls++;
    m.post(me_, t_);
    if (const Status s = m.arrive(me_, t_.op); !s) return s;
    const bool through_scratch =
        kind() != plan::CollectiveKind::all_gather && kind() != plan::CollectiveKind::broadcast;
    const Status mine = read_others(through_scratch, call);
    const bool whole = m.leave(me_, mine.ok());
    if (!mine) return mine;
    if (!whole) return m.arrive(me_, t_.op);  // never all: returns with the reason of the member that failed
    if (!through_scratch) return ok_status();
    size_t at = 0;
    for (size_t i = 0; i < t_.writes.size(); at += piece_bytes(i), ++i) second_half(i, call, at);
    return ok_status();
  }

 private:
  plan::CollectiveKind kind() const { return t_.collective->kind; }
  const Operand& input(size_t member, size_t i) const { return side_.meeting->posted(member).reads[i]; }

  Status read_others(bool through_scratch, uint64_t call) {
    if (const Status s = check(); !s) return s;
    std::byte* out = through_scratch ? side_.meeting->scratch(me_, call, scratch_bytes()) : nullptr;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      if (const Status s = first_half(i, out); !s) return s;
      if (through_scratch) out += piece_bytes(i);
    }
    return ok_status();
  }

  Status fail(std::string what) const {
    return Diagnostic{
        fmt::format("rank {}, op '{}' ({})", side_.meeting->members()[me_].v, t_.op, plan::to_text(kind())),
        std::move(what), ""};
  }

  /// Sizes fit those of the others and the kind.
  Status check() const {
    const auto n = static_cast<int64_t>(n_);
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      for (size_t k = 0; k < n_; ++k)
        if (input(k, i).elements != in.elements || input(k, i).dtype != in.dtype)
          return fail("members bring different sizes or types");
      int64_t wanted = in.elements;
      if (kind() == plan::CollectiveKind::all_gather) wanted = in.elements * n;
      if (kind() == plan::CollectiveKind::reduce_scatter) wanted = in.elements / n;
      if (out.elements != wanted || out.dtype != in.dtype)
        return fail(fmt::format("writes {} elements, {} come out", out.elements, wanted));
    }
    return ok_status();
  }

  /// What this rank leaves in its scratch for operand i: its piece of a sum, or all that an all-to-all gives it.
  size_t piece_bytes(size_t i) const {
    const Operand& in = t_.reads[i];
    if (kind() == plan::CollectiveKind::all_reduce)
      return static_cast<size_t>((in.elements + static_cast<int64_t>(n_) - 1) / static_cast<int64_t>(n_) *
                                 size_of(in.dtype));
    return static_cast<size_t>(t_.writes[i].bytes());
  }
  size_t scratch_bytes() const {
    size_t all = 0;
    for (size_t i = 0; i < t_.writes.size(); ++i) all += piece_bytes(i);
    return all;
  }

  /// [begin, end) of the elements that member k adds up in an all-reduce or reduce-scatter.
  std::pair<int64_t, int64_t> share(size_t i, size_t k) const {
    const int64_t elements = t_.reads[i].elements, n = static_cast<int64_t>(n_), at = static_cast<int64_t>(k);
    const int64_t each = (elements + n - 1) / n;
    return {std::min(elements, at * each), std::min(elements, (at + 1) * each)};
  }

  /// Reads what others brought; writes only where nobody reads.
  Status first_half(size_t i, std::byte* scratch) {
    const Operand& out = t_.writes[i];
    const int64_t size = size_of(out.dtype);
    switch (kind()) {
      case plan::CollectiveKind::all_reduce:
      case plan::CollectiveKind::reduce_scatter: {
        const auto [begin, end] = share(i, me_);
        std::vector<const void*> inputs;
        for (size_t k = 0; k < n_; ++k) inputs.push_back(static_cast<std::byte*>(input(k, i).data) + begin * size);
        const Status s = reduce_elements(inputs, scratch, end - begin, out.dtype, t_.collective->reduction);
        return s ? ok_status() : fail(s.errors()[0].what);
      }
      case plan::CollectiveKind::all_gather: {
        const int64_t bytes = t_.reads[i].bytes();
        for (size_t k = 0; k < n_; ++k)
          move_bytes(input(k, i).data, static_cast<std::byte*>(out.data) + static_cast<int64_t>(k) * bytes, bytes);
        return ok_status();
      }
      case plan::CollectiveKind::all_to_all: {
        const int64_t bytes = out.bytes() / static_cast<int64_t>(n_);
        for (size_t k = 0; k < n_; ++k)
          move_bytes(static_cast<std::byte*>(input(k, i).data) + static_cast<int64_t>(me_) * bytes,
                     scratch + static_cast<int64_t>(k) * bytes, bytes);
        return ok_status();
      }
      case plan::CollectiveKind::broadcast: move_bytes(input(0, i).data, out.data, out.bytes()); return ok_status();
      case plan::CollectiveKind::shift_up:
      case plan::CollectiveKind::shift_down: {
        const size_t from = kind() == plan::CollectiveKind::shift_up ? (me_ + n_ - 1) % n_ : (me_ + 1) % n_;
        move_bytes(input(from, i).data, scratch, out.bytes());
        return ok_status();
      }
    }
    return ok_status();
  }

  /// Everyone has read: from the scratches to where it belongs.
  void second_half(size_t i, uint64_t call, size_t at) {
    const Operand& out = t_.writes[i];
    const int64_t size = size_of(out.dtype);
    if (kind() != plan::CollectiveKind::all_reduce) {
      move_bytes(side_.meeting->scratch_of(me_, call) + at, out.data, out.bytes());
      return;
    }
    for (size_t k = 0; k < n_; ++k) {
      const auto [begin, end] = share(i, k);
      move_bytes(side_.meeting->scratch_of(k, call) + at, static_cast<std::byte*>(out.data) + begin * size,
                 (end - begin) * size);
    }
  }

  Side& side_;
  const Transfer& t_;
  const size_t me_, n_;
};

class InprocCommunicator final : public Communicator {
 public:
  InprocCommunicator(std::shared_ptr<World> world, CpuDevice& device)
      : world_(std::move(world)), device_(device), rank_(device.rank()) {
    device_.on_failure([world = world_](const Diagnostic& why) { world->verdict.stop(why); });
  }

  ~InprocCommunicator() override {
    (void)device_.synchronize();  // work that is launched refers to this
    device_.on_failure({});
  }

  std::string_view kind() const override { return "inproc"; }
  RankId rank() const override { return rank_; }
  int64_t size() const override { return world_->ranks(); }

  Status connect(std::span<const Channel> channels) override {
    sides_.clear();
    for (const Channel& c : channels) sides_.push_back({&world_->meeting(c), static_cast<size_t>(c.index), 0});
    return barrier();
  }

  void start(const Transfer& t, plan::Stream stream, Ticket ticket) override {
    switch (t.kind) {
      case Transfer::Kind::collective: {
        Side& side = sides_[t.channel];
        device_.enqueue(stream, ticket, t.op, [&side, t] { return Collectives(side, t).run(); });
        return;
      }
      case Transfer::Kind::send: {
        Mailbox& box = world_->mailbox(rank_, t.peer, t.lane);
        device_.enqueue(stream, ticket, t.op, [&box, t, self = rank_] { return box.send(self, t); });
        return;
      }
      case Transfer::Kind::receive: {
        Mailbox& box = world_->mailbox(t.peer, rank_, t.lane);
        device_.enqueue(stream, ticket, t.op, [&box, t, self = rank_] { return box.receive(self, t); });
        return;
      }
    }
  }

  Status barrier() override {
    const auto all = exchange("", "barrier");
    return all ? ok_status() : Status(all.errors());
  }

  Result<std::vector<double>> reduce(std::span<const double> values, plan::Reduction how) override {
    const auto all = exchange({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, "reduce");
    if (!all) return all.errors();
    return reduce_gathered(all.value(), static_cast<int64_t>(values.size()), how);
  }

  Result<std::vector<std::string>> gather(std::string_view bytes) override { return exchange(bytes, "gather"); }

  Result<ClockOffset> clock_offset() override { return ClockOffset{}; }  // one process, one clock

  void stop(const Diagnostic& why) override { world_->verdict.stop(why); }

 private:
  Result<std::vector<std::string>> exchange(std::string_view text, const char* call) {
    auto all = world_->exchange(rank_, text, call);
    if (!all) world_->verdict.stop(all.errors()[0]);
    return all;
  }

  std::shared_ptr<World> world_;
  CpuDevice& device_;
  RankId rank_;
  std::vector<Side> sides_;
};

}  // namespace

std::vector<Machine> open_inproc(int64_t ranks, const InprocOptions& options) {
  const auto world = std::make_shared<World>(ranks, options.timeout);
  const std::vector<int> cores = usable_cores();
  const auto threads = static_cast<size_t>(std::max(1, options.threads_per_rank));
  std::vector<Machine> machines;
  for (uint32_t r = 0; r < ranks; ++r) {
    CpuOptions cpu;
    cpu.rank = {r};
    cpu.threads = static_cast<int>(threads);
    cpu.poison = options.poison;
    cpu.kernel = options.kernel;
    if (options.pin && threads * static_cast<size_t>(ranks) <= cores.size())
      for (size_t i = 0; i < threads; ++i) cpu.cores.push_back(cores[r * threads + i]);
    auto device = std::make_unique<CpuDevice>(std::move(cpu));
    auto communicator = std::make_unique<InprocCommunicator>(world, *device);
    machines.push_back({std::move(device), std::move(communicator)});
  }
  return machines;
}

}  // namespace wt::exec
