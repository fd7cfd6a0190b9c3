// The bodies of RowKernels, included by one file for each instruction set with WT_ISA as its name. Everything stands in
// an unnamed namespace and calls nothing that the linker could share between those files.
#pragma once

#include <limits>

#include "exec/kernels/cpu/row_kernels.hpp"

#if defined(__clang__)
#define WT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WT_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace wt::exec {
namespace {

template <class A, class F>
WT_HOST_DEVICE void each(int64_t n, F f) {
  WT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) f(i);
}

/// Sum of f(i): lanes that the compiler keeps in vectors, added up in a fixed order.
template <class A, class F>
WT_HOST_DEVICE A total(int64_t n, F f) {
  constexpr int kLanes = 128 / sizeof(A);
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] += f(i + j);
  for (int j = 0; i < n; ++i, ++j) lanes[j] += f(i);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int j = 0; j < step; ++j) lanes[j] += lanes[j + step];
  return lanes[0];
}

template <class A, class T>
void widen_row(const void* from, A* y, int64_t n) {
  const T* x = static_cast<const T*>(from);
  each<A>(n, [=](int64_t i) { y[i] = static_cast<A>(widen(x[i])); });
}
template <class A, class T>
void narrow_row(const A* x, void* to, int64_t n) {
  T* y = static_cast<T*>(to);
  each<A>(n, [=](int64_t i) { y[i] = Narrow<T>::of(x[i]); });
}

template <class A>
struct Rows {
  static A sum(const A* x, int64_t n) {
    return total<A>(n, [=](int64_t i) { return x[i]; });
  }
  static A dot(const A* x, const A* y, int64_t n) {
    return total<A>(n, [=](int64_t i) { return x[i] * y[i]; });
  }
  static A squares(const A* x, A mean, int64_t n) {
    return total<A>(n, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  }
  static A maximum(const A* x, int64_t n) {
    constexpr int kLanes = 128 / sizeof(A);
    A lanes[kLanes];
    for (A& lane : lanes) lane = -std::numeric_limits<A>::infinity();
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    A most = lanes[0];
    for (const A lane : lanes) most = lane > most ? lane : most;
    for (; i < n; ++i) most = x[i] > most ? x[i] : most;
    return most;
  }
  static void add(const A* x, const A* y, A* z, int64_t n) {
    each<A>(n, [=](int64_t i) { z[i] = x[i] + y[i]; });
  }
  static void scale(A factor, const A* x, A* y, int64_t n) {
    each<A>(n, [=](int64_t i) { y[i] = factor * x[i]; });
  }
  static void add_scaled(A factor, const A* x, A* y, int64_t n) {
    each<A>(n, [=](int64_t i) { y[i] += factor * x[i]; });
  }
  static void add_product(const A* x, const A* y, A* z, int64_t n) {
    each<A>(n, [=](int64_t i) { z[i] += x[i] * y[i]; });
  }
  static A exponentials(A factor, const A* x, A less, A* y, int64_t n) {
    each<A>(n, [=](int64_t i) { y[i] = exponential(factor * x[i] - less); });
    return sum(y, n);
  }
  static void normalize(const A* x, A mean, A inverse, const A* gamma, const A* beta, A* y, int64_t n) {
    if (beta != nullptr)
      each<A>(n, [=](int64_t i) { y[i] = (x[i] - mean) * inverse * gamma[i] + beta[i]; });
    else
      each<A>(n, [=](int64_t i) { y[i] = (x[i] - mean) * inverse * gamma[i]; });
  }
  static void normalize_sums(const A* dy, const A* x, const A* gamma, A mean, A inverse, A* sum, A* dot, int64_t n) {
    *sum = total<A>(n, [=](int64_t i) { return dy[i] * gamma[i]; });
    *dot = total<A>(n, [=](int64_t i) { return dy[i] * gamma[i] * ((x[i] - mean) * inverse); });
  }
  static void normalize_gradient(const A* dy, const A* x, const A* gamma, A mean, A inverse, A sum, A dot, A* dx,
                                 int64_t n) {
    each<A>(n, [=](int64_t i) { dx[i] = (dy[i] * gamma[i] - sum - (x[i] - mean) * inverse * dot) * inverse; });
  }
  static void normalize_gains(const A* dy, const A* x, A mean, A inverse, A* dgamma, A* dbeta, int64_t n) {
    each<A>(n, [=](int64_t i) { dgamma[i] += dy[i] * ((x[i] - mean) * inverse); });
    if (dbeta != nullptr) each<A>(n, [=](int64_t i) { dbeta[i] += dy[i]; });
  }

  template <class F>
  WT_HOST_DEVICE static void activate_with(F f, const A* x, const A* up, A* y, int64_t n) {
    if (up != nullptr)
      each<A>(n, [=](int64_t i) { y[i] = f(x[i]).value * up[i]; });
    else
      each<A>(n, [=](int64_t i) { y[i] = f(x[i]).value; });
  }
  static void activate(ActivationKind kind, const A* x, const A* up, A* y, int64_t n) {
    switch (kind) {
      case ActivationKind::gelu: return activate_with([](A z) { return gelu(z); }, x, up, y, n);
      case ActivationKind::silu: return activate_with([](A z) { return silu(z); }, x, up, y, n);
      case ActivationKind::relu: return activate_with([](A z) { return relu(z); }, x, up, y, n);
    }
  }
  template <class F>
  WT_HOST_DEVICE static void activate_gradient_with(F f, const A* dy, const A* x, const A* up, A* dx, A* d_up,
                                                    int64_t n) {
    if (up != nullptr)
      each<A>(n, [=](int64_t i) {
        const Activated<A> a = f(x[i]);
        const A d = dy[i], u = up[i];
        dx[i] = d * a.slope * u;
        d_up[i] = d * a.value;
      });
    else
      each<A>(n, [=](int64_t i) { dx[i] = dy[i] * f(x[i]).slope; });
  }
  static void activate_gradient(ActivationKind kind, const A* dy, const A* x, const A* up, A* dx, A* d_up, int64_t n) {
    switch (kind) {
      case ActivationKind::gelu: return activate_gradient_with([](A z) { return gelu(z); }, dy, x, up, dx, d_up, n);
      case ActivationKind::silu: return activate_gradient_with([](A z) { return silu(z); }, dy, x, up, dx, d_up, n);
      case ActivationKind::relu: return activate_gradient_with([](A z) { return relu(z); }, dy, x, up, dx, d_up, n);
    }
  }

  static void turn(const A* cosine, const A* sine, A sign, A* x, A* y, int64_t n) {
    each<A>(n, [=](int64_t i) {
      const Turned<A> p = turned(x[i], y[i], cosine[i], sign * sine[i]);
      x[i] = p.x;
      y[i] = p.y;
    });
  }
  static void softmax_gradient(const A* p, const A* dp, A mean, A factor, A* ds, int64_t n) {
    each<A>(n, [=](int64_t i) { ds[i] = p[i] * (dp[i] - mean) * factor; });
  }

  static void drop(uint64_t key, uint64_t first, float probability, const A* x, A* y, uint8_t* mask, int64_t n) {
    const A factor = A(1) / (A(1) - A(probability));
    each<A>(n, [=](int64_t i) {
      const bool keep = uniform(key, first + static_cast<uint64_t>(i)) >= probability;
      y[i] = keep ? x[i] * factor : A(0);
      mask[i] = keep ? 1 : 0;
    });
  }
  static void masked(const uint8_t* mask, A factor, const A* x, A* y, int64_t n) {
    each<A>(n, [=](int64_t i) { y[i] = mask[i] != 0 ? x[i] * factor : A(0); });
  }

  static void adam(const UpdateRule<A>& rule, const A* g, const A* w, const A* m, const A* v, A* w_out, A* m_out,
                   A* v_out, int64_t n) {
    const UpdateRule<A> r = rule;
    each<A>(n, [=](int64_t i) {
      const AdamElement<A> s = adam_element(r, g[i], AdamElement<A>{w[i], m[i], v[i]});
      w_out[i] = s.master;
      m_out[i] = s.moment1;
      v_out[i] = s.moment2;
    });
  }
  static void sgd(const UpdateRule<A>& rule, const A* g, const A* w, A* w_out, int64_t n) {
    const UpdateRule<A> r = rule;
    each<A>(n, [=](int64_t i) { w_out[i] = sgd_element(r, g[i], w[i]); });
  }
};

template <class A>
constexpr RowKernels<A> make_rows(const char* name) {
  using R = Rows<A>;
  // In the order of DType: f64, f32, bf16, f16, f8, i32, u8.
  return {name,
          {widen_row<A, double>, widen_row<A, float>, widen_row<A, Bf16>, widen_row<A, F16>, widen_row<A, F8>, nullptr,
           nullptr},
          {narrow_row<A, double>, narrow_row<A, float>, narrow_row<A, Bf16>, narrow_row<A, F16>, narrow_row<A, F8>,
           nullptr, nullptr},
          R::sum,
          R::dot,
          R::squares,
          R::maximum,
          R::add,
          R::scale,
          R::add_scaled,
          R::add_product,
          R::exponentials,
          R::normalize,
          R::normalize_sums,
          R::normalize_gradient,
          R::normalize_gains,
          R::activate,
          R::activate_gradient,
          R::turn,
          R::softmax_gradient,
          R::drop,
          R::masked,
          R::adam,
          R::sgd};
}

}  // namespace

#define WT_JOIN_(a, b) a##b
#define WT_JOIN(a, b) WT_JOIN_(a, b)
#define WT_TEXT_(a) #a
#define WT_TEXT(a) WT_TEXT_(a)
extern const RowKernels<float> WT_JOIN(rows_f32_, WT_ISA);
extern const RowKernels<double> WT_JOIN(rows_f64_, WT_ISA);
constexpr RowKernels<float> WT_JOIN(rows_f32_, WT_ISA) = make_rows<float>(WT_TEXT(WT_ISA));
constexpr RowKernels<double> WT_JOIN(rows_f64_, WT_ISA) = make_rows<double>(WT_TEXT(WT_ISA));

}  // namespace wt::exec
