// The gradient norm and the updates. Gradients carry the loss scale: both divide by it.
#include <algorithm>
#include <vector>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/update_rule.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kRun = 2048;
constexpr int64_t kGrain = 1 << 14;

/// Sum of squares of elements [begin, end) of x: runs of kRun in A, runs added up in double in their order.
template <class A>
double squares_of(const Operand& operand, int64_t begin, int64_t end, Workers& workers) {
  if (end <= begin) return 0;
  const Stored<A> x(operand);
  const int64_t runs = (end - begin + kRun - 1) / kRun;
  std::vector<double> sums(static_cast<size_t>(runs));
  workers.parallel_for(runs, kGrain / kRun, [&](int64_t first, int64_t last) {
    A buffer[kRun];
    for (int64_t r = first; r < last; ++r) {
      const int64_t at = begin + r * kRun, n = std::min(kRun, end - at);
      sums[static_cast<size_t>(r)] = static_cast<double>(row_kernels<A>().squares(x.read(at, n, buffer), A(0), n));
    }
  });
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

}  // namespace

template <class A>
void square_sum(const Job& job) {
  const Operand& x = job.reads[0];
  double sum = squares_of<A>(x, 0, x.elements, job.workers);
  for (size_t i = 1; i < job.reads.size(); ++i) {
    if (!leaves_out(job.compute, i, job.reads.size(), job.context.group_index)) continue;
    const Overlap o = overlap_of(x, job.reads[i]);
    sum -= squares_of<A>(x, o.begin, o.end, job.workers);
  }
  const double scale = job.context.values != nullptr ? job.context.values->loss_scale : 1.0;
  const Stored<double> total(job.writes[0]);
  total.put(0, total.get(0) + sum / (scale * scale));
}

template <class A>
void adam(const Job& job) {
  const size_t reads = job.reads.size();
  const bool clipped = reads == 5;
  const double norm = clipped ? Stored<double>(job.reads[1]).get(0) : 0;
  const auto rule = update_rule<A>(job.compute, *job.context.values, clipped, norm);
  const Stored<A> g(job.reads[0]), w(job.reads[reads - 3]), m(job.reads[reads - 2]), v(job.reads[reads - 1]);
  const Stored<A> parameter(job.writes[0]), master(job.writes[1]), m_out(job.writes[2]), v_out(job.writes[3]);
  job.workers.parallel_for(job.compute.dims[0], kGrain, [&](int64_t begin, int64_t end) {
    A buffers[7][kRun];
    for (int64_t at = begin; at < end; at += kRun) {
      const int64_t n = std::min(kRun, end - at);
      A *to = master.open(at, buffers[4]), *to_m = m_out.open(at, buffers[5]), *to_v = v_out.open(at, buffers[6]);
      row_kernels<A>().adam(rule, g.read(at, n, buffers[0]), w.read(at, n, buffers[1]), m.read(at, n, buffers[2]),
                            v.read(at, n, buffers[3]), to, to_m, to_v, n);
      parameter.close(at, n, to);
      master.close(at, n, to);
      m_out.close(at, n, to_m);
      v_out.close(at, n, to_v);
    }
  });
}

template <class A>
void sgd(const Job& job) {
  const bool clipped = job.reads.size() == 3;
  const double norm = clipped ? Stored<double>(job.reads[1]).get(0) : 0;
  const auto rule = update_rule<A>(job.compute, *job.context.values, clipped, norm);
  const Stored<A> g(job.reads[0]), w(job.reads[job.reads.size() - 1]), parameter(job.writes[0]), master(job.writes[1]);
  job.workers.parallel_for(job.compute.dims[0], kGrain, [&](int64_t begin, int64_t end) {
    A buffers[3][kRun];
    for (int64_t at = begin; at < end; at += kRun) {
      const int64_t n = std::min(kRun, end - at);
      A* to = master.open(at, buffers[2]);
      row_kernels<A>().sgd(rule, g.read(at, n, buffers[0]), w.read(at, n, buffers[1]), to, n);
      parameter.close(at, n, to);
      master.close(at, n, to);
    }
  });
}

template void square_sum<float>(const Job&);
template void square_sum<double>(const Job&);
template void adam<float>(const Job&);
template void adam<double>(const Job&);
template void sgd<float>(const Job&);
template void sgd<double>(const Job&);

}  // namespace wt::exec
