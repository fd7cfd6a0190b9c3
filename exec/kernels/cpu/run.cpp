#include "exec/kernels/cpu/run.hpp"

#include <exception>

#include "exec/kernels/check.hpp"
#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"

namespace wt::exec {
namespace {

using plan::Kernel;

template <class A>
void run(const Job& job) {
  switch (job.compute.kernel) {
    case Kernel::gemm: return gemm<A>(job);
    case Kernel::bias_gradient: return bias_gradient<A>(job);
    case Kernel::norm_forward: return norm_forward<A>(job);
    case Kernel::norm_backward: return norm_backward<A>(job);
    case Kernel::rope_forward:
    case Kernel::rope_backward: return rope<A>(job);
    case Kernel::qk_norm_forward: return qk_norm_forward<A>(job);
    case Kernel::qk_norm_backward: return qk_norm_backward<A>(job);
    case Kernel::latent_attention_forward:
    case Kernel::attention_forward: return attention_forward<A>(job);
    case Kernel::latent_attention_backward:
    case Kernel::attention_backward: return attention_backward<A>(job);
    case Kernel::scores_forward: return scores_forward<A>(job);
    case Kernel::softmax_forward: return softmax_forward<A>(job);
    case Kernel::context_forward: return context_forward<A>(job);
    case Kernel::context_backward: return context_backward<A>(job);
    case Kernel::softmax_backward: return softmax_backward<A>(job);
    case Kernel::scores_backward: return scores_backward<A>(job);
    case Kernel::activation_forward: return activation_forward<A>(job);
    case Kernel::activation_backward: return activation_backward<A>(job);
    case Kernel::residual_forward: return residual_forward<A>(job);
    case Kernel::residual_backward:
    case Kernel::dropout_backward: return dropout_backward<A>(job);
    case Kernel::add: return add<A>(job);
    case Kernel::dropout_forward: return dropout_forward<A>(job);
    case Kernel::embedding_forward: return embedding_forward<A>(job);
    case Kernel::embedding_backward: return embedding_backward<A>(job);
    case Kernel::position_forward: return position_forward<A>(job);
    case Kernel::position_backward: return position_backward<A>(job);
    case Kernel::loss_max: return loss_max<A>(job);
    case Kernel::loss_sums: return loss_sums<A>(job);
    case Kernel::loss_forward: return loss_forward<A>(job);
    case Kernel::loss_backward: return loss_backward<A>(job);
    case Kernel::scale: return scale<A>(job);
    case Kernel::square_sum: return square_sum<A>(job);
    case Kernel::adam: return adam<A>(job);
    case Kernel::sgd: return sgd<A>(job);
    case Kernel::fill_zero: return fill_zero(job);
    case Kernel::cast: return cast<A>(job);
    case Kernel::copy: return copy(job);
    case Kernel::transpose: return transpose<A>(job);
    case Kernel::concat_columns: return concat_columns(job);
    case Kernel::slice_columns: return slice_columns(job);
    case Kernel::route_forward: return route_forward<A>(job);
    case Kernel::route_backward: return route_backward<A>(job);
    case Kernel::permute: return permute<A>(job);
    case Kernel::unpermute: return unpermute<A>(job);
    case Kernel::regroup: return regroup(job);
    case Kernel::grouped_gemm: return grouped_gemm<A>(job);
    case Kernel::expert_activation_forward: return expert_activation_forward<A>(job);
    case Kernel::expert_activation_backward: return expert_activation_backward<A>(job);
    case Kernel::latent_assemble: return latent_assemble<A>(job);
    case Kernel::latent_scatter: return latent_scatter<A>(job);
    case Kernel::split_latent:
    case Kernel::join_latent: return reorder_latent(job);
    case Kernel::split_qkv:
    case Kernel::join_qkv: return reorder_qkv(job);
    case Kernel::block_attention_forward: return block_attention_forward<A>(job);
    case Kernel::block_attention_backward: return block_attention_backward<A>(job);
    case Kernel::merge_attention: return merge_attention<A>(job);
    case Kernel::split_columns: return split_columns(job);
    case Kernel::gather_sequence:
    case Kernel::deal_sequence: return reorder_sequence(job);
    case Kernel::orthogonalize: return orthogonalize<A>(job);
  }
}

}  // namespace

Status run_cpu_kernel(const plan::Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext& context, Workers& workers) {
  if (Status fits = check_operands(c, reads, writes, context); !fits) return fits;
  const Job job{c, reads, writes, context, workers};
  try {
    if (in_double(reads, writes))
      run<double>(job);
    else
      run<float>(job);
  } catch (const std::exception& e) {  // oneDNN, or no memory for a buffer
    return Diagnostic{std::string(plan::to_text(c.kernel)), e.what(), ""};
  }
  return ok_status();
}

}  // namespace wt::exec
