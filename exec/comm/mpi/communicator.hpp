// This process as one rank of a job that MPI started: the Communicator (exec/backend.hpp) of a CPU device. Not the session
// that begins and ends MPI (exec/comm/mpi.hpp), which must outlive it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/comm/mpi/collectives.hpp"
#include "exec/device/cpu.hpp"

namespace wt::exec {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(CpuDevice& device, std::chrono::milliseconds timeout);
  ~MpiCommunicator() override;

  std::string_view kind() const override { return "mpi"; }
  RankId rank() const override { return {static_cast<uint32_t>(rank_)}; }
  int64_t size() const override { return size_; }
  Status connect(std::span<const Channel>) override;
  void start(const Transfer&, plan::Stream, Ticket) override;
  Status barrier() override;
  Result<std::vector<double>> reduce(std::span<const double>, plan::Reduction) override;
  Result<std::vector<std::string>> gather(std::string_view) override;
  Result<ClockOffset> clock_offset() override;
  void stop(const Diagnostic&) override;

  /// Whether a machine of this process has failed: MPI_Finalize would then wait for ranks that hang.
  static bool any_failed();

 private:
  Diagnostic failed(const char* call, std::string what) const;
  Status host_part(Part);
  Result<std::vector<std::string>> collect(std::string_view mine, const char* call);

  CpuDevice& device_;
  int rank_ = 0, size_ = 1;
  MPI_Comm control_comm_ = MPI_COMM_NULL, pairs_ = MPI_COMM_NULL;
  Lane host_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Messages> messages_;
  std::vector<std::unique_ptr<MpiSide>> sides_;
  std::vector<std::shared_ptr<void>> abandoned_;  // buffers of exchanges that failed: MPI may still write there
};

}  // namespace wt::exec
