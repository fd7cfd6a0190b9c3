// The arithmetic of single elements, for float and double, written once for both devices. Not loops and not storage.
// Invariant: branch-free where a loop over it should vectorise, and the float versions are within a few ulp.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/kernels/element.hpp"

namespace wt::exec {

// Values of Compute::function. They are those of wt::Activation, wt::Norm and wt::RoutingKind, which live above this folder
// (tests/exec/kernels holds them to be equal).
enum class ActivationKind : uint8_t { gelu, silu, relu };
enum class NormKind : uint8_t { layer_norm, rms_norm };
enum class RoutingRule : uint8_t { even, top_k };

/// exp without a branch: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes expf); 0 below -87.3, finite above
/// 88.3. Relative error under 2 ulp.
WT_HOST_DEVICE float exponential(float x) {
#if defined(__CUDA_ARCH__)
  return expf(x);
#else
  const float low = -87.3f, high = 88.3762626f, shift = 12582912.0f;  // 1.5 * 2^23: rounds to an integer when added
  const float y = x < low ? low : (x > high ? high : x);
  const float t = y * 1.44269504088896341f + shift, n = t - shift;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * r * r + r + 1.0f;
  const float scale = float_of((bits_of(t) - bits_of(shift) + 127u) << 23);
  return x < low ? 0.0f : e * scale;
#endif
}
WT_HOST_DEVICE double exponential(double x) { return exp(x); }

/// The error function: a rational approximation in x^2 with 7 and 5 terms, exact to a few ulp; +-1 beyond 4.
WT_HOST_DEVICE float error_function(float x) {
#if defined(__CUDA_ARCH__)
  return erff(x);
#else
  const float c = x < -4.0f ? -4.0f : (x > 4.0f ? 4.0f : x), s = c * c;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return c * p / q;
#endif
}
WT_HOST_DEVICE double error_function(double x) { return erf(x); }

/// An activation and its derivative.
template <class A>
struct Activated {
  A value, slope;
};

template <class A>
WT_HOST_DEVICE Activated<A> relu(A x) {
  return {x > A(0) ? x : A(0), x > A(0) ? A(1) : A(0)};
}
template <class A>
WT_HOST_DEVICE Activated<A> silu(A x) {
  const A s = A(1) / (A(1) + exponential(-x));
  return {x * s, s * (A(1) + x * (A(1) - s))};
}
/// By the error function, as PyTorch's default.
template <class A>
WT_HOST_DEVICE Activated<A> gelu(A x) {
  const A normal = A(0.5) * (A(1) + error_function(x * A(0.70710678118654752440)));
  const A density = A(0.39894228040143267794) * exponential(A(-0.5) * x * x);
  return {x * normal, normal + x * density};
}

/// A number in [0, 1) from a key and a counter: the mixer of SplitMix64 over key and index, its upper 24 bits. The same
/// on every device and for any order of evaluation.
WT_HOST_DEVICE float uniform(uint64_t key, uint64_t index) {
  uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z = z ^ (z >> 31);
  return static_cast<float>(static_cast<uint32_t>(z >> 40)) * (1.0f / 16777216.0f);
}

/// What one optimizer step has in common for all elements.
template <class A>
struct UpdateRule {
  A factor;  // of the gradient: 1 / loss scale, and the clipping
  A learning_rate, decay;
  A beta1, beta2, epsilon;
  A correction1, correction2;  // 1 / (1 - beta^t)
};

template <class A>
struct AdamElement {
  A master, moment1, moment2;
};

/// Adam with decoupled weight decay (AdamW).
template <class A>
WT_HOST_DEVICE AdamElement<A> adam_element(const UpdateRule<A>& rule, A gradient, AdamElement<A> s) {
  const A g = gradient * rule.factor;
  const A m = rule.beta1 * s.moment1 + (A(1) - rule.beta1) * g;
  const A v = rule.beta2 * s.moment2 + (A(1) - rule.beta2) * g * g;
  const A update = m * rule.correction1 / (A(sqrt(v * rule.correction2)) + rule.epsilon);
  return {s.master - rule.learning_rate * (update + rule.decay * s.master), m, v};
}

template <class A>
WT_HOST_DEVICE A sgd_element(const UpdateRule<A>& rule, A gradient, A master) {
  return master - rule.learning_rate * (gradient * rule.factor + rule.decay * master);
}

/// The choice of an expert that follows `last` (none: -1) in the order of falling logits, of equal ones the first; `logit(e)`
/// says what expert e was given. What is no number comes last, so that there is always a choice.
template <class A, class F>
WT_HOST_DEVICE int64_t next_choice(int64_t experts, int64_t last, F logit) {
  const A least = -A(INFINITY);
  auto value = [&](int64_t e) {
    const A x = logit(e);
    return x == x ? x : least;
  };
  const A bound = last >= 0 ? value(last) : least;
  int64_t best = -1;
  A most = least;
  for (int64_t e = 0; e < experts; ++e) {
    const A x = value(e);
    if (last >= 0 && (x > bound || (x == bound && e <= last))) continue;  // chosen before
    if (best < 0 || x > most) best = e, most = x;
  }
  return best;
}

/// Under the even load: the next k of all experts in turn, by position in the sequence, so that every micro-batch and every
/// share of a sequence gives each expert as much.
WT_HOST_DEVICE int64_t even_choice(int64_t row_of_sequences, int64_t batch, int64_t k, int64_t choice,
                                   int64_t experts) {
  return (row_of_sequences / batch * k + choice) % experts;
}

/// A pair of a rotary head turned by an angle.
template <class A>
struct Turned {
  A x, y;
};
template <class A>
WT_HOST_DEVICE Turned<A> turned(A x, A y, A cosine, A sine) {
  return {x * cosine - y * sine, x * sine + y * cosine};
}

}  // namespace wt::exec
