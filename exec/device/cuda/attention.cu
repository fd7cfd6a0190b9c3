// Flash attention on CUDA: tiles of queries and keys in shared memory, the softmax along the way, no atomics. Arithmetic
// is on the ordinary cores in float (or double), not on tensor cores: right first; docs/kernels.md says so. Backward is
// two kernels that each work out the probabilities again: one owns the queries' gradients, one those of keys and values.
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

/// The largest tile whose arrays fit: `wide` arrays of d columns a query and a key, `scores` of keys a query.
template <class A>
Tile tile_for(int64_t d, int query_rows, int key_rows, int scores, int64_t memory, size_t* bytes) {
  for (const Tile t : {Tile{64, 32}, Tile{32, 32}, Tile{16, 32}, Tile{16, 16}, Tile{8, 8}, Tile{4, 4}}) {
    const int64_t elements = (int64_t{t.queries} * query_rows + int64_t{t.keys} * key_rows) * (d + 1) +
                             int64_t{t.queries} * (t.keys + 1) * scores + 3 * t.queries;
    *bytes = static_cast<size_t>(elements) * sizeof(A);
    if (static_cast<int64_t>(*bytes) <= memory) return t;
  }
  *bytes = 0;
  return {0, 0};
}

/// Rows [first, first + rows) of a head into shared memory, zeros behind the end of the sequence.
template <class A>
__device__ void load(View x, const Heads& a, int64_t row_width, int64_t sample, int64_t column, int64_t first, int rows,
                     A* to) {
  const int stride = static_cast<int>(a.d) + 1;
  for (int e = threadIdx.x; e < rows * a.d; e += kThreads) {
    const int i = e / static_cast<int>(a.d), j = e % static_cast<int>(a.d);
    const int64_t at = (a.token(sample, first + i)) * row_width + column + j;
    to[i * stride + j] = first + i < a.seq ? x.get<A>(at) : A(0);
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

__device__ bool sees(const Heads& a, int64_t query, int64_t key) {
  return query < a.seq && key >= a.first_key(query) && key < a.end_key(query);
}

template <class A>
__global__ void forward_kernel(Heads a, Tile t, A scale, View qkv, View out, View lse) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int d = static_cast<int>(a.d), stride = d + 1;
  A* const q = reinterpret_cast<A*>(memory);
  A* const sum = q + t.queries * stride;
  A* const k = sum + t.queries * stride;
  A* const v = k + t.keys * stride;
  A* const s = v + t.keys * stride;
  A* const most = s + t.queries * (t.keys + 1);
  A* const weight = most + t.queries;
  A* const fade = weight + t.queries;
  const int64_t first = int64_t{blockIdx.x} * t.queries, head = blockIdx.y, sample = blockIdx.z, kv = head / a.share();
  const int64_t last = (first + t.queries < a.seq ? first + t.queries : a.seq) - 1;
  load(qkv, a, a.width(), sample, a.q_column(head), first, t.queries, q);
  for (int e = threadIdx.x; e < t.queries * stride; e += kThreads) sum[e] = 0;
  for (int i = threadIdx.x; i < t.queries; i += kThreads) {
    most[i] = -std::numeric_limits<A>::infinity();
    weight[i] = 0;
  }
  for (int64_t o = a.first_key(first) / t.keys * t.keys; o < a.end_key(last); o += t.keys) {
    __syncthreads();
    load(qkv, a, a.width(), sample, a.k_column(kv), o, t.keys, k);
    load(qkv, a, a.width(), sample, a.v_column(kv), o, t.keys, v);
    __syncthreads();
    dots(q, t.queries, k, t.keys, d, s);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < t.queries; i += kThreads / 32) {  // a warp a row
      A* const row = s + i * (t.keys + 1);
      A largest = most[i];
      for (int j = threadIdx.x % 32; j < t.keys; j += 32)
        if (sees(a, first + i, o + j)) largest = Largest{}(largest, scale * row[j]);
      largest = over_warp(largest, Largest{});
      A total = 0;
      for (int j = threadIdx.x % 32; j < t.keys; j += 32) {
        row[j] = sees(a, first + i, o + j) ? exponential(scale * row[j] - largest) : A(0);
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
    for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
      const int i = e / d, c = e % d;
      A x = sum[i * stride + c] * fade[i];
      for (int j = 0; j < t.keys; ++j) x += s[i * (t.keys + 1) + j] * v[j * stride + c];
      sum[i * stride + c] = x;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
    const int i = e / d, c = e % d;
    if (first + i < a.seq)
      out.put((a.token(sample, first + i) * a.heads + head) * d + c, sum[i * stride + c] / weight[i]);
  }
  for (int i = threadIdx.x; i < t.queries; i += kThreads)
    if (first + i < a.seq) lse.put(a.query(sample, head, first + i), most[i] + A(log(weight[i])));
}

/// Of rows [first, first + queries): dout . out and the logarithm of the softmax's sum.
template <class A>
__device__ void row_terms(const Heads& a, int64_t sample, int64_t head, int64_t first, int queries, View d_out,
                          View out, View lse, A* mean, A* log_sum) {
  for (int i = threadIdx.x / 32; i < queries; i += kThreads / 32) {
    A dot = 0;
    const int64_t at = (a.token(sample, first + i) * a.heads + head) * a.d;
    for (int64_t c = threadIdx.x % 32; first + i < a.seq && c < a.d; c += 32)
      dot += d_out.get<A>(at + c) * out.get<A>(at + c);
    dot = over_warp(dot, Sum{});
    if (threadIdx.x % 32 != 0) continue;
    mean[i] = dot;
    log_sum[i] = first + i < a.seq ? lse.get<A>(a.query(sample, head, first + i)) : A(0);
  }
}

/// From products of a tile to probabilities (in s) and gradients of scores (in ds, before: dO V^T).
template <class A>
__device__ void gradients_of_scores(const Heads& a, Tile t, A scale, int64_t first, int64_t key, const A* mean,
                                    const A* log_sum, A* s, A* ds) {
  for (int e = threadIdx.x; e < t.queries * t.keys; e += kThreads) {
    const int i = e / t.keys, j = e % t.keys, at = i * (t.keys + 1) + j;
    const A p = sees(a, first + i, key + j) ? exponential(scale * s[at] - log_sum[i]) : A(0);
    s[at] = p;
    ds[at] = p * (ds[at] - mean[i]) * scale;
  }
}

template <class A>
__global__ void query_gradient_kernel(Heads a, Tile t, A scale, View d_out, View qkv, View out, View lse, View d_qkv) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int d = static_cast<int>(a.d), stride = d + 1;
  A* const q = reinterpret_cast<A*>(memory);
  A* const dy = q + t.queries * stride;
  A* const dq = dy + t.queries * stride;
  A* const k = dq + t.queries * stride;
  A* const v = k + t.keys * stride;
  A* const s = v + t.keys * stride;
  A* const ds = s + t.queries * (t.keys + 1);
  A* const mean = ds + t.queries * (t.keys + 1);
  A* const log_sum = mean + t.queries;
  const int64_t first = int64_t{blockIdx.x} * t.queries, head = blockIdx.y, sample = blockIdx.z, kv = head / a.share();
  const int64_t last = (first + t.queries < a.seq ? first + t.queries : a.seq) - 1;
  load(qkv, a, a.width(), sample, a.q_column(head), first, t.queries, q);
  load(d_out, a, a.heads * a.d, sample, head * a.d, first, t.queries, dy);
  for (int e = threadIdx.x; e < t.queries * stride; e += kThreads) dq[e] = 0;
  row_terms(a, sample, head, first, t.queries, d_out, out, lse, mean, log_sum);
  for (int64_t o = a.first_key(first) / t.keys * t.keys; o < a.end_key(last); o += t.keys) {
    __syncthreads();
    load(qkv, a, a.width(), sample, a.k_column(kv), o, t.keys, k);
    load(qkv, a, a.width(), sample, a.v_column(kv), o, t.keys, v);
    __syncthreads();
    dots(q, t.queries, k, t.keys, d, s);
    dots(dy, t.queries, v, t.keys, d, ds);
    __syncthreads();
    gradients_of_scores(a, t, scale, first, o, mean, log_sum, s, ds);
    __syncthreads();
    for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
      const int i = e / d, c = e % d;
      A x = dq[i * stride + c];
      for (int j = 0; j < t.keys; ++j) x += ds[i * (t.keys + 1) + j] * k[j * stride + c];
      dq[i * stride + c] = x;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < t.queries * d; e += kThreads) {
    const int i = e / d, c = e % d;
    if (first + i < a.seq) d_qkv.put(a.token(sample, first + i) * a.width() + a.q_column(head) + c, dq[i * stride + c]);
  }
}

template <class A>
__global__ void key_gradient_kernel(Heads a, Tile t, A scale, View d_out, View qkv, View out, View lse, View d_qkv) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int d = static_cast<int>(a.d), stride = d + 1;
  A* const q = reinterpret_cast<A*>(memory);
  A* const dy = q + t.queries * stride;
  A* const k = dy + t.queries * stride;
  A* const v = k + t.keys * stride;
  A* const dk = v + t.keys * stride;
  A* const dv = dk + t.keys * stride;
  A* const s = dv + t.keys * stride;
  A* const ds = s + t.queries * (t.keys + 1);
  A* const mean = ds + t.queries * (t.keys + 1);
  A* const log_sum = mean + t.queries;
  const int64_t key = int64_t{blockIdx.x} * t.keys, kv = blockIdx.y, sample = blockIdx.z;
  const int64_t last_key = (key + t.keys < a.seq ? key + t.keys : a.seq) - 1;
  load(qkv, a, a.width(), sample, a.k_column(kv), key, t.keys, k);
  load(qkv, a, a.width(), sample, a.v_column(kv), key, t.keys, v);
  for (int e = threadIdx.x; e < t.keys * stride; e += kThreads) dk[e] = dv[e] = 0;
  // Queries that see one of these keys: from the first key on if causal, and within the window.
  const int64_t from = a.causal ? key : (a.window > 0 && key - a.window + 1 > 0 ? key - a.window + 1 : 0);
  const int64_t past = a.window > 0 && last_key + a.window < a.seq ? last_key + a.window : a.seq;
  for (int64_t head = kv * a.share(); head < (kv + 1) * a.share(); ++head)
    for (int64_t first = from / t.queries * t.queries; first < past; first += t.queries) {
      __syncthreads();
      load(qkv, a, a.width(), sample, a.q_column(head), first, t.queries, q);
      load(d_out, a, a.heads * a.d, sample, head * a.d, first, t.queries, dy);
      row_terms(a, sample, head, first, t.queries, d_out, out, lse, mean, log_sum);
      __syncthreads();
      dots(q, t.queries, k, t.keys, d, s);
      dots(dy, t.queries, v, t.keys, d, ds);
      __syncthreads();
      gradients_of_scores(a, t, scale, first, key, mean, log_sum, s, ds);
      __syncthreads();
      for (int e = threadIdx.x; e < t.keys * d; e += kThreads) {
        const int j = e / d, c = e % d;
        A x = dk[j * stride + c], y = dv[j * stride + c];
        for (int i = 0; i < t.queries; ++i) {
          x += ds[i * (t.keys + 1) + j] * q[i * stride + c];
          y += s[i * (t.keys + 1) + j] * dy[i * stride + c];
        }
        dk[j * stride + c] = x;
        dv[j * stride + c] = y;
      }
    }
  __syncthreads();
  for (int e = threadIdx.x; e < t.keys * d; e += kThreads) {
    const int j = e / d, c = e % d;
    if (key + j >= a.seq) continue;
    const int64_t row = a.token(sample, key + j) * a.width();
    d_qkv.put(row + a.k_column(kv) + c, dk[j * stride + c]);
    d_qkv.put(row + a.v_column(kv) + c, dv[j * stride + c]);
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

}  // namespace

template <class A>
cudaError_t attention(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const A scale = static_cast<A>(1.0 / sqrt(static_cast<double>(a.d)));
  const auto samples = static_cast<unsigned>(a.batch), heads = static_cast<unsigned>(a.heads);
  int64_t memory = 0;
  if (a.tokens() == 0) return cudaSuccess;
  if (const cudaError_t e = shared_memory(&memory); e != cudaSuccess) return e;
  size_t bytes = 0;
  if (job.compute.kernel == Kernel::attention_forward) {
    const Tile t = tile_for<A>(a.d, 2, 2, 1, memory, &bytes);
    if (t.queries == 0) return cudaErrorInvalidConfiguration;  // heads too large for shared memory
    return launch(forward_kernel<A>, dim3(tiles(a.seq, t.queries), heads, samples), bytes, job.stream, a, t, scale,
                  View(job.reads[0]), View(job.writes[0]), View(job.writes[1]));
  }
  const View d_out(job.reads[0]), qkv(job.reads[1]), out(job.reads[2]), lse(job.reads[3]), d_qkv(job.writes[0]);
  const Tile q = tile_for<A>(a.d, 3, 2, 2, memory, &bytes);
  if (q.queries == 0) return cudaErrorInvalidConfiguration;
  if (const cudaError_t e = launch(query_gradient_kernel<A>, dim3(tiles(a.seq, q.queries), heads, samples), bytes,
                                   job.stream, a, q, scale, d_out, qkv, out, lse, d_qkv);
      e != cudaSuccess)
    return e;
  const Tile k = tile_for<A>(a.d, 2, 4, 2, memory, &bytes);
  if (k.queries == 0) return cudaErrorInvalidConfiguration;
  return launch(key_gradient_kernel<A>, dim3(tiles(a.seq, k.keys), static_cast<unsigned>(a.kv_heads), samples), bytes,
                job.stream, a, k, scale, d_out, qkv, out, lse, d_qkv);
}

template <class A>
void softmax(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const A scale = static_cast<A>(1.0 / sqrt(static_cast<double>(a.d)));
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
