#include "exec/calibrate/transfers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/spec/names.hpp"

namespace wt::exec {
namespace {

using plan::Stream;

/// What is timed: one kind over the groups of one size, all of them at once.
struct Case {
  TransferKind kind;
  int64_t ranks = 2;
};

plan::CollectiveKind collective_of(TransferKind kind) {
  switch (kind) {
    case TransferKind::all_gather: return plan::CollectiveKind::all_gather;
    case TransferKind::reduce_scatter: return plan::CollectiveKind::reduce_scatter;
    case TransferKind::all_to_all: return plan::CollectiveKind::all_to_all;
    case TransferKind::broadcast: return plan::CollectiveKind::broadcast;
    default: return plan::CollectiveKind::all_reduce;
  }
}

/// Consecutive ranks, so that a group lies on as few hosts as can be.
Channel channel_of(int64_t rank, int64_t ranks) {
  Channel c;
  c.stream = Stream::tensor;
  const int64_t first = rank / ranks * ranks;
  for (int64_t r = first; r < first + ranks; ++r) c.members.push_back({static_cast<uint32_t>(r)});
  c.index = rank - first;
  return c;
}

/// So much work, however long it takes.
void spin(int64_t turns) {
  for (volatile int64_t i = 0; i < turns;) i = i + 1;
}

/// Turns that take about a quarter of a millisecond when nothing else is on the core: long for a kernel of a small model,
/// short for one of a large.
int64_t turns_of_a_kernel() {
  constexpr int64_t kTurns = 100'000;
  int64_t least = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = now_ps();
    spin(kTurns);
    least = std::min(least, now_ps() - begin);
  }
  return std::max<int64_t>(1, 250'000'000 * kTurns / std::max<int64_t>(1, least));
}

/// One rank's part: launches a chain of (nothing on the compute stream, transfer, nothing ...) and tells the seconds from
/// one nothing to the next, the median of the repetitions. Or, beside kernels, what the transfers take from them.
class Chain {
 public:
  Chain(Machine& m, const Case& c, uint32_t channel, DType dtype, int64_t largest)
      : m_(m), case_(c), channel_(channel), dtype_(dtype) {
    const auto bytes = static_cast<size_t>(largest);
    in_.assign(bytes, std::byte{0});
    out_.assign(bytes, std::byte{0});
  }

  /// Seconds of one transfer of so many bytes.
  Result<double> run(int64_t bytes, int repetitions) {
    if (!prepare(bytes)) return 0.0;
    if (const Status s = m_.communicator->barrier(); !s) return s.errors();
    Ticket ticket = 0;
    Device& d = *m_.device;
    d.launch({nullptr, "before", {}, {}, {}}, Stream::compute, ticket++);
    for (int i = 0; i < repetitions; ++i) {
      d.wait(stream_, ticket - 1);
      m_.communicator->start(t_, stream_, ticket++);
      d.wait(Stream::compute, ticket - 1);
      d.launch({nullptr, "between", {}, {}, {}}, Stream::compute, ticket++);
    }
    if (const Status s = d.synchronize(); !s) return s.errors();
    std::vector<double> periods;
    for (int i = 0; i < repetitions; ++i) {
      const auto a = d.interval(static_cast<Ticket>(2 * i)), b = d.interval(static_cast<Ticket>(2 * i + 2));
      if (!a) return a.errors();
      if (!b) return b.errors();
      periods.push_back(1e-12 * static_cast<double>(b.value().begin_ps - a.value().end_ps));
    }
    return median(periods);
  }

  /// By how many seconds so many kernels end later when so many transfers are under way beside them, for each that is hidden.
  Result<double> taken_from_kernels(int64_t bytes, int transfers, int kernels) {
    if (!prepare(bytes)) return 0.0;
    std::vector<double> lost;
    for (int i = 0; i < kBesideRounds; ++i) {
      const auto alone = kernels_take(kernels, 0), beside = kernels_take(kernels, transfers);
      if (!alone) return alone.errors();
      if (!beside) return beside.errors();
      if (beside.value().transfers == 0) continue;
      lost.push_back((beside.value().seconds - alone.value().seconds) / beside.value().transfers);
    }
    return lost.empty() ? 0 : median(lost);
  }

 private:
  static constexpr int kBesideRounds = 5;

  static double median(std::vector<double>& v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  }

  struct Beside {
    double seconds = 0;  // of the kernels
    int transfers = 0;   // that were over before them: hidden ones may take longer than alone
  };
  Result<Beside> kernels_take(int kernels, int transfers) {
    if (const Status s = m_.communicator->barrier(); !s) return s.errors();
    Device& d = *m_.device;
    static const plan::Compute kernel{};
    for (int i = 0; i < kernels; ++i)
      d.launch({&kernel, "kernel", {}, {}, {}}, Stream::compute, static_cast<Ticket>(i));
    for (int i = 0; i < transfers; ++i) m_.communicator->start(t_, stream_, static_cast<Ticket>(kernels + i));
    if (const Status s = d.synchronize(); !s) return s.errors();
    const auto first = d.interval(0), last = d.interval(static_cast<Ticket>(kernels - 1));
    if (!first) return first.errors();
    if (!last) return last.errors();
    Beside out{1e-12 * static_cast<double>(last.value().end_ps - first.value().begin_ps), 0};
    for (int i = 0; i < transfers; ++i) {
      const auto when = d.interval(static_cast<Ticket>(kernels + i));
      if (!when) return when.errors();
      out.transfers += when.value().end_ps <= last.value().end_ps;
    }
    return out;
  }

  /// False: this rank has no part in it.
  bool prepare(int64_t bytes) {
    const int64_t rank = m_.communicator->rank().v;
    const bool message = case_.kind == TransferKind::message;
    t_ = {};
    t_.op = "calibrate";
    collective_ = {};
    collective_.kind = collective_of(case_.kind);
    collective_.dtype = dtype_;
    collective_.bytes = bytes;
    const int64_t n = case_.ranks, elements = bytes / size_of(dtype_);
    const bool sends = message && rank % 2 == 0;
    in_operand_ = out_operand_ = {in_.data(), dtype_, elements, {}};
    out_operand_.data = out_.data();
    stream_ = Stream::tensor;
    if (message) {
      t_.kind = sends ? Transfer::Kind::send : Transfer::Kind::receive;
      t_.peer = {static_cast<uint32_t>(sends ? rank + 1 : rank - 1)};
      stream_ = sends ? Stream::send_next : Stream::receive_previous;
    } else {
      t_.collective = &collective_;
      t_.channel = channel_;
      if (case_.kind == TransferKind::all_gather) in_operand_.elements /= n;
      if (case_.kind == TransferKind::reduce_scatter) out_operand_.elements /= n;
      if (case_.kind == TransferKind::all_reduce) out_operand_ = in_operand_;
    }
    if (!message || sends) t_.reads = {&in_operand_, 1};
    if (!message || !sends) t_.writes = {&out_operand_, 1};
    return !message || rank / 2 * 2 + 1 < m_.communicator->size();  // an odd rank is left over
  }

  Machine& m_;
  Case case_;
  uint32_t channel_;
  DType dtype_;
  std::vector<std::byte> in_, out_;
  // Of the transfer at hand.
  plan::Collective collective_;
  Operand in_operand_, out_operand_;
  Transfer t_;
  Stream stream_ = Stream::tensor;
};

std::vector<int64_t> group_sizes(int64_t ranks) {
  std::vector<int64_t> out;
  for (int64_t n = 2; n <= ranks; ++n)
    if (ranks % n == 0) out.push_back(n);
  return out;
}

/// Half octaves where a regime may end, whole ones elsewhere; every size divides by any group of a few ranks.
std::vector<int64_t> sizes(const Ranks& ranks, Extent extent) {
  const int64_t unit = 8 * ranks.size;
  std::vector<int64_t> out;
  const int64_t most = extent == Extent::quick ? 1 << 16 : 1 << 25;
  for (double bytes = 8; bytes <= static_cast<double>(most); bytes *= extent == Extent::quick ? 16 : 2)
    if (const auto n = (static_cast<int64_t>(bytes) + unit - 1) / unit * unit; out.empty() || n > out.back())
      out.push_back(n);
  return out;
}

/// A quarter of a second of them, within reason: every rank must come to the same.
int repetitions_of(double seconds, Extent extent) {
  if (extent == Extent::quick) return 10;
  return static_cast<int>(std::clamp(0.25 / std::max(seconds, 1e-6), 3.0, 200.0));
}

/// What a transfer takes from kernels is measured at these sizes: those of a layer's activations and weights.
constexpr std::array<int64_t, 3> kBesideBytes = {1 << 16, 1 << 18, 1 << 20};

/// The same on every rank.
Result<double> agree(Machine& m, double mine, plan::Reduction how) {
  const auto all = m.communicator->reduce({&mine, 1}, how);
  if (!all) return all.errors();
  return all.value()[0];
}

Time microseconds(double seconds) { return Time::ns(std::llround(seconds * 1e9)); }

}  // namespace

Result<std::vector<TransferCurve>> measure_transfers(const Ranks& ranks, DType dtype, Extent extent) {
  std::vector<Case> cases;
  for (const int64_t n : group_sizes(ranks.size))
    for (const TransferKind k : {TransferKind::all_reduce, TransferKind::all_gather, TransferKind::reduce_scatter,
                                 TransferKind::all_to_all, TransferKind::broadcast})
      cases.push_back({k, n});
  if (ranks.size > 1) cases.push_back({TransferKind::message, 2});
  std::vector<TransferCurve> curves;
  if (cases.empty()) return curves;

  const int64_t turns = turns_of_a_kernel();
  auto machines = ranks.open([turns](const plan::Compute&, auto, auto, const KernelContext&, Workers&) {
    spin(turns);
    return ok_status();
  });
  if (!machines) return machines.errors();
  const std::vector<int64_t> groups = group_sizes(ranks.size), bytes = sizes(ranks, extent);
  const auto connected = on_every(machines.value(), [&](Machine& m) {
    std::vector<Channel> channels;
    for (const int64_t n : groups) channels.push_back(channel_of(m.communicator->rank().v, n));
    if (Status s = m.communicator->connect(channels); !s) return s;
    std::vector<Pair> pairs;
    const int64_t rank = m.communicator->rank().v;
    if (rank / 2 * 2 + 1 < ranks.size)
      pairs.push_back({{static_cast<uint32_t>(rank % 2 ? rank - 1 : rank + 1)}, 0, rank % 2 == 0});
    return m.communicator->connect_pairs(pairs);
  });
  if (!connected) return connected.errors();

  for (const Case& c : cases) {
    TransferCurve curve;
    curve.kind = c.kind;
    curve.ranks = c.ranks;
    curve.nodes = c.kind == TransferKind::message ? (ranks.per_host > 1 ? 1 : 2)
                                                  : (c.ranks + ranks.per_host - 1) / ranks.per_host;
    curve.dtype = dtype;
    const auto channel = static_cast<uint32_t>(std::find(groups.begin(), groups.end(), c.ranks) - groups.begin());
    // Of rank 0 after the mean over all: the same on every process.
    std::vector<double> times, shares;
    const size_t here = machines.value().size();
    const auto timed = on_every(machines.value(), [&](Machine& m) -> Status {
      const bool keeps = m.communicator->rank().v == 0 || here == 1;
      Chain chain(m, c, channel, dtype, bytes.back());
      for (const int64_t b : bytes) {
        const auto first = chain.run(b, 3);  // memory touched, threads there
        if (!first) return first.errors();
        const auto agreed = agree(m, first.value(), plan::Reduction::max);
        if (!agreed) return agreed.errors();
        const auto mine = chain.run(b, repetitions_of(agreed.value(), extent));
        if (!mine) return mine.errors();
        const auto mean = agree(m, mine.value(), plan::Reduction::average);
        if (!mean) return mean.errors();
        if (keeps) times.push_back(mean.value());
        if (std::find(kBesideBytes.begin(), kBesideBytes.end(), b) == kBesideBytes.end()) continue;
        // Kernels for three times as long: also where a transfer takes the whole core they are the last to end.
        const double seconds = std::max(1e-6, mean.value());
        const int transfers = static_cast<int>(std::clamp(8e-3 / seconds, 1.0, 200.0));
        const int kernels = static_cast<int>(3 * transfers * seconds / 250e-6) + 8;
        const auto taken = chain.taken_from_kernels(b, transfers, kernels);
        if (!taken) return taken.errors();
        const auto share = agree(m, taken.value() / seconds, plan::Reduction::average);
        if (!share) return share.errors();
        if (keeps) shares.push_back(std::clamp(share.value(), 0.0, 1.0));
      }
      return ok_status();
    });
    if (!timed) return timed.errors();
    for (size_t i = 0; i < bytes.size(); ++i)
      if (const Time t = microseconds(times[i]); t.count_ps() > 0) curve.points.push_back({{bytes[i]}, t});
    if (!shares.empty())
      curve.device_share =
          std::round(std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size()) * 100) /
          100;
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  return curves;
}

namespace {

Diagnostic system_fault(const std::string& path, const char* call) {
  return {path, fmt::format("{}: {}", call, std::strerror(errno)), "--scratch names another folder"};
}

/// A file that is gone when this ends.
struct Scratch {
  std::string path;
  int fd = -1;
  ~Scratch() {
    if (fd >= 0) ::close(fd);
    if (!path.empty()) ::unlink(path.c_str());
  }
};

Status time_file(const std::string& folder, size_t size, StorageRates& out) {
  Scratch file;
  file.path = folder + "/windtunnel-calibrate-XXXXXX";
  file.fd = ::mkstemp(file.path.data());
  if (file.fd < 0) {
    const Diagnostic d = system_fault(file.path, "mkstemp");
    file.path.clear();
    return d;
  }
  struct statvfs fs {};
  if (::fstatvfs(file.fd, &fs) != 0) return system_fault(file.path, "fstatvfs");
  out.free = {static_cast<int64_t>(fs.f_bavail) * static_cast<int64_t>(fs.f_frsize)};
  std::vector<char> data(size, 'w');
  auto seconds = [&](auto work) -> Result<double> {
    const int64_t begin = now_ps();
    if (const Status s = work(); !s) return s.errors();
    return std::max(1e-9, 1e-12 * static_cast<double>(now_ps() - begin));
  };
  const auto write = seconds([&]() -> Status {
    for (size_t at = 0; at < size;) {
      const ssize_t n = ::write(file.fd, data.data() + at, size - at);
      if (n <= 0) return system_fault(file.path, "write");
      at += static_cast<size_t>(n);
    }
    return ::fsync(file.fd) == 0 ? ok_status() : system_fault(file.path, "fsync");
  });
  if (!write) return write.errors();
  (void)::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);  // else memory answers
  const auto read = seconds([&]() -> Status {
    for (size_t at = 0; at < size;) {
      const ssize_t n = ::pread(file.fd, data.data() + at, size - at, static_cast<off_t>(at));
      if (n <= 0) return system_fault(file.path, "read");
      at += static_cast<size_t>(n);
    }
    return ok_status();
  });
  if (!read) return read.errors();
  out.write = {static_cast<double>(size) / write.value()};
  out.read = {static_cast<double>(size) / read.value()};
  return ok_status();
}

}  // namespace

Result<StorageRates> measure_storage(const Ranks& ranks, const std::string& folder, Extent extent) {
  const int64_t size = extent == Extent::quick ? 1 << 20 : 64 << 20;
  StorageRates out;
  auto machines = ranks.open(nullptr);
  if (!machines) return machines.errors();
  std::vector<double> rates(static_cast<size_t>(ranks.size), 0);
  const auto timed = on_every(machines.value(), [&](Machine& m) -> Status {
    std::vector<std::byte> from(static_cast<size_t>(size)), to(static_cast<size_t>(size));
    const Operand a{from.data(), DType::u8, size, {}}, b{to.data(), DType::u8, size, {}};
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      if (Status s = m.communicator->barrier(); !s) return s;
      m.device->copy({"calibrate", {&a, 1}, {&b, 1}, plan::Space::pageable, plan::Space::device}, Stream::copy_in, 0);
      if (Status s = m.device->synchronize(); !s) return s;
      const auto when = m.device->interval(0);
      if (!when) return when.errors();
      seconds.push_back(1e-12 * static_cast<double>(std::max<int64_t>(1, when.value().end_ps - when.value().begin_ps)));
    }
    std::sort(seconds.begin(), seconds.end());
    const double rate[] = {static_cast<double>(size) / seconds[seconds.size() / 2]};
    auto mean = m.communicator->reduce(rate, plan::Reduction::average);
    if (!mean) return mean.errors();
    const auto rank = m.communicator->rank().v;
    rates[rank] = mean.value()[0];
    if (rank == 0)
      if (Status s = time_file(folder, static_cast<size_t>(size), out); !s) return s;
    return m.communicator->barrier();
  });
  if (!timed) return timed.errors();
  out.host_copy = {*std::max_element(rates.begin(), rates.end())};
  return out;
}

}  // namespace wt::exec
