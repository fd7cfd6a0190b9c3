// Attention between a rank's queries and the keys of another rank of its sequence, and the copies around it: plain loops
// over heads and rows, meant to be right rather than fast. Not the tiled kernel of whole sequences: attention.cpp.
// Invariant: which keys a query sees follows from the positions of both in the sequence (plan::sequence_position) alone.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

/// One head of one sample in A: rows of d.
template <class A>
std::vector<A> rows_of(const Operand& x, int64_t d, int64_t rows, auto&& offset) {
  std::vector<A> out(static_cast<size_t>(rows * d));
  const Stored<A> from(x);
  std::vector<A> buffer(static_cast<size_t>(d));
  for (int64_t i = 0; i < rows; ++i) {
    const A* row = from.read(offset(i), d, buffer.data());
    std::copy(row, row + d, out.begin() + i * d);
  }
  return out;
}

template <class A>
A dot(const A* x, const A* y, int64_t d) {
  A sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace

template <class A>
void block_attention_forward(const Job& job) {
  const Blocks x = Blocks::of(job.compute, job.context.group_index, job.context.group_size);
  const Heads& a = x.heads;
  const Stored<A> out(job.writes[0]), lse(job.writes[1]);
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  job.workers.parallel_for(a.batch * a.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> scores(static_cast<size_t>(x.keys())), sum(static_cast<size_t>(a.d));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / a.heads, h = task % a.heads, kv = h / a.share();
      const auto q = rows_of<A>(job.reads[0], a.d, a.seq, [&](int64_t s) { return x.q(b, s, h); });
      const auto k = rows_of<A>(job.reads[1], a.d, x.keys(), [&](int64_t o) { return x.k(b, o, kv); });
      const auto v = rows_of<A>(job.reads[1], a.d, x.keys(), [&](int64_t o) { return x.v(b, o, kv); });
      for (int64_t s = 0; s < a.seq; ++s) {
        A most = -std::numeric_limits<A>::infinity(), weight = 0;
        for (int64_t o = 0; o < x.keys(); ++o) {
          A& score = scores[static_cast<size_t>(o)];
          score = x.sees(s, o) ? scale * dot(&q[static_cast<size_t>(s * a.d)], &k[static_cast<size_t>(o * a.d)], a.d)
                               : -std::numeric_limits<A>::infinity();
          most = std::max(most, score);
        }
        std::fill(sum.begin(), sum.end(), A(0));
        const bool any = most > -std::numeric_limits<A>::infinity();
        for (int64_t o = 0; any && o < x.keys(); ++o) {
          const A p = std::exp(scores[static_cast<size_t>(o)] - most);
          weight += p;
          for (int64_t i = 0; i < a.d; ++i) sum[static_cast<size_t>(i)] += p * v[static_cast<size_t>(o * a.d + i)];
        }
        for (int64_t i = 0; any && i < a.d; ++i) sum[static_cast<size_t>(i)] /= weight;
        out.close(x.q(b, s, h), a.d, sum.data());
        lse.put(a.query(b, h, s), any ? most + std::log(weight) : most);
      }
    }
  });
}

/// A task owns one key head of one sample, and so the rows that it writes.
template <class A>
void block_attention_backward(const Job& job) {
  const Blocks x = Blocks::of(job.compute, job.context.group_index, job.context.group_size);
  const Heads& a = x.heads;
  const Stored<A> lse(job.reads[4]), dq(job.writes[0]), dkv(job.writes[1]);
  const A scale = static_cast<A>(1.0 / std::sqrt(static_cast<double>(a.d)));
  job.workers.parallel_for(a.batch * a.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / a.kv_heads, kv = task % a.kv_heads;
      const auto k = rows_of<A>(job.reads[2], a.d, x.keys(), [&](int64_t o) { return x.k(b, o, kv); });
      const auto v = rows_of<A>(job.reads[2], a.d, x.keys(), [&](int64_t o) { return x.v(b, o, kv); });
      std::vector<A> dk(k.size(), A(0)), dv(v.size(), A(0));
      for (int64_t h = kv * a.share(); h < (kv + 1) * a.share(); ++h) {
        const auto at = [&](int64_t s) { return x.q(b, s, h); };
        const auto d_out = rows_of<A>(job.reads[0], a.d, a.seq, at), q = rows_of<A>(job.reads[1], a.d, a.seq, at);
        const auto out = rows_of<A>(job.reads[3], a.d, a.seq, at);
        auto sum = job.compute.accumulate ? rows_of<A>(job.writes[0], a.d, a.seq, at) : std::vector<A>(q.size(), A(0));
        for (int64_t s = 0; s < a.seq; ++s) {
          const auto row = static_cast<size_t>(s * a.d);
          const A mean = dot(&d_out[row], &out[row], a.d), log_sum = lse.get(a.query(b, h, s));
          for (int64_t o = 0; o < x.keys(); ++o) {
            if (!x.sees(s, o)) continue;
            const auto key = static_cast<size_t>(o * a.d);
            const A p = std::exp(scale * dot(&q[row], &k[key], a.d) - log_sum);
            const A d_score = p * (dot(&d_out[row], &v[key], a.d) - mean) * scale;
            for (size_t i = 0; i < static_cast<size_t>(a.d); ++i) {
              dv[key + i] += p * d_out[row + i];
              dk[key + i] += d_score * q[row + i];
              sum[row + i] += d_score * k[key + i];
            }
          }
          dq.close(at(s), a.d, &sum[row]);
        }
      }
      for (int64_t o = 0; o < x.keys(); ++o) {
        dkv.close(x.k(b, o, kv), a.d, &dk[static_cast<size_t>(o * a.d)]);
        dkv.close(x.v(b, o, kv), a.d, &dv[static_cast<size_t>(o * a.d)]);
      }
    }
  });
}

template <class A>
void merge_attention(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const Stored<A> part(job.reads[0]), part_lse(job.reads[1]), out(job.reads[2]), lse(job.reads[3]), to(job.writes[0]),
      to_lse(job.writes[1]);
  job.workers.parallel_for(a.tokens() * a.heads, 64, [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(3 * a.d);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row / a.heads, query = a.query(token % a.batch, row % a.heads, token / a.batch);
      const A x = part_lse.get(query), y = lse.get(query), most = std::max(x, y);
      const A both = most + std::log(std::exp(x - most) + std::exp(y - most));
      const A share_x = std::exp(x - both), share_y = std::exp(y - both);
      const A *from_x = part.read(row * a.d, a.d, buffer.get()), *from_y = out.read(row * a.d, a.d, buffer.get() + a.d);
      A* sum = to.open(row * a.d, buffer.get() + 2 * a.d);
      for (int64_t i = 0; i < a.d; ++i) sum[i] = share_x * from_x[i] + share_y * from_y[i];
      to.close(row * a.d, a.d, sum);
      to_lse.put(query, both);
    }
  });
}

void reorder_qkv(const Job& job) {
  const Heads a = Heads::of(job.compute);
  const bool split = job.compute.kernel == plan::Kernel::split_qkv;
  const auto all = split ? job.reads : job.writes, apart = split ? job.writes : job.reads;
  const int64_t size = size_of(all[0].dtype), q_row = a.share() * a.d * size, kv_row = 2 * a.d * size;
  auto* const whole = static_cast<std::byte*>(all[0].data);
  auto* const q = static_cast<std::byte*>(apart[0].data);
  auto* const kv = static_cast<std::byte*>(apart[1].data);
  job.workers.parallel_for(a.tokens() * a.kv_heads, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::byte* const group = whole + i * (q_row + kv_row);  // heads of a token lie one behind the other
      const auto move = [&](std::byte* in_whole, std::byte* alone, int64_t bytes) {
        std::memcpy(split ? alone : in_whole, split ? in_whole : alone, static_cast<size_t>(bytes));
      };
      move(group, q + i * q_row, q_row);
      move(group + q_row, kv + i * kv_row, kv_row);
    }
  });
}

void split_columns(const Job& job) {
  const int64_t rows = job.compute.dims[0], row = job.compute.dims[1] * size_of(job.writes[0].dtype);
  const int64_t pieces = job.context.group_size;
  const auto* x = static_cast<const std::byte*>(job.reads[0].data);
  auto* y = static_cast<std::byte*>(job.writes[0].data);
  job.workers.parallel_for(rows * pieces, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(y + i * row, x + (i % rows * pieces + i / rows) * row, static_cast<size_t>(row));
  });
}

void reorder_sequence(const Job& job) {
  const int64_t rows = job.compute.dims[0], batch = job.compute.dims[2], members = job.context.group_size;
  const int64_t row = job.compute.dims[1] * size_of(job.writes[0].dtype);
  const bool gather = job.compute.kernel == plan::Kernel::gather_sequence;
  const auto* x = static_cast<const std::byte*>(job.reads[0].data);
  auto* y = static_cast<std::byte*>(job.writes[0].data);
  job.workers.parallel_for(rows * members, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t local = i % rows;
      const int64_t place =
          plan::sequence_position(local / batch, rows / batch, i / rows, members) * batch + local % batch;
      std::memcpy(y + (gather ? place : i) * row, x + (gather ? i : place) * row, static_cast<size_t>(row));
    }
  });
}

template void block_attention_forward<float>(const Job&);
template void block_attention_forward<double>(const Job&);
template void block_attention_backward<float>(const Job&);
template void block_attention_backward<double>(const Job&);
template void merge_attention<float>(const Job&);
template void merge_attention<double>(const Job&);

}  // namespace wt::exec
