// The only FLOP and byte formulas of the project: each function makes one Compute with its dims and its Work.
// Bytes are what the kernel must move to and from device memory once (perfect cache within the kernel);
// FLOPs count a multiply-add as two. T rows (tokens), dtype sizes in bytes.
#pragma once

#include <cstdint>

#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::lower {

/// C[m,n] (+)= A[m,k] B[k,n]: 2 m n k FLOPs; A and B in `in`, C in `out`, read too when it accumulates.
plan::Compute gemm(int64_t m, int64_t n, int64_t k, DType in, DType out, bool transpose_a, bool transpose_b,
                   bool accumulate);

/// `groups` products at once: C_g[m,n] (+)= A_g[m,k] B_g[k,n].
plan::Compute grouped_gemm(int64_t groups, int64_t m, int64_t n, int64_t k, DType in, DType out, bool transpose_a,
                           bool transpose_b, bool accumulate);

struct AttentionShape {
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;  // heads of this rank
  DType dtype = DType::bf16;
  bool causal = true;
  int64_t window = 0;  // a token sees at most this many; 0: all. Flash kernels skip what is outside
  int64_t document =
      0;  // tokens of the documents that a sequence is packed from; 0: one. Flash kernels skip the others

  /// Share of the seq x seq scores that a flash kernel computes: 1, 1/2 (causal), or the band of the window; of packed documents
  /// the part of the sequence that one of them is.
  double computed_share() const;
};

/// Flash forward: 4 b s^2 a d FLOPs times computed_share; reads q, k, v, writes out and the log-sum-exp.
plan::Compute attention_forward(const AttentionShape&);
/// Flash backward: 2.5 times the forward (scores are made again).
plan::Compute attention_backward(const AttentionShape&);

/// Multi-head latent attention: q and k are wider than v.
struct LatentShape {
  int64_t batch = 1, seq = 1, heads = 1, qk_dim = 1, v_dim = 1;  // heads of this rank
  DType dtype = DType::bf16;
  bool causal = true;
};
/// Flash: forward one product of each width, 2 b s^2 a (qk + v) FLOPs; backward three of q and k and two of v; halved when
/// causal.
plan::Compute latent_attention_forward(const LatentShape&);
plan::Compute latent_attention_backward(const LatentShape&);
/// A rank's queries on the keys of one rank of a group of `ranks` that shares its sequences, or of all of them; shape.seq
/// tokens of each sequence on a rank, of the group's 2 `ranks` pieces a rank has two (plan::sequence_position). Of causal
/// scores every pair of ranks computes half: of its own tokens the triangle, of another's all rows of half the keys or
/// half the rows of all keys.
plan::Compute block_attention_forward(const AttentionShape&, uint8_t block, int64_t ranks);
plan::Compute block_attention_backward(const AttentionShape&, uint8_t block, int64_t ranks, bool accumulate);
/// out and lse of one block of keys join those of others.
plan::Compute merge_attention(const AttentionShape&);
/// q, k and v as tensors of their own, and the reverse: everything is read and written once.
plan::Compute reorder_qkv(plan::Kernel, const AttentionShape&);

/// Unfused attention: two batched products of 2 b a s^2 d FLOPs (full: masked scores are computed too).
plan::Compute scores_forward(const AttentionShape&);
plan::Compute context_forward(const AttentionShape&);
plan::Compute context_backward(const AttentionShape&);  // two products
plan::Compute scores_backward(const AttentionShape&);   // two products
/// Scale, mask and softmax over b a s rows of s: one pass if fused, else separate scale, mask and softmax kernels.
plan::Compute softmax_forward(const AttentionShape&, bool fused);
plan::Compute softmax_backward(const AttentionShape&, bool fused);

/// A kernel whose time is its memory traffic: `read` + `written` bytes, `flops_per_element` over rows x columns.
plan::Compute streaming(plan::Kernel, DType, int64_t rows, int64_t columns, int64_t read, int64_t written,
                        double flops_per_element, int launches = 1);
/// Adam over n elements. Bytes of an element: the gradient as it is read, the weights that are updated, both moments
/// together, and the copy that the model computes with (0: none). Not fused: torch's operations one after the other, with
/// the gradient scaled in place first if it is clipped; weight decay not counted.
struct AdamBytes {
  int64_t gradient = 4, weight = 4, moments = 8, copy = 0;
};
plan::Compute adam(int64_t n, const AdamBytes&, bool fused, bool clipped);
/// The same over a flat buffer: dims {elements}.
plan::Compute flat(plan::Kernel, DType, int64_t elements, int64_t read, int64_t written, double flops_per_element);

}  // namespace wt::lower
