// Columns made orthonormal: their products are the identity, and what they span holds the columns that were given.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "exec/kernels/cpu/run.hpp"
#include "exec/kernels/cpu/workers.hpp"

namespace wt::exec {
namespace {

TEST(Orthogonalize, ColumnsAreOrthonormalAndSpanTheSame) {
  const int64_t rows = 37, columns = 4;
  std::vector<double> x(static_cast<size_t>(rows * columns)), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i * i + 1));
  plan::Compute c;
  c.kernel = plan::Kernel::orthogonalize;
  c.dtype = DType::f64;
  c.dims = {rows, columns};
  const auto operand = [&](std::vector<double>& v) { return Operand{v.data(), DType::f64, rows * columns, {}}; };
  const Operand reads[] = {operand(x)}, writes[] = {operand(y)};
  InlineWorkers workers;
  const Status done = run_cpu_kernel(c, reads, writes, {}, workers);
  ASSERT_TRUE(done) << to_text(done.errors());
  const auto dot = [&](const std::vector<double>& a, int64_t i, const std::vector<double>& b, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < rows; ++k)
      sum += a[static_cast<size_t>(k * columns + i)] * b[static_cast<size_t>(k * columns + j)];
    return sum;
  };
  for (int64_t i = 0; i < columns; ++i)
    for (int64_t j = 0; j < columns; ++j) EXPECT_NEAR(dot(y, i, y, j), i == j ? 1 : 0, 1e-12);
  for (int64_t j = 0; j < columns; ++j) {  // nothing of a column is left outside
    double square = dot(x, j, x, j);
    for (int64_t i = 0; i < columns; ++i) square -= dot(y, i, x, j) * dot(y, i, x, j);
    EXPECT_NEAR(square, 0, 1e-9);
  }
}

}  // namespace
}  // namespace wt::exec
