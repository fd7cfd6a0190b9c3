// Where ranks meet that another communicator knows already. Not the meeting itself: rendezvous.cpp.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "exec/comm/nccl/rendezvous.hpp"

namespace wt::exec {

Result<int> free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof at;
  const bool found = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
  const int why = errno;
  if (fd >= 0) ::close(fd);
  if (!found) return Diagnostic{"rendezvous", fmt::format("no free port: {}", std::strerror(why)), ""};
  return int{ntohs(at.sin_port)};
}

Result<RendezvousPlace> rendezvous_over(Communicator& c) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0)
    return Diagnostic{fmt::format("rank {}", c.rank().v), fmt::format("gethostname: {}", std::strerror(errno)), ""};
  // Hosts first, then the port: a rank that has none tells the others so.
  const auto hosts = c.gather(host.data());
  if (!hosts) return hosts.errors();
  const auto port = c.rank().v == 0 ? free_port() : Result<int>(0);
  const auto ports = c.gather(port ? std::to_string(port.value()) : "");
  if (!port) return port.errors();
  if (!ports) return ports.errors();
  if (ports.value()[0].empty()) return Diagnostic{"rendezvous", "rank 0 found no free port", ""};
  const std::vector<std::string>& all = hosts.value();
  RendezvousPlace p;
  p.rank = c.rank().v;
  p.size = c.size();
  p.local_rank = std::count(all.begin(), all.begin() + p.rank, all[static_cast<size_t>(p.rank)]);
  const bool one_host = std::all_of(all.begin(), all.end(), [&](const std::string& h) { return h == all[0]; });
  p.address = one_host ? "127.0.0.1" : all[0];
  p.port = std::stoi(ports.value()[0]);
  return p;
}

}  // namespace wt::exec
