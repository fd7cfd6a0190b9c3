#include "exec/comm/mpi/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "exec/comm/reduce.hpp"

namespace wt::exec {

namespace {

using std::chrono::milliseconds;

std::atomic<bool> failed_machine{false};

}  // namespace

bool MpiCommunicator::any_failed() { return failed_machine; }

MpiCommunicator::MpiCommunicator(CpuDevice& device, milliseconds timeout) : device_(device) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm_dup(MPI_COMM_WORLD, &control_comm_);
  MPI_Comm_dup(MPI_COMM_WORLD, &host_.comm);
  MPI_Comm_dup(MPI_COMM_WORLD, &pairs_);
  for (const MPI_Comm c : {control_comm_, host_.comm, pairs_}) MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
  control_ = std::make_unique<Control>(control_comm_, rank_, size_, timeout);
  messages_ = std::make_unique<Messages>(*control_, device_, rank_);
  // The device's first failure is told to all; theirs is the device's.
  device_.on_failure([this](const Diagnostic& why) { control_->stop(why); });
  control_->on_stop([this](const Diagnostic& why) { device_.fail(why); });
}

MpiCommunicator::~MpiCommunicator() {
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
  for (MPI_Comm* c : {&control_comm_, &host_.comm, &pairs_}) MPI_Comm_free(c);
}

Status MpiCommunicator::connect(std::span<const Channel> channels) {
  if (const Status s = barrier(); !s) return s;  // all are there: what follows may block
  MPI_Group world;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  sides_.clear();
  for (const Channel& c : channels) {
    auto side = std::make_unique<MpiSide>();
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
      if (code != MPI_SUCCESS) return failed("connect", "MPI_Comm_create_group: " + mpi_error(code));
      MPI_Comm_set_errhandler(side->lane.comm, MPI_ERRORS_RETURN);
    }
    sides_.push_back(std::move(side));
  }
  MPI_Group_free(&world);
  return barrier();
}

void MpiCommunicator::start(const Transfer& t, plan::Stream stream, Ticket ticket) {
  if (t.kind == Transfer::Kind::collective) {
    MpiSide& side = *sides_[t.channel];
    device_.enqueue(stream, ticket, t.op, [this, &side, t] { return run_collective(*messages_, rank_, side, t); });
    return;
  }
  device_.enqueue(stream, ticket, t.op, [this, t] {
    const bool sends = t.kind == Transfer::Kind::send;
    std::vector<Part> parts;
    for (const Operand& x : sends ? t.reads : t.writes)
      parts.push_back({static_cast<int>(t.peer.v), sends, x.data, x.bytes()});
    Lane lane;
    lane.comm = pairs_;
    lane.tag = static_cast<int>(t.lane);
    return messages_->exchange(t.op, lane, parts);
  });
}

Status MpiCommunicator::barrier() {
  auto all = collect("", "barrier");
  return all ? ok_status() : Status(all.errors());
}

Result<std::vector<double>> MpiCommunicator::reduce(std::span<const double> values, plan::Reduction how) {
  auto all = collect({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, "reduce");
  if (!all) return all.errors();
  return reduce_gathered(all.value(), static_cast<int64_t>(values.size()), how);
}

Result<std::vector<std::string>> MpiCommunicator::gather(std::string_view bytes) { return collect(bytes, "gather"); }

/// The quickest of many round trips with rank 0: half of it is how wrong the offset can be.
Result<Communicator::ClockOffset> MpiCommunicator::clock_offset() {
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

void MpiCommunicator::stop(const Diagnostic& why) {
  control_->stop(why);
  device_.fail(why);
}

Diagnostic MpiCommunicator::failed(const char* call, std::string what) const {
  return {fmt::format("rank {}, {}", rank_, call), std::move(what), ""};
}

Status MpiCommunicator::host_part(Part p) {
  return messages_->exchange("clock_offset", host_, {&p, 1}, Patience::spins);
}

/// Everyone's bytes on every rank: first how many, then they.
Result<std::vector<std::string>> MpiCommunicator::collect(std::string_view mine, const char* call) {
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
    Status s = messages_->exchange(call, host_, parts);
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

}  // namespace wt::exec
