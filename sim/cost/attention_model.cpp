#include "sim/cost/attention_model.hpp"

#include <algorithm>
#include <cmath>

namespace wt::sim {
namespace {

// As in gemm_model.cpp; axes are ln seq, ln head_dim and ln blocks per multiprocessor.
constexpr float kCore = 0.02f, kReach = 3.0f, kPrior = 1.0f, kOtherKernel = 0.5f, kOtherChip = 0.25f,
                kBothPasses = 0.15f;

double blocks_of(const AttentionShape& s, const Facts& f) {
  const double rows = s.backward ? f.attention_rows_backward : f.attention_rows_forward;
  return s.batch * s.heads * std::ceil(s.seq / rows);
}

}  // namespace

double attention_flops(const AttentionShape& s) {
  return (s.backward ? 2.5 : 1.0) * 4 * s.batch * s.heads * s.seq * s.seq * s.head_dim * (s.causal ? 0.5 : 1.0);
}

double AttentionModel::model_time(const AttentionShape& s, const Chip& chip, const Facts& f, double clock) {
  // The exponentials, which are not done by the matrix units, weigh more the smaller the head: 128 is the reference.
  const double size = s.head_dim / 128,
               head = size < 1 ? std::pow(size, f.attention_head_power)
                               : std::min(f.attention_wide_most, std::pow(size, f.attention_wide_power));
  const double share = (s.backward ? f.attention_backward : f.attention_forward) * head;
  // The ramp counts keys that a row of queries sees; a window sees fewer than the sequence has.
  const double seen = s.seq * std::min(1.0, s.flops / attention_flops(s));
  const double ramp = 1 + (s.causal ? f.attention_ramp_causal : f.attention_ramp) / seen;
  const double average = s.flops * ramp / (chip.flops_per_second * clock * share) * chip.multiprocessors;
  const double blocks = blocks_of(s, f), rounds = blocks / chip.multiprocessors;
  const double longest = s.causal ? f.attention_longest : 1;
  const double tail = s.causal ? f.attention_tail : 0.5 * f.attention_tail;
  const double compute = average / blocks * std::max(longest, rounds + tail);
  const double e = 2, tokens = s.batch * s.seq * s.head_dim * e;
  const double bytes = tokens * (s.backward ? 4 * s.heads + 4 * s.kv_heads : 2 * s.heads + 2 * s.kv_heads);
  return f.kernel_us * 1e-6 + std::max(compute, bytes / (chip.memory_bytes_per_second * f.stream_share));
}

AttentionModel::AttentionModel(const KernelSet& set) : facts_(set.facts()) {
  for (const AttentionPoint& p : set.attention) {
    // The chip of the point under the kernels of this set.
    const Facts& f = facts_;
    const Chip chip = chip_of(set.sets[p.set].facts, 2);
    if (kAttentionGenerations[p.kernel] != kAttentionGenerations[set.attention_kernel]) continue;
    AttentionShape s{p.batch, p.seq, p.heads, p.kv_heads, (p.qk_dim + p.v_dim) / 2, p.causal, p.pass == Pass::backward,
                     0};
    s.flops = attention_flops(s);
    double model = model_time(s, chip, f, 1), flops = s.flops;
    if (p.pass == Pass::both) {
      AttentionShape back = s;
      back.backward = true;
      back.flops = attention_flops(back);
      model += model_time(back, chip, f, 1);
      flops += back.flops;
    }
    learned_.push_back({static_cast<float>(std::log(s.seq)), static_cast<float>(std::log(s.head_dim)),
                        static_cast<float>(std::log(blocks_of(s, f) / chip.multiprocessors)),
                        static_cast<float>(std::log(flops / p.flops_per_second / model)),
                        (p.kernel == set.attention_kernel ? 0 : kOtherKernel) + (p.set == 0 ? 0 : kOtherChip) +
                            (p.pass == Pass::both ? kBothPasses : 0),
                        p.pass, p.causal});
  }
}

AttentionModel::Estimate AttentionModel::estimate(const AttentionShape& s, const Chip& chip, double clock) const {
  const double model = model_time(s, chip, facts_, clock);
  const float seq = static_cast<float>(std::log(s.seq)), dim = static_cast<float>(std::log(s.head_dim)),
              blocks = static_cast<float>(std::log(blocks_of(s, facts_) / chip.multiprocessors));
  float sum = 0, weights = kPrior;
  for (const Learned& p : learned_) {
    if (p.causal != s.causal || (p.pass != Pass::both && (p.pass == Pass::backward) != s.backward)) continue;
    const float ds = p.seq - seq, dd = 2 * (p.dim - dim), db = 0.5f * (p.blocks - blocks);
    const float d = ds * ds + dd * dd + db * db + p.offset;
    if (d > kReach) continue;
    const float near = 1 / (d + kCore) - 1 / (kReach + kCore), w = near * near;
    sum += w * p.log_ratio;
    weights += w;
  }
  return {model * std::exp(static_cast<double>(sum / weights)), weights > 2 * kPrior};
}

}  // namespace wt::sim
