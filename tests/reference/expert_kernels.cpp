// The kernels of mixture-of-experts layers in plain loops over doubles: routing, moving rows to the slots of their experts
// and back, grouped products. Part of run_kernel. Invariant: slots are filled in the order of (row, choice).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/spec/specs.hpp"
#include "tests/reference/kernels.hpp"

namespace wt::reference {
namespace {

using plan::Compute;
using plan::Kernel;

/// The k largest logits, of equal ones the first; or under the even load the next k of all experts in turn, by position in
/// the sequence, so that every micro-batch and every share of a sequence gives each expert as much.
std::vector<int64_t> choices(const Compute& c, const Operand& logits, int64_t row, int64_t group_index) {
  const int64_t experts = c.dims[1], k = c.dims[2], batch = c.dims[3];
  std::vector<int64_t> chosen(static_cast<size_t>(k));
  if (c.function == static_cast<uint8_t>(RoutingKind::even)) {
    const int64_t position = (group_index * c.dims[0] + row) / batch;
    for (int64_t j = 0; j < k; ++j) chosen[static_cast<size_t>(j)] = (position * k + j) % experts;
    return chosen;
  }
  std::vector<int64_t> all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  std::stable_sort(all.begin(), all.end(),
                   [&](int64_t a, int64_t b) { return logits[row * experts + a] > logits[row * experts + b]; });
  std::copy_n(all.begin(), k, chosen.begin());
  return chosen;
}

void route_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, int64_t group) {
  const int64_t rows = c.dims[0], experts = c.dims[1], k = c.dims[2];
  want(r[0], rows * experts, "logits");
  want(w[0], rows * k, "weights");
  want(w[1], rows * k, "experts");
  want(w[2], experts, "counts");
  for (int64_t e = 0; e < experts; ++e) w[2][e] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto chosen = choices(c, r[0], row, group);
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const int64_t e : chosen) most = std::max(most, r[0][row * experts + e]);
    for (const int64_t e : chosen) sum += std::exp(r[0][row * experts + e] - most);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = chosen[static_cast<size_t>(j)];
      w[0][row * k + j] = std::exp(r[0][row * experts + e] - most) / sum;
      w[1][row * k + j] = static_cast<double>(e);
      w[2][e] += 1;
    }
  }
}

void route_backward(const Compute& c, const std::vector<Operand>& r, const Operand& d_logits) {
  const int64_t rows = c.dims[0], experts = c.dims[1], k = c.dims[2];
  for (const Operand& x : r) want(x, rows * k, "weights");
  want(d_logits, rows * experts, "dlogits");
  for (int64_t i = 0; i < d_logits.size; ++i) d_logits[i] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double dot = 0;
    for (int64_t j = row * k; j < (row + 1) * k; ++j) dot += r[0][j] * r[1][j];
    for (int64_t j = row * k; j < (row + 1) * k; ++j)
      d_logits[row * experts + std::llround(r[2][j])] = r[1][j] * (r[0][j] - dot);
  }
}

/// Calls f(row, choice, slot) for what found a slot.
template <class F>
void each_slot(const Compute& c, const Operand& experts, F&& f) {
  const int64_t rows = c.dims[0], count = c.dims[2], k = c.dims[3], capacity = c.dims[4];
  std::vector<int64_t> taken(static_cast<size_t>(count), 0);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = std::llround(experts[row * k + j]), at = taken[static_cast<size_t>(e)]++;
      if (at < capacity) f(row, j, e * capacity + at);
    }
}

void permute(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t rows = c.dims[0], h = c.dims[1], slots = c.dims[2] * c.dims[4], k = c.dims[3];
  want(r[0], rows * h, "x");
  want(r[1], rows * k, "experts");
  want(w[0], slots * h, "slots");
  if (r.size() != w.size() + 1) throw Fault("weights go with their slots");
  if (r.size() > 2) want(r[2], rows * k, "weights"), want(w[1], slots, "slot weights");
  for (const Operand& x : w)
    for (int64_t i = 0; i < x.size; ++i) x[i] = 0;
  each_slot(c, r[1], [&](int64_t row, int64_t j, int64_t slot) {
    for (int64_t i = 0; i < h; ++i) w[0][slot * h + i] = r[0][row * h + i];
    if (w.size() > 1) w[1][slot] = r[2][row * k + j];
  });
}

void unpermute(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t rows = c.dims[0], h = c.dims[1], slots = c.dims[2] * c.dims[4], k = c.dims[3];
  want(r[0], slots * h, "slots");
  want(r[1], rows * k, "experts");
  want(w[0], rows * h, "y");
  if (r.size() != w.size() + 1) throw Fault("weights go with their slots");
  if (r.size() > 2) want(r[2], slots, "slot weights"), want(w[1], rows * k, "weights");
  for (const Operand& x : w)
    for (int64_t i = 0; i < x.size; ++i) x[i] = 0;
  each_slot(c, r[1], [&](int64_t row, int64_t j, int64_t slot) {
    for (int64_t i = 0; i < h; ++i) w[0][row * h + i] += r[0][slot * h + i];
    if (w.size() > 1) w[1][row * k + j] = r[2][slot];
  });
}

void regroup(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t a = c.dims[0], b = c.dims[1], rows = c.dims[2];
  if (r.size() != w.size()) throw Fault("weights go with their rows");
  for (size_t n = 0; n < r.size(); ++n) {
    const int64_t piece = rows * (n == 0 ? c.dims[3] : 1);
    want(r[n], a * b * piece, "x");
    want(w[n], a * b * piece, "y");
    for (int64_t i = 0; i < a; ++i)
      for (int64_t j = 0; j < b; ++j)
        for (int64_t x = 0; x < piece; ++x) w[n][(j * a + i) * piece + x] = r[n][(i * b + j) * piece + x];
  }
}

void grouped_gemm(const Compute& c, const std::vector<Operand>& r, const Operand& out, const KernelContext& context) {
  const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2], groups = c.dims[3];
  want(r[0], groups * m * k, "A");
  want(r[1], groups * k * n, "B");
  want(out, groups * m * n, "C");
  Compute one = c;
  one.kernel = Kernel::gemm;
  one.dims[3] = 0;
  auto part = [](const Operand& x, int64_t at, int64_t size) { return Operand{x.storage, x.begin + at * size, size}; };
  for (int64_t g = 0; g < groups; ++g)
    run_kernel(one, {part(r[0], g, m * k), part(r[1], g, k * n)}, {part(out, g, m * n)}, context);
}

void expert_activation(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, bool forward) {
  const int64_t rows = c.dims[0], f = c.dims[1], wide = c.gated ? 2 * f : f;
  const Operand &x = r[forward ? 0 : 1], &weight = r[forward ? 1 : 2];
  want(x, rows * wide, "x");
  want(weight, rows, "w");
  want(forward ? w[0] : r[0], rows * f, "y");
  if (!forward) want(w[0], rows * wide, "dx"), want(w[1], rows, "dw");
  for (int64_t i = 0; i < rows; ++i) {
    double d_weight = 0;
    for (int64_t j = 0; j < f; ++j) {
      const auto [value, slope] = activation(c.function, x[i * wide + j]);
      const double up = c.gated ? x[i * wide + f + j] : 1;
      if (forward) {
        w[0][i * f + j] = value * up * weight[i];
        continue;
      }
      const double dy = r[0][i * f + j];
      d_weight += dy * value * up;
      w[0][i * wide + j] = dy * weight[i] * slope * up;
      if (c.gated) w[0][i * wide + f + j] = dy * weight[i] * value;
    }
    if (!forward) w[1][i] = d_weight;
  }
}

}  // namespace

void run_expert_kernel(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w,
                       const KernelContext& k) {
  switch (c.kernel) {
    case Kernel::route_forward: return route_forward(c, r, w, k.group_index);
    case Kernel::route_backward: return route_backward(c, r, w[0]);
    case Kernel::permute: return permute(c, r, w);
    case Kernel::unpermute: return unpermute(c, r, w);
    case Kernel::regroup: return regroup(c, r, w);
    case Kernel::grouped_gemm: return grouped_gemm(c, r, w[0], k);
    case Kernel::expert_activation_forward: return expert_activation(c, r, w, true);
    case Kernel::expert_activation_backward: return expert_activation(c, r, w, false);
    default: throw Fault("not a kernel of experts");
  }
}

}  // namespace wt::reference
