// Look-ups in the embedding tables and their gradients. Workers share the rows of a table, and each row is summed in the
// order of its tokens.
#include <algorithm>
#include <utility>
#include <vector>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"

namespace wt::exec {
namespace {

/// The row of the table for a token, or -1 where another rank has it.
int64_t row_of(const Job& job, int64_t token) {
  const int64_t shard = job.compute.dims[2], row = token - job.context.group_index * shard;
  return row >= 0 && row < shard ? row : -1;
}

}  // namespace

template <class A>
void embedding_forward(const Job& job) {
  const int64_t rows = job.compute.dims[0], h = job.compute.dims[1];
  const auto* tokens = static_cast<const int32_t*>(job.reads[0].data);
  const Stored<A> table(job.reads[1]), x(job.writes[0]);
  job.workers.parallel_for(rows, 1 + (1 << 14) / (h + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(h);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = row_of(job, tokens[i]);
      if (row >= 0) {
        x.close(i * h, h, table.read(row * h, h, buffer.get()));
        continue;
      }
      std::fill_n(buffer.get(), h, A(0));
      x.close(i * h, h, buffer.get());
    }
  });
}

/// Tokens of the same row are added up in A, in their order, and stored once.
template <class A>
void embedding_backward(const Job& job) {
  const int64_t h = job.compute.dims[1];
  const auto* tokens = static_cast<const int32_t*>(job.reads[1].data);
  const Stored<A> dx(job.reads[0]), table(job.writes[0]);
  std::vector<std::pair<int64_t, int64_t>> hits;  // row, place
  for (int64_t i = 0; i < job.compute.dims[0]; ++i)
    if (const int64_t row = row_of(job, tokens[i]); row >= 0) hits.emplace_back(row, i);
  std::sort(hits.begin(), hits.end());
  std::vector<size_t> first;  // of each row, among the hits
  for (size_t i = 0; i < hits.size(); ++i)
    if (i == 0 || hits[i].first != hits[i - 1].first) first.push_back(i);
  const auto rows = static_cast<int64_t>(first.size());
  first.push_back(hits.size());
  job.workers.parallel_for(rows, 1 + (1 << 14) / (h + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * h);
    for (int64_t r = begin; r < end; ++r) {
      const size_t from = first[static_cast<size_t>(r)], to = first[static_cast<size_t>(r) + 1];
      const int64_t at = hits[from].first * h;
      A* sum = table.open_and_read(at, h, buffer.get());
      for (size_t i = from; i < to; ++i)
        row_kernels<A>().add(sum, dx.read(hits[i].second * h, h, buffer.get() + h), sum, h);
      table.close(at, h, sum);
    }
  });
}

template <class A>
void position_forward(const Job& job) {
  const int64_t rows = job.compute.dims[0], h = job.compute.dims[1], batch = job.compute.dims[2];
  const Stored<A> x(job.reads[0]), table(job.reads[1]), y(job.writes[0]);
  const auto place = [&](int64_t local) {
    return plan::sequence_position(local, rows / batch, job.context.group_index, job.context.group_size);
  };
  job.workers.parallel_for(rows, 1 + (1 << 14) / (h + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(3 * h);
    for (int64_t i = begin; i < end; ++i) {
      A* out = y.open(i * h, buffer.get());
      row_kernels<A>().add(x.read(i * h, h, buffer.get() + h),
                           table.read(place(i / batch) * h, h, buffer.get() + 2 * h), out, h);
      y.close(i * h, h, out);
    }
  });
}

template <class A>
void position_backward(const Job& job) {
  const int64_t rows = job.compute.dims[0], h = job.compute.dims[1], batch = job.compute.dims[2];
  const Stored<A> dy(job.reads[0]), table(job.writes[0]);
  job.workers.parallel_for(rows / batch, 1 + (1 << 14) / (batch * h + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * h);
    for (int64_t local = begin; local < end; ++local) {
      const int64_t at =
          plan::sequence_position(local, rows / batch, job.context.group_index, job.context.group_size) * h;
      A* sum = table.open_and_read(at, h, buffer.get());
      for (int64_t b = 0; b < batch; ++b)
        row_kernels<A>().add(sum, dy.read((local * batch + b) * h, h, buffer.get() + h), sum, h);
      table.close(at, h, sum);
    }
  });
}

template void embedding_forward<float>(const Job&);
template void embedding_forward<double>(const Job&);
template void embedding_backward<float>(const Job&);
template void embedding_backward<double>(const Job&);
template void position_forward<float>(const Job&);
template void position_forward<double>(const Job&);
template void position_backward<float>(const Job&);
template void position_backward<double>(const Job&);

}  // namespace wt::exec
