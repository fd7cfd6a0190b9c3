// The ops that layers are made of: norms, matrix products of a layer with their gradients, tensor-parallel inputs. Shared by
// the transformer layer, its MLP and layers of experts; what a layer is made of, and in which order, is theirs.
#pragma once

#include "core/lower/context.hpp"

namespace wt::lower {

inline int64_t bytes(const Context& c, plan::BufferRef r) { return c.plan.buffer(r.buffer).bytes().n; }
inline DType dtype(const Context& c, plan::BufferRef r) { return c.plan.buffer(r.buffer).dtype; }

/// What a norm leaves for its backward.
struct NormKept {
  BufferId stats, normed{}, wide{};
};
/// Over the rows of a hidden state.
void norm_forward(BlockBuilder&, const Context&, const char* name, plan::Phase, plan::BufferRef x, int gamma, int beta,
                  int j, plan::BufferRef y, const NormKept&);
void norm_backward(BlockBuilder&, const Context&, const char* name, plan::BufferRef dy, plan::BufferRef x, int gamma,
                   int beta, int j, const NormKept&, plan::BufferRef dx);

/// Storage that a framework holds from a forward to its backward and that no op of the plan reads.
void hold(BlockBuilder&, const Context&, BufferId, int j, plan::Phase);
void let_go(BlockBuilder&, BufferId, int j);

/// Before an fp8 product: the 8-bit copy of its operand (and, for the weight gradient, its transpose, written by the same
/// kernel). Other products read x itself.
plan::BufferRef narrowed(BlockBuilder&, const Context&, plan::Phase, plan::BufferRef x, plan::BufferRef x_f8);
/// y = x W^T (+ bias). Rows: those of a region (Sizes::tokens).
void linear(BlockBuilder&, const Context&, const char* name, plan::Phase, plan::BufferRef x, int weight, int bias,
            int j, plan::BufferRef y, int64_t out, int64_t in, int64_t pieces = 1);
/// dx = dy W.
void linear_input(BlockBuilder&, const Context&, const char* name, plan::BufferRef dy, int weight, int j,
                  plan::BufferRef dx, int64_t out, int64_t in, int64_t pieces = 1);
/// dW += dy^T x (of units: dW = dy^T x); db += column sums of dy.
void linear_weight(BlockBuilder&, const Context&, const char* name, plan::BufferRef dy, plan::BufferRef x, int weight,
                   int bias, int j, int64_t out, int64_t in, int64_t bias_rows);
/// The input of a column-parallel product: as the forward kept it, or gathered again.
plan::BufferRef input_of_region(BlockBuilder&, const Context&, BufferId kept, BufferId shard, BufferId full, int j,
                                plan::Phase);
/// Rows of the table for the tokens, and what they add to its gradient.
plan::Compute embedding_lookup(const Context&);
plan::Compute embedding_gradient(const Context&);
/// Of two hidden states.
plan::Compute add(const Context&, int64_t rows);

/// core/lower/mlp.cpp: the MLP branch of a layer up to what is added to the residual, norm2 included. `in`: of the layer;
/// `x`: what the attention's first product read. Backward: from the gradient of the branch to that of what norm2 wrote.
plan::BufferRef mlp_forward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::BufferRef in,
                            plan::BufferRef x, plan::Phase, bool to_last_kept);
plan::BufferRef mlp_backward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::BufferRef d);

}  // namespace wt::lower
