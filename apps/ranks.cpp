#include "apps/ranks.hpp"

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "exec/comm/inproc.hpp"

#if defined(WT_HAVE_CUDA)
#include "exec/comm/nccl/nccl.hpp"
#include "exec/device/cuda/cuda.hpp"
#endif

namespace wt::apps {
namespace {

using Machines = std::vector<exec::Machine>;

Result<Machines> one(Result<exec::Machine> machine) {
  if (!machine) return machine.errors();
  Machines out;
  out.push_back(std::move(machine.value()));
  return out;
}

Result<exec::Machine> over_mpi(exec::MpiSession& session, const MachineOptions& o) {
  exec::MpiOptions options;
  options.threads_per_rank = o.threads_per_rank;
  options.timeout = o.timeout;
  return session.machine(options);
}

#if defined(WT_HAVE_CUDA)

constexpr const char* kWithoutGpu = "--device cpu runs anywhere";

Result<exec::Machine> join(const exec::RendezvousPlace& place, const MachineOptions& o) {
  auto met = exec::Rendezvous::join(place, o.timeout);
  if (!met) return met.errors();
  return exec::open_nccl(std::move(met.value()), {static_cast<int>(place.local_rank), o.timeout});
}

/// A GPU for each thread of this process.
Result<Machines> cuda_threads(int64_t ranks, const MachineOptions& o) {
  const auto count = exec::cuda_device_count();
  if (!count) return Diagnostic{"--device cuda", "no GPU: " + count.errors()[0].what, kWithoutGpu};
  if (count.value() < ranks)
    return Diagnostic{"--device cuda",
                      count.value() == 0
                          ? "no GPU is visible"
                          : fmt::format("{} ranks need a GPU each, {} are visible", ranks, count.value()),
                      fmt::format("CUDA_VISIBLE_DEVICES, a plan for fewer ranks, or {}", kWithoutGpu)};
  const auto port = exec::free_port();
  if (!port) return port.errors();
  std::vector<std::optional<Result<exec::Machine>>> opened(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      opened[static_cast<size_t>(r)].emplace(join({r, ranks, r, "127.0.0.1", port.value()}, o));
    });
  for (std::thread& t : threads) t.join();
  Machines out;
  for (auto& m : opened) {
    if (!*m) return m->errors();
    out.push_back(std::move(m->value()));
  }
  return out;
}

Result<Machines> cuda_machines(const Ranks& at, int64_t ranks, const MachineOptions& o) {
  if (at.torchrun) return one(join(*at.torchrun, o));
  if (at.mpi == nullptr) return cuda_threads(ranks, o);
  // MPI says where to meet; from then on NCCL and its rendezvous do without it.
  auto host = over_mpi(*at.mpi, o);
  if (!host) return host.errors();
  auto place = exec::rendezvous_over(*host.value().communicator);
  if (!place) return place.errors();
  return one(join(place.value(), o));
}

#else

Result<Machines> cuda_machines(const Ranks&, int64_t, const MachineOptions&) {
  return Diagnostic{"--device cuda", "this program was built without CUDA", "cmake --preset cuda, or --device cpu"};
}

#endif

}  // namespace

Result<Machines> open_machines(const Ranks& at, int64_t ranks, const MachineOptions& o) {
  if (o.cuda) return cuda_machines(at, ranks, o);
  if (at.mpi != nullptr) return one(over_mpi(*at.mpi, o));
  exec::InprocOptions options;
  options.threads_per_rank = o.threads_per_rank;
  options.timeout = o.timeout;
  return exec::open_inproc(ranks, options);
}

}  // namespace wt::apps
