// What multi-head latent attention does around its attention: parts of heads brought together and apart, their rope parts
// turned. Not the attention: that is attention.cpp, with values of another size than keys.
#include <algorithm>
#include <cstring>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/rotary_angles.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements worth another worker

/// The parts of a head: q and k have `nope` columns without and `rope` with a rotary embedding, v has heads.v.
struct Parts {
  Heads heads;
  int64_t nope, rope;

  static Parts of(const plan::Compute& c) { return {Heads::of(c), c.dims[3], c.dims[4]}; }
  int64_t q_width() const { return heads.heads * heads.d; }
  int64_t kv_width() const { return heads.heads * (nope + heads.v); }
};

}  // namespace

/// q [T, a(dn + dr)], kv [T, a(dn + dv)] and the one rope key of all heads, to rows of qkv.
template <class A>
void latent_assemble(const Job& job) {
  const Parts p = Parts::of(job.compute);
  const Heads& a = p.heads;
  const Stored<A> q(job.reads[0]), kv(job.reads[1]), rope(job.reads[2]), qkv(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  const auto table = rotary_angles<A>(a.seq, p.rope);
  const int64_t half = p.rope / 2, each = p.nope + a.v;
  job.workers.parallel_for(a.tokens(), 1 + kGrain / (a.width() + 1), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(p.q_width() + p.kv_width() + p.rope), key = buffer_of<A>(p.rope),
               out = buffer_of<A>(a.width());
    for (int64_t t = begin; t < end; ++t) {
      const A *cosine = table->cosine.data() + t / a.batch * half, *sine = table->sine.data() + t / a.batch * half;
      const A* from_q = q.read(t * p.q_width(), p.q_width(), buffer.get());
      const A* from_kv = kv.read(t * p.kv_width(), p.kv_width(), buffer.get() + p.q_width());
      const A* from_rope = rope.read(t * p.rope, p.rope, buffer.get() + p.q_width() + p.kv_width());
      std::copy_n(from_rope, p.rope, key.get());
      k.turn(cosine, sine, A(1), key.get(), key.get() + half, half);
      A* const y = qkv.open(t * a.width(), out.get());
      for (int64_t h = 0; h < a.heads; ++h) {
        A* const query = y + a.q_column(h);
        std::copy_n(from_q + h * a.d, a.d, query);
        k.turn(cosine, sine, A(1), query + p.nope, query + p.nope + half, half);
        std::copy_n(from_kv + h * each, p.nope, y + a.k_column(h));
        std::copy_n(key.get(), p.rope, y + a.k_column(h) + p.nope);
        std::copy_n(from_kv + h * each + p.nope, a.v, y + a.v_column(h));
      }
      qkv.close(t * a.width(), a.width(), y);
    }
  });
}

/// The way back: the gradient of the one rope key is the sum over the heads.
template <class A>
void latent_scatter(const Job& job) {
  const Parts p = Parts::of(job.compute);
  const Heads& a = p.heads;
  const Stored<A> qkv(job.reads[0]), q(job.writes[0]), kv(job.writes[1]), rope(job.writes[2]);
  const RowKernels<A>& k = row_kernels<A>();
  const auto table = rotary_angles<A>(a.seq, p.rope);
  const int64_t half = p.rope / 2, each = p.nope + a.v;
  job.workers.parallel_for(a.tokens(), 1 + kGrain / (a.width() + 1), [&](int64_t begin, int64_t end) {
    const auto in = buffer_of<A>(a.width()), buffer = buffer_of<A>(p.q_width() + p.kv_width() + p.rope);
    for (int64_t t = begin; t < end; ++t) {
      const A *cosine = table->cosine.data() + t / a.batch * half, *sine = table->sine.data() + t / a.batch * half;
      const A* d = qkv.read(t * a.width(), a.width(), in.get());
      A* const to_q = q.open(t * p.q_width(), buffer.get());
      A* const to_kv = kv.open(t * p.kv_width(), buffer.get() + p.q_width());
      A* const to_rope = rope.open(t * p.rope, buffer.get() + p.q_width() + p.kv_width());
      std::fill_n(to_rope, p.rope, A(0));
      for (int64_t h = 0; h < a.heads; ++h) {
        A* const query = to_q + h * a.d;
        std::copy_n(d + a.q_column(h), a.d, query);
        k.turn(cosine, sine, A(-1), query + p.nope, query + p.nope + half, half);
        std::copy_n(d + a.k_column(h), p.nope, to_kv + h * each);
        k.add(to_rope, d + a.k_column(h) + p.nope, to_rope, p.rope);
        std::copy_n(d + a.v_column(h), a.v, to_kv + h * each + p.nope);
      }
      k.turn(cosine, sine, A(-1), to_rope, to_rope + half, half);
      q.close(t * p.q_width(), p.q_width(), to_q);
      kv.close(t * p.kv_width(), p.kv_width(), to_kv);
      rope.close(t * p.rope, p.rope, to_rope);
    }
  });
}

/// x [T, a + b] to y [T, a] and z [T, b], or the way back.
void reorder_latent(const Job& job) {
  const int64_t rows = job.compute.dims[0];
  const bool split = job.compute.kernel == plan::Kernel::split_latent;
  const auto all = split ? job.reads : job.writes, apart = split ? job.writes : job.reads;
  const int64_t size = size_of(all[0].dtype), first = job.compute.dims[1] * size, second = job.compute.dims[2] * size;
  auto* const whole = static_cast<std::byte*>(all[0].data);
  auto* const y = static_cast<std::byte*>(apart[0].data);
  auto* const z = static_cast<std::byte*>(apart[1].data);
  const auto move = [split](std::byte* in_whole, std::byte* alone, int64_t bytes) {
    std::memcpy(split ? alone : in_whole, split ? in_whole : alone, static_cast<size_t>(bytes));
  };
  job.workers.parallel_for(rows, 1 + kGrain / (first + second + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      move(whole + i * (first + second), y + i * first, first);
      move(whole + i * (first + second) + first, z + i * second, second);
    }
  });
}

template void latent_assemble<float>(const Job&);
template void latent_assemble<double>(const Job&);
template void latent_scatter<float>(const Job&);
template void latent_scatter<double>(const Job&);

}  // namespace wt::exec
