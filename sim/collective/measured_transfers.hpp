// The transfers of a cluster spec (core/spec/measured.hpp) as times: latency + bytes / bandwidth of the regime that a size
// lies in. Used in place of NCCL's model where the cluster has any. Not a choice of algorithm: what ran was timed.
#pragma once

#include <optional>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/spec/measured.hpp"

namespace wt::sim {

struct TransferEstimate {
  double seconds = 0, latency = 0, bandwidth = 0;  // bandwidth: bytes / second, 0: the time does not grow
  double device_share = 0;                         // TransferCurve::device_share
};

class MeasuredTransfers {
 public:
  explicit MeasuredTransfers(std::vector<TransferCurve> curves) : curves_(std::move(curves)) {}
  bool empty() const { return curves_.empty(); }

  /// Of the curve of this kind that is nearest: the same dtype first, then as many nodes, then as many ranks. For another
  /// number of ranks its time is scaled by what each rank moves and by the steps of a ring; nothing if the kind was not
  /// measured. Never falls when `bytes` grows.
  std::optional<TransferEstimate> estimate(TransferKind, DType, double bytes, int64_t ranks, int64_t nodes) const;

 private:
  std::vector<TransferCurve> curves_;
};

TransferKind kind_of(plan::CollectiveKind);

}  // namespace wt::sim
