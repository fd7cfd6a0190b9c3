// What a device kernel does, told by its name: PyTorch, cuBLAS, cuDNN, CUTLASS, flash-attention, Transformer Engine, apex,
// Triton (inductor) and NCCL or RCCL. Names are no interface: what no rule knows is `other`, and diff says how much that is.
#pragma once

#include <string_view>

#include "core/trace/profile.hpp"

namespace wt::import {

trace::WorkClass class_of_kernel(std::string_view name);

/// Of record_param_comms ("allreduce", "_allgather_base", "all_to_allv", "send") or an annotation ("nccl:all_reduce").
/// `other`: no collective.
trace::WorkClass class_of_collective(std::string_view name);

}  // namespace wt::import
