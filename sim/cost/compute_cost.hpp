// Work -> time for one kernel on one device: a measured curve where there is one, else a roofline with tile and wave
// quantisation. Pure: no clock, no queue, no communication. Every estimate says which and what bounds it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::sim {

enum class Bound : uint8_t { compute, memory, launch };

struct CostEstimate {
  Time time;                // on the device, launch gap excluded
  Bound bound = Bound::compute;
  double efficiency = 0;    // share of the peak of `bound` that is reached
  std::string_view source;  // "measured: data/kernels/h100/gemm.csv", "roofline"; lives as long as the model
};

class ComputeCost {
 public:
  /// Reads data/kernels/<device.kernels>/ (none: roofline only). Errors: a file that does not parse, with line.
  static Result<ComputeCost> load(const DeviceSpec& device);

  CostEstimate estimate(const plan::Compute& op) const;

  /// Gap that the device needs between two kernels of a stream, whatever the host does.
  Time device_gap() const;
  /// How long the host needs to issue one kernel / one collective (host profile of the job).
  Time host_issue(const TrainingSpec& training) const;
  /// Factor (>= 1) by which a compute kernel gets slower while a collective runs beside it.
  double slowdown_beside_collective(const plan::Compute& op, int64_t collective_channels) const;

  struct Impl;

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace wt::sim
