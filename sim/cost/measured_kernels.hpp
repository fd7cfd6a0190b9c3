// The curves of a device spec (core/spec/measured.hpp) as times: the fitted line of a kernel, corrected towards the points
// nearby in the logarithms of its dims. A measured shape gets its measurement, one far from all points the line.
// Not a model of hardware: a kernel without a curve has no time here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/measured.hpp"

namespace wt::sim {

class MeasuredKernels {
 public:
  /// Errors: a kernel that no plan has, with the legal names; points of one curve with different numbers of dims.
  static Result<MeasuredKernels> make(const MeasuredDevice&);

  struct Estimate {
    double seconds = 0;
    double flops_share = 0, bytes_share = 0;  // of the line; the rest is latency
  };
  /// Nothing if the kernel was not measured in this dtype. A variant that was not measured takes another's curve.
  std::optional<Estimate> estimate(const plan::Compute&) const;

 private:
  struct Near {
    std::array<double, 5> log_dims{};
    double log_ratio = 0;  // measured / line
  };
  struct Curve {
    std::string variant;
    double latency = 0, per_flop = 0, per_byte = 0;  // seconds
    std::vector<Near> points;
    double line(double flops, double bytes) const { return latency + flops * per_flop + bytes * per_byte; }
  };
  std::map<std::pair<plan::Kernel, DType>, std::vector<Curve>> curves_;
};

}  // namespace wt::sim
