// How many operands each kernel has and which of its outputs accumulate: the table behind the comments of
// plan::Kernel, for whoever checks, executes or interprets a plan. Not what a kernel computes or costs.
#pragma once

#include <cstdint>
#include <string>

#include "core/plan/plan.hpp"

namespace wt::plan {

struct KernelOperands {
  uint8_t least_reads = 0, most_reads = 0;  // most_reads 255: any number
  uint8_t least_writes = 0, most_writes = 0;
  uint8_t accumulates = 0;  // bit i: writes[i] is added to, not overwritten. Products: only with Compute::accumulate
};

constexpr KernelOperands operands_of(Kernel k) {
  switch (k) {
    case Kernel::gemm: return {2, 3, 1, 1, 0};
    case Kernel::bias_gradient: return {1, 1, 1, 1, 1};
    case Kernel::norm_forward: return {2, 3, 2, 2, 0};
    case Kernel::norm_backward: return {4, 4, 1, 3, 0b110};
    case Kernel::rope_forward:
    case Kernel::rope_backward: return {1, 1, 1, 1, 0};
    case Kernel::qk_norm_forward: return {3, 3, 2, 2, 0};
    case Kernel::qk_norm_backward: return {5, 5, 1, 3, 0b110};
    case Kernel::attention_forward: return {1, 1, 2, 2, 0};
    case Kernel::attention_backward: return {4, 4, 1, 1, 0};
    case Kernel::scores_forward: return {1, 1, 1, 1, 0};
    case Kernel::softmax_forward: return {1, 1, 1, 1, 0};
    case Kernel::context_forward: return {2, 2, 1, 1, 0};
    case Kernel::context_backward: return {3, 3, 2, 2, 0};
    case Kernel::softmax_backward: return {2, 2, 1, 1, 0};
    case Kernel::scores_backward: return {2, 2, 1, 1, 0};
    case Kernel::activation_forward: return {1, 2, 1, 1, 0};
    case Kernel::activation_backward: return {2, 3, 1, 1, 0};
    case Kernel::residual_forward: return {2, 3, 1, 2, 0};
    case Kernel::residual_backward: return {1, 2, 1, 1, 0};
    case Kernel::add: return {2, 2, 1, 1, 0};
    case Kernel::dropout_forward: return {1, 1, 2, 2, 0};
    case Kernel::dropout_backward: return {2, 2, 1, 1, 0};
    case Kernel::embedding_forward: return {2, 2, 1, 1, 0};
    case Kernel::embedding_backward: return {2, 2, 1, 1, 1};
    case Kernel::position_forward: return {2, 2, 1, 1, 0};
    case Kernel::position_backward: return {1, 1, 1, 1, 1};
    case Kernel::loss_max: return {1, 1, 1, 1, 0};
    case Kernel::loss_sums: return {3, 3, 1, 1, 0};
    case Kernel::loss_forward: return {2, 2, 1, 1, 1};
    case Kernel::loss_backward: return {4, 4, 1, 1, 0};
    case Kernel::scale: return {1, 1, 1, 1, 0};
    case Kernel::square_sum: return {1, 255, 1, 1, 1};
    case Kernel::adam: return {4, 5, 4, 4, 0};
    case Kernel::sgd: return {2, 3, 2, 2, 0};
    case Kernel::fill_zero: return {0, 0, 1, 255, 0};
    case Kernel::cast: return {1, 1, 1, 1, 0};
    case Kernel::copy: return {1, 255, 1, 255, 0};
    case Kernel::transpose:
    case Kernel::concat_columns:
    case Kernel::slice_columns:
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence:
    case Kernel::orthogonalize: return {1, 1, 1, 1, 0};
    case Kernel::route_forward: return {1, 1, 3, 3, 0};
    case Kernel::route_backward: return {3, 3, 1, 1, 0};
    case Kernel::permute:
    case Kernel::unpermute: return {2, 3, 1, 2, 0};
    case Kernel::regroup: return {1, 2, 1, 2, 0};
    case Kernel::grouped_gemm: return {2, 2, 1, 1, 0};
    case Kernel::expert_activation_forward: return {2, 2, 1, 1, 0};
    case Kernel::expert_activation_backward: return {3, 3, 2, 2, 0};
    case Kernel::latent_attention_forward: return {1, 1, 2, 2, 0};
    case Kernel::latent_attention_backward: return {4, 4, 1, 1, 0};
    case Kernel::latent_assemble: return {3, 3, 1, 1, 0};
    case Kernel::latent_scatter: return {1, 1, 3, 3, 0};
    case Kernel::split_latent: return {1, 1, 2, 2, 0};
    case Kernel::join_latent: return {2, 2, 1, 1, 0};
    case Kernel::split_qkv: return {1, 1, 2, 2, 0};
    case Kernel::join_qkv: return {2, 2, 1, 1, 0};
    case Kernel::block_attention_forward: return {2, 2, 2, 2, 0};
    case Kernel::block_attention_backward: return {5, 5, 2, 2, 0};
    case Kernel::merge_attention: return {4, 4, 2, 2, 0};
  }
  return {};
}

/// What the time of a kernel depends on beside dtype and dims, in the words of the plan's text: "transpose_b", "causal".
std::string variant_of(const Compute&);

/// Whether the kernel adds to writes[i]: then it is an input too and must have been written before.
constexpr bool accumulates(const Compute& c, size_t i) {
  if (c.kernel == Kernel::gemm || c.kernel == Kernel::grouped_gemm) return c.accumulate;
  if (c.kernel == Kernel::block_attention_backward) return i == 0 && c.accumulate;
  return i < 8 && (operands_of(c.kernel).accumulates >> i & 1) != 0;
}

}  // namespace wt::plan
