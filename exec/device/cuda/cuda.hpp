// The CUDA devices of this machine, without CUDA's headers: for whoever assembles a rank's machine. Only in a build with
// CUDA (target wt_cuda). Not run on a GPU yet.
#pragma once

#include <memory>
#include <string>

#include "exec/backend.hpp"

namespace wt::exec {

/// How many; a fault where the driver is missing or too old, in its words.
Result<int> cuda_device_count();

/// The device with this number among those that CUDA_VISIBLE_DEVICES shows. `rank` is what failures name.
Result<std::unique_ptr<Device>> open_cuda_device(int number, RankId rank);

}  // namespace wt::exec
