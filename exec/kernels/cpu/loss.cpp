// Cross-entropy over a vocabulary that may be cut among ranks: the maximum and the sums of each token here, their
// reduction over ranks is the plan's. Columns beyond the model's vocabulary are padding: no term of any sum.
#include <limits>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kRun = 4096;  // columns at once

int64_t row_grain(int64_t columns) { return 1 + (1 << 14) / (columns + 1); }

/// One token's part of the mean over the tokens and micro-batches of a step.
double share_of(const Job& job) {
  const double rows = job.compute.scalar > 0 ? job.compute.scalar : 1;  // of the micro-batch's tokens
  return rows / (static_cast<double>(job.compute.dims[0]) * static_cast<double>(job.context.micro_batches));
}

}  // namespace

template <class A>
void loss_max(const Job& job) {
  const Vocabulary v = Vocabulary::of(job.compute, job.context.group_index);
  const Stored<A> logits(job.reads[0]), most(job.writes[0]);
  job.workers.parallel_for(v.rows, row_grain(v.columns), [&](int64_t begin, int64_t end) {
    A buffer[kRun];
    for (int64_t i = begin; i < end; ++i) {
      A found = -std::numeric_limits<A>::infinity();
      for (int64_t j = 0; j < v.real; j += kRun) {
        const int64_t n = std::min(kRun, v.real - j);
        found = std::max(found, row_kernels<A>().maximum(logits.read(i * v.columns + j, n, buffer), n));
      }
      most.put(i, found);
    }
  });
}

template <class A>
void loss_sums(const Job& job) {
  const Vocabulary v = Vocabulary::of(job.compute, job.context.group_index);
  const Stored<A> logits(job.reads[0]), most(job.reads[1]), sums(job.writes[0]);
  const auto* labels = static_cast<const int32_t*>(job.reads[2].data);
  job.workers.parallel_for(v.rows, row_grain(v.columns), [&](int64_t begin, int64_t end) {
    A buffer[kRun], exponentials[kRun];
    for (int64_t i = begin; i < end; ++i) {
      const A less = most.get(i);
      A sum = 0;
      for (int64_t j = 0; j < v.real; j += kRun) {
        const int64_t n = std::min(kRun, v.real - j);
        sum += row_kernels<A>().exponentials(A(1), logits.read(i * v.columns + j, n, buffer), less, exponentials, n);
      }
      const int64_t label = labels[i] - v.first;
      sums.put(i, sum);
      sums.put(v.rows + i, label >= 0 && label < v.real ? logits.get(i * v.columns + label) : A(0));
    }
  });
}

/// Few numbers: summed in double, by the caller.
template <class A>
void loss_forward(const Job& job) {
  const int64_t rows = job.compute.dims[0];
  const Stored<double> sums(job.reads[0]), most(job.reads[1]), loss(job.writes[0]);
  double total = 0;
  for (int64_t i = 0; i < rows; ++i) total += std::log(sums.get(i)) + most.get(i) - sums.get(rows + i);
  loss.put(0, loss.get(0) + share_of(job) * total);
}

template <class A>
void loss_backward(const Job& job) {
  const Vocabulary v = Vocabulary::of(job.compute, job.context.group_index);
  const Stored<A> logits(job.reads[0]), most(job.reads[1]), sums(job.reads[2]), d_logits(job.writes[0]);
  const auto* labels = static_cast<const int32_t*>(job.reads[3].data);
  const double loss_scale = job.context.values != nullptr ? job.context.values->loss_scale : 1.0;
  const A share = static_cast<A>(share_of(job) * loss_scale);
  job.workers.parallel_for(v.rows, row_grain(v.columns), [&](int64_t begin, int64_t end) {
    A buffer[kRun], out[kRun];
    for (int64_t i = begin; i < end; ++i) {
      const A less = most.get(i), factor = share / sums.get(i);
      const int64_t label = labels[i] - v.first;
      for (int64_t j = 0; j < v.columns; j += kRun) {
        const int64_t n = std::min(kRun, v.columns - j), real = std::clamp<int64_t>(v.real - j, 0, n);
        const A* x = logits.read(i * v.columns + j, n, buffer);
        A* to = d_logits.open(i * v.columns + j, out);
        row_kernels<A>().exponentials(A(1), x, less, to, real);
        row_kernels<A>().scale(factor, to, to, real);
        std::fill(to + real, to + n, A(0));
        if (label >= j && label < j + real) to[label - j] -= share;
        d_logits.close(i * v.columns + j, n, to);
      }
    }
  });
}

template void loss_max<float>(const Job&);
template void loss_max<double>(const Job&);
template void loss_sums<float>(const Job&);
template void loss_sums<double>(const Job&);
template void loss_forward<float>(const Job&);
template void loss_forward<double>(const Job&);
template void loss_backward<float>(const Job&);
template void loss_backward<double>(const Job&);

}  // namespace wt::exec
