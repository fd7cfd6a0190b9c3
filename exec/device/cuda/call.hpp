// What a call of a CUDA library said, as a Diagnostic with the call in its words. Not the device: whoever calls keeps
// the first failure of the rank (device.hpp).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.hpp"

namespace wt::exec::cuda {

/// Nothing when the call went well.
using Fault = std::optional<Diagnostic>;

Fault fault_of(cudaError_t, std::string_view call);
Fault fault_of(cublasStatus_t, std::string_view call);

}  // namespace wt::exec::cuda

/// Leaves a function that returns Fault with what the call said, if it failed.
#define WT_CUDA(call)                                                               \
  do {                                                                              \
    if (auto wt_fault = ::wt::exec::cuda::fault_of((call), #call)) return wt_fault; \
  } while (false)
