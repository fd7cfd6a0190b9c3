// Spellings of every enum of the plan: one table each, read by to_text, print and parse_plan.
// Not the names of buffers or blocks. Invariant: a table's index is the enum's value; spellings are a file format
// and never change.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/plan/plan.hpp"

namespace wt::plan {

inline constexpr std::array<std::string_view, 64> kKernelNames = {"gemm",
                                                                  "bias_gradient",
                                                                  "norm_forward",
                                                                  "norm_backward",
                                                                  "rope_forward",
                                                                  "rope_backward",
                                                                  "qk_norm_forward",
                                                                  "qk_norm_backward",
                                                                  "attention_forward",
                                                                  "attention_backward",
                                                                  "scores_forward",
                                                                  "softmax_forward",
                                                                  "context_forward",
                                                                  "context_backward",
                                                                  "softmax_backward",
                                                                  "scores_backward",
                                                                  "activation_forward",
                                                                  "activation_backward",
                                                                  "residual_forward",
                                                                  "residual_backward",
                                                                  "add",
                                                                  "dropout_forward",
                                                                  "dropout_backward",
                                                                  "embedding_forward",
                                                                  "embedding_backward",
                                                                  "position_forward",
                                                                  "position_backward",
                                                                  "loss_max",
                                                                  "loss_sums",
                                                                  "loss_forward",
                                                                  "loss_backward",
                                                                  "scale",
                                                                  "square_sum",
                                                                  "adam",
                                                                  "sgd",
                                                                  "fill_zero",
                                                                  "cast",
                                                                  "copy",
                                                                  "transpose",
                                                                  "concat_columns",
                                                                  "slice_columns",
                                                                  "route_forward",
                                                                  "route_backward",
                                                                  "permute",
                                                                  "unpermute",
                                                                  "regroup",
                                                                  "grouped_gemm",
                                                                  "expert_activation_forward",
                                                                  "expert_activation_backward",
                                                                  "latent_attention_forward",
                                                                  "latent_attention_backward",
                                                                  "latent_assemble",
                                                                  "latent_scatter",
                                                                  "split_latent",
                                                                  "join_latent",
                                                                  "split_qkv",
                                                                  "join_qkv",
                                                                  "block_attention_forward",
                                                                  "block_attention_backward",
                                                                  "merge_attention",
                                                                  "split_columns",
                                                                  "gather_sequence",
                                                                  "deal_sequence",
                                                                  "orthogonalize"};
inline constexpr std::array<std::string_view, 7> kCollectiveNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift_up", "shift_down"};
inline constexpr std::array<std::string_view, 3> kReductionNames = {"sum", "max", "average"};
inline constexpr std::array<std::string_view, 10> kPhaseNames = {
    "load",           "model",           "optimizer_state", "forward",   "recompute",
    "backward_input", "backward_weight", "reduce",          "optimizer", "checkpoint"};
inline constexpr std::array<std::string_view, kStreams> kStreamNames = {"compute",
                                                                        "tensor",
                                                                        "data",
                                                                        "send_next",
                                                                        "receive_previous",
                                                                        "send_previous",
                                                                        "receive_next",
                                                                        "copy_in",
                                                                        "copy_out",
                                                                        "replica",
                                                                        "expert",
                                                                        "context",
                                                                        "back_send_next",
                                                                        "back_receive_previous",
                                                                        "back_send_previous",
                                                                        "back_receive_next",
                                                                        "host"};
inline constexpr std::array<std::string_view, 14> kRoleNames = {
    "weight", "gradient", "master", "moment1", "moment2", "activation", "transient",
    "bucket", "tokens",   "labels", "loss",    "scalar",  "workspace",  "copy"};
inline constexpr std::array<std::string_view, 4> kScopeNames = {"rank", "persistent", "micro_batch", "invocation"};
inline constexpr std::array<std::string_view, 4> kSpaceNames = {"device", "pinned", "pageable", "nvme"};
inline constexpr std::array<std::string_view, 2> kDirectionNames = {"next_stage", "previous_stage"};
inline constexpr std::array<std::string_view, 4> kInitNames = {"none", "zeros", "ones", "normal"};
inline constexpr std::array<std::string_view, 2> kPlacementNames = {"loop", "zigzag"};
inline constexpr std::array<std::string_view, 7> kDTypeNames = {"f64", "f32", "bf16", "f16", "f8", "i32", "u8"};

static_assert(static_cast<size_t>(Kernel::orthogonalize) + 1 == kKernelNames.size());
static_assert(static_cast<size_t>(Phase::checkpoint) + 1 == kPhaseNames.size());
static_assert(static_cast<size_t>(Role::copy) + 1 == kRoleNames.size());

/// The value with this spelling; nothing for any other.
template <class E, size_t N>
std::optional<E> value_of(const std::array<std::string_view, N>& names, std::string_view text) {
  for (size_t i = 0; i < N; ++i)
    if (!names[i].empty() && names[i] == text) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace wt::plan
