#include "exec/comm/nccl/rendezvous.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

namespace wt::exec {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Every message: magic (a stray connection is not a rank), kind, sender, size; then the bytes.
constexpr uint32_t kMagic = 0x57547631;  // "WTv1"
enum class Kind : uint32_t { hello, data, stop, bye };
struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::data;
  int64_t rank = 0, bytes = 0;
};
constexpr int64_t kLargest = int64_t{1} << 30;  // beyond it a header is garbage

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

int64_t left_of(Clock::time_point until) {
  return std::max<int64_t>(0, std::chrono::duration_cast<milliseconds>(until - Clock::now()).count());
}

bool ready(int fd, short what, int64_t ms) {
  pollfd p{fd, what, 0};
  return ::poll(&p, 1, static_cast<int>(std::min<int64_t>(ms, 1 << 30))) > 0;
}

bool write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(fd, at, size, MSG_NOSIGNAL);
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      return false;
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t size, Clock::time_point until) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    if (!ready(fd, POLLIN, left_of(until))) return false;
    const ssize_t n = ::recv(fd, at, size, 0);
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      return false;
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool send_message(int fd, Kind kind, int64_t rank, std::string_view bytes) {
  const Header h{kMagic, kind, rank, static_cast<int64_t>(bytes.size())};
  std::string all(sizeof h, '\0');
  std::memcpy(all.data(), &h, sizeof h);
  all += bytes;
  return write_all(fd, all.data(), all.size());
}

struct Message {
  Kind kind = Kind::data;
  int64_t rank = 0;
  std::string bytes;
};
std::optional<Message> receive_message(int fd, Clock::time_point until) {
  Header h;
  if (!read_all(fd, &h, sizeof h, until) || h.magic != kMagic || h.bytes < 0 || h.bytes > kLargest) return std::nullopt;
  Message m{h.kind, h.rank, std::string(static_cast<size_t>(h.bytes), '\0')};
  if (!read_all(fd, m.bytes.data(), m.bytes.size(), until)) return std::nullopt;
  return m;
}

std::string pack(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += fmt::format("{}:", p.size()) + p;
  return out;
}
std::optional<std::vector<std::string>> unpack(std::string_view all) {
  std::vector<std::string> out;
  while (!all.empty()) {
    size_t size = 0;
    const size_t colon = all.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto [end, error] = std::from_chars(all.data(), all.data() + colon, size);
    if (error != std::errc{} || end != all.data() + colon || size > all.size() - colon - 1) return std::nullopt;
    out.emplace_back(all.substr(colon + 1, size));
    all.remove_prefix(colon + 1 + size);
  }
  return out;
}

Diagnostic fault(int64_t rank, std::string what) {
  return {fmt::format("rank {}, rendezvous", rank), std::move(what), ""};
}

/// A star around rank 0. One thread of each rank reads what comes; who waits for data is woken by it.
class Star final : public Rendezvous {
 public:
  Star(const RendezvousPlace& place, milliseconds timeout, std::vector<Socket> links)
      : place_(place), timeout_(timeout), links_(std::move(links)), inbox_(links_.size()), left_(links_.size()) {
    if (size() > 1) thread_ = std::thread([this] { listen(); });
  }
  ~Star() override {
    for (const Socket& s : links_)
      if (s.valid()) send(s.fd(), Kind::bye, "");
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t rank() const override { return place_.rank; }
  int64_t size() const override { return place_.size; }

  Result<std::vector<std::string>> exchange(std::string_view mine) override {
    if (auto why = stopped_by()) return *why;
    if (size() == 1) return std::vector<std::string>{std::string(mine)};
    if (rank() == 0) {
      std::vector<std::string> all(static_cast<size_t>(size()));
      all[0] = mine;
      for (size_t r = 1; r < all.size(); ++r) {
        auto got = take(r);
        if (!got) return got.errors();
        all[r] = std::move(got.value());
      }
      const std::string packed = pack(all);
      for (size_t r = 1; r < all.size(); ++r)
        if (!send(links_[r].fd(), Kind::data, packed)) return lost(static_cast<int64_t>(r));
      return all;
    }
    if (!send(links_[0].fd(), Kind::data, mine)) return lost(0);
    auto got = take(0);
    if (!got) return got.errors();
    auto all = unpack(got.value());
    if (!all || all->size() != static_cast<size_t>(size()))
      return fault(rank(), "rank 0 sent something else than was due");
    return std::move(*all);
  }

  Result<Communicator::ClockOffset> clock_offset() override {
    constexpr int kTrips = 32;
    Communicator::ClockOffset best{0, INT64_MAX};
    if (rank() == 0) {
      for (size_t r = 1; r < links_.size(); ++r)
        for (int i = 0; i < kTrips; ++i) {
          auto ping = take(r);
          if (!ping) return ping.errors();
          if (!send(links_[r].fd(), Kind::data, std::to_string(now_ps()))) return lost(static_cast<int64_t>(r));
        }
      return Communicator::ClockOffset{0, 0};
    }
    for (int i = 0; i < kTrips; ++i) {
      const int64_t before = now_ps();
      if (!send(links_[0].fd(), Kind::data, "")) return lost(0);
      auto pong = take(0);
      if (!pong) return pong.errors();
      const int64_t after = now_ps(), theirs = std::strtoll(pong.value().c_str(), nullptr, 10);
      const int64_t half = (after - before) / 2;
      if (half < best.uncertainty_ps) best = {before + half - theirs, half};
    }
    return best;
  }

  void on_stop(std::function<void(const Diagnostic&)> hook) override {
    std::optional<Diagnostic> already;
    {
      const std::lock_guard lock(mutex_);
      hook_ = hook;
      already = reason_;
    }
    if (already && hook) hook(*already);
  }

  void stop(const Diagnostic& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (reason_) return;
      reason_ = why;
    }
    changed_.notify_all();
    tell(why, rank());
  }

 private:
  bool send(int fd, Kind kind, std::string_view bytes) {
    const std::lock_guard lock(send_mutex_);
    return send_message(fd, kind, rank(), bytes);
  }
  std::optional<Diagnostic> stopped_by() {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  Diagnostic lost(int64_t peer) {
    const auto why = stopped_by();
    return why ? *why : fault(rank(), fmt::format("the connection to rank {} is lost", peer));
  }

  void tell(const Diagnostic& why, int64_t but) {
    const std::string packed = pack({why.where, why.what, why.hint});
    for (size_t r = 0; r < links_.size(); ++r)
      if (links_[r].valid() && static_cast<int64_t>(r) != but) send(links_[r].fd(), Kind::stop, packed);
  }

  /// The next data from a rank.
  Result<std::string> take(size_t from) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, timeout_, [&] { return reason_ || !inbox_[from].empty(); });
    if (reason_) return *reason_;  // also before what came earlier: nothing goes on after a stop
    if (came) {
      std::string bytes = std::move(inbox_[from].front());
      inbox_[from].pop_front();
      return bytes;
    }
    const Diagnostic why = fault(
        rank(), fmt::format("waited {:.1f} s for rank {}", std::chrono::duration<double>(timeout_).count(), from));
    lock.unlock();
    stop(why);
    return why;
  }

  void listen() {
    while (!over_) {
      std::vector<pollfd> all;
      std::vector<size_t> ranks;
      for (size_t r = 0; r < links_.size(); ++r)
        if (links_[r].valid() && !left_[r]) {
          all.push_back({links_[r].fd(), POLLIN, 0});
          ranks.push_back(r);
        }
      if (all.empty()) return;
      if (::poll(all.data(), all.size(), 50) <= 0) continue;
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].revents != 0) hear(ranks[i]);
    }
  }

  void hear(size_t from) {
    auto m = receive_message(links_[from].fd(), Clock::now() + timeout_);
    if (!m) {
      left_[from] = true;
      if (!over_)
        stopped(fault(rank(), fmt::format("rank {} is gone: its connection is lost", from)),
                static_cast<int64_t>(from));
      return;
    }
    if (m->kind == Kind::bye) {
      left_[from] = true;
    } else if (m->kind == Kind::stop) {
      const auto parts = unpack(m->bytes);
      if (parts && parts->size() == 3) stopped({(*parts)[0], (*parts)[1], (*parts)[2]}, static_cast<int64_t>(from));
    } else {
      const std::lock_guard lock(mutex_);
      inbox_[from].push_back(std::move(m->bytes));
      changed_.notify_all();
    }
  }

  /// Another rank stopped: rank 0 passes it on.
  void stopped(const Diagnostic& why, int64_t from) {
    std::function<void(const Diagnostic&)> hook;
    {
      const std::lock_guard lock(mutex_);
      if (reason_) return;
      reason_ = why;
      hook = hook_;
    }
    changed_.notify_all();
    if (rank() == 0) tell(why, from);
    if (hook) hook(why);
  }

  const RendezvousPlace place_;
  const milliseconds timeout_;
  std::vector<Socket> links_;  // rank 0: to every rank; others: to rank 0 alone
  std::mutex send_mutex_, mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::string>> inbox_;
  std::vector<bool> left_;  // of the listening thread
  std::optional<Diagnostic> reason_;
  std::function<void(const Diagnostic&)> hook_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

struct Addresses {
  addrinfo* list = nullptr;
  ~Addresses() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
};

Result<Socket> listen_on(const RendezvousPlace& p) {
  Socket s(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1, no = 0;
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  any.sin6_port = htons(static_cast<uint16_t>(p.port));
  int bound = -1;
  if (s.valid()) {
    ::setsockopt(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    ::setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    bound = ::bind(s.fd(), reinterpret_cast<sockaddr*>(&any), sizeof any);
  } else {  // a machine without IPv6
    s = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_port = htons(static_cast<uint16_t>(p.port));
    ::setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    bound = ::bind(s.fd(), reinterpret_cast<sockaddr*>(&any4), sizeof any4);
  }
  if (bound != 0 || ::listen(s.fd(), 1024) != 0)
    return fault(0, fmt::format("cannot listen on port {}: {}", p.port, std::strerror(errno)));
  return s;
}

void no_delay(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

Result<std::vector<Socket>> gather_ranks(const RendezvousPlace& p, Clock::time_point until) {
  auto listening = listen_on(p);
  if (!listening) return listening.errors();
  std::vector<Socket> links(static_cast<size_t>(p.size));
  for (int64_t here = 1; here < p.size;) {
    if (!ready(listening.value().fd(), POLLIN, left_of(until))) {
      std::string missing;
      for (size_t r = 1; r < links.size(); ++r)
        if (!links[r].valid()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      return fault(0, "these ranks did not come in time: " + missing);
    }
    Socket s(::accept4(listening.value().fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!s.valid()) continue;
    no_delay(s.fd());
    // Not a rank, or a rank twice: let go of. A stray connection must not hold the others up for long.
    const auto hello = receive_message(s.fd(), std::min(until, Clock::now() + milliseconds(2000)));
    if (!hello || hello->kind != Kind::hello || hello->rank < 1 || hello->rank >= p.size) continue;
    if (hello->bytes != std::to_string(p.size))
      return fault(0, fmt::format("rank {} was told of {} ranks, rank 0 of {}", hello->rank, hello->bytes, p.size));
    if (links[static_cast<size_t>(hello->rank)].valid())
      return fault(0, fmt::format("two processes say that they are rank {}", hello->rank));
    links[static_cast<size_t>(hello->rank)] = std::move(s);
    ++here;
  }
  return links;
}

Result<std::vector<Socket>> reach_rank_0(const RendezvousPlace& p, Clock::time_point until) {
  std::string last = "no address";
  while (Clock::now() < until) {
    Addresses found;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    if (const int e = ::getaddrinfo(p.address.c_str(), std::to_string(p.port).c_str(), &hints, &found.list); e != 0) {
      last = ::gai_strerror(e);
    } else {
      for (const addrinfo* a = found.list; a != nullptr; a = a->ai_next) {
        Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!s.valid() || ::connect(s.fd(), a->ai_addr, a->ai_addrlen) != 0) {
          last = std::strerror(errno);
          continue;
        }
        no_delay(s.fd());
        if (!send_message(s.fd(), Kind::hello, p.rank, std::to_string(p.size))) continue;
        std::vector<Socket> links;
        links.push_back(std::move(s));
        return links;
      }
    }
    std::this_thread::sleep_for(milliseconds(50));  // rank 0 may start later
  }
  return fault(p.rank, fmt::format("cannot reach rank 0 at {}:{}: {}", p.address, p.port, last));
}

}  // namespace

Result<std::unique_ptr<Rendezvous>> Rendezvous::join(const RendezvousPlace& place, milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  auto links = place.size == 1   ? Result<std::vector<Socket>>(std::vector<Socket>{})
               : place.rank == 0 ? gather_ranks(place, until)
                                 : reach_rank_0(place, until);
  if (!links) return links.errors();
  std::unique_ptr<Rendezvous> star = std::make_unique<Star>(place, timeout, std::move(links.value()));
  if (auto all_here = star->exchange(""); !all_here) return all_here.errors();
  return star;
}

Result<RendezvousPlace> rendezvous_from_environment(const std::function<const char*(const char*)>& variable) {
  RendezvousPlace p;
  Diagnostics faults;
  auto number = [&](const char* name, int64_t least, int64_t most, bool required, int64_t* out) {
    const char* text = variable(name);
    if (text == nullptr || *text == '\0') {
      if (required) faults.push_back({name, "is not set", "torchrun sets it, or srun with a script"});
      return;
    }
    const std::string_view all(text);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
    if (error != std::errc{} || end != all.data() + all.size() || value < least || value > most)
      faults.push_back({name, fmt::format("'{}' is not a number from {} to {}", text, least, most), ""});
    else
      *out = value;
  };
  int64_t port = p.port;
  number("WORLD_SIZE", 1, 1 << 20, true, &p.size);
  number("RANK", 0, p.size - 1, true, &p.rank);
  number("LOCAL_RANK", 0, 1 << 10, false, &p.local_rank);
  number("MASTER_PORT", 1, 65535, p.size > 1, &port);
  p.port = static_cast<int>(port);
  if (const char* address = variable("MASTER_ADDR"); address != nullptr && *address != '\0')
    p.address = address;
  else if (p.size > 1)
    faults.push_back({"MASTER_ADDR", "is not set", "where rank 0 runs"});
  if (!faults.empty()) return faults;
  return p;
}

Result<RendezvousPlace> rendezvous_from_environment() {
  return rendezvous_from_environment([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace wt::exec
