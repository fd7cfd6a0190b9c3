// The FLOP formulas that reports may be asked in, each as its authors wrote it. A multiply-add counts as two. The plan's
// own Work (core/lower/work.cpp) is what is executed; these are conventions for comparing with published figures.
#include <algorithm>
#include <cmath>

#include "core/report/report.hpp"

namespace wt::report {

namespace {

/// Keys that a query sees on the mean, as a share of the sequence. Full: 1. Causal: 1/2 (s/2 of s; the diagonal is left
/// out, as Megatron-LM does). Causal window w < s: w/s - w^2/(2 s^2) (ramp up to w, then w).
double mean_keys(const ModelSpec& m, int64_t layer, double sequence, bool halve) {
  if (!halve || !m.causal) return 1;
  bool windowed = m.sliding_window > 0;
  if (windowed && m.full_period > 0)
    windowed = (layer + 1) % m.full_period != 0;
  else if (windowed && m.sliding_period > 1)
    windowed = layer % m.sliding_period == 0;
  const double w = static_cast<double>(m.sliding_window) / sequence;
  return windowed && w < 1 ? w - w * w / 2 : 0.5;
}

double padded_vocabulary(const ModelSpec& m, const TrainingSpec& t, int64_t tensor_degree) {
  const int64_t multiple = std::max<int64_t>(1, t.vocab_multiple) * std::max<int64_t>(1, tensor_degree);
  return static_cast<double>((m.vocab + multiple - 1) / multiple * multiple);
}

/// Matrix products and attention of one token's forward pass (facts/frameworks 9, "component forward FLOPs").
double forward_per_token(const ModelSpec& m, double vocabulary, double s, bool halve) {
  const double h = static_cast<double>(m.hidden), a = static_cast<double>(m.heads), k = static_cast<double>(m.kv_heads),
               d = static_cast<double>(m.head_dim);
  auto attention = [&](int64_t layer) {
    const double keys = mean_keys(m, layer, s, halve) * s;
    if (m.mla) {
      const auto& l = *m.mla;
      const double qr = static_cast<double>(l.q_lora_rank), kvr = static_cast<double>(l.kv_lora_rank),
                   dn = static_cast<double>(l.qk_nope_head_dim), dr = static_cast<double>(l.qk_rope_head_dim),
                   dv = static_cast<double>(l.v_head_dim);
      const double q = qr > 0 ? h * qr + qr * a * (dn + dr) : h * a * (dn + dr);
      const double kv = h * (kvr + dr) + kvr * a * (dn + dv);
      return 2 * (q + kv + a * dv * h) + 2 * keys * a * (dn + dr + dv);
    }
    return 2 * (2 * h * a * d + 2 * h * k * d) + 4 * keys * a * d;
  };
  const double matrices = m.gated_mlp ? 3 : 2;
  auto mlp = [&](bool moe) {  // the router is not counted
    const int64_t width = moe ? m.moe->top_k * m.moe->ffn_hidden + m.moe->shared_ffn_hidden : m.ffn_hidden;
    return 2 * matrices * h * static_cast<double>(width);
  };
  auto is_moe = [&](int64_t layer) { return m.moe && m.moe->of_layer(layer); };
  double flops = 0;
  for (int64_t layer = 0; layer < m.layers; ++layer) flops += attention(layer) + mlp(is_moe(layer));
  // A multi-token-prediction module: one more layer, a 2h x h product, and the vocabulary projection again.
  const double mtp = static_cast<double>(m.mtp_layers);
  flops += mtp * (attention(m.layers) + mlp(m.moe.has_value()) + 2 * 2 * h * h);
  const double head = m.embedding_dim > 0 ? static_cast<double>(m.embedding_dim) : h;
  if (m.embedding_dim > 0) flops += 2 * 2 * h * head;  // into and out of the narrow embedding
  if (m.head_transform) flops += 2 * h * h;
  return flops + (1 + mtp) * 2 * head * vocabulary;
}

}  // namespace

int64_t adapter_parameters(const ModelSpec& m, const LoraSpec& l) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, f = m.ffn_hidden, gates = m.gated_mlp ? 1 : 0;
  struct Target {
    std::string_view name;
    int64_t in, out;
    bool part = true;  // one of those that `all` means
  };
  const Target targets[] = {{"qkv", m.hidden, q + 2 * kv, false},
                            {"q", m.hidden, q},
                            {"k", m.hidden, kv},
                            {"v", m.hidden, kv},
                            {"proj", q, m.hidden},
                            {"fc1", m.hidden, (1 + gates) * f, false},
                            {"gate", m.hidden, f, gates > 0},
                            {"up", m.hidden, f},
                            {"fc2", f, m.hidden}};
  const auto named = [&](std::string_view name) {
    return std::find(l.targets.begin(), l.targets.end(), name) != l.targets.end();
  };
  int64_t each = 0;
  for (const Target& t : targets)
    if (named(t.name) || (t.part && named("all"))) each += t.in + t.out;
  return m.layers * l.rank * each;
}

bool applies(FlopFormula f, const TrainingSpec& t) { return f != FlopFormula::trained_causal || t.lora.rank > 0; }

std::string_view id_of(FlopFormula f) {
  switch (f) {
    case FlopFormula::model_causal: return "model_causal";
    case FlopFormula::model_full: return "model_full";
    case FlopFormula::six_n: return "six_n";
    case FlopFormula::palm: return "palm";
    case FlopFormula::narayanan_recompute: return "narayanan_recompute";
    case FlopFormula::trained_causal: return "trained_causal";
  }
  return "";
}

std::string_view text_of(FlopFormula f) {
  switch (f) {
    case FlopFormula::model_causal:
      return "3 x forward: matrix products, causal half of attention, padded vocabulary; nothing recomputed";
    case FlopFormula::model_full:
      return "3 x forward: matrix products, full attention, padded vocabulary; nothing recomputed";
    case FlopFormula::six_n: return "6 N per token, N all (active) parameters; attention left out";
    case FlopFormula::palm: return "6 N + 12 L H Q T per token, full attention";
    case FlopFormula::narayanan_recompute:
      return "96 B s L h^2 (1 + s/6h + V/16Lh): full attention, full recompute counted";
    case FlopFormula::trained_causal:
      return "2 x forward of frozen products, 3 x of attention (causal half) and of adapters; nothing recomputed";
  }
  return "";
}

std::optional<FlopFormula> parse_formula(std::string_view id) {
  for (FlopFormula f : kFlopFormulas)
    if (id_of(f) == id) return f;
  return std::nullopt;
}

double step_flops(const ModelSpec& model, const TrainingSpec& training, FlopFormula formula, int64_t tensor_degree) {
  const double s = static_cast<double>(training.seq_len), b = static_cast<double>(training.global_batch);
  const double h = static_cast<double>(model.hidden), l = static_cast<double>(model.layers);
  const double vocabulary = padded_vocabulary(model, training, tensor_degree);
  switch (formula) {
    case FlopFormula::model_causal: return 3 * b * s * forward_per_token(model, vocabulary, s, true);
    case FlopFormula::model_full: return 3 * b * s * forward_per_token(model, vocabulary, s, false);
    case FlopFormula::six_n: return 6 * static_cast<double>(active_parameters(model)) * b * s;
    case FlopFormula::palm:
      return (6 * static_cast<double>(active_parameters(model)) +
              12 * l * static_cast<double>(model.heads * model.head_dim) * s) *
             b * s;
    case FlopFormula::narayanan_recompute:
      return 96 * b * s * l * h * h * (1 + s / (6 * h) + vocabulary / (16 * l * h));
    case FlopFormula::trained_causal: {
      const double forward = forward_per_token(model, vocabulary, s, true);
      if (training.lora.rank == 0) return 3 * b * s * forward;
      // What of a forward depends on the length is attention: its two products have no weights.
      const double weightless = forward - forward_per_token(model, vocabulary, 0, true);
      const double adapters = 2 * static_cast<double>(adapter_parameters(model, training.lora));
      return b * s * (2 * (forward - weightless) + 3 * (weightless + adapters));
    }
  }
  return 0;
}

}  // namespace wt::report
