#include "exec/calibrate/transfers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
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

/// Of all threads of this process.
double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// One rank's part: launches a chain of (nothing on the compute stream, transfer, nothing ...) and tells the seconds from
/// one nothing to the next, the median of the repetitions.
class Chain {
 public:
  Chain(Machine& m, const Case& c, uint32_t channel, DType dtype, int64_t largest)
      : m_(m), case_(c), channel_(channel), dtype_(dtype) {
    const auto bytes = static_cast<size_t>(largest);
    in_.assign(bytes, std::byte{0});
    out_.assign(bytes, std::byte{0});
  }

  struct Timed {
    double seconds = 0;  // of one transfer
    double busy = 0;     // of them, processor time of a rank
  };
  Result<Timed> run(int64_t bytes, int repetitions, size_t ranks_here) {
    const int64_t rank = m_.communicator->rank().v;
    const bool message = case_.kind == TransferKind::message;
    Transfer t;
    t.op = "calibrate";
    plan::Collective collective;
    collective.kind = collective_of(case_.kind);
    collective.dtype = dtype_;
    collective.bytes = bytes;
    const int64_t n = case_.ranks, elements = bytes / size_of(dtype_);
    const bool sends = message && rank % 2 == 0;
    Operand in{in_.data(), dtype_, elements, {}}, out{out_.data(), dtype_, elements, {}};
    Stream stream = Stream::tensor;
    if (message) {
      t.kind = sends ? Transfer::Kind::send : Transfer::Kind::receive;
      t.peer = {static_cast<uint32_t>(sends ? rank + 1 : rank - 1)};
      stream = sends ? Stream::send_next : Stream::receive_previous;
    } else {
      t.collective = &collective;
      t.channel = channel_;
      if (case_.kind == TransferKind::all_gather) in.elements /= n;
      if (case_.kind == TransferKind::reduce_scatter) out.elements /= n;
      if (case_.kind == TransferKind::all_reduce) out = in;
    }
    if (!message || sends) t.reads = {&in, 1};
    if (!message || !sends) t.writes = {&out, 1};
    if (message && rank / 2 * 2 + 1 >= m_.communicator->size()) return Timed();  // an odd rank is left over

    if (const Status s = m_.communicator->barrier(); !s) return s.errors();
    Ticket ticket = 0;
    Device& d = *m_.device;
    const double before = processor_seconds();
    d.launch({nullptr, "before", {}, {}, {}}, Stream::compute, ticket++);
    for (int i = 0; i < repetitions; ++i) {
      d.wait(stream, ticket - 1);
      m_.communicator->start(t, stream, ticket++);
      d.wait(Stream::compute, ticket - 1);
      d.launch({nullptr, "between", {}, {}, {}}, Stream::compute, ticket++);
    }
    if (const Status s = d.synchronize(); !s) return s.errors();
    const double busy = (processor_seconds() - before) / static_cast<double>(ranks_here);
    std::vector<double> periods;
    for (int i = 0; i < repetitions; ++i) {
      const auto a = d.interval(static_cast<Ticket>(2 * i)), b = d.interval(static_cast<Ticket>(2 * i + 2));
      if (!a) return a.errors();
      if (!b) return b.errors();
      periods.push_back(1e-12 * static_cast<double>(b.value().begin_ps - a.value().end_ps));
    }
    std::sort(periods.begin(), periods.end());
    return Timed{periods[periods.size() / 2], busy / repetitions};
  }

 private:
  Machine& m_;
  Case case_;
  uint32_t channel_;
  DType dtype_;
  std::vector<std::byte> in_, out_;
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

  auto machines = ranks.open(nullptr);
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
    std::vector<Chain::Timed> times;
    const size_t here = machines.value().size();
    const auto timed = on_every(machines.value(), [&](Machine& m) -> Status {
      Chain chain(m, c, channel, dtype, bytes.back());
      for (const int64_t b : bytes) {
        const auto first = chain.run(b, 3, here);  // memory touched, threads there
        if (!first) return first.errors();
        const double about[] = {first.value().seconds};
        const auto agreed = m.communicator->reduce(about, plan::Reduction::max);
        if (!agreed) return agreed.errors();
        auto mine = chain.run(b, repetitions_of(agreed.value()[0], extent), here);
        if (!mine) return mine.errors();
        const double values[] = {mine.value().seconds, mine.value().busy};
        auto mean = m.communicator->reduce(values, plan::Reduction::average);
        if (!mean) return mean.errors();
        if (m.communicator->rank().v == 0 || here == 1) times.push_back({mean.value()[0], mean.value()[1]});
      }
      return ok_status();
    });
    if (!timed) return timed.errors();
    double busy = 0, all = 0;  // of the larger half: small ones are waking and looking
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (const Time t = microseconds(times[i].seconds); t.count_ps() > 0) curve.points.push_back({{bytes[i]}, t});
      if (2 * i >= bytes.size()) busy += times[i].busy, all += times[i].seconds;
    }
    if (all > 0) curve.device_share = std::round(std::min(1.0, busy / all) * 100) / 100;
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
