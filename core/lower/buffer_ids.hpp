// Ids of the parameters and buffers that lowering makes and its passes share: of a layer, of what lives within one, of
// embedding and head, of units. Names of things alone: no sizes, no behaviour; what is invalid is not there in this job.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::lower {

/// What stands in a layer beside attention; windowed: of a model whose layers do not all see equally far, one that sees no
/// farther than the window.
enum class LayerKind : uint8_t { dense, experts, dense_windowed, experts_windowed };
constexpr bool is_windowed(LayerKind k) { return k >= LayerKind::dense_windowed; }
constexpr LayerKind without_window(LayerKind k) {
  return k == LayerKind::dense_windowed ? LayerKind::dense : k == LayerKind::experts_windowed ? LayerKind::experts : k;
}
constexpr LayerKind with_window(LayerKind k) {
  return k == LayerKind::dense ? LayerKind::dense_windowed : LayerKind::experts_windowed;
}

/// A kind of parameter; per-layer kinds exist once for each layer.
struct Parameter {
  std::string name;
  BufferId weight, gradient;
  bool per_layer = false;
  bool tensor_duplicate = false;     // equal on all tensor ranks
  bool partial_over_tensor = false;  // with sequence parallelism each tensor rank has the gradient of its rows only
  int64_t elements = 0;
  std::optional<LayerKind> of{};  // layers that have it; nothing: all
  bool frozen = false;            // not trained: no gradient, no states
  bool expert = false;            // reduced over the copies of an expert (Sizes::separate_experts)
  BufferId fresh;                 // without gradient fusion: this micro-batch's gradient of a matrix
  BufferId loaded;                // DeepSpeed: as the model was built, before weights are flattened
  BufferId packed;                // frozen: what is kept of a matrix in 4 bits; the weight is made from it for each use
  BufferId narrow, narrow_transposed;  // fp8 products: this step's 8-bit copies, as stored and transposed
  bool kept_narrow = false;            // the weight itself is 8-bit (fp8_params): it needs no copy as stored
};

/// Indices into Context::parameters; -1: the model has none.
struct ParameterIds {
  int embedding = -1, position = -1, embedding_gamma = -1, embedding_beta = -1;
  int norm1_gamma = -1, norm1_beta = -1, qkv = -1, qkv_bias = -1, q_gamma = -1, k_gamma = -1, proj = -1, proj_bias = -1;
  int norm2_gamma = -1, norm2_beta = -1, fc1 = -1, fc1_bias = -1, fc2 = -1, fc2_bias = -1;
  int final_gamma = -1, final_beta = -1, head = -1, head_bias = -1;
  int embedding_copy = -1;  // of the last stage, where that needs the table: a tied head is this copy
  int q_down = -1, q_down_gamma = -1, q_up = -1, kv_down = -1, kv_down_gamma = -1, kv_up = -1;
  int router = -1, expert_fc1 = -1, expert_fc2 = -1, shared_fc1 = -1, shared_fc2 = -1;
};

/// Products of a layer that may have an adapter.
enum class Product : uint8_t { qkv, proj, fc1, fc2 };
inline constexpr size_t kProducts = 4;
/// A low-rank adapter of a product: parameters A and B (-1: it has none), and what lives within one pass of it.
struct Adapter {
  int a = -1, b = -1;
  int64_t rank = 0, in = 0, out = 0;  // in, out: of this rank's share
  BufferId branch, d_rank, d_in, rank_f8, d_rank_f8;
};
/// What an adapter leaves for its backward: A x, scaled, and its dropped input.
struct AdapterBuffers {
  BufferId rank, rank_f8, dropped, mask;
};

/// What latent attention leaves for its backward beside qkv.
struct LatentBuffers {
  BufferId q_down, q_stats, q_normed, kv_down, kv_stats, kv_normed;
  BufferId q_normed_f8, kv_normed_f8;  // fp8 products
};

/// What a layer of experts leaves for its backward, in the place of the MLP's.
struct ExpertBuffers {
  BufferId router_probs, router_map;            // held: dense, a column for each expert
  BufferId weights, experts;                    // of the choices of each row
  BufferId in;                                  // what norm2 wrote: the router reads it in 16 bits
  BufferId rows, row_weights, fc1, activation;  // of the experts of this rank
  BufferId shared_fc1, shared_activation;
  BufferId rows_f8, activation_f8, shared_in_f8, shared_activation_f8;  // fp8 products
};

/// What context parallelism leaves for the backward in the place of qkv.
struct ContextBuffers {
  BufferId qkv_heads, out_heads;  // whole sequences of some heads: what attention reads and writes
  BufferId q, kv, kv_last;        // own rows; the keys and values that came last round the ring
};

/// Buffers of one layer that a forward leaves for its backward. Two sets exist: saved (micro-batch scope) and remade
/// (invocation scope) for recomputed layers.
struct LayerBuffers {
  BufferId norm1, stats1, qkv, qk_stats, attention_in, attention, lse, scores, probs, dropped, attention_mask, residual,
      residual_mask, norm2, stats2, fc1, activation, output_mask;
  // What plain framework ops keep beside it (NormKernel, fused_kernels), and gathered inputs (keep_gathered).
  BufferId norm1_normed, norm1_wide, norm2_normed, norm2_wide, unrotated, gate, norm1_full, norm2_full;
  ContextBuffers cp;
  BufferId norm1_f8, attention_f8, norm2_f8, activation_f8;  // fp8 products: inputs kept for the weight gradient
  LatentBuffers latent;
  ExpertBuffers moe;
  std::array<AdapterBuffers, kProducts> adapters;
};

/// Buffers that live within one layer of one invocation.
struct TransientBuffers {
  BufferId norm1_full, norm2_full, projection, projection_sum, fc2, fc2_sum, flow;  // forward; flow: hidden, recomputed
  BufferId norm1_full_f8, norm2_full_f8, branch_f8, branch_full_f8, d_fc1_f8, d_qkv_f8;
  BufferId branch, branch_full, d_activation, d_fc1, d_norm2_full, d_norm2, d_residual_norm, d_residual, d_attention,
      attention_branch, attention_branch_full,  // branch, branch_full, unless those must outlive the MLP
      d_scores, d_probs, d_qkv, d_norm1_full, d_norm1, d_hidden_norm, d_hidden;  // backward; d_hidden: 0 .. layers
};

/// Of latent attention, within one layer of one invocation.
struct LatentTransients {
  BufferId q_full, q, kv, kv_rope, k_rope, k_rope_full, kv_full;
  BufferId d_q, d_q_full, d_q_normed, d_q_down, d_kv, d_k_rope_full, d_k_rope, d_kv_full, d_kv_normed, d_kv_down,
      d_kv_rope, d_x_q, d_x_kv, d_x;
  BufferId q_full_f8, kv_full_f8, d_q_f8, d_q_down_f8, d_kv_f8, d_kv_rope_f8;  // fp8 products
};

/// Rows on their way to experts and back, with the weights of the choices.
struct RouteBuffers {
  BufferId permuted, exchanged, gathered, sorted, reduced, returned;
  BufferId permuted_weights, exchanged_weights, gathered_weights, sorted_weights, reduced_weights, returned_weights;
};
/// Of layers of experts, within one layer of one invocation.
struct ExpertTransients {
  RouteBuffers forward, backward;
  BufferId logits, counts, all_counts, out, mixed, sum;
  BufferId shared_full, shared_out, shared_sum, d_shared_full, d_shared_activation, d_shared_fc1, d_shared_in_full,
      d_shared_in;
  BufferId d_out_f8, d_fc1_f8, shared_full_f8, d_shared_f8, d_shared_full_f8, d_shared_fc1_f8;  // fp8 products
  BufferId d_out, d_activation, d_fc1, d_rows, d_row_weights, d_weights, d_logits, d_routed, d_router, d_sum, d_x;
};

/// Of context parallelism, within one layer of one invocation.
struct ContextTransients {
  std::vector<BufferId> kv;      // between the first and the last place of the ring
  BufferId kv_all, d_kv_all;     // all_gather
  BufferId part, part_lse;       // of one block of keys
  BufferId kv_ring[2], d_kv[2];  // backward: where keys, and their gradients, arrive by turns
  BufferId d_kv_part, d_q;
  BufferId qkv_sent, qkv_received, out_sent, out_received;  // all-to-all: pieces by rank
  BufferId d_out_heads, d_qkv_heads;
};

/// Selective recomputation: the ops of a layer's forward, by position, that run again in its backward: before that of the
/// MLP and before that of attention. Empty: none.
struct RemadeOps {
  std::array<std::vector<uint8_t>, 2> wanted;
  std::vector<BufferId> written;  // what ends with the layer, though nothing may read it
};

/// From a hidden state to the loss (core/lower/head.cpp).
struct HeadBuffers {
  BufferId final_norm, final_stats, final_normed, final_wide, final_full, logits, logits32, exponentials, loss_max,
      loss_sums, loss, d_logits, d_final_full, d_final;
  // Cross entropy over the full vocabulary.
  BufferId logits_pieces, logits_full, d_log_probs, d_logits32, d_logits_full;
};

struct EdgeBuffers : HeadBuffers {  // embedding and head
  BufferId sent_piece, received_piece, sent_gradient_piece, received_gradient_piece;
  BufferId tokens, labels, hidden, received, embedded, positioned, normed_embedding, embedding_stats, embedding_mask;
  BufferId d_embedded, d_positioned;
  std::vector<BufferId> labels_ahead;  // multi-token prediction: views of `labels`, each a position further
  // Head and loss in one, a piece of the tokens at a time: views of what is read and written, and what one piece needs.
  struct Piece {
    BufferId rows, labels, d_rows;
  };
  std::vector<Piece> loss_pieces;
  int64_t piece_tokens = 0;
  BufferId piece_logits, piece_max, piece_sums, kept_d_final, kept_d_head;
};

/// One depth of multi-token prediction beside its transformer layer (strategies/multi_token.cpp). The norms are of the
/// embedding of the next tokens, of the hidden state, and of what the layer wrote.
struct MultiToken {
  int embedding_gamma = -1, embedding_beta = -1, hidden_gamma = -1, hidden_beta = -1, proj = -1, final_gamma = -1,
      final_beta = -1;
  BufferId embedded_full, embedded, embedding_stats, embedding_normed, hidden_stats, hidden_normed;
  BufferId joined, joined_full, projected, pieces, projected_full, in;
  BufferId d_in, d_in_full, d_projected, d_joined_full, d_joined, d_embedding_normed, d_hidden_normed, d_embedded,
      d_embedded_full, d_hidden;
  HeadBuffers head;
};

/// Of what the host updates (strategies/offload.cpp): on the device and in host memory, between the two.
struct HostSide {
  BufferId gradient;  // host, persistent: what the update reads
  BufferId sum;       // host, persistent: of several micro-batches in the dtype of the wire, where that is another
  BufferId incoming;  // host: of one micro-batch, to be added there
  BufferId before;    // device: the sum so far, brought back
  BufferId wide;      // device: in fp32, on its way to the host; the master weights on their way back
  BufferId weight;    // host: the new weights in the dtype of the model
  BufferId staged;    // device: the shard of weights that lie on the host, brought in for a gather
  BufferId swapped;   // host: the same, read from a file
  BufferId master, moment1, moment2;  // host: optimizer state read from a file
};

/// Parameters of a unit that lie one behind the other and are cut evenly over the shard group (strategies/units.cpp).
/// Buffers that the strategy has no use for are invalid.
struct Flat {
  struct Member {
    int parameter;
    int64_t offset;
  };
  std::vector<Member> members;
  int64_t elements = 0, layer_elements = 0;  // padded; model units: distance of layers
  bool tensor_duplicate = false;             // equal on all tensor ranks
  bool frozen = false;                       // not trained: gathered alone
  bool resident = false;                     // the whole weights are there all the time
  bool direct = false;                       // the first reduce-scatter of a step writes shard_gradient itself
  BufferId weights, gradient;                // whole, as the model reads and writes them
  BufferId shard;                            // what the rank keeps of the weights between their uses
  BufferId low, gathered, near;  // the shard in the dtype of compute; what a gather wrote; the shard of a smaller group
  BufferId narrow, near_narrow, narrow_gathered;  // ZeRO++: shards in 8 bits, what a gather of them wrote
  BufferId accumulated, wire, reduced;     // whole gradients: of several micro-batches, as sent; the shard as received
  BufferId shard_gradient, main_gradient;  // accumulated over micro-batches; in fp32 for the update
  BufferId master, moment1, moment2, padding;  // padding: of the gradient
  HostSide host;
};
/// What is gathered, and reduced, together. A per-layer unit exists once for each layer.
struct Unit {
  enum class Span : uint8_t {
    layer,      // of each layer, around it
    embedding,  // around the embedding, in both passes
    head,       // from the head's forward to its backward
    root        // from the begin of the forward to the end of the backward
  };
  std::string name;
  Span span = Span::layer;
  std::vector<Flat> flats;
  bool per_layer() const { return span == Span::layer; }
};

}  // namespace wt::lower
