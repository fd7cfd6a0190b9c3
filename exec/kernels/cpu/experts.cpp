// Layers of experts: the router's choices, rows on their way to the slots of their experts and back, products in groups.
// Not the exchange between ranks: those are collectives of the plan. Invariant: slots are filled in the order of (row,
// choice), so which rows an expert takes does not depend on the workers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "exec/kernels/cpu/kernels.hpp"
#include "exec/kernels/cpu/storage.hpp"
#include "exec/kernels/layout.hpp"

namespace wt::exec {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements worth another worker
constexpr int64_t kRun = 2048;       // elements treated at once

int64_t rows_each(int64_t columns) { return 1 + kGrain / (columns + 1); }

/// Of each choice (row k + j) the slot that it found, -1 for none; and of each slot its choice, -1 for an empty one.
struct Places {
  std::vector<int64_t> slot, choice;

  Places(const Slots& s, const Operand& experts)
      : slot(static_cast<size_t>(s.choices()), -1), choice(static_cast<size_t>(s.count()), -1) {
    const auto* expert = static_cast<const int32_t*>(experts.data);
    std::vector<int64_t> taken(static_cast<size_t>(s.experts), 0);
    for (int64_t i = 0; i < s.choices(); ++i) {
      const int64_t e = expert[i], at = taken[static_cast<size_t>(e)]++;
      if (at >= s.capacity) continue;
      slot[static_cast<size_t>(i)] = e * s.capacity + at;
      choice[static_cast<size_t>(e * s.capacity + at)] = i;
    }
  }
};

}  // namespace

template <class A>
void route_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t rows = c.dims[0], experts = c.dims[1], k = c.dims[2], batch = c.dims[3];
  const bool even = c.function == static_cast<uint8_t>(RoutingRule::even);
  const Stored<A> logits(job.reads[0]), weights(job.writes[0]);
  auto* const expert = static_cast<int32_t*>(job.writes[1].data);
  auto* const counts = static_cast<int32_t*>(job.writes[2].data);
  job.workers.parallel_for(rows, rows_each(experts * k), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(experts), chosen = buffer_of<A>(k);
    for (int64_t row = begin; row < end; ++row) {
      const A* x = logits.read(row * experts, experts, buffer.get());
      int64_t last = -1;
      for (int64_t j = 0; j < k; ++j) {
        last = even ? even_choice(job.context.group_index * rows + row, batch, k, j, experts)
                    : next_choice<A>(experts, last, [&](int64_t e) { return x[e]; });
        expert[row * k + j] = static_cast<int32_t>(last);
        chosen[static_cast<size_t>(j)] = x[last];
      }
      const A most = *std::max_element(chosen.get(), chosen.get() + k);
      A sum = 0;
      for (int64_t j = 0; j < k; ++j)
        sum += chosen[static_cast<size_t>(j)] = exponential(chosen[static_cast<size_t>(j)] - most);
      for (int64_t j = 0; j < k; ++j) chosen[static_cast<size_t>(j)] /= sum;
      weights.close(row * k, k, chosen.get());
    }
  });
  std::fill_n(counts, experts, 0);
  for (int64_t i = 0; i < rows * k; ++i) ++counts[expert[i]];
}

template <class A>
void route_backward(const Job& job) {
  const int64_t rows = job.compute.dims[0], experts = job.compute.dims[1], k = job.compute.dims[2];
  const Stored<A> d_weights(job.reads[0]), weights(job.reads[1]), d_logits(job.writes[0]);
  const auto* expert = static_cast<const int32_t*>(job.reads[2].data);
  job.workers.parallel_for(rows, rows_each(experts), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * k), out = buffer_of<A>(experts);
    for (int64_t row = begin; row < end; ++row) {
      const A *d = d_weights.read(row * k, k, buffer.get()), *w = weights.read(row * k, k, buffer.get() + k);
      A dot = 0;
      for (int64_t j = 0; j < k; ++j) dot += d[j] * w[j];
      A* const to = d_logits.open(row * experts, out.get());
      std::fill_n(to, experts, A(0));
      for (int64_t j = 0; j < k; ++j) to[expert[row * k + j]] = w[j] * (d[j] - dot);
      d_logits.close(row * experts, experts, to);
    }
  });
}

template <class A>
void permute(const Job& job) {
  const Slots s = Slots::of(job.compute);
  const Places places(s, job.reads[1]);
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  job.workers.parallel_for(s.count(), rows_each(s.columns), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(s.columns);
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t choice = places.choice[static_cast<size_t>(slot)];
      A* to = y.open(slot * s.columns, buffer.get());
      if (choice < 0) {
        std::fill_n(to, s.columns, A(0));
        y.close(slot * s.columns, s.columns, to);
      } else {
        y.close(slot * s.columns, s.columns, x.read(choice / s.k * s.columns, s.columns, buffer.get()));
      }
    }
  });
  if (job.writes.size() < 2) return;
  const Stored<A> weights(job.reads[2]), slot_weights(job.writes[1]);
  for (int64_t slot = 0; slot < s.count(); ++slot) {
    const int64_t choice = places.choice[static_cast<size_t>(slot)];
    slot_weights.put(slot, choice < 0 ? A(0) : weights.get(choice));
  }
}

template <class A>
void unpermute(const Job& job) {
  const Slots s = Slots::of(job.compute);
  const Places places(s, job.reads[1]);
  const Stored<A> x(job.reads[0]), y(job.writes[0]);
  job.workers.parallel_for(s.rows, rows_each(s.columns * s.k), [&](int64_t begin, int64_t end) {
    const auto buffer = buffer_of<A>(2 * s.columns);
    for (int64_t row = begin; row < end; ++row) {
      A* to = y.open(row * s.columns, buffer.get());
      std::fill_n(to, s.columns, A(0));
      for (int64_t i = row * s.k; i < (row + 1) * s.k; ++i) {
        const int64_t slot = places.slot[static_cast<size_t>(i)];
        if (slot >= 0)
          row_kernels<A>().add(to, x.read(slot * s.columns, s.columns, buffer.get() + s.columns), to, s.columns);
      }
      y.close(row * s.columns, s.columns, to);
    }
  });
  if (job.writes.size() < 2) return;
  const Stored<A> slot_weights(job.reads[2]), weights(job.writes[1]);
  for (int64_t i = 0; i < s.choices(); ++i) {
    const int64_t slot = places.slot[static_cast<size_t>(i)];
    weights.put(i, slot < 0 ? A(0) : slot_weights.get(slot));
  }
}

/// [a, b, rows] to [b, a, rows], of rows as they are stored; and of what goes with them.
void regroup(const Job& job) {
  const auto& dims = job.compute.dims;
  const int64_t a = dims[0], b = dims[1], rows = dims[2];
  for (size_t n = 0; n < job.reads.size(); ++n) {
    const int64_t bytes = rows * (n == 0 ? dims[3] : 1) * size_of(job.reads[n].dtype);
    const auto* from = static_cast<const std::byte*>(job.reads[n].data);
    auto* to = static_cast<std::byte*>(job.writes[n].data);
    job.workers.parallel_for(a * b, 1 + kGrain / (bytes + 1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(to + i * bytes, from + (i % a * b + i / a) * bytes, static_cast<size_t>(bytes));
    });
  }
}

/// A gemm for each group, one after the other: each is cut among all workers.
template <class A>
void grouped_gemm(const Job& job) {
  plan::Compute one = job.compute;
  one.kernel = plan::Kernel::gemm;
  one.dims[3] = 0;
  const int64_t m = one.dims[0], n = one.dims[1], k = one.dims[2], groups = job.compute.dims[3];
  auto part = [](const Operand& x, int64_t group, int64_t elements) {
    return Operand{static_cast<std::byte*>(x.data) + group * elements * size_of(x.dtype), x.dtype, elements, {}};
  };
  for (int64_t g = 0; g < groups; ++g) {
    const Operand reads[] = {part(job.reads[0], g, m * k), part(job.reads[1], g, k * n)};
    const Operand writes[] = {part(job.writes[0], g, m * n)};
    gemm<A>({one, reads, writes, job.context, job.workers});
  }
}

template <class A>
void expert_activation_forward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t f = c.dims[1], wide = c.gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  const Stored<A> x(job.reads[0]), weight(job.reads[1]), y(job.writes[0]);
  const RowKernels<A>& k = row_kernels<A>();
  job.workers.parallel_for(c.dims[0], rows_each(wide), [&](int64_t begin, int64_t end) {
    A gate[kRun], up[kRun], out[kRun];
    for (int64_t i = begin; i < end; ++i) {
      const A w = weight.get(i);
      for (int64_t j = 0; j < f; j += kRun) {
        const int64_t n = std::min(kRun, f - j);
        const A* u = c.gated ? x.read(i * wide + f + j, n, up) : nullptr;
        A* to = y.open(i * f + j, out);
        k.activate(kind, x.read(i * wide + j, n, gate), u, to, n);
        k.scale(w, to, to, n);
        y.close(i * f + j, n, to);
      }
    }
  });
}

template <class A>
void expert_activation_backward(const Job& job) {
  const plan::Compute& c = job.compute;
  const int64_t f = c.dims[1], wide = c.gated ? 2 * f : f;
  const auto kind = static_cast<ActivationKind>(c.function);
  const Stored<A> dy(job.reads[0]), x(job.reads[1]), weight(job.reads[2]), dx(job.writes[0]), d_weight(job.writes[1]);
  const RowKernels<A>& k = row_kernels<A>();
  job.workers.parallel_for(c.dims[0], rows_each(wide), [&](int64_t begin, int64_t end) {
    A gate[kRun], up[kRun], d[kRun], value[kRun], d_gate[kRun], d_up[kRun];
    for (int64_t i = begin; i < end; ++i) {
      const A w = weight.get(i);
      A sum = 0;
      for (int64_t j = 0; j < f; j += kRun) {
        const int64_t n = std::min(kRun, f - j);
        const A *g = x.read(i * wide + j, n, gate), *u = c.gated ? x.read(i * wide + f + j, n, up) : nullptr;
        const A* from = dy.read(i * f + j, n, d);
        k.activate(kind, g, u, value, n);
        sum += k.dot(from, value, n);
        k.scale(w, from, value, n);  // what the activation alone was given
        A* to = dx.open(i * wide + j, d_gate);
        A* to_up = c.gated ? dx.open(i * wide + f + j, d_up) : nullptr;
        k.activate_gradient(kind, value, g, u, to, to_up, n);
        dx.close(i * wide + j, n, to);
        if (c.gated) dx.close(i * wide + f + j, n, to_up);
      }
      d_weight.put(i, sum);
    }
  });
}

template void route_forward<float>(const Job&);
template void route_forward<double>(const Job&);
template void route_backward<float>(const Job&);
template void route_backward<double>(const Job&);
template void permute<float>(const Job&);
template void permute<double>(const Job&);
template void unpermute<float>(const Job&);
template void unpermute<double>(const Job&);
template void grouped_gemm<float>(const Job&);
template void grouped_gemm<double>(const Job&);
template void expert_activation_forward<float>(const Job&);
template void expert_activation_forward<double>(const Job&);
template void expert_activation_backward<float>(const Job&);
template void expert_activation_backward<double>(const Job&);

}  // namespace wt::exec
