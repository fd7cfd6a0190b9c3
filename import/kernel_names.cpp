#include "import/kernel_names.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace wt::import {

namespace {

using trace::WorkClass;

struct Rule {
  std::string_view part;  // of the name in small letters
  WorkClass is;
};

/// The first rule that fits decides, so what is told apart by a longer word stands first. Kept to what names say: a
/// kernel that Triton fused is what its name lists first among these.
constexpr std::array kKernels = {
    // Optimizers before the element-wise kernels that they are made of; a multi-tensor kernel is one of theirs, but for
    // the copies of FSDP 2.
    Rule{"copyfunctor", WorkClass::elementwise},
    Rule{"chunk_cat", WorkClass::elementwise},
    Rule{"adam", WorkClass::optimizer},
    Rule{"lamb_stage", WorkClass::optimizer},
    Rule{"multi_tensor", WorkClass::optimizer},
    Rule{"multitensor", WorkClass::optimizer},
    Rule{"lpnorm", WorkClass::optimizer},
    // Attention: flash (2, 3), cuDNN's, memory-efficient, Triton's, the fused softmaxes of unfused attention.
    Rule{"flash_fwd", WorkClass::attention},
    Rule{"flash_bwd", WorkClass::attention},
    Rule{"flash_fprop", WorkClass::attention},
    Rule{"flash_bprop", WorkClass::attention},
    Rule{"flashattn", WorkClass::attention},
    Rule{"fmha", WorkClass::attention},
    Rule{"mha_", WorkClass::attention},
    Rule{"_attn_fwd", WorkClass::attention},
    Rule{"_attn_bwd", WorkClass::attention},
    Rule{"attention", WorkClass::attention},
    Rule{"sdpa", WorkClass::attention},
    Rule{"softmax_warp", WorkClass::attention},
    Rule{"scaled_masked_softmax", WorkClass::attention},
    Rule{"triang_masked_softmax", WorkClass::attention},
    // Losses over the vocabulary.
    Rule{"nll_loss", WorkClass::loss},
    Rule{"cross_entropy", WorkClass::loss},
    Rule{"crossentropy", WorkClass::loss},
    Rule{"cunn_softmax", WorkClass::loss},
    Rule{"log_softmax", WorkClass::loss},
    Rule{"logsoftmax", WorkClass::loss},
    // Normalisations.
    Rule{"layernorm", WorkClass::norm},
    Rule{"layer_norm", WorkClass::norm},
    Rule{"rmsnorm", WorkClass::norm},
    Rule{"rms_norm", WorkClass::norm},
    Rule{"rowwisemoments", WorkClass::norm},
    Rule{"gammabeta", WorkClass::norm},
    Rule{"batch_norm", WorkClass::norm},
    Rule{"bn_fw", WorkClass::norm},
    Rule{"bn_bw", WorkClass::norm},
    Rule{"normalization::", WorkClass::norm},
    // Experts.
    Rule{"topk", WorkClass::routing},
    Rule{"radixsort", WorkClass::routing},
    Rule{"moe_", WorkClass::routing},
    Rule{"permute_kernel", WorkClass::routing},
    Rule{"_permute", WorkClass::routing},
    Rule{"_unpermute", WorkClass::routing},
    // Tables.
    Rule{"embedding", WorkClass::embedding},
    Rule{"indexselect", WorkClass::embedding},
    Rule{"index_select", WorkClass::embedding},
    // Products. splitKreduce belongs to the product that it ends.
    Rule{"gemm", WorkClass::gemm},
    Rule{"gemv", WorkClass::gemm},
    Rule{"nvjet", WorkClass::gemm},
    Rule{"splitkreduce", WorkClass::gemm},
    Rule{"cublas", WorkClass::gemm},
    Rule{"cutlass", WorkClass::gemm},
    Rule{"xmma", WorkClass::gemm},
    Rule{"cijk_", WorkClass::gemm},
    Rule{"triton_tem", WorkClass::gemm},
    Rule{"wgrad", WorkClass::gemm},
    Rule{"dgrad", WorkClass::gemm},
    Rule{"fprop", WorkClass::gemm},
    Rule{"scudnn", WorkClass::gemm},
    Rule{"winograd", WorkClass::gemm},
    Rule{"convolution", WorkClass::gemm},
    Rule{"conv2d", WorkClass::gemm},
    Rule{"conv_depthwise", WorkClass::gemm},
    // Everything that passes over elements once.
    Rule{"memcpy", WorkClass::copy},
    Rule{"memset", WorkClass::copy},
    Rule{"elementwise", WorkClass::elementwise},
    Rule{"catarray", WorkClass::elementwise},
    Rule{"reduce", WorkClass::elementwise},
    Rule{"dropout", WorkClass::elementwise},
    Rule{"transpose", WorkClass::elementwise},
    Rule{"nchwtonhwc", WorkClass::elementwise},
    Rule{"nhwctonchw", WorkClass::elementwise},
    Rule{"pool", WorkClass::elementwise},
    Rule{"rotary", WorkClass::elementwise},
    Rule{"rope", WorkClass::elementwise},
    Rule{"swiglu", WorkClass::elementwise},
    Rule{"gelu", WorkClass::elementwise},
    Rule{"silu", WorkClass::elementwise},
    Rule{"cast", WorkClass::elementwise},
    Rule{"copy", WorkClass::elementwise},
    Rule{"fill", WorkClass::elementwise},
    Rule{"index", WorkClass::elementwise},
    Rule{"gather", WorkClass::elementwise},
    Rule{"scatter", WorkClass::elementwise},
    Rule{"scan", WorkClass::elementwise},
    Rule{"arange", WorkClass::elementwise},
    Rule{"triton_poi", WorkClass::elementwise},
    Rule{"triton_red", WorkClass::elementwise},
    Rule{"triton_per", WorkClass::elementwise},
    Rule{"epilogue", WorkClass::elementwise},
};

/// Longer words first: "reducescatter" holds "reduce".
constexpr std::array kCollectives = {
    Rule{"allreduce", WorkClass::all_reduce},  Rule{"reducescatter", WorkClass::reduce_scatter},
    Rule{"allgather", WorkClass::all_gather},  Rule{"alltoall", WorkClass::all_to_all},
    Rule{"broadcast", WorkClass::broadcast},   Rule{"sendrecv", WorkClass::send_receive},
    Rule{"send", WorkClass::send_receive},     Rule{"recv", WorkClass::send_receive},
    Rule{"reduce", WorkClass::communication},  Rule{"gather", WorkClass::communication},
    Rule{"scatter", WorkClass::communication}, Rule{"coalesced", WorkClass::communication},
};

/// In small letters; `squeeze`: without '_', so that "all_to_all" and "AllToAll" are one word.
std::string plain(std::string_view name, bool squeeze) {
  std::string out;
  out.reserve(name.size());
  for (const char c : name)
    if (!squeeze || c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

template <size_t N>
WorkClass first(const std::array<Rule, N>& rules, std::string_view name) {
  for (const Rule& r : rules)
    if (name.find(r.part) != name.npos) return r.is;
  return WorkClass::other;
}

}  // namespace

WorkClass class_of_kernel(std::string_view name) {
  // What follows the name proper are types of arguments: "(at::TensorIterator ...)" says nothing about the work.
  const std::string words = plain(name.substr(0, 512), false);
  if (words.starts_with("nccl") || words.starts_with("void nccl") || words.starts_with("rccl")) {
    const WorkClass c = first(kCollectives, plain(name.substr(0, 128), true));
    return c == WorkClass::other ? WorkClass::communication : c;
  }
  return first(kKernels, words);
}

WorkClass class_of_collective(std::string_view name) { return first(kCollectives, plain(name.substr(0, 128), true)); }

}  // namespace wt::import
