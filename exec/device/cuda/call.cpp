#include "exec/device/cuda/call.hpp"

#include <fmt/format.h>

namespace wt::exec::cuda {
namespace {

/// The call as it stands in the source, without what it was called with.
std::string name_of(std::string_view call) { return std::string(call.substr(0, call.find('('))); }

}  // namespace

Fault fault_of(cudaError_t e, std::string_view call) {
  if (e == cudaSuccess) return std::nullopt;
  return Diagnostic{name_of(call), fmt::format("{} ({})", cudaGetErrorString(e), cudaGetErrorName(e)), ""};
}

Fault fault_of(cublasStatus_t s, std::string_view call) {
  if (s == CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return Diagnostic{name_of(call), cublasLtGetStatusString(s), ""};
}

}  // namespace wt::exec::cuda
