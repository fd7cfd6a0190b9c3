// The angle by which rotary position embedding turns a pair; in double, on both devices.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/kernels/host_device.hpp"

namespace wt::exec {

/// Pair (i, i + d/2) of a head of size d at this position: position * 10000^(-2i/d).
WT_HOST_DEVICE double rotary_angle(int64_t position, int64_t pair, int64_t d) {
  return static_cast<double>(position) * pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(d));
}

}  // namespace wt::exec
