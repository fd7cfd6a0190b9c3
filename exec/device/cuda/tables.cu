// Embedding tables and their gradients on CUDA. A row that several tokens hit is summed by the block of its first token,
// in their order: no atomics, the same bits every time. Each block reads the token numbers, which stay in L2.
#include "exec/device/cuda/kernels.cuh"

namespace wt::exec::cuda {

using plan::Kernel;

namespace {

/// Adds to the row of the table those rows of dx, from row i on, that have its token: kColumns columns a thread at once.
template <class A>
__device__ void sum_row(const int32_t* tokens, int32_t token, int64_t i, int64_t rows, View dx, View table, int64_t row,
                        int64_t h) {
  constexpr int kColumns = 8;
  __shared__ unsigned hits[kThreads / 32];  // of 256 tokens, a bit each
  for (int64_t column = threadIdx.x; column - threadIdx.x < h; column += kColumns * kThreads) {
    A sum[kColumns] = {};
    for (int64_t from = i; from < rows; from += kThreads) {
      const int64_t mine = from + threadIdx.x;
      const unsigned found = __ballot_sync(0xffffffffu, mine < rows && tokens[mine] == token);
      if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = found;
      __syncthreads();
      for (int w = 0; w < kThreads / 32; ++w)
        for (unsigned left = hits[w]; left != 0; left &= left - 1) {
          const int64_t at = (from + w * 32 + __ffs(static_cast<int>(left)) - 1) * h;
          for (int c = 0; c < kColumns; ++c)
            if (column + c * kThreads < h) sum[c] += dx.get<A>(at + column + c * kThreads);
        }
      __syncthreads();
    }
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = row * h + column + c * kThreads;
      if (column + c * kThreads < h) table.put(at, table.get<A>(at) + sum[c]);
    }
  }
}

}  // namespace

template <class A>
void tables(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], h = c.dims[1];
  switch (c.kernel) {
    case Kernel::embedding_forward: {
      const auto* tokens = static_cast<const int32_t*>(job.reads[0].data);
      const View table(job.reads[1]), x(job.writes[0]);
      const int64_t shard = c.dims[2], first = job.context.group_index * shard;
      return each(rows * h, job.stream, [=] __device__(int64_t at) {
        const int64_t row = tokens[at / h] - first;
        x.put(at, row >= 0 && row < shard ? table.get<A>(row * h + at % h) : A(0));
      });
    }
    case Kernel::embedding_backward: {
      const auto* tokens = static_cast<const int32_t*>(job.reads[1].data);
      const View dx(job.reads[0]), table(job.writes[0]);
      const int64_t shard = c.dims[2], first = job.context.group_index * shard;
      return each_row(rows, job.stream, [=] __device__(int64_t i) {
        const int32_t token = tokens[i];
        const int64_t row = token - first;
        if (row < 0 || row >= shard) return;  // the same for the whole block
        int seen_before = 0;
        for (int64_t j = threadIdx.x; j < i; j += kThreads) seen_before |= tokens[j] == token;
        if (__syncthreads_or(seen_before)) return;
        sum_row<A>(tokens, token, i, rows, dx, table, row, h);
      });
    }
    case Kernel::position_forward: {
      const View x(job.reads[0]), table(job.reads[1]), y(job.writes[0]);
      const int64_t batch = c.dims[2], index = job.context.group_index, ranks = job.context.group_size;
      return each(rows * h, job.stream, [=] __device__(int64_t at) {
        const int64_t position = plan::sequence_position(at / h / batch, rows / batch, index, ranks);
        y.put(at, x.get<A>(at) + table.get<A>(position * h + at % h));
      });
    }
    default: {  // position_backward
      const View dy(job.reads[0]), table(job.writes[0]);
      const int64_t batch = c.dims[2], index = job.context.group_index, ranks = job.context.group_size;
      each(rows / batch * h, job.stream, [=] __device__(int64_t at) {
        const int64_t to = plan::sequence_position(at / h, rows / batch, index, ranks) * h + at % h;
        A sum = table.get<A>(to);
        for (int64_t b = 0; b < batch; ++b) sum += dy.get<A>((at / h * batch + b) * h + at % h);
        table.put(to, sum);
      });
    }
  }
}

template void tables<float>(const Job&);
template void tables<double>(const Job&);

}  // namespace wt::exec::cuda
