// exec/comm/mpi.hpp of a program that was built without MPI: it says so.
#include "exec/comm/mpi.hpp"

namespace wt::exec {

bool started_by_mpi() { return false; }

Result<MpiSession> MpiSession::open(int*, char***) {
  return Diagnostic{"MPI", "this program was built without MPI", "build where libopenmpi-dev is installed (WT_MPI=ON)"};
}
MpiSession::MpiSession(MpiSession&&) noexcept = default;
MpiSession& MpiSession::operator=(MpiSession&&) noexcept = default;
MpiSession::~MpiSession() = default;
RankId MpiSession::rank() const { return {0}; }
int64_t MpiSession::size() const { return 1; }
int64_t MpiSession::ranks_here() const { return 1; }
Result<Machine> MpiSession::machine(const MpiOptions&) { return open(nullptr, nullptr).errors(); }
void MpiSession::end_all(int) {}

}  // namespace wt::exec
