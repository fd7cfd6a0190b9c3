// Lines through timed points, by least squares of the relative error: what a measured curve of a spec says in few numbers.
// Pure; no clock. Coefficients are never negative: a term that would be is left out.
#pragma once

#include <span>
#include <vector>

#include "core/spec/measured.hpp"

namespace wt::exec {

/// How far a curve is from its points, |curve / measured - 1|.
struct Residual {
  double mean = 0, worst = 0;
};

/// latency + flops / rate + bytes / bandwidth through the points of the curve, which gets the three and its error. The best
/// of all choices of terms. CHECKs that there is a point.
Residual fit(KernelCurve& curve);

/// Up to three regimes, each latency + bytes / bandwidth; one more is taken when it leaves less than a quarter of the
/// squared error and that was above one per cent. Points sorted by size. CHECKs that there is a point.
Residual fit(TransferCurve& curve);

}  // namespace wt::exec
