// Flash attention: tiles of scores that stay in the second cache, never stored; the softmax runs along (Dao et al.,
// "FlashAttention-2", 2023). Forward: one task a sample, head and tile of queries. Backward: one task a sample and key
// head, which owns the columns of dqkv that it writes, so nothing depends on the order of tasks.
//
//   forward, for each tile of keys:  S = Q K^T / sqrt(d);  m' = max(m, S);  P = exp(S - m')
//                                    l = l exp(m - m') + sum P;  O = O exp(m - m') + P V;   at the end O / l, lse = m + log l
//   backward, from lse:              P = exp(S - lse);  dV += P^T dO;  dS = P (dO V^T - dO.O) / sqrt(d)
//                                    dQ += dS K;  dK += dS^T Q
#include <algorithm>
#include <limits>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/product.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kQueries = 128, kKeys = 256;  // of a tile: 128 KiB of scores in float

/// Whether products take the operand as it is stored: tiles of factors are then kept in that type too.
template <class A>
bool multiplies_stored(const Operand& x) {
  return x.dtype == kDTypeOf<A> || multiplies(x.dtype, x.dtype, kDTypeOf<A>);
}

/// `size` columns of rows [first, first + rows) of a head: where they lie, or gathered in A into `buffer`.
template <class A>
MatrixView gathered(const Heads& a, const Operand& x, int64_t row_width, int64_t sample, int64_t column, int64_t size,
                    int64_t first, int64_t rows, A* buffer) {
  const Stored<A> from(x);
  const int64_t at = a.token(sample, first) * row_width + column, stride = a.batch * row_width;
  if (multiplies_stored<A>(x)) return {from.at(at), x.dtype, stride, false};
  for (int64_t i = 0; i < rows; ++i) from.read(at + i * stride, size, buffer + i * size);
  return {buffer, kDTypeOf<A>, size, false};
}

/// A tile of probabilities or of their gradients, computed in A, as the factor of a product with `other`.
template <class A>
class Factor {
 public:
  Factor(const Operand& other, int64_t elements) : narrow_(multiplies_stored<A>(other) && other.dtype != kDTypeOf<A>) {
    if (!narrow_) return;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(elements * size_of(other.dtype)));
    stored_ = {memory_.get(), other.dtype, elements, {}};
  }
  MatrixView of(A* tile, int64_t rows, int64_t columns) const {
    if (!narrow_) return {tile, kDTypeOf<A>, columns, false};
    Stored<A>(stored_).close(0, rows * columns, tile);
    return {stored_.data, stored_.dtype, columns, false};
  }

 private:
  bool narrow_;
  std::unique_ptr<std::byte[]> memory_;
  Operand stored_;
};

MatrixView transposed(MatrixView x) {
  x.transposed = !x.transposed;
  return x;
}

template <class A>
MatrixView dense(A* data, int64_t stride) {
  return {data, kDTypeOf<A>, stride, false};
}

/// The keys of a tile that a query sees, counted from the tile's first.
struct Seen {
  int64_t begin, end;
};
Seen seen(const Heads& a, int64_t position, int64_t first_key, int64_t keys) {
  const int64_t begin = std::clamp<int64_t>(a.first_key(position) - first_key, 0, keys);
  return {begin, std::clamp<int64_t>(a.end_key(position) - first_key, begin, keys)};
}

/// First keys of the tiles that any query of [q, q + queries) sees begin here ...
int64_t first_tile(const Heads& a, int64_t q) { return a.first_key(q) / kKeys * kKeys; }
/// ... and end here.
int64_t end_of_tiles(const Heads& a, int64_t q, int64_t queries) { return a.end_key(q + queries - 1); }

}  // namespace

template <class A>
void attention_forward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &qkv = job.reads[0], &out = job.writes[0];
  const Stored<A> to(out), lse(job.writes[1]);
  const RowKernels<A>& k = row_kernels<A>();
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  const int64_t q_tiles = (a.seq + kQueries - 1) / kQueries;
  job.workers.parallel_for(a.batch * a.heads * q_tiles, 1, [&](int64_t begin, int64_t end) {
    const int64_t keys_most = std::min(kKeys, a.seq);
    const auto scores = buffer_of<A>(kQueries * keys_most), sum = buffer_of<A>(kQueries * a.v);
    const auto q_buffer = buffer_of<A>(kQueries * a.d), k_buffer = buffer_of<A>(keys_most * a.d),
               v_buffer = buffer_of<A>(keys_most * a.v);
    const Factor<A> factor(qkv, kQueries * keys_most);
    A most[kQueries], weight[kQueries];
    for (int64_t task = begin; task < end; ++task) {
      // The last tile of a causal mask has the most keys: it goes first, so that the workers end together.
      const int64_t tile = q_tiles - 1 - task / (a.batch * a.heads), bh = task % (a.batch * a.heads);
      const int64_t b = bh / a.heads, h = bh % a.heads, kv = h / a.share();
      const int64_t q = tile * kQueries, queries = std::min(kQueries, a.seq - q);
      std::fill(most, most + queries, -std::numeric_limits<A>::infinity());
      std::fill(weight, weight + queries, A(0));
      std::fill_n(sum.get(), queries * a.v, A(0));
      const MatrixView query = gathered<A>(a, qkv, a.width(), b, a.q_column(h), a.d, q, queries, q_buffer.get());
      for (int64_t o = first_tile(a, q); o < end_of_tiles(a, q, queries); o += kKeys) {
        const int64_t keys = std::min(kKeys, end_of_tiles(a, q, queries) - o);
        const MatrixView key = gathered<A>(a, qkv, a.width(), b, a.k_column(kv), a.d, o, keys, k_buffer.get());
        const MatrixView value = gathered<A>(a, qkv, a.width(), b, a.v_column(kv), a.v, o, keys, v_buffer.get());
        multiply({queries, keys, a.d, query, transposed(key), dense(scores.get(), keys), nullptr, false});
        for (int64_t i = 0; i < queries; ++i) {
          A* row = scores.get() + i * keys;
          const auto [from, past] = seen(a, q + i, o, keys);
          if (from < past) {
            const A larger = std::max(most[i], scale * k.maximum(row + from, past - from));
            const A fade = exponential(most[i] - larger);
            if (fade != A(1)) k.scale(fade, sum.get() + i * a.v, sum.get() + i * a.v, a.v);
            weight[i] = weight[i] * fade + k.exponentials(scale, row + from, larger, row + from, past - from);
            most[i] = larger;
          }
          std::fill(row, row + from, A(0));
          std::fill(row + past, row + keys, A(0));
        }
        multiply(
            {queries, a.v, keys, factor.of(scores.get(), queries, keys), value, dense(sum.get(), a.v), nullptr, true});
      }
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t at = (a.token(b, q + i) * a.heads + h) * a.v;
        A* row = to.open(at, sum.get() + i * a.v);
        k.scale(A(1) / weight[i], sum.get() + i * a.v, row, a.v);
        to.close(at, a.v, row);
        lse.put(a.query(b, h, q + i), most[i] + std::log(weight[i]));
      }
    }
  });
}

template <class A>
void attention_backward(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Operand &d_out = job.reads[0], &qkv = job.reads[1], &out = job.reads[2], &d_qkv = job.writes[0];
  const Stored<A> lse(job.reads[3]), to(d_qkv);
  const RowKernels<A>& k = row_kernels<A>();
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  job.workers.parallel_for(a.batch * a.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const int64_t keys_most = std::min(kKeys, a.seq);
    const auto p = buffer_of<A>(kQueries * keys_most), d_p = buffer_of<A>(kQueries * keys_most);
    const auto dq = buffer_of<A>(kQueries * a.d), dk = buffer_of<A>(a.seq * a.d), dv = buffer_of<A>(a.seq * a.v);
    const Factor<A> probs_factor(d_out, kQueries * keys_most), scores_factor(qkv, kQueries * keys_most);
    const auto row_buffer = buffer_of<A>(2 * a.v), q_buffer = buffer_of<A>(kQueries * a.d),
               d_buffer = buffer_of<A>(kQueries * a.v), k_buffer = buffer_of<A>(keys_most * a.d),
               v_buffer = buffer_of<A>(keys_most * a.v);
    A mean[kQueries], log_sum[kQueries];
    auto store = [&](int64_t b, int64_t column, int64_t size, int64_t first, int64_t rows, const A* from) {
      for (int64_t i = 0; i < rows; ++i) to.close(a.token(b, first + i) * a.width() + column, size, from + i * size);
    };
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / a.kv_heads, kv = task % a.kv_heads;
      std::fill_n(dk.get(), a.seq * a.d, A(0));
      std::fill_n(dv.get(), a.seq * a.v, A(0));
      for (int64_t h = kv * a.share(); h < (kv + 1) * a.share(); ++h)
        for (int64_t q = 0; q < a.seq; q += kQueries) {
          const int64_t queries = std::min(kQueries, a.seq - q), out_width = a.heads * a.v;
          const MatrixView query = gathered<A>(a, qkv, a.width(), b, a.q_column(h), a.d, q, queries, q_buffer.get());
          const MatrixView d = gathered<A>(a, d_out, out_width, b, h * a.v, a.v, q, queries, d_buffer.get());
          for (int64_t i = 0; i < queries; ++i) {
            const int64_t at = a.token(b, q + i) * out_width + h * a.v;
            mean[i] = k.dot(Stored<A>(d_out).read(at, a.v, row_buffer.get()),
                            Stored<A>(out).read(at, a.v, row_buffer.get() + a.v), a.v);
            log_sum[i] = lse.get(a.query(b, h, q + i));
          }
          std::fill_n(dq.get(), queries * a.d, A(0));
          for (int64_t first = first_tile(a, q); first < end_of_tiles(a, q, queries); first += kKeys) {
            const int64_t keys = std::min(kKeys, end_of_tiles(a, q, queries) - first);
            const MatrixView key = gathered<A>(a, qkv, a.width(), b, a.k_column(kv), a.d, first, keys, k_buffer.get());
            const MatrixView value =
                gathered<A>(a, qkv, a.width(), b, a.v_column(kv), a.v, first, keys, v_buffer.get());
            multiply({queries, keys, a.d, query, transposed(key), dense(p.get(), keys), nullptr, false});
            multiply({queries, keys, a.v, d, transposed(value), dense(d_p.get(), keys), nullptr, false});
            for (int64_t i = 0; i < queries; ++i) {
              A *row = p.get() + i * keys, *d_row = d_p.get() + i * keys;
              const auto [from, past] = seen(a, q + i, first, keys);
              k.exponentials(scale, row + from, log_sum[i], row + from, past - from);
              k.softmax_gradient(row + from, d_row + from, mean[i], scale, d_row + from, past - from);
              for (A* x : {row, d_row}) {
                std::fill(x, x + from, A(0));
                std::fill(x + past, x + keys, A(0));
              }
            }
            const MatrixView probs = probs_factor.of(p.get(), queries, keys);
            const MatrixView d_scores = scores_factor.of(d_p.get(), queries, keys);
            multiply({keys, a.v, queries, transposed(probs), d, dense(dv.get() + first * a.v, a.v), nullptr, true});
            multiply(
                {keys, a.d, queries, transposed(d_scores), query, dense(dk.get() + first * a.d, a.d), nullptr, true});
            multiply({queries, a.d, keys, d_scores, key, dense(dq.get(), a.d), nullptr, true});
          }
          store(b, a.q_column(h), a.d, q, queries, dq.get());
        }
      store(b, a.k_column(kv), a.d, 0, a.seq, dk.get());
      store(b, a.v_column(kv), a.v, 0, a.seq, dv.get());
    }
  });
}

template void attention_forward<float>(const Job&);
template void attention_forward<double>(const Job&);
template void attention_backward<float>(const Job&);
template void attention_backward<double>(const Job&);

}  // namespace wt::exec
