// Work -> time for one kernel on one device: a model of tiles, waves, memory and clocks, held to the measured curves of
// data/kernels where there are any. Pure: no clock, no queue, no communication. Every estimate says what bounds it and
// where it comes from. The model and its errors: docs/kernels.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/data_path.hpp"
#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::sim {

enum class Bound : uint8_t { compute, memory, launch };

struct CostEstimate {
  Time time;  // on the device, all `launches` of the op together, gaps between kernels excluded
  Bound bound = Bound::compute;
  double efficiency = 0;    // share of the peak of `bound` that is reached
  std::string_view source;  // "measured: data/kernels/h100/gemm.csv", "model: ..."; lives as long as the model
};

/// Immutable after load; any number of threads may estimate.
class ComputeCost {
 public:
  /// Reads <data>/kernels/<device.kernels>/ (a device without: roofline only) and <data>/hosts.csv. Errors: an
  /// unknown kernel set with the legal ones, a file that does not parse, with line.
  static Result<ComputeCost> load(const DeviceSpec& device, const std::string& data = data_directory());

  CostEstimate estimate(const plan::Compute& op) const;

  /// Gap that the device needs between two kernels of a stream, whatever the host does.
  Time device_gap() const;
  /// How long the host needs to issue one kernel (training.host_issue if set, else the host profile of the job).
  /// An op of n launches takes n times this. An unknown profile counts as "default": see check.
  Time host_issue(const TrainingSpec& training) const;
  /// What an op of this phase costs the host beside its kernels (module and operator dispatch, views, autograd), and a
  /// checkpointed segment beside its ops (random states). Nothing if training.host_issue is set.
  Time host_operator(const TrainingSpec& training, plan::Phase phase) const;
  Time host_checkpoint(const TrainingSpec& training) const;
  /// How long the host needs to issue one collective.
  Time host_issue_collective(const TrainingSpec& training) const;
  /// Errors: a host profile that data/hosts.csv does not have, with the legal ones.
  Status check(const TrainingSpec& training) const;
  /// Factor (>= 1) by which a compute kernel gets slower while a collective runs beside it.
  double slowdown_beside_collective(const plan::Compute& op, int64_t collective_channels) const;

  struct Impl;

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace wt::sim
