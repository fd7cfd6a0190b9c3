// What multi-head latent attention does around its attention on CUDA: parts of heads brought together and apart, their rope
// parts turned. The attention is attention.cu.
#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"
#include "exec/kernels/rotary.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

/// Element i of the `rope` columns that begin at `column`, turned by the position's angles; get(i) reads one.
template <class A, class F>
__device__ A turned_element(int64_t position, int64_t i, int64_t rope, double sign, F get) {
  const int64_t half = rope / 2, pair = i % half;
  const double angle = rotary_angle(position, pair, rope);
  const Turned<A> p =
      turned(get(pair), get(pair + half), static_cast<A>(cos(angle)), static_cast<A>(sign * sin(angle)));
  return i < half ? p.x : p.y;
}

/// A thread writes one element of qkv.
template <class A>
void assemble(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const int64_t nope = job.compute.dims[3], rope = job.compute.dims[4], width = a.width(), head = a.group(1);
  const View q(job.reads[0]), kv(job.reads[1]), k_rope(job.reads[2]), qkv(job.writes[0]);
  each(a.tokens() * width, job.stream, [=] __device__(int64_t at) {
    const int64_t t = at / width, h = at % width / head, i = at % head, position = t / a.batch;
    const int64_t from_q = (t * a.heads + h) * a.d, from_kv = (t * a.heads + h) * (nope + a.v);
    if (i >= 2 * a.d) return qkv.put(at, kv.get<A>(from_kv + nope + i - 2 * a.d));
    const int64_t part = i % a.d;  // of q or of k
    const bool query = i < a.d;
    if (part < nope) return qkv.put(at, query ? q.get<A>(from_q + part) : kv.get<A>(from_kv + part));
    qkv.put(at, turned_element<A>(position, part - nope, rope, 1.0, [&](int64_t j) {
              return query ? q.get<A>(from_q + nope + j) : k_rope.get<A>(t * rope + j);
            }));
  });
}

/// A thread writes one element of dq, of dkv or of the gradient of the one rope key, which is a sum over the heads.
template <class A>
void scatter(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const int64_t nope = job.compute.dims[3], rope = job.compute.dims[4], width = a.width();
  const View d(job.reads[0]), dq(job.writes[0]), dkv(job.writes[1]), d_rope(job.writes[2]);
  const int64_t of_q = a.heads * a.d, of_kv = a.heads * (nope + a.v), all = of_q + of_kv + rope;
  each(a.tokens() * all, job.stream, [=] __device__(int64_t at) {
    const int64_t t = at / all, i = at % all, row = t * width, position = t / a.batch;
    if (i < of_q) {
      const int64_t h = i / a.d, part = i % a.d, from = row + a.q_column(h);
      const A x = part < nope ? d.get<A>(from + part)
                              : turned_element<A>(position, part - nope, rope, -1.0,
                                                  [&](int64_t j) { return d.get<A>(from + nope + j); });
      return dq.put(t * of_q + i, x);
    }
    if (i < of_q + of_kv) {
      const int64_t j = i - of_q, h = j / (nope + a.v), part = j % (nope + a.v);
      return dkv.put(t * of_kv + j, d.get<A>(row + (part < nope ? a.k_column(h) + part : a.v_column(h) + part - nope)));
    }
    const int64_t j = i - of_q - of_kv;
    d_rope.put(t * rope + j, turned_element<A>(position, j, rope, -1.0, [&](int64_t c) {
                 A sum = 0;
                 for (int64_t h = 0; h < a.heads; ++h) sum += d.get<A>(row + a.k_column(h) + nope + c);
                 return sum;
               }));
  });
}

/// x [T, a + b] to y [T, a] and z [T, b], or the way back.
template <class T>
void columns(const Job& job) {
  const int64_t a = job.compute.dims[1], b = job.compute.dims[2];
  const bool split = job.compute.kernel == Kernel::split_latent;
  const auto all = split ? job.reads : job.writes, apart = split ? job.writes : job.reads;
  auto* const x = static_cast<T*>(all[0].data);
  auto* const y = static_cast<T*>(apart[0].data);
  auto* const z = static_cast<T*>(apart[1].data);
  each(job.compute.dims[0] * (a + b), job.stream, [=] __device__(int64_t at) {
    const int64_t i = at / (a + b), j = at % (a + b);
    T& alone = j < a ? y[i * a + j] : z[i * b + j - a];
    (split ? alone : x[at]) = split ? x[at] : alone;
  });
}

}  // namespace

template <class A>
void latent(const Job& job) {
  if (job.compute.kernel == Kernel::latent_assemble) return assemble<A>(job);
  if (job.compute.kernel == Kernel::latent_scatter) return scatter<A>(job);
  switch (size_of(job.reads[0].dtype)) {
    case 8: return columns<uint64_t>(job);
    case 4: return columns<uint32_t>(job);
    case 2: return columns<uint16_t>(job);
    default: return columns<uint8_t>(job);
  }
}

template void latent<float>(const Job&);
template void latent<double>(const Job&);

}  // namespace wt::exec::cuda
