// The CPU's implementation of plan::Kernel, a function each; run.cpp checks operands and chooses. Not an entry for
// others: that is exec/kernels/cpu/run.hpp. Invariant: operands were checked, A is double if one is stored in double.
#pragma once

#include <span>

#include "core/plan/plan.hpp"
#include "exec/kernels/cpu/workers.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// What every kernel function is given.
struct Job {
  const plan::Compute& compute;
  std::span<const Operand> reads, writes;
  const KernelContext& context;
  Workers& workers;
};

// Each is defined for float and double in the file named beside it.
template <class A>
void gemm(const Job&);  // gemm.cpp
template <class A>
void orthogonalize(const Job&);  // orthogonalize.cpp
template <class A>
void bias_gradient(const Job&);  // norm.cpp
template <class A>
void norm_forward(const Job&);
template <class A>
void norm_backward(const Job&);
template <class A>
void qk_norm_forward(const Job&);
template <class A>
void qk_norm_backward(const Job&);
template <class A>
void rope(const Job&);  // rope.cpp
template <class A>
void attention_forward(const Job&);  // attention.cpp
template <class A>
void attention_backward(const Job&);
template <class A>
void scores_forward(const Job&);  // unfused_attention.cpp
template <class A>
void softmax_forward(const Job&);
template <class A>
void context_forward(const Job&);
template <class A>
void context_backward(const Job&);
template <class A>
void softmax_backward(const Job&);
template <class A>
void scores_backward(const Job&);
template <class A>
void activation_forward(const Job&);  // elementwise.cpp
template <class A>
void activation_backward(const Job&);
template <class A>
void residual_forward(const Job&);
template <class A>
void dropout_forward(const Job&);
template <class A>
void dropout_backward(const Job&);
template <class A>
void add(const Job&);
template <class A>
void scale(const Job&);
template <class A>
void cast(const Job&);
template <class A>
void transpose(const Job&);
template <class A>
void embedding_forward(const Job&);  // embedding.cpp
template <class A>
void embedding_backward(const Job&);
template <class A>
void position_forward(const Job&);
template <class A>
void position_backward(const Job&);
template <class A>
void loss_max(const Job&);  // loss.cpp
template <class A>
void loss_sums(const Job&);
template <class A>
void loss_forward(const Job&);
template <class A>
void loss_backward(const Job&);
template <class A>
void square_sum(const Job&);  // optimizer.cpp
template <class A>
void adam(const Job&);
template <class A>
void sgd(const Job&);
void fill_zero(const Job&);  // elementwise.cpp
void copy(const Job&);
void concat_columns(const Job&);
void slice_columns(const Job&);
template <class A>
void block_attention_forward(const Job&);  // context.cpp
template <class A>
void block_attention_backward(const Job&);
template <class A>
void merge_attention(const Job&);
template <class A>
void route_forward(const Job&);  // experts.cpp
template <class A>
void route_backward(const Job&);
template <class A>
void permute(const Job&);
template <class A>
void unpermute(const Job&);
template <class A>
void grouped_gemm(const Job&);
template <class A>
void expert_activation_forward(const Job&);
template <class A>
void expert_activation_backward(const Job&);
void regroup(const Job&);
template <class A>
void latent_assemble(const Job&);  // latent.cpp
template <class A>
void latent_scatter(const Job&);
void reorder_latent(const Job&);
void reorder_qkv(const Job&);  // context.cpp
void split_columns(const Job&);
void reorder_sequence(const Job&);

}  // namespace wt::exec
