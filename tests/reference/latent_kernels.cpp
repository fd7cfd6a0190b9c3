// The kernels of multi-head latent attention in plain loops over doubles. Part of run_kernel.
// qkv rows: for each head q (dn + dr), then k (dn + dr), then v (dv); token t = position * batch + sample.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/reference/kernels.hpp"

namespace wt::reference {
namespace {

using plan::Compute;
using plan::Kernel;

struct Layout {
  int64_t batch, seq, heads, qk, v;
  int64_t width() const { return heads * (2 * qk + v); }
  int64_t q(int64_t t, int64_t h) const { return t * width() + h * (2 * qk + v); }
  int64_t k(int64_t t, int64_t h) const { return q(t, h) + qk; }
  int64_t value(int64_t t, int64_t h) const { return q(t, h) + 2 * qk; }
  int64_t tokens() const { return batch * seq; }
  int64_t token(int64_t b, int64_t s) const { return s * batch + b; }
};

double dot(const Operand& x, int64_t i, const Operand& y, int64_t j, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += x[i + k] * y[j + k];
  return sum;
}

void attention(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, bool forward) {
  const Layout a{c.dims[0], c.dims[1], c.dims[2], c.dims[3], c.dims[4]};
  const Operand &qkv = r[forward ? 0 : 1], &out = forward ? w[0] : r[2], &lse = forward ? w[1] : r[3];
  want(qkv, a.tokens() * a.width(), "qkv");
  want(out, a.tokens() * a.heads * a.v, "out");
  want(lse, a.batch * a.heads * a.seq, "lse");
  if (!forward) {
    want(r[0], out.size, "dout");
    want(w[0], qkv.size, "dqkv");
    for (int64_t i = 0; i < qkv.size; ++i) w[0][i] = 0;
  }
  const double scale = 1 / std::sqrt(static_cast<double>(a.qk));
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t s = 0; s < a.seq; ++s) {
        const int64_t t = a.token(b, s), at = (t * a.heads + h) * a.v, row = (b * a.heads + h) * a.seq + s;
        const int64_t last = c.causal ? s : a.seq - 1;
        auto score = [&](int64_t o) { return scale * dot(qkv, a.q(t, h), qkv, a.k(a.token(b, o), h), a.qk); };
        if (forward) {
          double most = -std::numeric_limits<double>::infinity(), sum = 0;
          for (int64_t o = 0; o <= last; ++o) most = std::max(most, score(o));
          for (int64_t o = 0; o <= last; ++o) sum += std::exp(score(o) - most);
          lse[row] = most + std::log(sum);
          for (int64_t i = 0; i < a.v; ++i) out[at + i] = 0;
        }
        const double mean = forward ? 0 : dot(r[0], at, out, at, a.v);
        for (int64_t o = 0; o <= last; ++o) {
          const int64_t other = a.token(b, o);
          const double p = std::exp(score(o) - lse[row]);
          if (forward) {
            for (int64_t i = 0; i < a.v; ++i) out[at + i] += p * qkv[a.value(other, h) + i];
            continue;
          }
          const double d = p * (dot(r[0], at, qkv, a.value(other, h), a.v) - mean) * scale;
          for (int64_t i = 0; i < a.v; ++i) w[0][a.value(other, h) + i] += p * r[0][at + i];
          for (int64_t i = 0; i < a.qk; ++i) {
            w[0][a.q(t, h) + i] += d * qkv[a.k(other, h) + i];
            w[0][a.k(other, h) + i] += d * qkv[a.q(t, h) + i];
          }
        }
      }
}

/// The pairs (i, i + dr/2) turned by position * 10000^(-2i/dr).
void turn(const Operand& x, int64_t at, int64_t dr, int64_t position, double sign) {
  for (int64_t i = 0; i < dr / 2; ++i) {
    const double angle = sign * static_cast<double>(position) *
                         std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dr));
    const double a = x[at + i], b = x[at + i + dr / 2];
    x[at + i] = a * std::cos(angle) - b * std::sin(angle);
    x[at + i + dr / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

void assemble(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, bool forward) {
  const int64_t dn = c.dims[3], dr = c.dims[4], dv = std::llround(c.scalar);
  const Layout a{c.dims[0], c.dims[1], c.dims[2], dn + dr, dv};
  const std::vector<Operand>& parts = forward ? r : w;
  const Operand &qkv = forward ? w[0] : r[0], &q = parts[0], &kv = parts[1], &rope = parts[2];
  want(qkv, a.tokens() * a.width(), "qkv");
  want(q, a.tokens() * a.heads * (dn + dr), "q");
  want(kv, a.tokens() * a.heads * (dn + dv), "kv");
  want(rope, a.tokens() * dr, "k_rope");
  auto move = [&](const Operand& part, int64_t i, int64_t at) {
    (forward ? qkv[at] : part[i]) = forward ? part[i] : qkv[at];
  };
  for (int64_t t = 0; t < a.tokens(); ++t) {
    if (!forward)
      for (int64_t i = 0; i < dr; ++i) rope[t * dr + i] = 0;
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t from_q = (t * a.heads + h) * (dn + dr), from_kv = (t * a.heads + h) * (dn + dv);
      for (int64_t i = 0; i < dn + dr; ++i) move(q, from_q + i, a.q(t, h) + i);
      for (int64_t i = 0; i < dn; ++i) move(kv, from_kv + i, a.k(t, h) + i);
      for (int64_t i = 0; i < dv; ++i) move(kv, from_kv + dn + i, a.value(t, h) + i);
      for (int64_t i = 0; i < dr; ++i) {
        if (forward)
          qkv[a.k(t, h) + dn + i] = rope[t * dr + i];
        else
          rope[t * dr + i] += qkv[a.k(t, h) + dn + i];
      }
      if (forward) {
        turn(qkv, a.q(t, h) + dn, dr, t / a.batch, 1);
        turn(qkv, a.k(t, h) + dn, dr, t / a.batch, 1);
      } else {
        turn(q, from_q + dn, dr, t / a.batch, -1);
      }
    }
    if (!forward) turn(rope, t * dr, dr, t / a.batch, -1);
  }
}

void columns(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w, bool split) {
  const int64_t rows = c.dims[0], a = c.dims[1], b = c.dims[2];
  const Operand &x = split ? r[0] : w[0], &y = split ? w[0] : r[0], &z = split ? w[1] : r[1];
  want(x, rows * (a + b), "x");
  want(y, rows * a, "y");
  want(z, rows * b, "z");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < a + b; ++j) {
      double &whole = x[i * (a + b) + j], &part = j < a ? y[i * a + j] : z[i * b + j - a];
      (split ? part : whole) = split ? whole : part;
    }
}

}  // namespace

void run_latent_kernel(const Compute& c, const std::vector<Operand>& r, const std::vector<Operand>& w) {
  switch (c.kernel) {
    case Kernel::latent_attention_forward: return attention(c, r, w, true);
    case Kernel::latent_attention_backward: return attention(c, r, w, false);
    case Kernel::latent_assemble: return assemble(c, r, w, true);
    case Kernel::latent_scatter: return assemble(c, r, w, false);
    case Kernel::split_latent: return columns(c, r, w, true);
    case Kernel::join_latent: return columns(c, r, w, false);
    default: throw Fault("not a kernel of latent attention");
  }
}

}  // namespace wt::reference
