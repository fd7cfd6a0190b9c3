#include "tests/reference/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace wt::reference {
namespace {

using plan::Compute;
using plan::kAllBlocks;
using plan::Kernel;
using plan::sequence_position;

// Values of wt::Activation and wt::Norm as they stand in Compute::function.
enum : uint8_t { kGelu = 0, kSilu = 1, kRelu = 2 };
enum : uint8_t { kLayerNorm = 0, kRmsNorm = 1 };

void gemm(const Compute& c, const std::vector<Operand>& r, const Operand& out) {
  const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2];
  want(r[0], m * k, "A");
  want(r[1], k * n, "B");
  want(out, m * n, "C");
  if (r.size() > 2) want(r[2], n, "bias");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += r[0][c.transpose_a ? l * m + i : i * k + l] * r[1][c.transpose_b ? j * k + l : l * n + j];
      if (r.size() > 2) sum += r[2][j];
      out[i * n + j] = (c.accumulate ? out[i * n + j] : 0) + sum;
    }
}

void norm_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t rows = c.dims[0], h = c.dims[1];
  const bool layer = c.function == kLayerNorm;
  const int64_t stats = layer ? 2 : 1;
  want(r[0], rows * h, "x");
  want(r[1], h, "gamma");
  if (r.size() > 2) want(r[2], h, "beta");
  want(w[0], rows * h, "y");
  want(w[1], rows * stats, "stats");
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0, square = 0;
    for (int64_t j = 0; j < h; ++j) mean += r[0][i * h + j];
    mean = layer ? mean / static_cast<double>(h) : 0;
    for (int64_t j = 0; j < h; ++j) square += (r[0][i * h + j] - mean) * (r[0][i * h + j] - mean);
    const double inverse = 1 / std::sqrt(square / static_cast<double>(h) + c.scalar);
    for (int64_t j = 0; j < h; ++j)
      w[0][i * h + j] = (r[0][i * h + j] - mean) * inverse * r[1][j] + (r.size() > 2 ? r[2][j] : 0);
    if (layer) w[1][i * 2] = mean;
    w[1][i * stats + stats - 1] = inverse;
  }
}

void norm_backward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t rows = c.dims[0], h = c.dims[1];
  const bool layer = c.function == kLayerNorm;
  const int64_t stats = layer ? 2 : 1;
  want(r[0], rows * h, "dy");
  want(r[1], rows * h, "x");
  want(r[2], h, "gamma");
  want(r[3], rows * stats, "stats");
  want(w[0], rows * h, "dx");
  if (w.size() > 1) want(w[1], h, "dgamma");
  if (w.size() > 2) want(w[2], h, "dbeta");
  for (int64_t i = 0; i < rows; ++i) {
    const double mean = layer ? r[3][i * 2] : 0, inverse = r[3][i * stats + stats - 1];
    double sum = 0, dot = 0;  // of g = dy gamma, and of g with the normalised x
    for (int64_t j = 0; j < h; ++j) {
      const double dy = r[0][i * h + j], x = (r[1][i * h + j] - mean) * inverse, g = dy * r[2][j];
      sum += g;
      dot += g * x;
      if (w.size() > 1) w[1][j] += dy * x;
      if (w.size() > 2) w[2][j] += dy;
    }
    sum = layer ? sum / static_cast<double>(h) : 0;
    dot /= static_cast<double>(h);
    for (int64_t j = 0; j < h; ++j) {
      const double x = (r[1][i * h + j] - mean) * inverse;
      w[0][i * h + j] = (r[0][i * h + j] * r[2][j] - sum - x * dot) * inverse;
    }
  }
}

/// Rows of qkv: token t = position * batch + sample; columns grouped by key/value head: its queries, then k, then v.
struct Heads {
  int64_t batch, seq, heads, kv_heads, d;
  explicit Heads(const Compute& c)
      : batch(c.dims[0]), seq(c.dims[1]), heads(c.dims[2]), kv_heads(c.dims[3]), d(c.dims[4]) {
    if (kv_heads < 1 || heads % kv_heads != 0)
      throw Fault(fmt::format("{} heads on {} key/value heads", heads, kv_heads));
  }
  int64_t share() const { return heads / kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * d; }
  int64_t elements() const { return batch * seq * width(); }
  int64_t row(int64_t b, int64_t s) const { return (s * batch + b) * width(); }
  int64_t group(int64_t kv) const { return kv * (share() + 2) * d; }
  int64_t q(int64_t b, int64_t s, int64_t head) const { return row(b, s) + group(head / share()) + head % share() * d; }
  int64_t k(int64_t b, int64_t s, int64_t head) const { return row(b, s) + group(head / share()) + share() * d; }
  int64_t v(int64_t b, int64_t s, int64_t head) const { return k(b, s, head) + d; }
  int64_t out(int64_t b, int64_t s, int64_t head) const { return ((s * batch + b) * heads + head) * d; }
  int64_t score(int64_t b, int64_t head, int64_t s, int64_t other) const {
    return ((b * heads + head) * seq + s) * seq + other;
  }
};

bool sees(const Compute& c, int64_t query, int64_t key) {
  if (c.causal && key > query) return false;
  if (c.document > 0 && key / c.document != query / c.document) return false;
  const auto window = static_cast<int64_t>(c.scalar);
  return window == 0 || (std::max(query, key) - std::min(query, key) < window);
}

/// Rotates the pairs (i, i + d/2) of every query and key head by position * 10000^(-2i/d).
void rope(const Compute& c, const Operand& in, const Operand& out, const KernelContext& context, double sign) {
  const Heads a(c);
  want(in, a.elements(), "qkv");
  want(out, a.elements(), "qkv");
  for (int64_t i = 0; i < in.size; ++i) out[i] = in[i];
  auto turn = [&](int64_t at, int64_t position) {
    for (int64_t i = 0; i < a.d / 2; ++i) {
      const double angle = sign * static_cast<double>(position) *
                           std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(a.d));
      const double x = out[at + i], y = out[at + i + a.d / 2];
      out[at + i] = x * std::cos(angle) - y * std::sin(angle);
      out[at + i + a.d / 2] = x * std::sin(angle) + y * std::cos(angle);
    }
  };
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t s = 0; s < a.seq; ++s) {
      const int64_t at = sequence_position(s, a.seq, context.group_index, context.group_size);
      for (int64_t h = 0; h < a.heads; ++h) turn(a.q(b, s, h), at);
      for (int64_t h = 0; h < a.heads; h += a.share()) turn(a.k(b, s, h), at);
    }
}

/// Calls f(offset of the head in qkv, is a query, index in stats) for each query and key head of each token.
template <class F>
void each_normed_head(const Heads& a, F&& f) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t s = 0; s < a.seq; ++s) {
      const int64_t stats = (s * a.batch + b) * (a.heads + a.kv_heads);
      for (int64_t h = 0; h < a.heads; ++h) f(a.q(b, s, h), true, stats + h);
      for (int64_t k = 0; k < a.kv_heads; ++k) f(a.k(b, s, k * a.share()), false, stats + a.heads + k);
    }
}

void qk_norm_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  want(r[0], a.elements(), "qkv");
  want(r[1], a.d, "gq");
  want(r[2], a.d, "gk");
  want(w[0], a.elements(), "qkv");
  want(w[1], a.batch * a.seq * (a.heads + a.kv_heads), "stats");
  for (int64_t i = 0; i < r[0].size; ++i) w[0][i] = r[0][i];
  each_normed_head(a, [&](int64_t at, bool query, int64_t stat) {
    double square = 0;
    for (int64_t i = 0; i < a.d; ++i) square += w[0][at + i] * w[0][at + i];
    const double inverse = 1 / std::sqrt(square / static_cast<double>(a.d) + c.scalar);
    for (int64_t i = 0; i < a.d; ++i) w[0][at + i] *= inverse * r[query ? 1 : 2][i];
    w[1][stat] = inverse;
  });
}

/// qkv as qk_norm_forward read it.
void qk_norm_backward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  want(r[0], a.elements(), "dqkv");
  want(r[1], a.elements(), "qkv");
  want(w[0], a.elements(), "dqkv");
  for (int64_t i = 0; i < r[0].size; ++i) w[0][i] = r[0][i];
  each_normed_head(a, [&](int64_t at, bool query, int64_t stat) {
    const double inverse = r[4][stat];
    const Operand& gain = r[query ? 2 : 3];
    double dot = 0;
    for (int64_t i = 0; i < a.d; ++i) {
      const double x = r[1][at + i] * inverse, dy = w[0][at + i];
      dot += dy * gain[i] * x;
      if (w.size() > 1) w[query ? 1 : 2][i] += dy * x;
    }
    dot /= static_cast<double>(a.d);
    for (int64_t i = 0; i < a.d; ++i) w[0][at + i] = (w[0][at + i] * gain[i] - r[1][at + i] * inverse * dot) * inverse;
  });
}

double head_dot(const Operand& x, int64_t i, const Operand& y, int64_t j, int64_t d) {
  double sum = 0;
  for (int64_t k = 0; k < d; ++k) sum += x[i + k] * y[j + k];
  return sum;
}

void attention_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  want(r[0], a.elements(), "qkv");
  want(w[0], a.batch * a.seq * a.heads * a.d, "out");
  want(w[1], a.batch * a.heads * a.seq, "lse");
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s) {
        std::vector<double> p(static_cast<size_t>(a.seq), 0);
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t o = 0; o < a.seq; ++o)
          if (sees(c, s, o)) most = std::max(most, scale * head_dot(r[0], a.q(b, s, h), r[0], a.k(b, o, h), a.d));
        for (int64_t o = 0; o < a.seq; ++o)
          if (sees(c, s, o))
            sum += p[static_cast<size_t>(o)] =
                std::exp(scale * head_dot(r[0], a.q(b, s, h), r[0], a.k(b, o, h), a.d) - most);
        for (int64_t i = 0; i < a.d; ++i) {
          double out = 0;
          for (int64_t o = 0; o < a.seq; ++o) out += p[static_cast<size_t>(o)] / sum * r[0][a.v(b, o, h) + i];
          w[0][a.out(b, s, h) + i] = out;
        }
        w[1][(b * a.heads + h) * a.seq + s] = most + std::log(sum);
      }
}

void attention_backward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  const Operand &d_out = r[0], &qkv = r[1], &out = r[2], &lse = r[3], &d_qkv = w[0];
  want(d_out, a.batch * a.seq * a.heads * a.d, "dout");
  want(qkv, a.elements(), "qkv");
  want(out, d_out.size, "out");
  want(lse, a.batch * a.heads * a.seq, "lse");
  want(d_qkv, a.elements(), "dqkv");
  for (int64_t i = 0; i < d_qkv.size; ++i) d_qkv[i] = 0;
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s) {
        const int64_t q = a.q(b, s, h), at = a.out(b, s, h);
        const double mean = head_dot(d_out, at, out, at, a.d);
        for (int64_t o = 0; o < a.seq; ++o) {
          if (!sees(c, s, o)) continue;
          const int64_t k = a.k(b, o, h), v = a.v(b, o, h);
          const double p = std::exp(scale * head_dot(qkv, q, qkv, k, a.d) - lse[(b * a.heads + h) * a.seq + s]);
          const double d_score = p * (head_dot(d_out, at, qkv, v, a.d) - mean) * scale;
          for (int64_t i = 0; i < a.d; ++i) {
            d_qkv[v + i] += p * d_out[at + i];
            d_qkv[q + i] += d_score * qkv[k + i];
            d_qkv[k + i] += d_score * qkv[q + i];
          }
        }
      }
}

/// q: heads side by side; kv: for each key/value head k, then v.
void reorder_qkv(const Compute& c, const Operand& qkv, const Operand& q, const Operand& kv, bool split) {
  const Heads a(c);
  want(qkv, a.elements(), "qkv");
  want(q, a.batch * a.seq * a.heads * a.d, "q");
  want(kv, a.elements() - q.size, "kv");
  auto move = [&](double& in_whole, double& alone) { (split ? alone : in_whole) = split ? in_whole : alone; };
  for (int64_t t = 0; t < a.batch * a.seq; ++t)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t b = t % a.batch, s = t / a.batch, g = h / a.share();
      for (int64_t i = 0; i < a.d; ++i) {
        move(qkv[a.q(b, s, h) + i], q[(t * a.heads + h) * a.d + i]);
        if (h % a.share() != 0) continue;
        move(qkv[a.k(b, s, h) + i], kv[(t * a.kv_heads + g) * 2 * a.d + i]);
        move(qkv[a.v(b, s, h) + i], kv[((t * a.kv_heads + g) * 2 + 1) * a.d + i]);
      }
    }
}

/// Calls f(sample, head, query, key) for each score of the rank's queries and the keys of one or of all members.
template <class F>
void each_block_score(const Compute& c, const KernelContext& k, F&& f) {
  const Heads a(c);
  const bool all = c.function == kAllBlocks;
  const int64_t first = all ? 0 : (k.group_index + k.group_size - c.function) % k.group_size;
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s)
        for (int64_t o = 0; o < (all ? k.group_size : 1) * a.seq; ++o)
          if (sees(c, sequence_position(s, a.seq, k.group_index, k.group_size),
                   sequence_position(o % a.seq, a.seq, first + o / a.seq, k.group_size)))
            f(b, h, s, o);
}

void block_attention_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w,
                             const KernelContext& context) {
  const Heads a(c);
  const Operand &q = r[0], &kv = r[1], &out = w[0], &lse = w[1];
  want(q, a.batch * a.seq * a.heads * a.d, "q");
  want(kv, a.batch * a.seq * a.kv_heads * 2 * a.d * (c.function == kAllBlocks ? context.group_size : 1), "kv");
  want(out, q.size, "out");
  want(lse, a.batch * a.heads * a.seq, "lse");
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  auto key = [&](int64_t b, int64_t o, int64_t h) {
    return ((o * a.batch + b) * a.kv_heads + h / a.share()) * 2 * a.d;
  };
  auto score = [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    return scale * head_dot(q, a.out(b, s, h), kv, key(b, o, h), a.d);
  };
  std::vector<double> sum(static_cast<size_t>(lse.size), 0);
  auto row = [&](int64_t b, int64_t h, int64_t s) { return (b * a.heads + h) * a.seq + s; };
  for (int64_t i = 0; i < lse.size; ++i) lse[i] = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < out.size; ++i) out[i] = 0;
  each_block_score(c, context, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    lse[row(b, h, s)] = std::max(lse[row(b, h, s)], score(b, h, s, o));
  });
  each_block_score(c, context, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    const double p = std::exp(score(b, h, s, o) - lse[row(b, h, s)]);
    sum[static_cast<size_t>(row(b, h, s))] += p;
    for (int64_t i = 0; i < a.d; ++i) out[a.out(b, s, h) + i] += p * kv[key(b, o, h) + a.d + i];
  });
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s) {
        const double weight = sum[static_cast<size_t>(row(b, h, s))];
        if (weight == 0) continue;
        for (int64_t i = 0; i < a.d; ++i) out[a.out(b, s, h) + i] /= weight;
        lse[row(b, h, s)] += std::log(weight);
      }
}

void block_attention_backward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w,
                              const KernelContext& context) {
  const Heads a(c);
  const Operand &d_out = r[0], &q = r[1], &kv = r[2], &out = r[3], &lse = r[4], &dq = w[0], &dkv = w[1];
  want(d_out, a.batch * a.seq * a.heads * a.d, "dout");
  want(q, d_out.size, "q");
  want(kv, a.batch * a.seq * a.kv_heads * 2 * a.d * (c.function == kAllBlocks ? context.group_size : 1), "kv");
  want(out, q.size, "out");
  want(lse, a.batch * a.heads * a.seq, "lse");
  want(dq, q.size, "dq");
  want(dkv, kv.size, "dkv");
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  for (int64_t i = 0; i < dq.size && !c.accumulate; ++i) dq[i] = 0;
  for (int64_t i = 0; i < dkv.size; ++i) dkv[i] = 0;
  each_block_score(c, context, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    const int64_t at = a.out(b, s, h), k = ((o * a.batch + b) * a.kv_heads + h / a.share()) * 2 * a.d, v = k + a.d;
    const double p = std::exp(scale * head_dot(q, at, kv, k, a.d) - lse[(b * a.heads + h) * a.seq + s]);
    const double d_score = p * (head_dot(d_out, at, kv, v, a.d) - head_dot(d_out, at, out, at, a.d)) * scale;
    for (int64_t i = 0; i < a.d; ++i) {
      dkv[v + i] += p * d_out[at + i];
      dkv[k + i] += d_score * q[at + i];
      dq[at + i] += d_score * kv[k + i];
    }
  });
}

void merge_attention(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  for (size_t i : {0u, 2u}) want(r[i], a.batch * a.seq * a.heads * a.d, "out");
  for (size_t i : {1u, 3u}) want(r[i], a.batch * a.heads * a.seq, "lse");
  want(w[0], r[0].size, "out");
  want(w[1], r[1].size, "lse");
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s) {
        const int64_t row = (b * a.heads + h) * a.seq + s;
        const double x = r[1][row], y = r[3][row], most = std::max(x, y);
        const double both = most + std::log(std::exp(x - most) + std::exp(y - most));
        for (int64_t i = 0; i < a.d; ++i) {
          const int64_t at = a.out(b, s, h) + i;
          w[0][at] = std::exp(x - both) * r[0][at] + std::exp(y - both) * r[2][at];
        }
        w[1][row] = both;
      }
}

/// split_columns, gather_sequence, deal_sequence: whole rows of dims[1] columns change places.
void reorder_rows(const Compute& c, const Operand& x, const Operand& y, const KernelContext& k) {
  const int64_t rows = c.dims[0], columns = c.dims[1], batch = c.dims[2];
  want(x, rows * columns * k.group_size, "x");
  want(y, x.size, "y");
  for (int64_t member = 0; member < k.group_size; ++member)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t there = member * rows + row;
      const int64_t other =
          c.kernel == Kernel::split_columns
              ? row * k.group_size + member
              : sequence_position(row / batch, rows / batch, member, k.group_size) * batch + row % batch;
      for (int64_t i = 0; i < columns; ++i) {
        if (c.kernel == Kernel::gather_sequence)
          y[other * columns + i] = x[there * columns + i];
        else
          y[there * columns + i] = x[other * columns + i];
      }
    }
}

/// Calls f(sample, head, query position, key position).
template <class F>
void each_score(const Heads& a, F&& f) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s)
        for (int64_t o = 0; o < a.seq; ++o) f(b, h, s, o);
}

void scores_forward(const Compute& c, const Operand& qkv, const Operand& scores) {
  const Heads a(c);
  want(qkv, a.elements(), "qkv");
  want(scores, a.batch * a.heads * a.seq * a.seq, "scores");
  each_score(a, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    scores[a.score(b, h, s, o)] = head_dot(qkv, a.q(b, s, h), qkv, a.k(b, o, h), a.d);
  });
}

void softmax_forward(const Compute& c, const Operand& scores, const Operand& probs) {
  const Heads a(c);
  want(scores, a.batch * a.heads * a.seq * a.seq, "scores");
  want(probs, scores.size, "probs");
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  for (int64_t row = 0; row < a.batch * a.heads * a.seq; ++row) {
    const int64_t s = row % a.seq, at = row * a.seq;
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t o = 0; o < a.seq; ++o)
      if (sees(c, s, o)) most = std::max(most, scale * scores[at + o]);
    for (int64_t o = 0; o < a.seq; ++o)
      if (sees(c, s, o)) sum += std::exp(scale * scores[at + o] - most);
    for (int64_t o = 0; o < a.seq; ++o)
      probs[at + o] = sees(c, s, o) ? std::exp(scale * scores[at + o] - most) / sum : 0;
  }
}

void context_forward(const Compute& c, const std::vector<Operand>& r, const Operand& out) {
  const Heads a(c);
  want(r[0], a.batch * a.heads * a.seq * a.seq, "probs");
  want(r[1], a.elements(), "qkv");
  want(out, a.batch * a.seq * a.heads * a.d, "out");
  for (int64_t i = 0; i < out.size; ++i) out[i] = 0;
  each_score(a, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    for (int64_t i = 0; i < a.d; ++i) out[a.out(b, s, h) + i] += r[0][a.score(b, h, s, o)] * r[1][a.v(b, o, h) + i];
  });
}

void context_backward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const Heads a(c);
  const Operand &d_out = r[0], &probs = r[1], &qkv = r[2], &d_probs = w[0], &d_qkv = w[1];
  want(d_out, a.batch * a.seq * a.heads * a.d, "dout");
  want(probs, a.batch * a.heads * a.seq * a.seq, "probs");
  want(qkv, a.elements(), "qkv");
  want(d_probs, probs.size, "dprobs");
  want(d_qkv, a.elements(), "dqkv");
  each_score(a, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    d_probs[a.score(b, h, s, o)] = head_dot(d_out, a.out(b, s, h), qkv, a.v(b, o, h), a.d);
  });
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t s = 0; s < a.seq; ++s)
      for (int64_t h = 0; h < a.heads; h += a.share())
        for (int64_t i = 0; i < a.d; ++i) d_qkv[a.v(b, s, h) + i] = 0;
  each_score(a, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    for (int64_t i = 0; i < a.d; ++i) d_qkv[a.v(b, o, h) + i] += probs[a.score(b, h, s, o)] * d_out[a.out(b, s, h) + i];
  });
}

void softmax_backward(const Compute& c, const std::vector<Operand>& r, const Operand& d_scores) {
  const Heads a(c);
  want(r[0], a.batch * a.heads * a.seq * a.seq, "dprobs");
  want(r[1], r[0].size, "probs");
  want(d_scores, r[0].size, "dscores");
  const double scale = 1 / std::sqrt(static_cast<double>(a.d));
  for (int64_t row = 0; row < a.batch * a.heads * a.seq; ++row) {
    double dot = 0;
    for (int64_t o = 0; o < a.seq; ++o) dot += r[0][row * a.seq + o] * r[1][row * a.seq + o];
    for (int64_t o = 0; o < a.seq; ++o)
      d_scores[row * a.seq + o] = scale * r[1][row * a.seq + o] * (r[0][row * a.seq + o] - dot);
  }
}

void scores_backward(const Compute& c, const std::vector<Operand>& r, const Operand& d_qkv) {
  const Heads a(c);
  want(r[0], a.batch * a.heads * a.seq * a.seq, "dscores");
  want(r[1], a.elements(), "qkv");
  want(d_qkv, a.elements(), "dqkv");
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t s = 0; s < a.seq; ++s)
      for (int64_t h = 0; h < a.heads; ++h)
        for (int64_t i = 0; i < a.d; ++i) d_qkv[a.q(b, s, h) + i] = d_qkv[a.k(b, s, h) + i] = 0;
  each_score(a, [&](int64_t b, int64_t h, int64_t s, int64_t o) {
    const double d = r[0][a.score(b, h, s, o)];
    for (int64_t i = 0; i < a.d; ++i) {
      d_qkv[a.q(b, s, h) + i] += d * r[1][a.k(b, o, h) + i];
      d_qkv[a.k(b, o, h) + i] += d * r[1][a.q(b, s, h) + i];
    }
  });
}

void activation_forward(const Compute& c, const std::vector<Operand>& r, const Operand& y) {
  const int64_t rows = c.dims[0], f = c.dims[1], wide = c.gated ? 2 * f : f;
  want(r[0], rows * wide, "x");
  want(y, rows * f, "y");
  if (r.size() > 1) want(r[1], wide, "bias");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < f; ++j) {
      auto x = [&](int64_t column) { return r[0][i * wide + column] + (r.size() > 1 ? r[1][column] : 0); };
      y[i * f + j] = activation(c.function, x(j)).first * (c.gated ? x(f + j) : 1);
    }
}

void activation_backward(const Compute& c, const std::vector<Operand>& r, const Operand& dx) {
  const int64_t rows = c.dims[0], f = c.dims[1], wide = c.gated ? 2 * f : f;
  want(r[0], rows * f, "dy");
  want(r[1], rows * wide, "x");
  want(dx, rows * wide, "dx");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < f; ++j) {
      auto x = [&](int64_t column) { return r[1][i * wide + column] + (r.size() > 2 ? r[2][column] : 0); };
      const auto [value, slope] = activation(c.function, x(j));
      const double dy = r[0][i * f + j];
      const double up = c.gated ? x(f + j) : 1;
      dx[i * wide + j] = dy * slope * up;
      if (c.gated) dx[i * wide + f + j] = dy * value;
    }
}

void residual_forward(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  const int64_t rows = c.dims[0], h = c.dims[1];
  if (w.size() > 1) throw Fault("dropout is not interpreted");
  want(r[0], rows * h, "x");
  want(r[1], rows * h, "residual");
  if (r.size() > 2) want(r[2], h, "bias");
  want(w[0], rows * h, "y");
  for (int64_t i = 0; i < rows * h; ++i) w[0][i] = r[0][i] + (r.size() > 2 ? r[2][i % h] : 0) + r[1][i];
}

void embedding(const Compute& c, const std::vector<Operand>& r, const Operand& out, const KernelContext& k,
               bool forward) {
  const int64_t rows = c.dims[0], h = c.dims[1], shard = c.dims[2];
  const Operand &tokens = r[forward ? 0 : 1], &table = forward ? r[1] : out, &x = forward ? out : r[0];
  want(tokens, rows, "tokens");
  want(table, shard * h, "table");
  want(x, rows * h, "x");
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = std::llround(tokens[i]) - k.group_index * shard;
    const bool mine = row >= 0 && row < shard;
    for (int64_t j = 0; j < h; ++j) {
      if (forward)
        x[i * h + j] = mine ? table[row * h + j] : 0;
      else if (mine)
        table[row * h + j] += x[i * h + j];
    }
  }
}

void position(const Compute& c, const std::vector<Operand>& r, const Operand& out, const KernelContext& k,
              bool forward) {
  const int64_t rows = c.dims[0], h = c.dims[1], batch = c.dims[2];
  want(r[0], rows * h, "x");
  if (forward) want(out, rows * h, "y");
  const Operand& table = forward ? r[1] : out;
  if (table.size < rows / batch * k.group_size * h)
    throw Fault(fmt::format("a table of {} elements for {} positions", table.size, rows / batch * k.group_size));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = sequence_position(i / batch, rows / batch, k.group_index, k.group_size) * h;
    for (int64_t j = 0; j < h; ++j) {
      if (forward)
        out[i * h + j] = r[0][i * h + j] + table[at + j];
      else
        table[at + j] += r[0][i * h + j];
    }
  }
}

/// Modified Gram-Schmidt, column by column.
void orthogonalize(const Compute& c, const Operand& in, const Operand& out) {
  const int64_t rows = c.dims[0], columns = c.dims[1];
  want(in, rows * columns, "x");
  want(out, rows * columns, "x");
  for (int64_t i = 0; i < rows * columns; ++i) out[i] = in[i];
  for (int64_t j = 0; j < columns; ++j) {
    double square = 0;
    for (int64_t i = 0; i < rows; ++i) square += out[i * columns + j] * out[i * columns + j];
    const double inverse = 1 / std::sqrt(square);
    for (int64_t i = 0; i < rows; ++i) out[i * columns + j] *= inverse;
    for (int64_t other = j + 1; other < columns; ++other) {
      double dot = 0;
      for (int64_t i = 0; i < rows; ++i) dot += out[i * columns + j] * out[i * columns + other];
      for (int64_t i = 0; i < rows; ++i) out[i * columns + other] -= dot * out[i * columns + j];
    }
  }
}

/// dims {rows, vocabulary of the model, columns of this rank}: columns beyond the vocabulary are padding and left out.
struct Vocabulary {
  int64_t rows, whole, columns, first;
  Vocabulary(const Compute& c, const KernelContext& k)
      : rows(c.dims[0]), whole(c.dims[1]), columns(c.dims[2]), first(k.group_index * c.dims[2]) {}
  int64_t real() const { return std::clamp<int64_t>(whole - first, 0, columns); }
  int64_t column_of(double label) const { return std::llround(label) - first; }
};

void loss(const Compute& c, const std::vector<Operand>& r, const Operand& out, const KernelContext& k) {
  const Vocabulary v(c, k);
  // One token's part of the mean over tokens and micro-batches of the step.
  const double share = (c.scalar > 0 ? c.scalar : 1) / static_cast<double>(v.rows * k.micro_batches);
  if (c.kernel == Kernel::loss_max) {
    want(r[0], v.rows * v.columns, "logits");
    want(out, v.rows, "max");
    for (int64_t i = 0; i < v.rows; ++i) {
      out[i] = -std::numeric_limits<double>::infinity();
      for (int64_t j = 0; j < v.real(); ++j) out[i] = std::max(out[i], r[0][i * v.columns + j]);
    }
  } else if (c.kernel == Kernel::loss_sums) {
    want(r[0], v.rows * v.columns, "logits");
    want(r[1], v.rows, "max");
    want(r[2], v.rows, "labels");
    want(out, 2 * v.rows, "sums");
    for (int64_t i = 0; i < v.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < v.real(); ++j) sum += std::exp(r[0][i * v.columns + j] - r[1][i]);
      const int64_t label = v.column_of(r[2][i]);
      out[i] = sum;
      out[v.rows + i] = label >= 0 && label < v.real() ? r[0][i * v.columns + label] : 0;
    }
  } else if (c.kernel == Kernel::loss_forward) {
    want(r[0], 2 * v.rows, "sums");
    want(r[1], v.rows, "max");
    want(out, 1, "loss");
    for (int64_t i = 0; i < v.rows; ++i) out[0] += share * (std::log(r[0][i]) + r[1][i] - r[0][v.rows + i]);
  } else {
    want(r[0], v.rows * v.columns, "logits");
    want(r[1], v.rows, "max");
    want(r[2], 2 * v.rows, "sums");
    want(r[3], v.rows, "labels");
    want(out, v.rows * v.columns, "dlogits");
    for (int64_t i = 0; i < v.rows; ++i)
      for (int64_t j = 0; j < v.columns; ++j) {
        double d = j < v.real() ? std::exp(r[0][i * v.columns + j] - r[1][i]) / r[2][i] : 0;
        if (j == v.column_of(r[3][i])) d -= 1;
        out[i * v.columns + j] = share * d;
      }
  }
}

/// Between [g, rows, columns] and [rows, g columns].
void columns(const Compute& c, const Operand& x, const Operand& y, const KernelContext& k) {
  const int64_t rows = c.dims[0], columns = c.dims[1], g = k.group_size;
  const bool concat = c.kernel == Kernel::concat_columns;
  want(x, rows * columns * g, "x");
  want(y, rows * columns * (concat ? g : 1), "y");
  for (int64_t piece = 0; piece < g; ++piece)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        if (concat)
          y[(i * g + piece) * columns + j] = x[(piece * rows + i) * columns + j];
        else if (piece == k.group_index)
          y[i * columns + j] = x[(i * g + piece) * columns + j];
}

void square_sum(const Compute& c, const std::vector<Operand>& r, const Operand& out, const KernelContext& k) {
  want(out, 1, "scalar");
  for (int64_t i = 0; i < r[0].size; ++i) out[0] += r[0][i] * r[0][i];
  for (size_t d = 1; d < r.size(); ++d) {
    const bool everywhere = d + c.function >= r.size();
    if (!everywhere && k.group_index == 0) continue;
    if (r[d].storage != r[0].storage) throw Fault("a duplicate lies in other storage than what is summed");
    // Only what the operands have in common: x may be a piece of the bucket in which the duplicate lies.
    const int64_t from = std::max(r[d].begin, r[0].begin),
                  to = std::min(r[d].begin + r[d].size, r[0].begin + r[0].size);
    for (int64_t i = from; i < to; ++i) {
      const double g = r[0][i - r[0].begin];
      out[0] -= g * g;
    }
  }
}

void optimizer(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, const KernelContext& k) {
  const bool is_adam = c.kernel == Kernel::adam;
  const size_t states = is_adam ? 3 : 1;  // master, moments
  const bool clipped = r.size() == states + 2;
  if (!clipped && r.size() != states + 1) throw Fault(fmt::format("{} operands", r.size()));
  const Operand& g = r[0];
  const Operand& master = r[clipped ? 2 : 1];
  want(g, c.dims[0], "gradient");
  for (const Operand& x : w) want(x, c.dims[0], "a state");
  want(master, c.dims[0], "master");
  double factor = 1;  // the norm operand holds the sum of squares
  if (clipped) factor = std::min(1.0, c.scalar / (std::sqrt(r[1][0]) + 1e-6));
  constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;
  const double correction1 = 1 - std::pow(kBeta1, static_cast<double>(k.step + 1));
  const double correction2 = 1 - std::pow(kBeta2, static_cast<double>(k.step + 1));
  for (int64_t i = 0; i < c.dims[0]; ++i) {
    const double d = g[i] * factor;
    double update = d;
    if (is_adam) {
      const Operand &m = r[r.size() - 2], &v = r[r.size() - 1];
      const double m1 = kBeta1 * m[i] + (1 - kBeta1) * d, m2 = kBeta2 * v[i] + (1 - kBeta2) * d * d;
      w[w.size() - 2][i] = m1;
      w[w.size() - 1][i] = m2;
      update = m1 / correction1 / (std::sqrt(m2 / correction2) + kEpsilon);
    }
    const double value = master[i] - k.learning_rate * update;
    for (size_t o = 0; o + (is_adam ? 2 : 0) < w.size(); ++o) w[o][i] = value;
  }
}

}  // namespace

void want(const Operand& x, int64_t size, const char* what) {
  if (x.size != size) throw Fault(fmt::format("{} has {} elements, the dims say {}", what, x.size, size));
}

std::pair<double, double> activation(uint8_t function, double x) {
  if (function == kRelu) return {x > 0 ? x : 0, x > 0 ? 1 : 0};
  if (function == kSilu) {
    const double s = 1 / (1 + std::exp(-x));
    return {x * s, s * (1 + x * (1 - s))};
  }
  const double normal = 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  return {x * normal, normal + x * std::exp(-0.5 * x * x) / std::sqrt(2 * 3.14159265358979323846)};
}

void run_kernel(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w,
                const KernelContext& k) {
  switch (c.kernel) {
    case Kernel::gemm: return gemm(c, r, w[0]);
    case Kernel::bias_gradient:
      want(r[0], c.dims[0] * c.dims[1], "dY");
      want(w[0], c.dims[1], "db");
      for (int64_t i = 0; i < r[0].size; ++i) w[0][i % c.dims[1]] += r[0][i];
      return;
    case Kernel::norm_forward: return norm_forward(c, r, w);
    case Kernel::norm_backward: return norm_backward(c, r, w);
    case Kernel::rope_forward: return rope(c, r[0], w[0], k, 1);
    case Kernel::rope_backward: return rope(c, r[0], w[0], k, -1);
    case Kernel::qk_norm_forward: return qk_norm_forward(c, r, w);
    case Kernel::qk_norm_backward: return qk_norm_backward(c, r, w);
    case Kernel::attention_forward: return attention_forward(c, r, w);
    case Kernel::attention_backward: return attention_backward(c, r, w);
    case Kernel::scores_forward: return scores_forward(c, r[0], w[0]);
    case Kernel::softmax_forward: return softmax_forward(c, r[0], w[0]);
    case Kernel::context_forward: return context_forward(c, r, w[0]);
    case Kernel::context_backward: return context_backward(c, r, w);
    case Kernel::softmax_backward: return softmax_backward(c, r, w[0]);
    case Kernel::scores_backward: return scores_backward(c, r, w[0]);
    case Kernel::activation_forward: return activation_forward(c, r, w[0]);
    case Kernel::activation_backward: return activation_backward(c, r, w[0]);
    case Kernel::residual_forward: return residual_forward(c, r, w);
    case Kernel::add:
      want(r[0], c.dims[0] * c.dims[1], "a");
      want(r[1], r[0].size, "b");
      want(w[0], r[0].size, "c");
      for (int64_t i = 0; i < r[0].size; ++i) w[0][i] = r[0][i] + r[1][i];
      return;
    case Kernel::residual_backward:
    case Kernel::dropout_forward:
    case Kernel::dropout_backward: throw Fault("dropout is not interpreted");
    case Kernel::embedding_forward: return embedding(c, r, w[0], k, true);
    case Kernel::embedding_backward: return embedding(c, r, w[0], k, false);
    case Kernel::position_forward: return position(c, r, w[0], k, true);
    case Kernel::position_backward: return position(c, r, w[0], k, false);
    case Kernel::loss_max:
    case Kernel::loss_sums:
    case Kernel::loss_forward:
    case Kernel::loss_backward: return loss(c, r, w[0], k);
    case Kernel::scale:
      want(w[0], r[0].size, "x");
      for (int64_t i = 0; i < r[0].size; ++i) w[0][i] = c.scalar * r[0][i];
      return;
    case Kernel::square_sum: return square_sum(c, r, w[0], k);
    case Kernel::adam:
    case Kernel::sgd: return optimizer(c, r, w, k);
    case Kernel::fill_zero:
      for (const Operand& x : w)
        for (int64_t i = 0; i < x.size; ++i) x[i] = 0;
      return;
    case Kernel::cast:
      want(w[0], r[0].size, "y");
      for (int64_t i = 0; i < r[0].size; ++i) w[0][i] = r[0][i];
      return;
    case Kernel::copy:
      if (r.size() != w.size()) throw Fault(fmt::format("copies {} buffers to {}", r.size(), w.size()));
      for (size_t n = 0; n < r.size(); ++n) {
        want(r[n], w[n].size * k.group_size, "what is copied");
        for (int64_t i = 0; i < w[n].size; ++i) w[n][i] = r[n][k.group_index * w[n].size + i];
      }
      return;
    case Kernel::concat_columns:
    case Kernel::slice_columns: return columns(c, r[0], w[0], k);
    case Kernel::split_qkv: return reorder_qkv(c, r[0], w[0], w[1], true);
    case Kernel::join_qkv: return reorder_qkv(c, w[0], r[0], r[1], false);
    case Kernel::block_attention_forward: return block_attention_forward(c, r, w, k);
    case Kernel::block_attention_backward: return block_attention_backward(c, r, w, k);
    case Kernel::merge_attention: return merge_attention(c, r, w);
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence: return reorder_rows(c, r[0], w[0], k);
    case Kernel::orthogonalize: return orthogonalize(c, r[0], w[0]);
    case Kernel::transpose: {
      const int64_t m = c.dims[0], n = c.dims[1];
      want(r[0], m * n, "x");
      want(w[0], m * n, "y");
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) w[0][j * m + i] = r[0][i * n + j];
      return;
    }
    case Kernel::route_forward:
    case Kernel::route_backward:
    case Kernel::permute:
    case Kernel::unpermute:
    case Kernel::regroup:
    case Kernel::grouped_gemm:
    case Kernel::expert_activation_forward:
    case Kernel::expert_activation_backward: return run_expert_kernel(c, r, w, k);
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::latent_assemble:
    case Kernel::latent_scatter:
    case Kernel::split_latent:
    case Kernel::join_latent: return run_latent_kernel(c, r, w);
  }
}

}  // namespace wt::reference
