// What an optimizer op means before any element is touched: clipping, bias correction, which duplicates leave the norm.
// The same for both devices. Invariant: computed in double, rounded once.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/plan/plan.hpp"
#include "exec/kernels/math.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// Whether square_sum leaves out what reads[i] shares with x: the last Compute::function of them on every rank, the
/// others on all ranks of the group but the first.
inline bool leaves_out(const plan::Compute& c, size_t i, size_t reads, int64_t group_index) {
  return i + c.function >= reads || group_index != 0;
}

/// Elements [begin, end) of x that `duplicate` shares with it; x may be a piece of the bucket in which it lies.
struct Overlap {
  int64_t begin, end;
};
inline Overlap overlap_of(const Operand& x, const Operand& duplicate) {
  const int64_t size = size_of(x.dtype);
  const int64_t begin = (static_cast<const std::byte*>(duplicate.data) - static_cast<const std::byte*>(x.data)) / size;
  return {std::clamp<int64_t>(begin, 0, x.elements), std::clamp<int64_t>(begin + duplicate.elements, 0, x.elements)};
}

/// Factor of the gradient: less the loss scale, and clipped where the op says so. `sum`: of squares over all ranks.
WT_HOST_DEVICE double gradient_factor(bool clipped, double most, double sum, double loss_scale) {
  double factor = 1.0;
  if (clipped) {
    const double ratio = most / (sqrt(sum) + 1e-6);
    factor = ratio < 1.0 ? ratio : 1.0;
  }
  return factor / loss_scale;
}

template <class A>
UpdateRule<A> update_rule(const plan::Compute& c, const StepValues& v, bool clipped, double sum) {
  const double steps = static_cast<double>(v.step + 1);
  return {static_cast<A>(gradient_factor(clipped, c.scalar, sum, v.loss_scale)),
          static_cast<A>(v.learning_rate),
          static_cast<A>(v.weight_decay),
          static_cast<A>(v.beta1),
          static_cast<A>(v.beta2),
          static_cast<A>(v.epsilon),
          static_cast<A>(1.0 / (1.0 - std::pow(v.beta1, steps))),
          static_cast<A>(1.0 / (1.0 - std::pow(v.beta2, steps)))};
}

}  // namespace wt::exec
