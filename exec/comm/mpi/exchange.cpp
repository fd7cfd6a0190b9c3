#include "exec/comm/mpi/exchange.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace wt::exec {

namespace {

using std::chrono::milliseconds;

constexpr int64_t kLargestMessage = int64_t{1} << 30;  // an MPI count is an int
/// A waiting thread looks this often without a pause (a message within a machine takes microseconds), then sleeps between
/// looks: it must not take the core from the compute thread.
constexpr int kEagerLooks = 64;
constexpr long kPauseNs = 20'000;

}  // namespace

Status exchange(Control& control, int self, std::string_view op, const Lane& lane, std::span<const Part> parts,
                Patience patience) {
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
              fmt::format("{} rank {}: {}", sends ? "MPI_Isend to" : "MPI_Irecv from", p.peer, mpi_error(code)), ""};
        requests.push_back(r);
        peers.push_back(p.peer);
        at += count;
      } while (at < p.bytes);
    }
  if (requests.empty()) return ok_status();

  const auto since = Control::Clock::now();
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
                                  fmt::format("a message with rank {}: {}", peers[i], mpi_error(error)), ""});
      return leave(Diagnostic{fmt::format("rank {}, op '{}'", self, op), "MPI_Testall: " + mpi_error(code), ""});
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
    const auto waited = Control::Clock::now() - since;
    if (!told && waited > milliseconds(100)) told = control.begin_wait({std::string(op), missing(), since});
    if (waited > control.timeout()) {
      const Diagnostic why = control.explain(op, missing());
      return leave(control.stopped() ? control.reason() : why);
    }
    const timespec pause{0, waited > milliseconds(20) ? 10 * kPauseNs : kPauseNs};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
}

}  // namespace wt::exec
