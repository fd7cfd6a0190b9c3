// Time of fused (flash) attention: share of the matrix peak by head size and sequence length, filled by how many blocks of
// rows there are for the multiprocessors, then corrected by the measured points nearby. Not for unfused attention.
#pragma once

#include <span>

#include "sim/cost/gemm_model.hpp"

namespace wt::sim {

struct AttentionShape {
  double batch = 1, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false, backward = false;
  double flops = 0;  // needed: half of the scores when causal, backward 2.5 times the forward
};
double attention_flops(const AttentionShape& shape);

class AttentionModel {
 public:
  AttentionModel() = default;
  explicit AttentionModel(const KernelSet& set);

  struct Estimate {
    double seconds = 0;
    bool measured = false;
  };
  /// `clock`: relative to the chip that was measured (a lower power limit).
  Estimate estimate(const AttentionShape& shape, const Chip& chip, double clock) const;
  /// Without the correction.
  static double model_time(const AttentionShape& shape, const Chip& chip, const Facts& facts, double clock);

 private:
  struct Learned {
    float seq, dim, blocks, log_ratio, offset;
    Pass pass;
    bool causal;
  };
  Facts facts_;
  std::vector<Learned> learned_;
};

}  // namespace wt::sim
