// Time of a matrix product: tiles in waves over the multiprocessors, split-K, memory with reuse in L2, the clock that the
// power limit leaves. Then a correction learned from the measured products nearby. Not a search over real kernels.
#pragma once

#include <span>

#include "sim/cost/kernel_set.hpp"

namespace wt::sim {

/// The chip that a product runs on.
struct Chip {
  double flops_per_second = 0;        // peak of the dtype at clock 1
  double plain_flops_per_second = 0;  // fp32 without matrix units; 0: not known
  double multiprocessors = 0, memory_bytes_per_second = 0, l2_bytes = 0, power_w = 0;
};
Chip chip_of(const Facts& facts, int64_t element_bytes);

/// Relative to the clock at which the peak is stated. Dynamic power grows as clock^3 (voltage follows the clock).
/// Fewer multiprocessors than the measured chip draw less.
double clock_of(const Facts& facts, const Chip& chip, Regime regime);

struct GemmShape {
  double groups = 1, m = 0, n = 0, k = 0;
  int64_t bytes = 2;      // of an element of A and B
  double output = 2;      // of C
  double accumulate = 0;  // bytes of an element of C that is read first
  Layout layout = Layout::tn;
  double flops() const { return 2 * groups * m * n * k; }
};

struct GemmTime {
  double seconds = 0;
  bool memory_bound = false;
};
GemmTime model_gemm(const GemmShape& shape, const Chip& chip, const Facts& facts, std::span<const Tile> tiles,
                    double clock);

class GemmModel {
 public:
  GemmModel() = default;
  /// Prices every point of the set with the model to learn the correction.
  explicit GemmModel(const KernelSet& set);

  struct Estimate {
    double seconds = 0;
    bool memory_bound = false;
    bool measured = false;  // points nearby decide more than the model
  };
  /// `skip`: points of the set left out (cross-validation); empty: none.
  Estimate estimate(const GemmShape& shape, const Chip& chip, Regime regime, std::span<const char> skip = {}) const;

 private:
  struct Learned {
    float m, n, k;    // natural logarithms
    float log_ratio;  // measured / model
    float offset;     // squared distance added for another chip
    uint8_t bytes;
    Layout layout;
    bool grouped;
  };
  Facts facts_;
  std::vector<Tile> tiles_;
  std::vector<Learned> learned_;
};

}  // namespace wt::sim
