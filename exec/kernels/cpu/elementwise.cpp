// Kernels that treat elements or rows one by one: activations, residual sums, dropout, sums, scaling, casts, copies.
// In place is allowed wherever an output has the shape of an input.
#include <algorithm>
#include <cstring>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/matrix.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kRun = 2048;       // elements treated at once: buffers of it stay in the first cache
constexpr int64_t kGrain = 1 << 14;  // elements worth another worker

/// Calls f(first, n) for runs of at most kRun elements that together are [0, elements).
template <class F>
void each_run(Workers& workers, int64_t elements, F f) {
  workers.parallel_for(elements, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kRun) f(at, std::min(kRun, end - at));
  });
}

/// Calls f(row, first column, n) for runs of at most kRun columns of every row.
template <class F>
void each_row_run(Workers& workers, int64_t rows, int64_t columns, F f) {
  workers.parallel_for(rows, 1 + kGrain / (columns + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < columns; j += kRun) f(i, j, std::min(kRun, columns - j));
  });
}

/// x with its bias, if there is one: of columns [column, column + n).
template <class A>
const A* biased(const Job& job, size_t bias, const A* x, int64_t column, int64_t n, A* buffer, A* sum) {
  if (job.reads.size() <= bias) return x;
  row_kernels<A>().add(x, Stored<A>(job.reads[bias]).read(column, n, buffer), sum, n);
  return sum;
}

}  // namespace

template <class A>
void activation_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], f = c.dims[1], wide = c.gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  each_row_run(job.workers, rows, f, [&](int64_t i, int64_t j, int64_t n) {
    A in[kRun], gate[kRun], up[kRun], up_sum[kRun], bias[kRun], out[kRun];
    const A* g = biased(job, 1, x.read(i * wide + j, n, in), j, n, bias, gate);
    const A* u = c.gated ? biased(job, 1, x.read(i * wide + f + j, n, up), f + j, n, bias, up_sum) : nullptr;
    A* to = y.open(i * f + j, out);
    row_kernels<A>().activate(kind, g, u, to, n);
    y.close(i * f + j, n, to);
  });
}

template <class A>
void activation_backward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], f = c.dims[1], wide = c.gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  const Stored<A> dy(job.reads[0]), x(job.reads[1]), dx(job.writes[0]);
  each_row_run(job.workers, rows, f, [&](int64_t i, int64_t j, int64_t n) {
    A in[kRun], gate[kRun], up[kRun], up_sum[kRun], bias[kRun], d[kRun], d_gate[kRun], d_up[kRun];
    const int64_t first = i * wide + j, second = first + f;
    const A* g = biased(job, 2, x.read(first, n, in), j, n, bias, gate);
    const A* u = c.gated ? biased(job, 2, x.read(second, n, up), f + j, n, bias, up_sum) : nullptr;
    A* to = dx.open(first, d_gate);
    A* to_up = c.gated ? dx.open(second, d_up) : nullptr;
    row_kernels<A>().activate_gradient(kind, dy.read(i * f + j, n, d), g, u, to, to_up, n);
    dx.close(first, n, to);
    if (c.gated) dx.close(second, n, to_up);
  });
}

template <class A>
void residual_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], h = c.dims[1];
  const bool drops = job.writes.size() > 1;
  const Stored<A> x(job.reads[0]), residual(job.reads[1]), y(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  each_row_run(job.workers, rows, h, [&](int64_t i, int64_t j, int64_t n) {
    A in[kRun], sum[kRun], bias[kRun], dropped[kRun], old[kRun], out[kRun];
    const int64_t at = i * h + j;
    const A* branch = biased(job, 2, x.read(at, n, in), j, n, bias, sum);
    if (drops) {
      k.drop(job.context.random_key, static_cast<uint64_t>(at), static_cast<float>(c.scalar), branch, dropped,
             static_cast<uint8_t*>(job.writes[1].data) + at, n);
      branch = dropped;
    }
    A* to = y.open(at, out);
    k.add(branch, residual.read(at, n, old), to, n);
    y.close(at, n, to);
  });
}

template <class A>
void dropout_forward(const Job& job) {
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  auto* mask = static_cast<uint8_t*>(job.writes[1].data);
  each_run(job.workers, job.reads[0].elements, [&](int64_t at, int64_t n) {
    A in[kRun], out[kRun];
    A* to = y.open(at, out);
    row_kernels<A>().drop(job.context.random_key, static_cast<uint64_t>(at), static_cast<float>(job.compute.scalar),
                          x.read(at, n, in), to, mask + at, n);
    y.close(at, n, to);
  });
}

/// Of a dropout and of the dropout in a residual sum; without a mask there was none.
template <class A>
void dropout_backward(const Job& job) {
  const Stored<A> dy(job.reads[0]), dx(job.writes[0]);
  const bool dropped = job.reads.size() > 1;
  const uint8_t* mask = dropped ? static_cast<const uint8_t*>(job.reads[1].data) : nullptr;
  const A factor = A(1) / (A(1) - static_cast<A>(static_cast<float>(job.compute.scalar)));
  each_run(job.workers, job.reads[0].elements, [&](int64_t at, int64_t n) {
    A in[kRun], out[kRun];
    A* to = dx.open(at, out);
    const A* from = dy.read(at, n, in);
    if (dropped)
      row_kernels<A>().masked(mask + at, factor, from, to, n);
    else
      row_kernels<A>().scale(A(1), from, to, n);
    dx.close(at, n, to);
  });
}

template <class A>
void add(const Job& job) {
  const Stored<A> a(job.reads[0]), b(job.reads[1]), c(job.writes[0]);
  each_run(job.workers, job.reads[0].elements, [&](int64_t at, int64_t n) {
    A x[kRun], y[kRun], out[kRun];
    A* to = c.open(at, out);
    row_kernels<A>().add(a.read(at, n, x), b.read(at, n, y), to, n);
    c.close(at, n, to);
  });
}

template <class A>
void scale(const Job& job) {
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  const A factor = static_cast<A>(job.compute.scalar);
  each_run(job.workers, job.reads[0].elements, [&](int64_t at, int64_t n) {
    A in[kRun], out[kRun];
    A* to = y.open(at, out);
    row_kernels<A>().scale(factor, x.read(at, n, in), to, n);
    y.close(at, n, to);
  });
}

namespace {

/// Runs of rows of x become columns of y. Tiles keep both sides in the first cache.
template <class A>
void transpose_to(const Operand& from, const Operand& to, int64_t m, int64_t n, Workers& workers) {
  constexpr int64_t kTile = 32;
  const Stored<A> x(from), y(to);
  workers.parallel_for((n + kTile - 1) / kTile, 1 + kGrain / (kTile * m + 1), [&](int64_t begin, int64_t end) {
    A in[kTile], turned[kTile][kTile];
    for (int64_t j = begin * kTile; j < std::min(end * kTile, n); j += kTile)
      for (int64_t i = 0; i < m; i += kTile) {
        const int64_t columns = std::min(kTile, n - j), rows = std::min(kTile, m - i);
        for (int64_t r = 0; r < rows; ++r) {
          const A* row = x.read((i + r) * n + j, columns, in);
          for (int64_t q = 0; q < columns; ++q) turned[q][r] = row[q];
        }
        for (int64_t q = 0; q < columns; ++q) y.close((j + q) * m + i, rows, turned[q]);
      }
  });
}

}  // namespace

template <class A>
void transpose(const Job& job) {
  transpose_to<A>(job.reads[0], job.writes[0], job.compute.dims[0], job.compute.dims[1], job.workers);
}

/// The second output of a cast to 8 bits is the transposed copy, of each expert's matrix.
template <class A>
void cast(const Job& job) {
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  each_run(job.workers, job.reads[0].elements, [&](int64_t at, int64_t n) {
    A in[kRun];
    y.close(at, n, x.read(at, n, in));
  });
  if (job.writes.size() > 1) {
    const Matrices all(job.reads[0]);
    for (int64_t i = 0; i < all.count; ++i)
      transpose_to<A>(all.of(job.reads[0], i), all.of(job.writes[1], i), all.rows, all.columns, job.workers);
  }
}

void fill_zero(const Job& job) {
  for (const Operand& x : job.writes)
    job.workers.parallel_for(x.bytes(), kGrain, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<std::byte*>(x.data) + begin, 0, static_cast<size_t>(end - begin));
    });
}

/// With a group, y is this rank's piece of x. The same memory on both sides is a copy already.
void copy(const Job& job) {
  for (size_t i = 0; i < job.reads.size(); ++i) {
    const Operand &x = job.reads[i], &y = job.writes[i];
    const Operand piece{static_cast<std::byte*>(x.data) + job.context.group_index * y.elements * size_of(x.dtype),
                        x.dtype,
                        y.elements,
                        {}};
    if (piece.data == y.data && x.dtype == y.dtype) continue;
    if (x.dtype != y.dtype) {
      const Operand from[] = {piece}, to[] = {y};
      const Job one{job.compute, from, to, job.context, job.workers};
      in_double(from, to) ? cast<double>(one) : cast<float>(one);
      continue;
    }
    job.workers.parallel_for(y.bytes(), kGrain, [&](int64_t begin, int64_t end) {
      std::memmove(static_cast<std::byte*>(y.data) + begin, static_cast<const std::byte*>(piece.data) + begin,
                   static_cast<size_t>(end - begin));
    });
  }
}

namespace {

/// Row i of the block that begins at `from` + i `from_pitch` bytes goes to `to` + i `to_pitch`.
void copy_rows(Workers& workers, const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
               int64_t rows, int64_t row) {
  workers.parallel_for(rows, 1 + kGrain / (row + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(to + i * to_pitch, from + i * from_pitch, static_cast<size_t>(row));
  });
}

}  // namespace

void concat_columns(const Job& job) {
  const int64_t rows = job.compute.dims[0], row = job.compute.dims[1] * size_of(job.writes[0].dtype);
  const int64_t pieces = job.context.group_size;
  const auto* x = static_cast<const std::byte*>(job.reads[0].data);
  auto* y = static_cast<std::byte*>(job.writes[0].data);
  for (int64_t g = 0; g < pieces; ++g)
    copy_rows(job.workers, x + g * rows * row, row, y + g * row, pieces * row, rows, row);
}

void slice_columns(const Job& job) {
  const int64_t row = job.compute.dims[1] * size_of(job.writes[0].dtype);
  const auto* x = static_cast<const std::byte*>(job.reads[0].data);
  copy_rows(job.workers, x + job.context.group_index * row, job.context.group_size * row,
            static_cast<std::byte*>(job.writes[0].data), row, job.compute.dims[0], row);
}

template void activation_forward<float>(const Job&);
template void activation_forward<double>(const Job&);
template void activation_backward<float>(const Job&);
template void activation_backward<double>(const Job&);
template void residual_forward<float>(const Job&);
template void residual_forward<double>(const Job&);
template void dropout_forward<float>(const Job&);
template void dropout_forward<double>(const Job&);
template void dropout_backward<float>(const Job&);
template void dropout_backward<double>(const Job&);
template void add<float>(const Job&);
template void add<double>(const Job&);
template void scale<float>(const Job&);
template void scale<double>(const Job&);
template void cast<float>(const Job&);
template void cast<double>(const Job&);
template void transpose<float>(const Job&);
template void transpose<double>(const Job&);

}  // namespace wt::exec
