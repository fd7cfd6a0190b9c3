// Cases of layers of experts and of latent attention.
#include <cmath>

#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"
#include "tests/exec/kernels/builder.hpp"

namespace wt::exec::test {

void Builder::experts() {
  const int64_t rows = s_.a * s_.e, experts = s_.c + 1, k = std::min<int64_t>(s_.d, experts);
  switch (c_.compute.kernel) {
    case Kernel::route_forward:
    case Kernel::route_backward: {
      dims(rows, experts, k, s_.e);
      c_.compute.function = static_cast<uint8_t>(option(0) ? RoutingRule::top_k : RoutingRule::even);
      c_.context.group_size = 3;
      c_.context.group_index = 2;
      c_.terms = static_cast<double>(k);
      c_.magnitude = kInput;
      const size_t logits = tensor(wide(), rows * experts, -4, 4), weights = tensor(wide(), rows * k),
                   chosen = indices(rows * k, experts), counts = indices(experts, 9);
      if (c_.compute.kernel == Kernel::route_forward) {
        read(logits);
        for (const size_t t : {weights, chosen, counts}) write(t);
        return;
      }
      from_reference(Kernel::route_forward, {logits}, {weights, chosen, counts});
      read(tensor(wide(), rows * k));
      read(weights);
      read(chosen);
      write(tensor(wide(), rows * experts));
      return;
    }
    case Kernel::grouped_gemm: {
      const int64_t groups = s_.d;
      dims(s_.a, s_.b, s_.c, groups);
      c_.compute.transpose_a = option(0);
      c_.compute.transpose_b = option(1);
      c_.compute.accumulate = option(2);
      read(tensor(storage_, groups * s_.a * s_.c));
      read(tensor(storage_, groups * s_.c * s_.b));
      write(tensor(option(3) || storage_ == DType::f8 ? wide() : storage_, groups * s_.a * s_.b));
      c_.terms = static_cast<double>(s_.c);
      c_.magnitude = kInput;
      return;
    }
    default: {
      const int64_t f = s_.b, wide_f = (s_.options / 3 % 2 != 0 ? 2 : 1) * f;
      dims(s_.a, f);
      c_.compute.function = static_cast<uint8_t>(s_.options % 3);
      c_.compute.gated = wide_f > f;
      c_.terms = static_cast<double>(f);
      c_.magnitude =
          c_.compute.gated ? 36 : 7;  // of terms of the weight's gradient; gelu's left tail: see elementwise()
      const bool backward = c_.compute.kernel == Kernel::expert_activation_backward;
      if (backward) read(tensor(storage_, s_.a * f));
      read(tensor(storage_, s_.a * wide_f, -6, 6));
      read(tensor(wide(), s_.a, 0, 1));
      write(tensor(storage_, s_.a * (backward ? wide_f : f)));
      if (backward) write(tensor(wide(), s_.a));
    }
  }
}

/// Some rows find no slot, some slots no row.
void Builder::moved_rows() {
  const bool weighted = option(0);
  if (c_.compute.kernel == Kernel::regroup) {
    dims(s_.c, s_.d, s_.e, s_.b);
    const int64_t pieces = s_.c * s_.d * s_.e;
    read(tensor(storage_, pieces * s_.b));
    if (weighted) read(tensor(wide(), pieces));
    write(tensor(storage_, pieces * s_.b));
    if (weighted) write(tensor(wide(), pieces));
    return;
  }
  const int64_t rows = s_.a, h = s_.b, experts = s_.c + 1, k = std::min<int64_t>(s_.d, experts);
  const int64_t capacity = 1 + rows * k * 2 / (experts * (1 + s_.e % 4));
  dims(rows, h, experts, k, capacity);
  c_.terms = static_cast<double>(k);
  c_.magnitude = kInput;
  const bool out = c_.compute.kernel == Kernel::permute;
  read(tensor(storage_, (out ? rows : experts * capacity) * h));
  read(indices(rows * k, experts));
  if (weighted) read(tensor(wide(), out ? rows * k : experts * capacity));
  write(tensor(storage_, (out ? experts * capacity : rows) * h));
  if (weighted) write(tensor(wide(), out ? experts * capacity : rows * k));
}

/// a samples, b positions, c heads; the head's parts from d and e.
void Builder::latent() {
  const int64_t nope = s_.d, rope = 2 * (1 + s_.e % 5), v = 1 + s_.e;
  c_.magnitude = kInput;
  c_.products_in_storage = true;
  switch (c_.compute.kernel) {
    case Kernel::split_latent:
    case Kernel::join_latent: {
      dims(s_.a * s_.b, s_.c, s_.d);
      const size_t x = tensor(storage_, s_.a * s_.b * (s_.c + s_.d)), y = tensor(storage_, s_.a * s_.b * s_.c),
                   z = tensor(storage_, s_.a * s_.b * s_.d);
      const bool split = c_.compute.kernel == Kernel::split_latent;
      split ? read(x) : write(x);
      for (const size_t t : {y, z}) split ? write(t) : read(t);
      return;
    }
    case Kernel::latent_assemble:
    case Kernel::latent_scatter: {
      dims(s_.a, s_.b, s_.c, nope, rope);
      c_.compute.scalar = static_cast<double>(v);
      c_.terms = static_cast<double>(s_.c);
      const Heads a = Heads::of(c_.compute);
      const size_t qkv = tensor(storage_, a.tokens() * a.width());
      const bool forward = c_.compute.kernel == Kernel::latent_assemble;
      for (const size_t t : {tensor(storage_, a.tokens() * a.heads * a.d),
                             tensor(storage_, a.tokens() * a.heads * (nope + v)), tensor(storage_, a.tokens() * rope)})
        forward ? read(t) : write(t);
      forward ? write(qkv) : read(qkv);
      return;
    }
    default: {
      dims(s_.a, s_.b, s_.c * s_.d, nope + rope, v);
      c_.compute.causal = option(0);
      const Heads a = Heads::of(c_.compute);
      c_.terms = static_cast<double>(std::max(a.seq, std::max(a.d, a.v)));
      const size_t qkv = tensor(storage_, a.tokens() * a.width()), out = tensor(storage_, a.tokens() * a.heads * a.v),
                   lse = tensor(wide(), a.tokens() * a.heads);
      if (c_.compute.kernel == Kernel::latent_attention_forward) {
        read(qkv);
        write(out);
        write(lse);
        return;
      }
      from_reference(Kernel::latent_attention_forward, {qkv}, {out, lse});
      read(tensor(storage_, a.tokens() * a.heads * a.v));
      for (const size_t t : {qkv, out, lse}) read(t);
      write(tensor(storage_, a.tokens() * a.width()));
    }
  }
}

}  // namespace wt::exec::test
