// A matrix in storage and a product of two, as gemm and the parts of attention need them, on both devices.
// Not a tensor: it owns nothing. Invariant: row-major, as all operands of a plan are.
#pragma once

#include <cstdint>

#include "core/base/dtype.hpp"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// A row-major matrix in storage: row i begins at element i * stride. `transposed`: it is used as its transpose.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;
  bool transposed = false;
};

/// C[m, n] (+)= op(A)[m, k] op(B)[k, n] + bias[n]; c is not transposed.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  MatrixView a, b, c;
  const void* bias = nullptr;  // of the type of c; may be null
  bool accumulate = false;
};

/// Matrix i of an operand whose last two dims are those of matrices.
struct Matrices {
  int64_t rows = 0, columns = 0, count = 0;

  explicit Matrices(const Operand& x)
      : rows(x.shape[x.shape.size() - 2]), columns(x.shape.back()), count(x.elements / (rows * columns)) {}
  Operand of(const Operand& x, int64_t i) const {
    const int64_t elements = rows * columns;
    return {static_cast<std::byte*>(x.data) + i * elements * size_of(x.dtype), x.dtype, elements, {}};
  }
};

/// The [seq, d] part of a token matrix that begins at `column`.
inline MatrixView head_of(const Heads& a, const Operand& x, int64_t row_width, int64_t sample, int64_t column,
                          bool transposed = false) {
  std::byte* at = static_cast<std::byte*>(x.data) + (sample * row_width + column) * size_of(x.dtype);
  return {at, x.dtype, a.batch * row_width, transposed};
}

/// The [seq, seq] scores or probabilities of a head.
inline MatrixView scores_of(const Heads& a, const Operand& x, int64_t sample, int64_t head, bool transposed = false) {
  return {static_cast<std::byte*>(x.data) + a.query(sample, head, 0) * a.seq * size_of(x.dtype), x.dtype, a.seq,
          transposed};
}

}  // namespace wt::exec
