// Parameters of a model by kind. One template for the exact count and for the estimate that cannot overflow.
// Formulas: weights of the layers as in Hugging Face transformers' modeling files, which is where the published totals
// come from. LayerNorm has a scale and a shift, RMSNorm a scale. h hidden, a heads, k key/value heads, d head_dim, f ffn.
#include "core/spec/parameters.hpp"

namespace wt {
namespace {

template <class N>
struct Counts {
  N embedding{}, position{}, attention{}, mlp{}, experts{}, router{}, norms{}, head{}, mtp{};
  N active_experts{};  // the part of `experts` that one token passes through
  N total() const { return embedding + position + attention + mlp + experts + router + norms + head + mtp; }
};

template <class N>
N norm_of(const ModelSpec& m, N width) {
  return m.norm == Norm::layer_norm ? N(2) * width : width;
}

template <class N>
N attention_of_layer(const ModelSpec& m) {
  const N h = m.hidden, a = m.heads, k = m.kv_heads, d = m.head_dim;
  N n{};
  if (m.mla) {
    const N nope = m.mla->qk_nope_head_dim, rope = m.mla->qk_rope_head_dim, v = m.mla->v_head_dim;
    const N q_rank = m.mla->q_lora_rank, kv_rank = m.mla->kv_lora_rank;
    n += q_rank > N(0) ? h * q_rank + q_rank * a * (nope + rope) : h * a * (nope + rope);  // down and up, or full
    n += h * (kv_rank + rope);      // compressed keys and values, and the shared rotary key
    n += kv_rank * a * (nope + v);  // their expansion
    n += a * v * h;
    if (m.attention_bias) n += q_rank + kv_rank + rope;
    if (m.output_bias) n += h;
    return n;
  }
  n = h * a * d + N(2) * h * k * d + a * d * h;
  if (m.attention_bias) n += a * d + N(2) * k * d;
  if (m.output_bias) n += h;
  if (m.attention_sinks) n += a;
  return n;
}

template <class N>
N mlp_of(const ModelSpec& m, N width, bool bias) {
  const N h = m.hidden, inputs = m.gated_mlp ? N(2) : N(1);
  return inputs * h * width + width * h + (bias ? inputs * width + h : N(0));
}

template <class N>
N norms_of_layer(const ModelSpec& m) {
  N n = N(m.norms_per_layer) * norm_of<N>(m, m.hidden);
  if (m.qk_norm) n += N(2) * norm_of<N>(m, m.head_dim);
  if (m.mla) n += N(m.mla->q_lora_rank) + N(m.mla->kv_lora_rank);  // RMS norms of the compressed vectors
  return n;
}

template <class N>
void add_moe_layers(const ModelSpec& m, N layers, Counts<N>& c) {
  const MoeSpec& e = *m.moe;
  const N h = m.hidden;
  const N one = mlp_of<N>(m, e.ffn_hidden, m.expert_bias);
  const N shared = e.shared_ffn_hidden > 0 ? mlp_of<N>(m, e.shared_ffn_hidden, false) : N(0);
  c.experts += layers * (N(e.experts) * one + shared);
  c.active_experts += layers * (N(e.top_k) * one + shared);
  c.router += layers * (N(e.experts) * h + (e.router_bias ? N(e.experts) : N(0)) + (e.shared_gate ? h : N(0)));
}

template <class N>
Counts<N> counts_of(const ModelSpec& m) {
  Counts<N> c;
  const N h = m.hidden, layers = m.layers, vocab = m.vocab;
  const N width = m.embedding_dim > 0 ? N(m.embedding_dim) : h;
  c.embedding = vocab * width + N(m.segment_types) * h;
  if (m.embedding_dim > 0 && m.embedding_dim != m.hidden) c.embedding += N(2) * width * h;  // in and back out
  if (m.embedding_norm) c.norms += norm_of<N>(m, h);
  if (m.position == Position::learned) c.position = N(m.max_context + m.extra_positions) * h;

  int64_t moe_layers = 0;
  if (m.moe)
    for (int64_t l = 0; l < m.layers; ++l) moe_layers += m.moe->of_layer(l);
  c.attention = layers * attention_of_layer<N>(m);
  c.norms += layers * norms_of_layer<N>(m);
  c.mlp = N(m.layers - moe_layers) * mlp_of<N>(m, m.ffn_hidden, m.mlp_bias);
  if (m.moe) add_moe_layers<N>(m, N(moe_layers), c);
  if (m.final_norm) c.norms += norm_of<N>(m, h);

  if (!m.tied_embeddings) c.head = vocab * width;
  if (m.head_bias) c.head += vocab;
  if (m.head_transform) c.head += h * h + h + norm_of<N>(m, h);

  if (m.mtp_layers > 0) {  // a layer like the last one, the 2h -> h projection, norms of its two inputs and its output
    Counts<N> one;
    if (m.moe) add_moe_layers<N>(m, N(1), one);
    const N mlp = m.moe ? one.experts + one.router : mlp_of<N>(m, m.ffn_hidden, m.mlp_bias);
    c.mtp = N(m.mtp_layers) *
            (attention_of_layer<N>(m) + mlp + norms_of_layer<N>(m) + N(2) * h * h + N(3) * norm_of<N>(m, h));
    if (m.moe) c.active_experts -= N(m.mtp_layers) * (one.experts - one.active_experts);
  }
  return c;
}

}  // namespace

ParameterCount count_parameters(const ModelSpec& m) {
  const Counts<int64_t> c = counts_of<int64_t>(m);
  return {c.embedding, c.position, c.attention, c.mlp, c.experts, c.router, c.norms, c.head, c.mtp};
}

int64_t active_parameters(const ModelSpec& m) {
  const Counts<int64_t> c = counts_of<int64_t>(m);
  return c.total() - c.experts + c.active_experts;
}

long double estimate_parameters(const ModelSpec& m) { return counts_of<long double>(m).total(); }

}  // namespace wt
