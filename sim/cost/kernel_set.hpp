// What data/kernels/<name>/ says: scalar facts of the chip, tile shapes of its matrix kernels, measured points.
// A set may build on another ("like"): facts and tiles it does not have come from there, points from both.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"

namespace wt::sim {

/// Chip and library constants; the keys of device.csv in the same order (see kFactKeys).
struct Facts {
  // the chip that was measured
  double peak_16 = 0, peak_8 = 0, peak_32 = 0, peak_64 = 0;  // TFLOP/s dense at clock 1; peak_32: tf32 or fp32
  double multiprocessors = 0, memory_gbps = 0, l2_mib = 0;
  double power_w = 0, power_idle_w = 0, power_memory_w = 0;
  double clock_burst = 1, clock_sustained = 1;  // relative to the clock of the peak, at power_w
  double matrix_duty = 0;  // share of a training step in which the matrix units run; the rest draws power_memory_w
  // matrix kernels
  double gemm_fixed_us = 0, gemm_prologue_k = 0, gemm_memory_share = 0, gemm_split_us = 0, gemm_tail = 1;
  double gemm_l2_share = 0;                       // of L2: an operand up to it is read from DRAM once
  double gemm_split_waves = 0, gemm_split_k = 0;  // K is split up to so many waves, down to so many rows
  double align_8 = 1, align_4 = 1,
         align_2 = 1;  // share of the tile efficiency when rows start at 8, 4, 2 bytes, not 16
  double batch_unaligned =
      0;  // batched 16-bit products of such rows: share of the fp32 rate of the plain cores; 0: align_*
  // kernels that memory bounds
  double kernel_us = 0, stream_share = 0, l2_gain = 1;
  double class_pointwise = 1, class_norm = 1, class_norm_backward = 1, class_reduce = 1, class_loss = 1,
         class_gather = 1, class_scatter = 1, class_transpose = 1;
  // fused attention
  double attention_forward = 0, attention_backward = 0;            // share of peak, long sequence, head_dim 128
  double attention_head_power = 0;                                 // share ~ head_dim ^ this below 128
  double attention_wide_power = 0, attention_wide_most = 0;        // above 128, up to this factor
  double attention_ramp = 0, attention_ramp_causal = 0;            // tokens: time (1 + ramp / seq)
  double attention_rows_forward = 0, attention_rows_backward = 0;  // query (key) rows of one block
  double attention_tail = 0, attention_longest = 0;                // in units of an average block
  // stream
  double gap_us = 0, channel_gbps = 0;
  double overlap_most = 0;  // share of the chip (or of its memory rate) that collectives take at most

  /// FLOP/s of products by bytes of an element.
  double peak(int64_t element_bytes) const {
    return 1e12 * (element_bytes == 1 ? peak_8 : element_bytes == 2 ? peak_16 : element_bytes == 8 ? peak_64 : peak_32);
  }
};

enum class Regime : uint8_t { burst, training, sustained };
enum class Layout : uint8_t { tn, nn, nt };

struct Tile {
  int64_t bytes = 2;  // of an element
  double m = 0, n = 0, efficiency = 0;
};

struct GemmPoint {
  int64_t bytes = 2;
  Layout layout = Layout::tn;
  double accumulate = 0;  // bytes of an element of C that is read; 0: none
  Regime regime = Regime::training;
  double groups = 1, m = 0, n = 0, k = 0, flops_per_second = 0;
  uint16_t set = 0;     // KernelSet::sets
  uint16_t series = 0;  // equal for the points of one series
};

enum class Pass : uint8_t { forward, backward, both };
struct AttentionPoint {
  uint8_t kernel = 0;  // kAttentionKernels
  Pass pass = Pass::forward;
  bool causal = false;
  double batch = 0, seq = 0, heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0, flops_per_second = 0;
  uint16_t set = 0;
};
inline constexpr std::array<std::string_view, 5> kAttentionKernels = {"fa2", "fa3", "cudnn", "fa1", "fa1_triton"};
/// Kernels of one generation teach each other: FlashAttention-2; those of Hopper and later; FlashAttention-1.
inline constexpr std::array<uint8_t, 5> kAttentionGenerations = {0, 1, 1, 2, 2};

struct MemoryPoint {
  std::string kind;
  double rows = 0, columns = 0, bytes = 0, seconds = 0;
  uint16_t set = 0;
};

struct KernelSet {
  struct Origin {
    std::string name;
    Facts facts;
  };
  std::vector<Origin> sets;  // [0]: the set itself
  std::vector<Tile> tiles;
  std::vector<GemmPoint> gemm;
  std::vector<AttentionPoint> attention;
  std::vector<MemoryPoint> memory;
  uint8_t attention_kernel = 0;
  const Facts& facts() const { return sets[0].facts; }
};

/// Errors: unknown set (with the legal names), a cycle of "like", any fault in a file.
Result<KernelSet> read_kernel_set(const std::string& data, const std::string& name);

}  // namespace wt::sim
