// gemm: the library's product, cut among the workers along the longer side of C. `pieces` is how a device may pipeline
// it; here the op is one.
#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/product.hpp"
#include "exec/kernels/cpu/storage.hpp"

namespace wt::exec {
namespace {

void* element(const MatrixView& x, int64_t row, int64_t column) {
  const int64_t at = x.transposed ? column * x.stride + row : row * x.stride + column;
  return static_cast<std::byte*>(x.data) + at * size_of(x.dtype);
}

void multiply_in_parts(const Product& p, Workers& workers) {
  constexpr int64_t kUnit = 32;  // rows or columns that a part is made of: whole register tiles of the library
  const bool by_rows = p.m >= p.n;
  const int64_t units = ((by_rows ? p.m : p.n) + kUnit - 1) / kUnit;
  const int64_t grain = (units + workers.count() - 1) / workers.count();
  workers.parallel_for(units, grain, [&](int64_t begin, int64_t end) {
    Product part = p;
    const int64_t first = begin * kUnit;
    if (by_rows) {
      part.m = std::min(end * kUnit, p.m) - first;
      part.a.data = element(p.a, first, 0);
      part.c.data = element(p.c, first, 0);
    } else {
      part.n = std::min(end * kUnit, p.n) - first;
      part.b.data = element(p.b, 0, first);
      part.c.data = element(p.c, 0, first);
      if (p.bias != nullptr) part.bias = static_cast<const std::byte*>(p.bias) + first * size_of(p.c.dtype);
    }
    multiply(part);
  });
}

/// The operand as it is, or a copy of it in A.
template <class A>
Operand widened(const Operand& x, bool copy, std::unique_ptr<A[]>& buffer, Workers& workers) {
  if (!copy) return x;
  buffer = buffer_of<A>(x.elements);
  const Stored<A> from(x);
  workers.parallel_for(x.elements, 1 << 14, [&](int64_t begin, int64_t end) {
    const A* values = from.read(begin, end - begin, buffer.get() + begin);
    if (from.direct()) std::copy(values, values + (end - begin), buffer.get() + begin);
  });
  Operand y = x;
  y.data = buffer.get();
  y.dtype = kDTypeOf<A>;
  return y;
}

}  // namespace

template <class A>
void gemm(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2];
  const bool native = multiplies(job.reads[0].dtype, job.reads[1].dtype, job.writes[0].dtype);
  std::unique_ptr<A[]> buffers[4];
  auto take = [&](const Operand& x, int i) {
    return widened<A>(x, !native && x.dtype != kDTypeOf<A>, buffers[i], job.workers);
  };
  const Operand a = take(job.reads[0], 0), b = take(job.reads[1], 1), out = take(job.writes[0], 2);
  Product p{m,
            n,
            k,
            {a.data, a.dtype, c.transpose_a ? m : k, c.transpose_a},
            {b.data, b.dtype, c.transpose_b ? k : n, c.transpose_b},
            {out.data, out.dtype, n, false},
            nullptr,
            c.accumulate};
  if (job.reads.size() > 2) {
    const Operand& bias = job.reads[2];
    if (bias.dtype == out.dtype) {
      p.bias = bias.data;
    } else {  // n elements: in the type of C
      buffers[3] = buffer_of<A>(n);
      const Operand converted{buffers[3].get(), out.dtype, n, {}};
      for (int64_t j = 0; j < n; ++j) Stored<A>(converted).put(j, Stored<A>(bias).get(j));
      p.bias = converted.data;
    }
  }
  multiply_in_parts(p, job.workers);
  if (out.data != job.writes[0].data) {
    const Stored<A> to(job.writes[0]);
    const A* from = buffers[2].get();
    job.workers.parallel_for(m * n, 1 << 14,
                             [&](int64_t begin, int64_t end) { to.close(begin, end - begin, from + begin); });
  }
}

template void gemm<float>(const Job&);
template void gemm<double>(const Job&);

}  // namespace wt::exec
