// NCCL: one communicator for each channel and for each sequence of messages between two ranks, so that nothing waits for
// what the plan does not make it wait for. Communicators do not block: who waits looks at the clock. A watchdog looks at
// NCCL's errors and at how long transfers have been running; on the first fault it aborts every communicator, which ends
// the kernels on the device, and tells the other ranks.
#include "exec/comm/nccl/nccl.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "exec/device/cuda/device.hpp"

namespace wt::exec {
namespace {

using cuda::CudaDevice;
using cuda::Fault;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Fault fault_of(ncclResult_t r, std::string_view call) {
  if (r == ncclSuccess || r == ncclInProgress) return std::nullopt;
  std::string what = ncclGetErrorString(r);
  if (const char* more = ncclGetLastError(nullptr); more != nullptr && *more != '\0')
    what += fmt::format(" ({})", more);
  return Diagnostic{std::string(call), what, ""};
}

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::f8: return ncclFloat8e4m3;
    case DType::i32: return ncclInt32;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t operation_of(plan::Reduction r) {
  switch (r) {
    case plan::Reduction::sum: return ncclSum;
    case plan::Reduction::max: return ncclMax;
    case plan::Reduction::average: return ncclAvg;
  }
  return ncclSum;
}

std::string text_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }
ncclUniqueId id_of(const std::string& text) {
  ncclUniqueId id{};
  std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
  return id;
}

/// A communicator to be made: the same on all its members.
struct Wanted {
  std::string name;  // orders them: every rank makes its own in this order, so no two wait for each other
  std::vector<RankId> members;
  ncclUniqueId id{};
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Rendezvous> rendezvous, CudaDevice& device, milliseconds timeout)
      : rendezvous_(std::move(rendezvous)), device_(device), timeout_(timeout) {
    rendezvous_->on_stop([this](const Diagnostic& why) { end(why); });
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    watchdog_.join();
    rendezvous_->on_stop({});
    const bool failed = device_.failure().has_value();
    const std::lock_guard lock(mutex_);
    for (ncclComm_t c : all_) {
      if (!failed) ncclCommFinalize(c);
      failed ? ncclCommAbort(c) : ncclCommDestroy(c);
    }
    for (const Running& r : running_) free_events(r);
    for (const Running& r : idle_) free_events(r);
  }

  std::string_view kind() const override { return "nccl"; }
  RankId rank() const override { return RankId{static_cast<uint32_t>(rendezvous_->rank())}; }
  int64_t size() const override { return rendezvous_->size(); }

  Status connect(std::span<const Channel> channels) override {
    std::vector<Wanted> wanted;
    std::map<std::string, int> same;
    for (const Channel& c : channels) {
      std::string name = fmt::format("{}", plan::to_text(c.stream));
      for (const RankId r : c.members) name += fmt::format(" {}", r.v);
      name += fmt::format(" #{}", same[name]++);
      wanted.push_back({std::move(name), c.members, {}});
    }
    return make(wanted, [this](const Wanted&, ncclComm_t c) { channels_.push_back(c); });
  }

  Status connect_pairs(std::span<const Pair> pairs) override {
    std::vector<Wanted> wanted;
    std::map<std::string, PairKey> keys;
    for (const Pair& p : pairs) {
      const RankId from = p.sends ? rank() : p.peer, to = p.sends ? p.peer : rank();
      wanted.push_back({fmt::format("from {} to {} lane {}", from.v, to.v, p.lane), {from, to}, {}});
      keys[wanted.back().name] = {p.peer.v, p.lane, p.sends};
    }
    return make(wanted, [&](const Wanted& w, ncclComm_t c) { pairs_[keys.at(w.name)] = c; });
  }

  void start(const Transfer& t, plan::Stream stream, Ticket ticket) override {
    device_.under_ticket(t.op, stream, ticket, [&](cudaStream_t s) -> Fault {
      ncclComm_t comm = nullptr;
      if (t.kind == Transfer::Kind::collective) {
        if (t.channel >= channels_.size())
          return Diagnostic{"nccl", fmt::format("channel {} was not connected", t.channel), ""};
        comm = channels_[t.channel];
      } else {
        const auto found = pairs_.find({t.peer.v, t.lane, t.kind == Transfer::Kind::send});
        if (found == pairs_.end())
          return Diagnostic{"nccl", fmt::format("no messages with rank {} on lane {} were announced", t.peer.v, t.lane),
                            ""};
        comm = found->second;
      }
      Running* running = nullptr;
      if (Fault f = begin(t.op, s, &running)) return f;
      Fault f;
      {
        const std::lock_guard lock(mutex_);
        if (ended_) return std::nullopt;  // the reason is kept already
        f = issue(t, comm, s);
      }
      if (f) return f;
      if (Fault g = finished(comm, t.op)) return g;
      WT_CUDA(cudaEventRecord(running->end, s));
      const std::lock_guard lock(mutex_);
      running->issued = true;
      return std::nullopt;
    });
    if (auto why = device_.failure()) stop(*why);
  }

  Status barrier() override {
    if (auto r = rendezvous_->exchange(""); !r) return r.errors();
    return ok_status();
  }

  Result<std::vector<double>> reduce(std::span<const double> mine, plan::Reduction how) override {
    auto all = rendezvous_->exchange({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()});
    if (!all) return all.errors();
    std::vector<double> out(mine.size());
    for (size_t r = 0; r < all.value().size(); ++r) {
      const std::string& bytes = all.value()[r];
      if (bytes.size() != mine.size_bytes())
        return Diagnostic{
            fmt::format("rank {}, reduce", rank().v),
            fmt::format("rank {} gave {} values, here are {}", r, bytes.size() / sizeof(double), mine.size()), ""};
      for (size_t i = 0; i < out.size(); ++i) {
        double x = 0;
        std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
        out[i] = r == 0 ? x : (how == plan::Reduction::max ? std::max(out[i], x) : out[i] + x);
      }
    }
    if (how == plan::Reduction::average)
      for (double& x : out) x /= static_cast<double>(size());
    return out;
  }

  Result<std::vector<std::string>> gather(std::string_view mine) override { return rendezvous_->exchange(mine); }
  Result<ClockOffset> clock_offset() override { return rendezvous_->clock_offset(); }

  void stop(const Diagnostic& why) override {
    rendezvous_->stop(why);
    end(why);
  }

 private:
  struct PairKey {
    uint32_t peer, lane;
    bool sends;
    auto operator<=>(const PairKey&) const = default;
  };

  /// A transfer on the device, for the watchdog. Events of those that are over are used again.
  struct Running {
    std::string op;
    cudaEvent_t begin = nullptr, end = nullptr;
    bool issued = false;
    std::optional<Clock::time_point> began;  // when the watchdog first saw that it had
  };
  static void free_events(const Running& r) {
    cudaEventDestroy(r.begin);
    cudaEventDestroy(r.end);
  }

  Diagnostic late(std::string_view op, std::string_view what) const {
    return {fmt::format("rank {}, op {}", rank().v, op),
            fmt::format("{} for more than {:.1f} s", what, std::chrono::duration<double>(timeout_).count()),
            "a rank that is slow, stopped or stuck"};
  }

  Fault begin(std::string_view op, cudaStream_t s, Running** out) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      Running fresh;
      WT_CUDA(cudaEventCreateWithFlags(&fresh.begin, cudaEventDisableTiming));
      WT_CUDA(cudaEventCreateWithFlags(&fresh.end, cudaEventDisableTiming));
      idle_.push_back(fresh);
    }
    running_.splice(running_.end(), idle_, idle_.begin());
    Running& r = running_.back();
    r.op = op;
    r.issued = false;
    r.began.reset();
    WT_CUDA(cudaEventRecord(r.begin, s));
    *out = &r;
    return std::nullopt;
  }

  /// The calls of a transfer, as one group.
  static Fault issue(const Transfer& t, ncclComm_t comm, cudaStream_t s) {
    if (Fault f = fault_of(ncclGroupStart(), "ncclGroupStart")) return f;
    Fault fault;
    auto call = [&](ncclResult_t r, std::string_view name) {
      if (!fault) fault = fault_of(r, name);
    };
    for (size_t i = 0; i < std::max(t.reads.size(), t.writes.size()); ++i) {
      if (t.kind == Transfer::Kind::send) {
        const Operand& x = t.reads[i];
        call(ncclSend(x.data, static_cast<size_t>(x.elements), type_of(x.dtype), 1, comm, s), "ncclSend");
      } else if (t.kind == Transfer::Kind::receive) {
        const Operand& y = t.writes[i];
        call(ncclRecv(y.data, static_cast<size_t>(y.elements), type_of(y.dtype), 0, comm, s), "ncclRecv");
      } else {
        collective(*t.collective, t.reads[i], t.writes[i], comm, s, call);
      }
    }
    const ncclResult_t ended = ncclGroupEnd();  // also after a fault: the group must not stay open
    return fault ? fault : fault_of(ended, "ncclGroupEnd");
  }

  template <class Call>
  static void collective(const plan::Collective& c, const Operand& x, const Operand& y, ncclComm_t comm, cudaStream_t s,
                         Call& call) {
    const ncclDataType_t type = type_of(x.dtype);
    const auto in = static_cast<size_t>(x.elements), out = static_cast<size_t>(y.elements);
    switch (c.kind) {
      case plan::CollectiveKind::all_reduce:
        return call(ncclAllReduce(x.data, y.data, in, type, operation_of(c.reduction), comm, s), "ncclAllReduce");
      case plan::CollectiveKind::all_gather:
        return call(ncclAllGather(x.data, y.data, in, type, comm, s), "ncclAllGather");
      case plan::CollectiveKind::reduce_scatter:
        return call(ncclReduceScatter(x.data, y.data, out, type, operation_of(c.reduction), comm, s),
                    "ncclReduceScatter");
      case plan::CollectiveKind::broadcast:
        return call(ncclBroadcast(x.data, y.data, in, type, 0, comm, s), "ncclBroadcast");
      case plan::CollectiveKind::all_to_all: {
        int ranks = 1;
        call(ncclCommCount(comm, &ranks), "ncclCommCount");
        const size_t piece = in / static_cast<size_t>(ranks), bytes = piece * static_cast<size_t>(size_of(x.dtype));
        for (int r = 0; r < ranks; ++r) {
          const size_t at = bytes * static_cast<size_t>(r);
          call(ncclSend(static_cast<const std::byte*>(x.data) + at, piece, type, r, comm, s), "ncclSend");
          call(ncclRecv(static_cast<std::byte*>(y.data) + at, piece, type, r, comm, s), "ncclRecv");
        }
        return;
      }
      case plan::CollectiveKind::shift_up:
      case plan::CollectiveKind::shift_down: {
        int ranks = 1, me = 0;
        call(ncclCommCount(comm, &ranks), "ncclCommCount");
        call(ncclCommUserRank(comm, &me), "ncclCommUserRank");
        const int up = c.kind == plan::CollectiveKind::shift_up ? 1 : ranks - 1;
        call(ncclSend(x.data, in, type, (me + up) % ranks, comm, s), "ncclSend");
        call(ncclRecv(y.data, out, type, (me + ranks - up) % ranks, comm, s), "ncclRecv");
      }
    }
  }

  /// A call on a communicator that does not block may still be under way: waits until it is not.
  Fault finished(ncclComm_t comm, std::string_view op) {
    const auto until = Clock::now() + timeout_;
    for (int look = 0;; ++look) {
      ncclResult_t state = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        if (ended_) return std::nullopt;
        if (Fault f = fault_of(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError")) return f;
      }
      if (state != ncclInProgress) return fault_of(state, "nccl");
      if (Clock::now() > until) return late(op, "NCCL has been preparing it");
      if (look > 100) std::this_thread::sleep_for(milliseconds(1));
    }
  }

  /// Makes communicators: the first member of each chooses its id, everyone learns all ids, each makes its own in the
  /// order of their names, and hands them over in the order asked for.
  template <class Keep>
  Status make(std::vector<Wanted>& wanted, Keep keep) {
    std::string mine;
    for (const Wanted& w : wanted) {
      if (w.members.front() != rank()) continue;
      ncclUniqueId id;
      if (Fault f = fault_of(ncclGetUniqueId(&id), "ncclGetUniqueId")) return *f;
      mine += fmt::format("{}\n", w.name) + text_of(id);
    }
    auto all = rendezvous_->exchange(mine);
    if (!all) return all.errors();
    std::map<std::string, ncclUniqueId> ids;
    for (const std::string& theirs : all.value())
      for (size_t at = 0; at < theirs.size();) {
        const size_t end = theirs.find('\n', at);
        if (end == std::string::npos || end + 1 + sizeof(ncclUniqueId) > theirs.size()) break;
        ids[theirs.substr(at, end - at)] = id_of(theirs.substr(end + 1, sizeof(ncclUniqueId)));
        at = end + 1 + sizeof(ncclUniqueId);
      }
    std::map<std::string, ncclComm_t> made;
    for (const Wanted& w : wanted) made[w.name] = nullptr;
    for (auto& [name, comm] : made) {
      const auto id = ids.find(name);
      if (id == ids.end())
        return Diagnostic{fmt::format("rank {}, connect", rank().v), fmt::format("no rank knows of '{}'", name), ""};
      const auto& members =
          std::find_if(wanted.begin(), wanted.end(), [&](const Wanted& w) { return w.name == name; })->members;
      const auto index = std::find(members.begin(), members.end(), rank()) - members.begin();
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      {
        const std::lock_guard lock(mutex_);
        if (ended_) break;
        if (Fault f = fault_of(ncclCommInitRankConfig(&comm, static_cast<int>(members.size()), id->second,
                                                      static_cast<int>(index), &config),
                               "ncclCommInitRankConfig"))
          return *f;
        all_.push_back(comm);
      }
      if (Fault f = finished(comm, name)) {
        stop(*f);
        return *f;
      }
    }
    if (auto why = device_.failure()) return *why;
    for (const Wanted& w : wanted) keep(w, made[w.name]);
    return ok_status();
  }

  /// No return to a healthy state: kernels of NCCL that wait for a peer end with their communicator.
  void end(const Diagnostic& why) {
    device_.fail("stopped", why);
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    for (ncclComm_t c : all_) ncclCommAbort(c);
    all_.clear();
  }

  void watch() {
    cudaSetDevice(device_.number());
    std::unique_lock lock(mutex_);
    while (!over_) {
      wake_.wait_for(lock, milliseconds(100));
      if (over_ || ended_) continue;
      std::optional<Diagnostic> why;
      for (ncclComm_t c : all_) {
        ncclResult_t state = ncclSuccess;
        if (Fault f = fault_of(ncclCommGetAsyncError(c, &state), "ncclCommGetAsyncError")) why = *f;
        if (Fault f = fault_of(state, "nccl")) why = *f;
      }
      for (auto r = running_.begin(); r != running_.end() && !why;) {
        const auto next = std::next(r);
        if (r->issued && cudaEventQuery(r->end) == cudaSuccess) {
          idle_.splice(idle_.end(), running_, r);
        } else if (!r->began && cudaEventQuery(r->begin) == cudaSuccess) {
          r->began = Clock::now();
        } else if (r->began && Clock::now() - *r->began > timeout_) {
          why = late(r->op, "has been running");
        }
        r = next;
      }
      if (!why) continue;
      lock.unlock();
      stop(*why);
      lock.lock();
    }
  }

  const std::unique_ptr<Rendezvous> rendezvous_;
  CudaDevice& device_;
  const milliseconds timeout_;
  std::vector<ncclComm_t> channels_;
  std::map<PairKey, ncclComm_t> pairs_;

  std::mutex mutex_;  // of everything below
  std::condition_variable wake_;
  bool over_ = false, ended_ = false;
  std::vector<ncclComm_t> all_;
  std::list<Running> running_, idle_;
  std::thread watchdog_;
};

}  // namespace

Result<Machine> open_nccl(std::unique_ptr<Rendezvous> rendezvous, const NcclOptions& options) {
  const RankId rank{static_cast<uint32_t>(rendezvous->rank())};
  auto device = CudaDevice::open(options.device, rank);
  // All or none: a rank without a device must not leave the others waiting in NCCL.
  auto verdicts = rendezvous->exchange(device ? "" : to_text(device.errors()));
  if (!device) return device.errors();
  if (!verdicts) return verdicts.errors();
  for (size_t r = 0; r < verdicts.value().size(); ++r)
    if (const std::string& v = verdicts.value()[r]; !v.empty())
      return Diagnostic{fmt::format("rank {}, start", rank.v), fmt::format("rank {} has no device: {}", r, v), ""};
  Machine machine;
  machine.communicator = std::make_unique<NcclCommunicator>(std::move(rendezvous), *device.value(), options.timeout);
  machine.device = std::move(device.value());
  return machine;
}

}  // namespace wt::exec
