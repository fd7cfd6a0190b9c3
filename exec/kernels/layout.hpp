// Where elements lie in the operands of attention and of the loss, as offsets; shared by both devices.
// Not storage. Invariant: row t = position * batch + sample of a token matrix; a row of qkv holds, for each key/value
// head, its queries, then k, then v; scores are [batch, heads, seq, seq].
#pragma once

#include <cstdint>

#include "core/plan/plan.hpp"
#include "exec/kernels/host_device.hpp"

namespace wt::exec {

struct Heads {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, d = 0;
  bool causal = false;
  int64_t window = 0;

  static Heads of(const plan::Compute& c) {
    return {c.dims[0], c.dims[1], c.dims[2], c.dims[3], c.dims[4], c.causal, static_cast<int64_t>(c.scalar)};
  }
  WT_HOST_DEVICE int64_t tokens() const { return batch * seq; }
  WT_HOST_DEVICE int64_t share() const { return heads / kv_heads; }  // queries on one key
  WT_HOST_DEVICE int64_t width() const { return (heads + 2 * kv_heads) * d; }
  WT_HOST_DEVICE int64_t group(int64_t kv) const { return kv * (share() + 2) * d; }
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
    return window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  }
  WT_HOST_DEVICE int64_t end_key(int64_t position) const {
    const int64_t past = causal ? position + 1 : (window > 0 ? position + window : seq);
    return past < seq ? past : seq;
  }
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
