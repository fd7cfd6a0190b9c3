// Columns made orthonormal one after the other (modified Gram-Schmidt), as PowerSGD does between its two products. The
// matrix is tall and has few columns: one worker sums each dot product in the order of the rows, in double.
#include <cmath>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"

namespace wt::exec {

template <class A>
void orthogonalize(const Job& job) {
  const int64_t rows = job.compute.dims[0], columns = job.compute.dims[1];
  const Stored<A> in(job.reads[0]), out(job.writes[0]);
  std::vector<double> x(static_cast<size_t>(rows * columns));
  const auto at = [&](int64_t i, int64_t j) -> double& { return x[static_cast<size_t>(i * columns + j)]; };
  for (int64_t i = 0; i < rows * columns; ++i) x[static_cast<size_t>(i)] = static_cast<double>(in.get(i));
  for (int64_t j = 0; j < columns; ++j) {
    double square = 0;
    for (int64_t i = 0; i < rows; ++i) square += at(i, j) * at(i, j);
    const double inverse = 1 / std::sqrt(square);
    for (int64_t i = 0; i < rows; ++i) at(i, j) *= inverse;
    for (int64_t other = j + 1; other < columns; ++other) {
      double dot = 0;
      for (int64_t i = 0; i < rows; ++i) dot += at(i, j) * at(i, other);
      for (int64_t i = 0; i < rows; ++i) at(i, other) -= dot * at(i, j);
    }
  }
  for (int64_t i = 0; i < rows * columns; ++i) out.put(i, static_cast<A>(x[static_cast<size_t>(i)]));
}

template void orthogonalize<float>(const Job&);
template void orthogonalize<double>(const Job&);

}  // namespace wt::exec
