// Cross-entropy over a vocabulary shard on CUDA: a block for each token; the mean in double by one block.
#include <limits>

#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"

namespace wt::exec::cuda {

using plan::Kernel;

template <class A>
void losses(const Job& job) {
  const Vocabulary v = Vocabulary::of(job.compute, job.context.group_index);
  const View first(job.reads[0]), y(job.writes[0]);
  const double rows = job.compute.scalar > 0 ? job.compute.scalar : 1;  // of the micro-batch's tokens
  const double share = rows / (static_cast<double>(v.rows) * static_cast<double>(job.context.micro_batches));
  switch (job.compute.kernel) {
    case Kernel::loss_max:
      return each_row(v.rows, job.stream, [=] __device__(int64_t i) {
        A most = -std::numeric_limits<A>::infinity();
        for (int64_t j = threadIdx.x; j < v.real; j += kThreads)
          most = Largest{}(most, first.get<A>(i * v.columns + j));
        most = over_block(most, Largest{});
        if (threadIdx.x == 0) y.put(i, most);
      });
    case Kernel::loss_sums: {
      const View most(job.reads[1]);
      const auto* labels = static_cast<const int32_t*>(job.reads[2].data);
      return each_row(v.rows, job.stream, [=] __device__(int64_t i) {
        const A less = most.get<A>(i);
        A sum = 0;
        for (int64_t j = threadIdx.x; j < v.real; j += kThreads)
          sum += exponential(first.get<A>(i * v.columns + j) - less);
        sum = over_block(sum, Sum{});
        if (threadIdx.x != 0) return;
        const int64_t label = labels[i] - v.first;
        y.put(i, sum);
        y.put(v.rows + i, label >= 0 && label < v.real ? first.get<A>(i * v.columns + label) : A(0));
      });
    }
    case Kernel::loss_forward: {
      const View most(job.reads[1]);
      return each_row(1, job.stream, [=] __device__(int64_t) {
        double sum = 0;
        for (int64_t i = threadIdx.x; i < v.rows; i += kThreads)
          sum += log(first.get<double>(i)) + most.get<double>(i) - first.get<double>(v.rows + i);
        sum = over_block(sum, Sum{});
        if (threadIdx.x == 0) y.put(0, y.get<double>(0) + share * sum);
      });
    }
    default: {  // loss_backward
      const View most(job.reads[1]), sums(job.reads[2]);
      const auto* labels = static_cast<const int32_t*>(job.reads[3].data);
      const double loss_scale = job.context.values != nullptr ? job.context.values->loss_scale : 1.0;
      const A each_token = static_cast<A>(share * loss_scale);
      each(v.rows * v.columns, job.stream, [=] __device__(int64_t at) {
        const int64_t i = at / v.columns, j = at % v.columns;
        A d = j < v.real ? exponential(first.get<A>(at) - most.get<A>(i)) / sums.get<A>(i) : A(0);
        if (j < v.real && j == labels[i] - v.first) d -= A(1);
        y.put(at, each_token * d);
      });
    }
  }
}

template void losses<float>(const Job&);
template void losses<double>(const Job&);

}  // namespace wt::exec::cuda
