// CudaDevice: a CUDA stream for each stream of the plan, a pair of events for each ticket. Used by the NCCL communicator
// too, which puts its transfers on the same streams. Not thread-safe but for fail() and failure(), which a watchdog calls.
// Invariant: after the first failure nothing more is launched, and synchronize returns that failure.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "exec/backend.hpp"
#include "exec/device/cuda/products.hpp"

namespace wt::exec::cuda {

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> open(int number, RankId rank);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string_view kind() const override { return "cuda"; }
  std::string description() const override { return description_; }
  std::optional<std::string> unsupported(const Launch&) const override;
  Result<std::byte*> allocate(plan::Space, Bytes) override;
  void launch(const Launch&, plan::Stream, Ticket) override;
  void copy(const CopyLaunch&, plan::Stream, Ticket) override;
  void wait(plan::Stream, Ticket) override;
  Status wait_host(Ticket) override;
  Status synchronize() override;
  Status read(const Operand& from, void* to) override;
  Status write(const void* from, const Operand& to) override;
  Result<Interval> interval(Ticket) override;

  /// Puts work of any kind under a ticket: begin and end are recorded around it, a fault is kept with the op's name.
  void under_ticket(std::string_view op, plan::Stream, Ticket, const std::function<Fault(cudaStream_t)>& work);
  int number() const { return number_; }

  void fail(std::string_view op, Diagnostic);
  std::optional<Diagnostic> failure() const;

 private:
  struct Times {
    cudaEvent_t begin = nullptr, end = nullptr;
    bool recorded = false;
  };

  CudaDevice(int number, RankId rank) : number_(number), rank_(rank) {}
  Fault make();
  Fault start_clock();
  Fault start_anew();
  Fault times_of(Ticket, Times**);
  Status status() const;

  const int number_;
  const RankId rank_;
  std::string description_;
  std::array<cudaStream_t, plan::kStreams> streams_{};
  Products products_;
  std::vector<Times> tickets_;
  cudaEvent_t origin_ = nullptr;  // recorded when the host's clock said origin_ps_
  int64_t origin_ps_ = 0;
  bool over_ = false;  // synchronized: with the next launch tickets start anew, and the clocks are compared again
  std::vector<void*> device_memory_, pinned_memory_;
  std::vector<std::unique_ptr<std::byte[]>> pageable_memory_;
  mutable std::mutex mutex_;
  std::optional<Diagnostic> failure_;
};

}  // namespace wt::exec::cuda
