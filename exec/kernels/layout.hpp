// Where elements lie in the operands of attention, of layers of experts and of the loss, as offsets; shared by both devices.
// Not storage. Invariant: row t = position * batch + sample of a token matrix; a row of qkv holds, for each key/value
// head, its queries, then k, then v; scores are [batch, heads, seq, seq].
#pragma once

#include <cstdint>

#include "core/plan/plan.hpp"
#include "exec/kernels/host_device.hpp"

namespace wt::exec {

/// Heads of a sequence in rows of qkv. d: size of a query and of a key; v: of a value, another one in latent attention,
/// where each head has a key of its own.
struct Heads {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, d = 0, v = 0;
  bool causal = false;
  int64_t window = 0;
  int64_t document = 0;  // tokens of packed documents; 0: a sequence is one

  static Heads of(const plan::Compute& c) {
    using plan::Kernel;
    const auto& n = c.dims;
    if (c.kernel == Kernel::latent_attention_forward || c.kernel == Kernel::latent_attention_backward)
      return {n[0], n[1], n[2], n[2], n[3], n[4], c.causal, 0, 0};
    if (c.kernel == Kernel::latent_assemble || c.kernel == Kernel::latent_scatter)
      return {n[0], n[1], n[2], n[2], n[3] + n[4], static_cast<int64_t>(c.scalar), false, 0, 0};
    return {n[0], n[1], n[2], n[3], n[4], n[4], c.causal, static_cast<int64_t>(c.scalar), c.document};
  }
  WT_HOST_DEVICE int64_t tokens() const { return batch * seq; }
  WT_HOST_DEVICE int64_t share() const { return heads / kv_heads; }  // queries on one key
  WT_HOST_DEVICE int64_t width() const { return group(kv_heads); }
  WT_HOST_DEVICE int64_t group(int64_t kv) const { return kv * ((share() + 1) * d + v); }
  // Offsets of a head in a row of qkv; `head` counts queries, `kv` counts keys.
  WT_HOST_DEVICE int64_t q_column(int64_t head) const { return group(head / share()) + head % share() * d; }
  WT_HOST_DEVICE int64_t k_column(int64_t kv) const { return group(kv) + share() * d; }
  WT_HOST_DEVICE int64_t v_column(int64_t kv) const { return k_column(kv) + d; }
  WT_HOST_DEVICE int64_t token(int64_t sample, int64_t position) const { return position * batch + sample; }
  /// Start of the row of scores, probabilities or (without seq) lse of one query.
  WT_HOST_DEVICE int64_t query(int64_t sample, int64_t head, int64_t position) const {
    return (sample * heads + head) * seq + position;
  }
  // Keys that a query may see lie in [first_key, end_key).
  WT_HOST_DEVICE int64_t first_key(int64_t position) const {
    const int64_t begin = document > 0 ? position / document * document : 0;
    return window > 0 && position - window + 1 > begin ? position - window + 1 : begin;
  }
  WT_HOST_DEVICE int64_t end_key(int64_t position) const {
    const int64_t past = causal ? position + 1 : (window > 0 ? position + window : seq);
    const int64_t end = document > 0 ? (position / document + 1) * document : seq;
    const int64_t last = end < seq ? end : seq;
    return past < last ? past : last;
  }
};

/// Queries of a rank and keys of one or of all members of its group (plan::Compute::function), blocks one behind the other;
/// a row of keys holds, for each key/value head, k, then v. Which keys a query sees follows from the positions of both in the
/// sequence.
struct Blocks {
  Heads heads;
  int64_t index = 0, ranks = 1;  // of this rank, in the group
  int64_t first = 0, count = 1;  // blocks: members first, first + 1, ...

  static Blocks of(const plan::Compute& c, int64_t index, int64_t ranks) {
    const bool all = c.function == plan::kAllBlocks;
    return {Heads::of(c), index, ranks, all ? 0 : (index + ranks - c.function) % ranks, all ? ranks : 1};
  }
  WT_HOST_DEVICE int64_t keys() const { return count * heads.seq; }
  WT_HOST_DEVICE int64_t q(int64_t b, int64_t s, int64_t h) const {
    return (heads.token(b, s) * heads.heads + h) * heads.d;
  }
  WT_HOST_DEVICE int64_t k(int64_t b, int64_t key, int64_t kv) const {
    return (heads.token(b, key) * heads.kv_heads + kv) * 2 * heads.d;
  }
  WT_HOST_DEVICE int64_t v(int64_t b, int64_t key, int64_t kv) const { return k(b, key, kv) + heads.d; }
  WT_HOST_DEVICE bool sees(int64_t s, int64_t key) const {
    const int64_t query = plan::sequence_position(s, heads.seq, index, ranks);
    const int64_t other = plan::sequence_position(key % heads.seq, heads.seq, first + key / heads.seq, ranks);
    if (heads.causal && other > query) return false;
    const int64_t apart = query < other ? other - query : query - other;
    return heads.window == 0 || apart < heads.window;
  }
};

/// Where the k choices of each row go: slot (e, c) of `capacity` slots at each expert is row e capacity + c.
struct Slots {
  int64_t rows = 0, columns = 0, experts = 0, k = 0, capacity = 0;

  static Slots of(const plan::Compute& c) { return {c.dims[0], c.dims[1], c.dims[2], c.dims[3], c.dims[4]}; }
  WT_HOST_DEVICE int64_t choices() const { return rows * k; }
  WT_HOST_DEVICE int64_t count() const { return experts * capacity; }
};

/// The columns of the vocabulary that this rank holds; those beyond the model's vocabulary are padding.
struct Vocabulary {
  int64_t rows = 0, columns = 0, first = 0, real = 0;

  static Vocabulary of(const plan::Compute& c, int64_t group_index) {
    const int64_t first = group_index * c.dims[2], left = c.dims[1] - first;
    return {c.dims[0], c.dims[2], first, left < 0 ? 0 : (left < c.dims[2] ? left : c.dims[2])};
  }
};

}  // namespace wt::exec
