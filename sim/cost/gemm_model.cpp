#include "sim/cost/gemm_model.hpp"

#include <algorithm>
#include <cmath>

namespace wt::sim {
namespace {

/// Correction: weight of a point at squared logarithmic distance d is 1 / (d + kCore)^2, faded to nothing at kReach;
/// the model itself weighs kPrior. Chosen by cross-validation (docs/kernels.md), the same for every chip.
constexpr float kCore = 0.02f, kReach = 1.5f, kPrior = 2.0f;
constexpr float kOtherLayout = 0.25f, kOtherChip = 0.25f;

constexpr double kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16};

/// Bytes, up to 16, at which every row of A, B and C starts: rows are as long as their contiguous dimension.
int64_t row_alignment(const GemmShape& s) {
  const auto low_bit = [](double dim, double bytes) {
    const auto n = static_cast<int64_t>(dim) * static_cast<int64_t>(bytes);
    return n & -n;
  };
  const double e = static_cast<double>(s.bytes);
  const double a = s.layout == Layout::nt ? s.m : s.k, b = s.layout == Layout::tn ? s.k : s.n;
  return std::min({int64_t{16}, low_bit(a, e), low_bit(b, e), low_bit(s.n, std::max(1.0, s.output))});
}

/// Vector loads need 16 bytes; the kernels for narrower loads are slower.
double alignment(int64_t bytes, const Facts& f) {
  return bytes >= 16 ? 1 : bytes == 8 ? f.align_8 : bytes == 4 ? f.align_4 : f.align_2;
}

/// Batched 16-bit products that the library of the set runs without the matrix units.
bool on_plain_cores(const GemmShape& s, const Chip& chip, const Facts& f) {
  return s.groups > 1 && s.bytes == 2 && f.batch_unaligned > 0 && chip.plain_flops_per_second > 0 &&
         row_alignment(s) < 16;
}

}  // namespace

Chip chip_of(const Facts& f, int64_t element_bytes) {
  return {f.peak(element_bytes), 0, f.multiprocessors, f.memory_gbps * 1e9, f.l2_mib * 1048576.0, f.power_w};
}

double clock_of(const Facts& f, const Chip& chip, Regime regime) {
  const double power_w = chip.power_w, units = chip.multiprocessors / f.multiprocessors;
  if (regime == Regime::burst) return f.clock_burst;
  double budget = power_w;
  if (regime == Regime::training) {
    const double other = std::min(power_w, f.power_memory_w * power_w / f.power_w);
    budget = (power_w - (1 - f.matrix_duty) * other) / f.matrix_duty;
  }
  const double dynamic = std::max(0.05, (budget - f.power_idle_w) / ((f.power_w - f.power_idle_w) * units));
  return std::min(f.clock_burst, f.clock_sustained * std::cbrt(dynamic));
}

GemmTime model_gemm(const GemmShape& s, const Chip& chip, const Facts& f, std::span<const Tile> tiles, double clock) {
  if (on_plain_cores(s, chip, f)) {
    const double e = static_cast<double>(s.bytes);
    const double bytes = s.groups * (s.m * s.k * e + s.n * s.k * e + s.m * s.n * (s.output + s.accumulate));
    const double compute = s.flops() / (chip.plain_flops_per_second * f.batch_unaligned),
                 memory = bytes / (chip.memory_bytes_per_second * f.gemm_memory_share);
    return {f.gemm_fixed_us * 1e-6 + std::max(compute, memory), memory > compute};
  }
  const double aligned = alignment(row_alignment(s), f),
               per_sm = chip.flops_per_second * clock / chip.multiprocessors * aligned;
  const double bandwidth = chip.memory_bytes_per_second * f.gemm_memory_share * std::sqrt(aligned);
  const double e = static_cast<double>(s.bytes);
  const double c_bytes = s.groups * s.m * s.n * (s.output + s.accumulate);
  // A dtype without tiles of its own takes those of 16-bit elements.
  const bool own = std::ranges::find(tiles, s.bytes, &Tile::bytes) != tiles.end();
  GemmTime best{1e30, false};
  for (const Tile& t : tiles) {
    if (t.bytes != (own ? s.bytes : 2)) continue;
    const double rows = std::ceil(s.m / t.m), columns = std::ceil(s.n / t.n), count = rows * columns * s.groups;
    // DRAM traffic of A and B: the tiles of one wave form a near-square patch; what L2 cannot keep is read again by
    // every row (column) of patches.
    const double side_m = std::min(s.m, std::sqrt(chip.multiprocessors * t.m * t.n)), side_n = std::min(s.n, side_m);
    const double a = s.m * s.k * e, b = s.n * s.k * e;
    const double again_a = b <= f.gemm_l2_share * chip.l2_bytes ? 1 : std::ceil(s.n / side_n),
                 again_b = a <= f.gemm_l2_share * chip.l2_bytes ? 1 : std::ceil(s.m / side_m);
    // One operand streams once while patches sweep along it; the cheaper order is taken.
    const double ab = s.groups * std::min(a + b * again_b, b + a * again_a);
    for (const double split : kSplits) {
      if (split > 1 && (count * split > f.gemm_split_waves * chip.multiprocessors || s.k / split < f.gemm_split_k))
        break;
      const double work = count * split / chip.multiprocessors;
      const double whole = std::floor(work), rest = work - whole;
      // A partial last wave takes a whole one but for the share that runs faster with fewer neighbours.
      const double waves = whole + (rest > 0 ? f.gemm_tail + (1 - f.gemm_tail) * rest : 0);
      const double k = std::ceil(s.k / split / 64) * 64 + f.gemm_prologue_k * 2 / e;
      const double compute = waves * 2 * t.m * t.n * k / (per_sm * t.efficiency);
      double traffic = ab + c_bytes, extra = f.gemm_fixed_us * 1e-6;
      if (split > 1) {
        traffic += 8 * split * s.groups * s.m * s.n * 0.5;  // partial sums written and read, half of it in L2
        extra += f.gemm_split_us * 1e-6;
      }
      const double memory = traffic / bandwidth;
      const double high = std::max(compute, memory), low = std::min(compute, memory);
      const double q = low / high, q2 = q * q;
      const double seconds = extra + high * std::sqrt(std::sqrt(1 + q2 * q2));  // fourth-power mean: they overlap
      if (seconds < best.seconds) best = {seconds, memory > compute};
    }
  }
  return best;
}

GemmModel::GemmModel(const KernelSet& set) : facts_(set.facts()), tiles_(set.tiles) {
  learned_.reserve(set.gemm.size());
  for (const GemmPoint& p : set.gemm) {
    const Facts& f = set.sets[p.set].facts;
    const Chip chip = chip_of(f, p.bytes);
    const GemmShape shape{p.groups,     p.m,     p.n, p.k, p.bytes, p.accumulate > 0 ? p.accumulate : 2,
                          p.accumulate, p.layout};
    const double model = model_gemm(shape, chip, facts_, tiles_, clock_of(f, chip, p.regime)).seconds;
    learned_.push_back({static_cast<float>(std::log(p.m)), static_cast<float>(std::log(p.n)),
                        static_cast<float>(std::log(p.k)),
                        static_cast<float>(std::log(shape.flops() / p.flops_per_second / model)),
                        p.set == 0 ? 0 : kOtherChip, static_cast<uint8_t>(p.bytes), p.layout, p.groups > 1});
  }
}

GemmModel::Estimate GemmModel::estimate(const GemmShape& s, const Chip& chip, Regime regime,
                                        std::span<const char> skip) const {
  const GemmTime model = model_gemm(s, chip, facts_, tiles_, clock_of(facts_, chip, regime));
  if (on_plain_cores(s, chip, facts_)) return {model.seconds, model.memory_bound, false};  // points are of matrix units
  const float m = static_cast<float>(std::log(s.m)), n = static_cast<float>(std::log(s.n)),
              k = static_cast<float>(std::log(s.k));
  float sum = 0, weights = kPrior;
  for (size_t i = 0; i < learned_.size(); ++i) {
    const Learned& p = learned_[i];
    if (p.bytes != s.bytes || p.grouped != (s.groups > 1)) continue;
    const float dm = p.m - m, dn = p.n - n, dk = p.k - k;
    const float d = dm * dm + dn * dn + dk * dk + p.offset + (p.layout == s.layout ? 0 : kOtherLayout);
    if (d > kReach || (!skip.empty() && skip[i])) continue;
    const float near = 1 / (d + kCore) - 1 / (kReach + kCore), w = near * near;
    sum += w * p.log_ratio;
    weights += w;
  }
  return {model.seconds * std::exp(static_cast<double>(sum / weights)), model.memory_bound, weights > 10 * kPrior};
}

}  // namespace wt::sim
