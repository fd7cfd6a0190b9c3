// Parameter counts beyond the declarations of specs.hpp: for the readers, which must bound a model before the exact
// count in 64 bits can be trusted.
#pragma once

#include "core/spec/specs.hpp"

namespace wt {

/// The total in floating point: same formulas, no overflow, for any sizes the readers let through.
long double estimate_parameters(const ModelSpec&);

}  // namespace wt
