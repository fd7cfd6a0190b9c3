// What ranks that share sequences do around their attention on CUDA: parts of rows brought together and apart, partial results
// merged. Not the attention itself (attention.cu) and not the exchange (a collective). Each output element is one read.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

template <class A>
void merge(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const View part(job.reads[0]), part_lse(job.reads[1]), out(job.reads[2]), lse(job.reads[3]), to(job.writes[0]),
      to_lse(job.writes[1]);
  // A block a row: lse may be written where it is read, so all threads have read it before one writes.
  each_row(a.tokens() * a.heads, job.stream, [=] __device__(int64_t row) {
    const int64_t token = row / a.heads, query = a.query(token % a.batch, row % a.heads, token / a.batch);
    const A x = part_lse.get<A>(query), y = lse.get<A>(query), most = x > y ? x : y;
    const A both = most + A(log(exp(x - most) + exp(y - most)));
    const A share_x = exp(x - both), share_y = exp(y - both);
    __syncthreads();
    for (int64_t i = row * a.d + threadIdx.x; i < (row + 1) * a.d; i += kThreads)
      to.put(i, share_x * part.get<A>(i) + share_y * out.get<A>(i));
    if (threadIdx.x == 0) to_lse.put(query, both);
  });
}

/// qkv to q and kv, or the way back.
template <class T>
void reorder_qkv(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const bool split = job.compute.kernel == Kernel::split_qkv;
  const auto all = split ? job.reads : job.writes, apart = split ? job.writes : job.reads;
  auto* const whole = static_cast<T*>(all[0].data);
  auto* const q = static_cast<T*>(apart[0].data);
  auto* const kv = static_cast<T*>(apart[1].data);
  const int64_t queries = a.share() * a.d, group = queries + 2 * a.d;
  each(a.tokens() * a.kv_heads * group, job.stream, [=] __device__(int64_t at) {
    const int64_t i = at / group, j = at % group;
    T& alone = j < queries ? q[i * queries + j] : kv[i * 2 * a.d + j - queries];
    (split ? alone : whole[at]) = split ? whole[at] : alone;
  });
}

/// Rows of `columns` elements change places: y[i] = x[from(i)].
template <class T, class F>
void move_rows(const Job& job, int64_t rows, int64_t columns, F from) {
  const auto* x = static_cast<const T*>(job.reads[0].data);
  auto* y = static_cast<T*>(job.writes[0].data);
  each(rows * columns, job.stream,
       [=] __device__(int64_t at) { y[at] = x[from(at / columns) * columns + at % columns]; });
}

template <class T>
void reorder(const Job& job) {
  const int64_t rows = job.compute.dims[0], columns = job.compute.dims[1], batch = job.compute.dims[2];
  const int64_t members = job.context.group_size;
  switch (job.compute.kernel) {
    case Kernel::split_columns:
      return move_rows<T>(job, rows * members, columns,
                          [=] __device__(int64_t i) { return i % rows * members + i / rows; });
    case Kernel::deal_sequence:
      return move_rows<T>(job, rows * members, columns, [=] __device__(int64_t i) {
        const int64_t local = i % rows;
        return plan::sequence_position(local / batch, rows / batch, i / rows, members) * batch + local % batch;
      });
    case Kernel::gather_sequence: {
      const auto* x = static_cast<const T*>(job.reads[0].data);
      auto* y = static_cast<T*>(job.writes[0].data);
      return each(rows * members * columns, job.stream, [=] __device__(int64_t at) {
        const int64_t i = at / columns, local = i % rows;
        const int64_t place =
            plan::sequence_position(local / batch, rows / batch, i / rows, members) * batch + local % batch;
        y[place * columns + at % columns] = x[at];
      });
    }
    default: return reorder_qkv<T>(job);
  }
}

}  // namespace

template <class A>
void context(const Job& job) {
  if (job.compute.kernel == Kernel::merge_attention) return merge<A>(job);
  switch (size_of(job.reads[0].dtype)) {
    case 8: return reorder<uint64_t>(job);
    case 4: return reorder<uint32_t>(job);
    case 2: return reorder<uint16_t>(job);
    default: return reorder<uint8_t>(job);
  }
}

template void context<float>(const Job&);
template void context<double>(const Job&);

}  // namespace wt::exec::cuda
