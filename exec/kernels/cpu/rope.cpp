// Rotary position embedding of the query and key heads of qkv, forward and (turned back) backward.
#include <algorithm>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/rotary_angles.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
template <class A>
void rope(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const A sign = job.compute.kernel == plan::Kernel::rope_forward ? A(1) : A(-1);
  const int64_t width = a.width(), half = a.d / 2;
  const Stored<A> in(job.reads[0]), out(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  const int64_t ranks = job.context.group_size;
  const auto table = rotary_angles<A>(a.seq * ranks, a.d);
  job.workers.parallel_for(a.tokens(), 1 + (1 << 14) / (width + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * width);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = plan::sequence_position(t / a.batch, a.seq, job.context.group_index, ranks);
      const A *cosine = table->cosine.data() + position * half, *sine = table->sine.data() + position * half;
      const A* x = in.read(t * width, width, buffer.get());
      A* y = out.open(t * width, buffer.get() + width);
      if (y != x) std::copy(x, x + width, y);
      for (int64_t kv = 0; kv < a.kv_heads; ++kv)  // queries and the key of a group lie side by side
        for (int64_t h = 0; h <= a.share(); ++h) {
          A* const head = y + a.group(kv) + h * a.d;
          k.turn(cosine, sine, sign, head, head + half, half);
        }
      out.close(t * width, width, y);
    }
  });
}

template void rope<float>(const Job&);
template void rope<double>(const Job&);

}  // namespace wt::exec
