// exec/comm/mpi.hpp over MPI: its begin and end, and which cores a rank of a machine gets. Not the transfers
// (communicator.hpp).
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "exec/comm/mpi.hpp"
#include "exec/comm/mpi/communicator.hpp"
#include "exec/device/thread_pool.hpp"

namespace wt::exec {

namespace {

/// Between a rank's failure and the end of all: the others hear why and say so.
constexpr std::chrono::milliseconds kFarewell{500};

bool ended_all = false;

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
    return Diagnostic{"MPI_Init_thread", mpi_error(code), ""};
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
  if (open_ && !ended_all && !MpiCommunicator::any_failed()) MPI_Finalize();
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
  ended_all = true;
  std::this_thread::sleep_for(kFarewell);
  MPI_Abort(MPI_COMM_WORLD, code);
}

}  // namespace wt::exec
