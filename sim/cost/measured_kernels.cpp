#include "sim/cost/measured_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/text.hpp"
#include "core/plan/kernels.hpp"
#include "core/plan/names.hpp"

namespace wt::sim {
namespace {

// Squared distances in log space. A point at the shape itself weighs 1 / kCore^2 against the line's kPrior; one that is
// a factor of e^sqrt(kReach) = 7 away in one direction nothing.
constexpr double kCore = 0.02, kReach = 4, kPrior = 0.5;

std::optional<plan::Kernel> kernel_named(std::string_view name) {
  const auto at = std::ranges::find(plan::kKernelNames, name);
  if (at == plan::kKernelNames.end()) return std::nullopt;
  return static_cast<plan::Kernel>(at - plan::kKernelNames.begin());
}

template <class Dims>
std::array<double, 5> logs(const Dims& dims) {
  std::array<double, 5> out{};
  for (size_t i = 0; i < std::min<size_t>(5, dims.size()); ++i)
    out[i] = std::log(static_cast<double>(std::max<int64_t>(1, dims[i])));
  return out;
}

}  // namespace

Result<MeasuredKernels> MeasuredKernels::make(const MeasuredDevice& device) {
  MeasuredKernels out;
  Diagnostics errors;
  for (const KernelCurve& k : device.kernels) {
    const std::string where = fmt::format("device.measured.kernels: {} {}", k.kernel, k.variant);
    const auto kernel = kernel_named(k.kernel);
    if (!kernel) {
      errors.push_back(
          {where, fmt::format("no plan has a kernel '{}'", k.kernel), suggest(k.kernel, plan::kKernelNames)});
      continue;
    }
    Curve c{k.variant, k.latency.seconds(), k.rate > 0 ? 1 / k.rate : 0, k.bandwidth.n > 0 ? 1 / k.bandwidth.n : 0, {}};
    for (const KernelPoint& p : k.points) {
      const double line = c.line(p.flops, static_cast<double>(p.bytes.n));
      if (p.dims.size() > 5 || line <= 0) {
        errors.push_back({where, fmt::format("a point of {} dims that the curve gives {} s", p.dims.size(), line), ""});
        break;
      }
      c.points.push_back({logs(p.dims), std::log(p.time.seconds() / line)});
    }
    out.curves_[{*kernel, k.dtype}].push_back(std::move(c));
  }
  if (!errors.empty()) return errors;
  return out;
}

std::optional<MeasuredKernels::Estimate> MeasuredKernels::estimate(const plan::Compute& op) const {
  const auto found = curves_.find({op.kernel, op.dtype});
  if (found == curves_.end()) return std::nullopt;
  const auto same = std::ranges::find(found->second, plan::variant_of(op), &Curve::variant);
  const Curve& c = same != found->second.end() ? *same : found->second.front();
  const double bytes = static_cast<double>(op.work.bytes_read + op.work.bytes_written);
  const double line = c.line(op.work.flops, bytes);
  const auto at = logs(op.dims);
  double sum = 0, weights = kPrior;
  for (const Near& p : c.points) {
    double d = 0;
    for (size_t i = 0; i < at.size(); ++i) d += (p.log_dims[i] - at[i]) * (p.log_dims[i] - at[i]);
    if (d > kReach) continue;
    const double near = 1 / (d + kCore) - 1 / (kReach + kCore), w = near * near;
    sum += w * p.log_ratio;
    weights += w;
  }
  Estimate e;
  e.seconds = line * std::exp(sum / weights);
  if (line > 0) {
    e.flops_share = op.work.flops * c.per_flop / line;
    e.bytes_share = bytes * c.per_byte / line;
  }
  return e;
}

}  // namespace wt::sim
