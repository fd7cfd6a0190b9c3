// Flash attention on CUDA: tiles of queries and keys in shared memory, the softmax along the way, no atomics. Arithmetic
// is on the ordinary cores in float (or double), not on tensor cores: right first; docs/kernels.md says so. Backward is
// two kernels that each work out the probabilities again: one owns the queries' gradients, one those of keys and values.
// Where rows lie and which keys a query sees is said by a place: Whole for qkv of a sequence (latent attention too, whose
// values are of another size), Shared for queries and keys of ranks that share sequences.
#include <algorithm>
#include <limits>

#include "exec/device/cuda/kernels.cuh"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"

namespace wt::exec::cuda {
namespace {

using plan::Kernel;

/// Rows of a tile; every row of shared memory has one element more than it needs, against bank conflicts.
struct Tile {
  int queries, keys;
};

/// Rows of qkv.
struct Whole {
  Heads heads;
  __device__ int64_t keys() const { return heads.seq; }
  __device__ int64_t q(int64_t b, int64_t s, int64_t h) const {
    return heads.token(b, s) * heads.width() + heads.q_column(h);
  }
  __device__ int64_t k(int64_t b, int64_t o, int64_t kv) const {
    return heads.token(b, o) * heads.width() + heads.k_column(kv);
  }
  __device__ int64_t v(int64_t b, int64_t o, int64_t kv) const {
    return heads.token(b, o) * heads.width() + heads.v_column(kv);
  }
  __device__ bool sees(int64_t s, int64_t o) const { return o >= heads.first_key(s) && o < heads.end_key(s); }
  // Bounds of what queries first .. last see, and of those who see keys first .. last.
  __device__ int64_t first_key(int64_t first) const { return heads.first_key(first); }
  __device__ int64_t end_key(int64_t last) const { return heads.end_key(last); }
  __device__ int64_t first_query(int64_t key) const {
    if (heads.causal) return key;
    return heads.window > 0 && key - heads.window + 1 > 0 ? key - heads.window + 1 : 0;
  }
  __device__ int64_t end_query(int64_t key) const {
    return heads.window > 0 && key + heads.window < heads.seq ? key + heads.window : heads.seq;
  }
};

/// Rows of q and of kv, whose positions are not in order: every tile is looked at.
struct Shared {
  Heads heads;
  Blocks blocks;
  __device__ int64_t keys() const { return blocks.keys(); }
  __device__ int64_t q(int64_t b, int64_t s, int64_t h) const { return blocks.q(b, s, h); }
  __device__ int64_t k(int64_t b, int64_t o, int64_t kv) const { return blocks.k(b, o, kv); }
  __device__ int64_t v(int64_t b, int64_t o, int64_t kv) const { return blocks.v(b, o, kv); }
  __device__ bool sees(int64_t s, int64_t o) const { return blocks.sees(s, o); }
  __device__ int64_t first_key(int64_t) const { return 0; }
  __device__ int64_t end_key(int64_t) const { return blocks.keys(); }
  __device__ int64_t first_query(int64_t) const { return 0; }
  __device__ int64_t end_query(int64_t) const { return heads.seq; }
};

/// Arrays in shared memory: rows of d and of v columns for each query and each key, tiles of scores.
struct Arrays {
  int query_d, query_v, key_d, key_v, scores;
};
constexpr Arrays kForward{1, 1, 1, 1, 1}, kQueryGradient{2, 1, 1, 1, 2}, kKeyGradient{1, 1, 2, 2, 2};

/// The largest tile whose arrays fit.
template <class A>
Tile tile_for(const Heads& a, const Arrays& n, int64_t memory, size_t* bytes) {
  for (const Tile t : {Tile{64, 32}, Tile{32, 32}, Tile{16, 32}, Tile{16, 16}, Tile{8, 8}, Tile{4, 4}}) {
    const int64_t elements = (int64_t{t.queries} * n.query_d + int64_t{t.keys} * n.key_d) * (a.d + 1) +
                             (int64_t{t.queries} * n.query_v + int64_t{t.keys} * n.key_v) * (a.v + 1) +
                             int64_t{t.queries} * (t.keys + 1) * n.scores + 3 * t.queries;
    *bytes = static_cast<size_t>(elements) * sizeof(A);
    if (static_cast<int64_t>(*bytes) <= memory) return t;
  }
  *bytes = 0;
  return {0, 0};
}

/// Rows first .. first + rows of `size` elements, row i at offset(i), into shared memory; zeros from row `end` on.
template <class A, class F>
__device__ void load(View x, int64_t size, int64_t first, int rows, int64_t end, A* to, F offset) {
  const int stride = static_cast<int>(size) + 1;
  for (int e = threadIdx.x; e < rows * size; e += kThreads) {
    const int i = e / static_cast<int>(size), j = e % static_cast<int>(size);
    to[i * stride + j] = first + i < end ? x.get<A>(offset(first + i) + j) : A(0);
  }
}

/// to[i, j] = x_i . y_j for all pairs of rows of two tiles.
template <class A>
__device__ void dots(const A* x, int rows, const A* y, int columns, int d, A* to) {
  const int stride = d + 1;
  for (int e = threadIdx.x; e < rows * columns; e += kThreads) {
    const int i = e / columns, j = e % columns;
    A sum = 0;
    for (int c = 0; c < d; ++c) sum += x[i * stride + c] * y[j * stride + c];
    to[i * (columns + 1) + j] = sum;
  }
}

template <class A, class F>
__device__ A over_warp(A x, F f) {
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

template <class Place>
__device__ bool sees(const Place& p, int64_t query, int64_t key) {
  return query < p.heads.seq && key < p.keys() && p.sees(query, key);
}

/// Where a query's row of the output begins.
__device__ int64_t out_of(const Heads& a, int64_t sample, int64_t position, int64_t head) {
  return (a.token(sample, position) * a.heads + head) * a.v;
}

template <class A, class Place>
__global__ void forward_kernel(Place p, Tile t, A scale, View queries, View kvs, View out, View lse) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Heads& a = p.heads;
  const int d = static_cast<int>(a.d), dv = static_cast<int>(a.v);
  A* const q = reinterpret_cast<A*>(memory);
  A* const sum = q + t.queries * (d + 1);
  A* const k = sum + t.queries * (dv + 1);
  A* const v = k + t.keys * (d + 1);
  A* const s = v + t.keys * (dv + 1);
  A* const most = s + t.queries * (t.keys + 1);
  A* const weight = most + t.queries;
  A* const fade = weight + t.queries;
  const int64_t first = int64_t{blockIdx.x} * t.queries, head = blockIdx.y, sample = blockIdx.z, kv = head / a.share();
  const int64_t last = (first + t.queries < a.seq ? first + t.queries : a.seq) - 1;
  load(queries, d, first, t.queries, a.seq, q, [&](int64_t i) { return p.q(sample, i, head); });
  for (int e = threadIdx.x; e < t.queries * (dv + 1); e += kThreads) sum[e] = 0;
  for (int i = threadIdx.x; i < t.queries; i += kThreads) {
    most[i] = -std::numeric_limits<A>::infinity();
    weight[i] = 0;
  }
  for (int64_t o = p.first_key(first) / t.keys * t.keys; o < p.end_key(last); o += t.keys) {
    __syncthreads();
    load(kvs, d, o, t.keys, p.keys(), k, [&](int64_t i) { return p.k(sample, i, kv); });
    load(kvs, dv, o, t.keys, p.keys(), v, [&](int64_t i) { return p.v(sample, i, kv); });
    __syncthreads();
    dots(q, t.queries, k, t.keys, d, s);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < t.queries; i += kThreads / 32) {  // a warp a row
      A* const row = s + i * (t.keys + 1);
      A largest = most[i];
      for (int j = threadIdx.x % 32; j < t.keys; j += 32)
        if (sees(p, first + i, o + j)) largest = Largest{}(largest, scale * row[j]);
      largest = over_warp(largest, Largest{});
      A total = 0;
      for (int j = threadIdx.x % 32; j < t.keys; j += 32) {
        row[j] = sees(p, first + i, o + j) ? exponential(scale * row[j] - largest) : A(0);
        total += row[j];
      }
      total = over_warp(total, Sum{});
      if (threadIdx.x % 32 == 0) {
        // Before the first key that it sees a row has no maximum yet: nothing to fade.
        fade[i] = weight[i] > A(0) ? exponential(most[i] - largest) : A(0);
        weight[i] = weight[i] * fade[i] + total;
        most[i] = largest;
      }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < t.queries * dv; e += kThreads) {
      const int i = e / dv, c = e % dv;
      A x = sum[i * (dv + 1) + c] * fade[i];
      for (int j = 0; j < t.keys; ++j) x += s[i * (t.keys + 1) + j] * v[j * (dv + 1) + c];
      sum[i * (dv + 1) + c] = x;
    }
  }
  __syncthreads();
  // A row that sees no key (of another rank's): 0, and minus infinity.
  for (int e = threadIdx.x; e < t.queries * dv; e += kThreads) {
    const int i = e / dv, c = e % dv;
    if (first + i < a.seq)
      out.put(out_of(a, sample, first + i, head) + c, weight[i] > A(0) ? sum[i * (dv + 1) + c] / weight[i] : A(0));
  }
  for (int i = threadIdx.x; i < t.queries; i += kThreads)
    if (first + i < a.seq)
      lse.put(a.query(sample, head, first + i), weight[i] > A(0) ? most[i] + A(log(weight[i])) : most[i]);
}

/// Of rows [first, first + queries): dout . out and the logarithm of the softmax's sum.
template <class A>
__device__ void row_terms(const Heads& a, int64_t sample, int64_t head, int64_t first, int queries, View d_out,
                          View out, View lse, A* mean, A* log_sum) {
  for (int i = threadIdx.x / 32; i < queries; i += kThreads / 32) {
    A dot = 0;
    const int64_t at = out_of(a, sample, first + i, head);
    for (int64_t c = threadIdx.x % 32; first + i < a.seq && c < a.v; c += 32)
      dot += d_out.get<A>(at + c) * out.get<A>(at + c);
    dot = over_warp(dot, Sum{});
    if (threadIdx.x % 32 != 0) continue;
    mean[i] = dot;
    log_sum[i] = first + i < a.seq ? lse.get<A>(a.query(sample, head, first + i)) : A(0);
  }
}

/// From products of a tile to probabilities (in s) and gradients of scores (in ds, before: dO V^T).
template <class A, class Place>
__device__ void gradients_of_scores(const Place& p, Tile t, A scale, int64_t first, int64_t key, const A* mean,
                                    const A* log_sum, A* s, A* ds) {
  for (int e = threadIdx.x; e < t.queries * t.keys; e += kThreads) {
    const int i = e / t.keys, j = e % t.keys, at = i * (t.keys + 1) + j;
    const A probability = sees(p, first + i, key + j) ? exponential(scale * s[at] - log_sum[i]) : A(0);
    s[at] = probability;
    ds[at] = probability * (ds[at] - mean[i]) * scale;
  }
}

/// What the gradients are made of, and where they go.
struct Backward {
  View d_out, queries, kvs, out, lse, dq, dkv;
  bool accumulate;  // dq is added to
};

template <class A, class Place>
__global__ void query_gradient_kernel(Place p, Tile t, A scale, Backward x) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Heads& a = p.heads;
  const int d = static_cast<int>(a.d), dv = static_cast<int>(a.v);
  A* const q = reinterpret_cast<A*>(memory);
  A* const dq = q + t.queries * (d + 1);
  A* const dy = dq + t.queries * (d + 1);
  A* const k = dy + t.queries * (dv + 1);
  A* const v = k + t.keys * (d + 1);
  A* const s = v + t.keys * (dv + 1);
  A* const ds = s + t.queries * (t.keys + 1);
  A* const mean = ds + t.queries * (t.keys + 1);
  A* const log_sum = mean + t.queries;
  const int64_t first = int64_t{blockIdx.x} * t.queries, head = blockIdx.y, sample = blockIdx.z, kv = head / a.share();
  const int64_t last = (first + t.queries < a.seq ? first + t.queries : a.seq) - 1;
  load(x.queries, d, first, t.queries, a.seq, q, [&](int64_t i) { return p.q(sample, i, head); });
  load(x.d_out, dv, first, t.queries, a.seq, dy, [&](int64_t i) { return out_of(a, sample, i, head); });
  for (int e = threadIdx.x; e < t.queries * (d + 1); e += kThreads) dq[e] = 0;
  row_terms(a, sample, head, first, t.queries, x.d_out, x.out, x.lse, mean, log_sum);
  for (int64_t o = p.first_key(first) / t.keys * t.keys; o < p.end_key(last); o += t.keys) {
    __syncthreads();
    load(x.kvs, d, o, t.keys, p.keys(), k, [&](int64_t i) { return p.k(sample, i, kv); });
    load(x.kvs, dv, o, t.keys, p.keys(), v, [&](int64_t i) { return p.v(sample, i, kv); });
    __syncthreads();
    dots(q, t.queries, k, t.keys, d, s);
    dots(dy, t.queries, v, t.keys, dv, ds);
    __syncthreads();
    gradients_of_scores(p, t, scale, first, o, mean, log_sum, s, ds);
    __syncthreads();
    for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
      const int i = e / d, c = e % d;
      A sum = dq[i * (d + 1) + c];
      for (int j = 0; j < t.keys; ++j) sum += ds[i * (t.keys + 1) + j] * k[j * (d + 1) + c];
      dq[i * (d + 1) + c] = sum;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
    const int i = e / d, c = e % d;
    if (first + i >= a.seq) continue;
    const int64_t at = p.q(sample, first + i, head) + c;
    x.dq.put(at, dq[i * (d + 1) + c] + (x.accumulate ? x.dq.get<A>(at) : A(0)));
  }
}

template <class A, class Place>
__global__ void key_gradient_kernel(Place p, Tile t, A scale, Backward x) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Heads& a = p.heads;
  const int d = static_cast<int>(a.d), dv = static_cast<int>(a.v);
  A* const q = reinterpret_cast<A*>(memory);
  A* const dy = q + t.queries * (d + 1);
  A* const k = dy + t.queries * (dv + 1);
  A* const dk = k + t.keys * (d + 1);
  A* const v = dk + t.keys * (d + 1);
  A* const d_value = v + t.keys * (dv + 1);
  A* const s = d_value + t.keys * (dv + 1);
  A* const ds = s + t.queries * (t.keys + 1);
  A* const mean = ds + t.queries * (t.keys + 1);
  A* const log_sum = mean + t.queries;
  const int64_t key = int64_t{blockIdx.x} * t.keys, kv = blockIdx.y, sample = blockIdx.z;
  const int64_t last_key = (key + t.keys < p.keys() ? key + t.keys : p.keys()) - 1;
  load(x.kvs, d, key, t.keys, p.keys(), k, [&](int64_t i) { return p.k(sample, i, kv); });
  load(x.kvs, dv, key, t.keys, p.keys(), v, [&](int64_t i) { return p.v(sample, i, kv); });
  for (int e = threadIdx.x; e < t.keys * (d + 1); e += kThreads) dk[e] = 0;
  for (int e = threadIdx.x; e < t.keys * (dv + 1); e += kThreads) d_value[e] = 0;
  for (int64_t head = kv * a.share(); head < (kv + 1) * a.share(); ++head)
    for (int64_t first = p.first_query(key) / t.queries * t.queries; first < p.end_query(last_key);
         first += t.queries) {
      __syncthreads();
      load(x.queries, d, first, t.queries, a.seq, q, [&](int64_t i) { return p.q(sample, i, head); });
      load(x.d_out, dv, first, t.queries, a.seq, dy, [&](int64_t i) { return out_of(a, sample, i, head); });
      row_terms(a, sample, head, first, t.queries, x.d_out, x.out, x.lse, mean, log_sum);
      __syncthreads();
      dots(q, t.queries, k, t.keys, d, s);
      dots(dy, t.queries, v, t.keys, dv, ds);
      __syncthreads();
      gradients_of_scores(p, t, scale, first, key, mean, log_sum, s, ds);
      __syncthreads();
      for (int e = threadIdx.x; e < t.keys * d; e += kThreads) {
        const int j = e / d, c = e % d;
        A sum = dk[j * (d + 1) + c];
        for (int i = 0; i < t.queries; ++i) sum += ds[i * (t.keys + 1) + j] * q[i * (d + 1) + c];
        dk[j * (d + 1) + c] = sum;
      }
      for (int e = threadIdx.x; e < t.keys * dv; e += kThreads) {
        const int j = e / dv, c = e % dv;
        A sum = d_value[j * (dv + 1) + c];
        for (int i = 0; i < t.queries; ++i) sum += s[i * (t.keys + 1) + j] * dy[i * (dv + 1) + c];
        d_value[j * (dv + 1) + c] = sum;
      }
    }
  __syncthreads();
  for (int e = threadIdx.x; e < t.keys * d; e += kThreads) {
    const int j = e / d, c = e % d;
    if (key + j < p.keys()) x.dkv.put(p.k(sample, key + j, kv) + c, dk[j * (d + 1) + c]);
  }
  for (int e = threadIdx.x; e < t.keys * dv; e += kThreads) {
    const int j = e / dv, c = e % dv;
    if (key + j < p.keys()) x.dkv.put(p.v(sample, key + j, kv) + c, d_value[j * (dv + 1) + c]);
  }
}

cudaError_t shared_memory(int64_t* bytes) {
  int device = 0, found = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  const cudaError_t e = cudaDeviceGetAttribute(&found, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  // What over_block and the like use is static; leave them a little.
  *bytes = found - 4096;
  return e;
}

template <class Kernel, class... Arguments>
cudaError_t launch(Kernel kernel, dim3 grid, size_t memory, cudaStream_t stream, Arguments... arguments) {
  if (const cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(memory));
      e != cudaSuccess)
    return e;
  kernel<<<grid, kThreads, memory, stream>>>(arguments...);
  return cudaSuccess;
}

unsigned tiles(int64_t n, int tile) { return static_cast<unsigned>((n + tile - 1) / tile); }

template <class A>
A scale_of(const Heads& a) {
  return static_cast<A>(1.0 / sqrt(static_cast<double>(a.d)));
}

template <class A, class Place>
cudaError_t forward(const Place& p, View queries, View kvs, View out, View lse, cudaStream_t stream) {
  const Heads& a = p.heads;
  int64_t memory = 0;
  size_t bytes = 0;
  if (a.tokens() == 0) return cudaSuccess;
  if (const cudaError_t e = shared_memory(&memory); e != cudaSuccess) return e;
  const Tile t = tile_for<A>(a, kForward, memory, &bytes);
  if (t.queries == 0) return cudaErrorInvalidConfiguration;  // heads too large for shared memory
  const dim3 grid(tiles(a.seq, t.queries), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  return launch(forward_kernel<A, Place>, grid, bytes, stream, p, t, scale_of<A>(a), queries, kvs, out, lse);
}

template <class A, class Place>
cudaError_t backward(const Place& p, int64_t keys, const Backward& x, cudaStream_t stream) {
  const Heads& a = p.heads;
  int64_t memory = 0;
  size_t bytes = 0;
  if (a.tokens() == 0) return cudaSuccess;
  if (const cudaError_t e = shared_memory(&memory); e != cudaSuccess) return e;
  const auto samples = static_cast<unsigned>(a.batch);
  const Tile q = tile_for<A>(a, kQueryGradient, memory, &bytes);
  if (q.queries == 0) return cudaErrorInvalidConfiguration;
  if (const cudaError_t e = launch(query_gradient_kernel<A, Place>,
                                   dim3(tiles(a.seq, q.queries), static_cast<unsigned>(a.heads), samples), bytes,
                                   stream, p, q, scale_of<A>(a), x);
      e != cudaSuccess)
    return e;
  const Tile k = tile_for<A>(a, kKeyGradient, memory, &bytes);
  if (k.queries == 0) return cudaErrorInvalidConfiguration;
  return launch(key_gradient_kernel<A, Place>, dim3(tiles(keys, k.keys), static_cast<unsigned>(a.kv_heads), samples),
                bytes, stream, p, k, scale_of<A>(a), x);
}

}  // namespace

template <class A>
cudaError_t attention(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const auto r = [&](size_t i) { return View(job.reads[i]); };
  const auto w = [&](size_t i) { return View(job.writes[i]); };
  switch (job.compute.kernel) {
    case Kernel::attention_forward:
    case Kernel::latent_attention_forward: return forward<A>(Whole{a}, r(0), r(0), w(0), w(1), job.stream);
    case Kernel::attention_backward:
    case Kernel::latent_attention_backward:
      return backward<A>(Whole{a}, a.seq, {r(0), r(1), r(1), r(2), r(3), w(0), w(0), false}, job.stream);
    default: break;
  }
  const Blocks blocks = Blocks::of(job.compute, job.context.group_index, job.context.group_size);
  const Shared place{a, blocks};
  if (job.compute.kernel == Kernel::block_attention_forward)
    return forward<A>(place, r(0), r(1), w(0), w(1), job.stream);
  return backward<A>(place, blocks.keys(), {r(0), r(1), r(2), r(3), r(4), w(0), w(1), job.compute.accumulate},
                     job.stream);
}

template <class A>
void softmax(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const A scale = scale_of<A>(a);
  const View first(job.reads[0]), y(job.writes[0]);
  if (job.compute.kernel == Kernel::softmax_forward)
    return each_row(a.batch * a.heads * a.seq, job.stream, [=] __device__(int64_t row) {
      const int64_t s = row % a.seq, at = row * a.seq, from = a.first_key(s), past = a.end_key(s);
      A most = -std::numeric_limits<A>::infinity(), sum = 0;
      for (int64_t o = from + threadIdx.x; o < past; o += kThreads)
        most = Largest{}(most, scale * first.get<A>(at + o));
      most = over_block(most, Largest{});
      for (int64_t o = from + threadIdx.x; o < past; o += kThreads)
        sum += exponential(scale * first.get<A>(at + o) - most);
      sum = over_block(sum, Sum{});
      for (int64_t o = threadIdx.x; o < a.seq; o += kThreads)
        y.put(at + o, o >= from && o < past ? exponential(scale * first.get<A>(at + o) - most) / sum : A(0));
    });
  const View probs(job.reads[1]);
  each_row(a.batch * a.heads * a.seq, job.stream, [=] __device__(int64_t row) {
    A dot = 0;
    for (int64_t o = threadIdx.x; o < a.seq; o += kThreads)
      dot += first.get<A>(row * a.seq + o) * probs.get<A>(row * a.seq + o);
    dot = over_block(dot, Sum{});
    for (int64_t o = threadIdx.x; o < a.seq; o += kThreads) {
      const int64_t at = row * a.seq + o;
      y.put(at, scale * probs.get<A>(at) * (first.get<A>(at) - dot));
    }
  });
}

template cudaError_t attention<float>(const Job&);
template cudaError_t attention<double>(const Job&);
template void softmax<float>(const Job&);
template void softmax<double>(const Job&);

}  // namespace wt::exec::cuda
