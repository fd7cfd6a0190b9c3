// The inner loops of the CPU kernels: what is done to one contiguous run of elements, compiled once for each instruction
// set and chosen when the program starts. Not kernels of a plan: they know neither storage types nor dims.
// Invariant: element i of an output depends on element i of the inputs alone, so an output may be its input.
#pragma once

#include <cstdint>
#include <span>

#include "exec/kernels/math.hpp"

namespace wt::exec {

template <class A>
struct RowKernels {
  const char* name;

  // By DType of the storage; null where it is none of the floats.
  void (*widen[7])(const void* x, A* y, int64_t n);
  void (*narrow[7])(const A* x, void* y, int64_t n);

  A (*sum)(const A* x, int64_t n);
  A (*dot)(const A* x, const A* y, int64_t n);
  A (*squares)(const A* x, A mean, int64_t n);  // of x - mean
  A (*maximum)(const A* x, int64_t n);          // -infinity of nothing

  void (*add)(const A* x, const A* y, A* z, int64_t n);
  void (*scale)(A factor, const A* x, A* y, int64_t n);
  void (*add_scaled)(A factor, const A* x, A* y, int64_t n);         // y += factor x
  void (*add_product)(const A* x, const A* y, A* z, int64_t n);      // z += x y
  A (*exponentials)(A factor, const A* x, A less, A* y, int64_t n);  // y = exp(factor x - less); their sum

  // y = (x - mean) inverse gamma + beta; beta may be null.
  void (*normalize)(const A* x, A mean, A inverse, const A* gamma, const A* beta, A* y, int64_t n);
  // With g = dy gamma and z = (x - mean) inverse: the sums of g and of g z; then dx = (g - sum - z dot) inverse.
  void (*normalize_sums)(const A* dy, const A* x, const A* gamma, A mean, A inverse, A* sum, A* dot, int64_t n);
  void (*normalize_gradient)(const A* dy, const A* x, const A* gamma, A mean, A inverse, A sum, A dot, A* dx,
                             int64_t n);
  // dgamma += dy z, dbeta += dy; dbeta may be null.
  void (*normalize_gains)(const A* dy, const A* x, A mean, A inverse, A* dgamma, A* dbeta, int64_t n);

  // up (the gated half) may be null, then so is d_up.
  void (*activate)(ActivationKind, const A* x, const A* up, A* y, int64_t n);
  void (*activate_gradient)(ActivationKind, const A* dy, const A* x, const A* up, A* dx, A* d_up, int64_t n);

  void (*turn)(const A* cosine, const A* sine, A sign, A* x, A* y, int64_t n);
  // dS = P (dP - mean) factor
  void (*softmax_gradient)(const A* p, const A* dp, A mean, A factor, A* ds, int64_t n);

  void (*drop)(uint64_t key, uint64_t first, float probability, const A* x, A* y, uint8_t* mask, int64_t n);
  void (*masked)(const uint8_t* mask, A factor, const A* x, A* y, int64_t n);

  void (*adam)(const UpdateRule<A>&, const A* g, const A* w, const A* m, const A* v, A* w_out, A* m_out, A* v_out,
               int64_t n);
  void (*sgd)(const UpdateRule<A>&, const A* g, const A* w, A* w_out, int64_t n);
};

/// Those that this processor can run, the best last.
template <class A>
std::span<const RowKernels<A>* const> runnable_row_kernels();

template <class A>
const RowKernels<A>& row_kernels() {
  static const RowKernels<A>& best = *runnable_row_kernels<A>().back();
  return best;
}

}  // namespace wt::exec
