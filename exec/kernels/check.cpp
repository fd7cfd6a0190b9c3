#include "exec/kernels/check.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "core/plan/kernels.hpp"
#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"

namespace wt::exec {
namespace {

using plan::Compute;
using plan::Kernel;

constexpr int64_t kAny = -1;  // any number of elements

enum class Stored : uint8_t { real, index, flag };

struct Wanted {
  const char* name = "";
  int64_t elements = kAny;
  Stored stored = Stored::real;
};

/// The operands of a kernel by position; a repeated one (square_sum, fill_zero, copy) stands once, at the end.
struct Signature {
  std::array<Wanted, 5> reads{}, writes{};
};

Signature attention_signature(const Compute& c) {
  const Heads a = Heads::of(c);
  const Wanted qkv{"qkv", a.tokens() * a.width()}, d_qkv{"dqkv", qkv.elements};
  const Wanted out{"out", a.tokens() * a.heads * a.v}, d_out{"dout", out.elements};
  const Wanted lse{"lse", a.tokens() * a.heads}, scores{"scores", lse.elements * a.seq},
      probs{"probs", scores.elements};
  const Wanted d_probs{"dprobs", scores.elements}, d_scores{"dscores", scores.elements};
  const Wanted gq{"gq", a.d}, gk{"gk", a.d}, stats{"stats", a.tokens() * (a.heads + a.kv_heads)};
  const Wanted q{"q", out.elements}, kv{"kv", 2 * a.tokens() * a.kv_heads * a.d};
  const Wanted blocks{"kv", c.function == plan::kAllBlocks ? kAny : kv.elements}, d_blocks{"dkv", blocks.elements};
  switch (c.kernel) {
    case Kernel::rope_forward: return {{qkv}, {qkv}};
    case Kernel::rope_backward: return {{d_qkv}, {d_qkv}};
    case Kernel::qk_norm_forward: return {{qkv, gq, gk}, {qkv, stats}};
    case Kernel::qk_norm_backward:
      return {{d_qkv, qkv, gq, gk, stats}, {d_qkv, Wanted{"dgq", a.d}, Wanted{"dgk", a.d}}};
    case Kernel::latent_attention_forward:
    case Kernel::attention_forward: return {{qkv}, {out, lse}};
    case Kernel::latent_attention_backward:
    case Kernel::attention_backward: return {{d_out, qkv, out, lse}, {d_qkv}};
    case Kernel::scores_forward: return {{qkv}, {scores}};
    case Kernel::softmax_forward: return {{scores}, {probs}};
    case Kernel::context_forward: return {{probs, qkv}, {out}};
    case Kernel::context_backward: return {{d_out, probs, qkv}, {d_probs, d_qkv}};
    case Kernel::softmax_backward: return {{d_probs, probs}, {d_scores}};
    case Kernel::split_qkv: return {{qkv}, {q, kv}};
    case Kernel::join_qkv: return {{q, kv}, {qkv}};
    case Kernel::block_attention_forward: return {{q, blocks}, {out, lse}};
    case Kernel::block_attention_backward: return {{d_out, q, blocks, out, lse}, {Wanted{"dq", q.elements}, d_blocks}};
    case Kernel::merge_attention: return {{out, lse, out, lse}, {out, lse}};
    default: return {{d_scores, qkv}, {d_qkv}};
  }
}

bool is_attention(Kernel k) {
  return (k >= Kernel::rope_forward && k <= Kernel::qk_norm_backward) ||
         (k >= Kernel::attention_forward && k <= Kernel::scores_backward) || k == Kernel::latent_attention_forward ||
         k == Kernel::latent_attention_backward || (k >= Kernel::split_qkv && k <= Kernel::merge_attention);
}

Signature expert_signature(const Compute& c) {
  const int64_t rows = c.dims[0], experts = c.dims[1], choices = rows * c.dims[2];
  const Wanted logits{"logits", rows * experts}, weights{"weights", choices}, d_weights{"dweights", choices},
      chosen{"experts", choices, Stored::index};
  const Slots s = Slots::of(c);
  const Wanted x{"x", s.rows * s.columns}, y{"y", x.elements}, slots{"slots", s.count() * s.columns};
  const Wanted by_choice{"weights", s.choices()}, by_slot{"slot weights", s.count()},
      of_choices{"experts", s.choices(), Stored::index};
  switch (c.kernel) {
    case Kernel::route_forward: return {{logits}, {weights, chosen, Wanted{"counts", experts, Stored::index}}};
    case Kernel::route_backward: return {{d_weights, weights, chosen}, {Wanted{"dlogits", rows * experts}}};
    case Kernel::permute: return {{x, of_choices, by_choice}, {slots, by_slot}};
    case Kernel::unpermute: return {{slots, of_choices, by_slot}, {y, by_choice}};
    case Kernel::regroup: {
      const int64_t pieces = c.dims[0] * c.dims[1] * c.dims[2];
      return {{Wanted{"x", pieces * c.dims[3]}, Wanted{"w", pieces}},
              {Wanted{"y", pieces * c.dims[3]}, Wanted{"w", pieces}}};
    }
    case Kernel::grouped_gemm: {
      const int64_t m = c.dims[0], n = c.dims[1], k = c.dims[2], groups = c.dims[3];
      return {{Wanted{"A", groups * m * k}, Wanted{"B", groups * k * n}}, {Wanted{"C", groups * m * n}}};
    }
    default: {
      const Wanted in{"x", rows * c.dims[1] * (c.gated ? 2 : 1)}, out{"y", rows * c.dims[1]}, w{"w", rows};
      if (c.kernel == Kernel::expert_activation_forward) return {{in, w}, {out}};
      return {{Wanted{"dy", out.elements}, in, w}, {Wanted{"dx", in.elements}, Wanted{"dw", rows}}};
    }
  }
}

/// latent_assemble, split_latent and their ways back.
Signature latent_signature(const Compute& c) {
  if (c.kernel == Kernel::split_latent || c.kernel == Kernel::join_latent) {
    const int64_t rows = c.dims[0], a = c.dims[1], b = c.dims[2];
    const Wanted x{"x", rows * (a + b)}, y{"y", rows * a}, z{"z", rows * b};
    return c.kernel == Kernel::split_latent ? Signature{{x}, {y, z}} : Signature{{y, z}, {x}};
  }
  const Heads a = Heads::of(c);
  const Wanted q{"q", a.tokens() * a.heads * a.d}, kv{"kv", a.tokens() * a.heads * (c.dims[3] + a.v)},
      rope{"k_rope", a.tokens() * c.dims[4]}, qkv{"qkv", a.tokens() * a.width()};
  return c.kernel == Kernel::latent_assemble ? Signature{{q, kv, rope}, {qkv}} : Signature{{qkv}, {q, kv, rope}};
}

Signature signature(const Compute& c) {
  if (is_attention(c.kernel)) return attention_signature(c);
  if (c.kernel >= Kernel::route_forward && c.kernel <= Kernel::expert_activation_backward) return expert_signature(c);
  if (c.kernel >= Kernel::latent_assemble && c.kernel <= Kernel::join_latent) return latent_signature(c);
  const int64_t rows = c.dims[0], columns = c.dims[1], tile = rows * columns;
  const int64_t wide = c.gated ? 2 * columns : columns;
  const int64_t stats = rows * (c.function == static_cast<uint8_t>(NormKind::layer_norm) ? 2 : 1);
  const Wanted x{"x", tile}, y{"y", tile}, dy{"dy", tile}, dx{"dx", tile}, mask{"mask", tile, Stored::flag};
  const Wanted any{"x", kAny};
  switch (c.kernel) {
    case Kernel::gemm:
      return {{Wanted{"A", c.dims[0] * c.dims[2]}, Wanted{"B", c.dims[2] * c.dims[1]}, Wanted{"bias", c.dims[1]}},
              {Wanted{"C", c.dims[0] * c.dims[1]}}};
    case Kernel::bias_gradient: return {{Wanted{"dY", tile}}, {Wanted{"db", columns}}};
    case Kernel::norm_forward:
      return {{x, Wanted{"gamma", columns}, Wanted{"beta", columns}}, {y, Wanted{"stats", stats}}};
    case Kernel::norm_backward:
      return {{dy, x, Wanted{"gamma", columns}, Wanted{"stats", stats}},
              {dx, Wanted{"dgamma", columns}, Wanted{"dbeta", columns}}};
    case Kernel::activation_forward: return {{Wanted{"x", rows * wide}, Wanted{"bias", wide}}, {y}};
    case Kernel::activation_backward:
      return {{dy, Wanted{"x", rows * wide}, Wanted{"bias", wide}}, {Wanted{"dx", rows * wide}}};
    case Kernel::residual_forward: return {{x, Wanted{"residual", tile}, Wanted{"bias", columns}}, {y, mask}};
    case Kernel::residual_backward: return {{dy, mask}, {dx}};
    case Kernel::add: return {{Wanted{"a", tile}, Wanted{"b", tile}}, {Wanted{"c", tile}}};
    case Kernel::dropout_forward: return {{x}, {y, mask}};
    case Kernel::dropout_backward: return {{dy, mask}, {dx}};
    case Kernel::embedding_forward:
      return {{Wanted{"tokens", rows, Stored::index}, Wanted{"table", c.dims[2] * columns}}, {x}};
    case Kernel::embedding_backward:
      return {{dx, Wanted{"tokens", rows, Stored::index}}, {Wanted{"dtable", c.dims[2] * columns}}};
    case Kernel::position_forward: return {{x, Wanted{"table"}}, {y}};
    case Kernel::position_backward: return {{dy}, {Wanted{"dtable"}}};
    case Kernel::loss_max: return {{Wanted{"logits", rows * c.dims[2]}}, {Wanted{"max", rows}}};
    case Kernel::loss_sums:
      return {{Wanted{"logits", rows * c.dims[2]}, Wanted{"max", rows}, Wanted{"labels", rows, Stored::index}},
              {Wanted{"sums", 2 * rows}}};
    case Kernel::loss_forward: return {{Wanted{"sums", 2 * rows}, Wanted{"max", rows}}, {Wanted{"loss", 1}}};
    case Kernel::loss_backward:
      return {{Wanted{"logits", rows * c.dims[2]}, Wanted{"max", rows}, Wanted{"sums", 2 * rows},
               Wanted{"labels", rows, Stored::index}},
              {Wanted{"dlogits", rows * c.dims[2]}}};
    case Kernel::square_sum: return {{any, any, any, any, any}, {Wanted{"sum", 1}}};
    case Kernel::transpose: return {{x}, {y}};
    case Kernel::orthogonalize: return {{x}, {Wanted{"x", tile}}};
    case Kernel::concat_columns:
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence: return {{any}, {any}};
    case Kernel::slice_columns: return {{any}, {y}};
    case Kernel::scale:
    case Kernel::cast: return {{any}, {any, any}};
    default: return {{any, any, any, any, any}, {any, any, any, any, any}};  // adam, sgd, fill_zero, copy: below
  }
}

class Faults {
 public:
  explicit Faults(const Compute& c) : kernel_(c.kernel) {}
  template <class... T>
  void add(fmt::format_string<T...> text, T&&... values) {
    found_.push_back({std::string(plan::to_text(kernel_)), fmt::format(text, std::forward<T>(values)...), ""});
  }
  Diagnostics take() { return std::move(found_); }
  bool none() const { return found_.empty(); }

 private:
  Kernel kernel_;
  Diagnostics found_;
};

/// Types alone are looked at when `sized` is false.
void check_list(Faults& faults, std::string_view side, std::span<const Operand> operands,
                const std::array<Wanted, 5>& wanted, bool sized) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Wanted& w = wanted[std::min(i, wanted.size() - 1)];
    const Operand& x = operands[i];
    const bool fits = w.stored == Stored::real    ? is_float(x.dtype)
                      : w.stored == Stored::index ? x.dtype == DType::i32
                                                  : x.dtype == DType::u8;
    if (!fits)
      faults.add("{} {} ({}) is stored as {}, not as {}", side, i, w.name, to_text(x.dtype),
                 w.stored == Stored::real ? "a float" : (w.stored == Stored::index ? "i32" : "u8"));
    if (!sized) continue;
    if (w.elements != kAny && x.elements != w.elements)
      faults.add("{} {} ({}) has {} elements, the dims say {}", side, i, w.name, x.elements, w.elements);
    if (x.data == nullptr && x.elements > 0) faults.add("{} {} ({}) has no memory", side, i, w.name);
  }
}

/// What the signature cannot say: sizes that follow from each other.
void check_relations(Faults& faults, const Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                     const KernelContext& k) {
  auto same = [&](const Operand& x, int64_t elements, const char* name) {
    if (x.elements != elements) faults.add("{} has {} elements, not {}", name, x.elements, elements);
  };
  auto moved = [&](const Operand& x, const Operand& y) {
    if (x.dtype != y.dtype) faults.add("moves {} to {}", to_text(x.dtype), to_text(y.dtype));
  };
  switch (c.kernel) {
    case Kernel::scale:
    case Kernel::cast:
      for (const Operand& y : writes) same(y, reads[0].elements, "what is written");
      if (c.kernel == Kernel::cast && writes.size() == 2 && reads[0].shape.size() < 2)
        faults.add("a transposed copy needs a matrix, x has {} dims", reads[0].shape.size());
      break;
    case Kernel::copy:
      if (reads.size() != writes.size()) {
        faults.add("copies {} buffers to {}", reads.size(), writes.size());
        break;
      }
      for (size_t i = 0; i < reads.size(); ++i) same(reads[i], writes[i].elements * k.group_size, "what is copied");
      break;
    case Kernel::block_attention_forward:
    case Kernel::block_attention_backward: {
      const bool forward = c.kernel == Kernel::block_attention_forward;
      const int64_t blocks = c.function == plan::kAllBlocks ? k.group_size : 1;
      const int64_t elements = 2 * c.dims[0] * c.dims[1] * c.dims[3] * c.dims[4] * blocks;
      same(reads[forward ? 1 : 2], elements, "kv");
      if (!forward) same(writes[1], elements, "dkv");
      if (c.function != plan::kAllBlocks && c.function >= k.group_size)
        faults.add("keys of {} members away in a group of {}", c.function, k.group_size);
      break;
    }
    case Kernel::permute:
    case Kernel::unpermute:
      if (reads.size() != writes.size() + 1) faults.add("weights of choices go with those of slots");
      if (c.dims[3] > c.dims[2]) faults.add("{} choices among {} experts", c.dims[3], c.dims[2]);
      break;
    case Kernel::route_forward:
    case Kernel::route_backward:
      if (c.dims[2] < 1 || c.dims[2] > c.dims[1]) faults.add("{} choices among {} experts", c.dims[2], c.dims[1]);
      if (c.dims[3] < 1) faults.add("rows of {} sequences", c.dims[3]);
      break;
    case Kernel::regroup:
      if (reads.size() != writes.size()) faults.add("weights go with their rows");
      for (size_t i = 0; i < std::min(reads.size(), writes.size()); ++i) moved(reads[i], writes[i]);
      break;
    case Kernel::split_latent:
    case Kernel::join_latent:
      for (const auto& side : {reads, writes})
        for (const Operand& x : side) moved(reads[0], x);
      break;
    case Kernel::concat_columns:
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence:
    case Kernel::slice_columns:
      same(reads[0], c.dims[0] * c.dims[1] * k.group_size, "x");
      if (c.kernel != Kernel::slice_columns) same(writes[0], reads[0].elements, "y");
      if ((c.kernel == Kernel::gather_sequence || c.kernel == Kernel::deal_sequence) &&
          (c.dims[2] < 1 || c.dims[0] % c.dims[2] != 0))
        faults.add("{} rows are not whole positions of {} sequences", c.dims[0], c.dims[2]);
      moved(reads[0], writes[0]);
      break;
    case Kernel::adam:
    case Kernel::sgd: {
      const size_t states = c.kernel == Kernel::adam ? 3 : 1;  // master, moments
      same(reads[0], c.dims[0], "the gradient");
      if (reads.size() > states + 1) same(reads[1], 1, "norm");
      for (size_t i = reads.size() - states; i < reads.size(); ++i) same(reads[i], c.dims[0], "a state");
      for (const Operand& y : writes) same(y, c.dims[0], "a state");
      if (k.values == nullptr) faults.add("no learning rate was given");
      break;
    }
    case Kernel::position_forward:
    case Kernel::position_backward: {
      const Operand& table = c.kernel == Kernel::position_forward ? reads[1] : writes[0];
      const int64_t positions = c.dims[2] > 0 ? c.dims[0] / c.dims[2] : 0;
      if (c.dims[2] < 1 || c.dims[0] % c.dims[2] != 0)
        faults.add("{} rows are not whole positions of {} sequences", c.dims[0], c.dims[2]);
      else if (table.elements < positions * k.group_size * c.dims[1])
        faults.add("a table of {} elements for {} positions", table.elements, positions * k.group_size);
      break;
    }
    default: break;
  }
}

void check(Faults& faults, const Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
           const KernelContext* k) {
  plan::KernelOperands n = plan::operands_of(c.kernel);
  if (c.kernel == Kernel::cast && c.dtype == DType::f8) n.most_writes = 2;  // as stored, and transposed
  auto count = [&](const char* side, size_t got, uint8_t least, uint8_t most) {
    if (got < least || (most != 255 && got > most))
      faults.add("{} {}, not {}{}", got, side, least,
                 most == least ? "" : (most == 255 ? " or more" : fmt::format(" to {}", most)));
  };
  count("reads", reads.size(), n.least_reads, n.most_reads);
  count("writes", writes.size(), n.least_writes, n.most_writes);
  if (const Heads a = is_attention(c.kernel) ? Heads::of(c) : Heads{};
      is_attention(c.kernel) && (a.kv_heads < 1 || a.heads % a.kv_heads != 0))
    faults.add("{} heads on {} key/value heads", a.heads, a.kv_heads);
  if (!faults.none()) return;
  const Signature s = signature(c);
  check_list(faults, "read", reads, s.reads, k != nullptr);
  check_list(faults, "write", writes, s.writes, k != nullptr);
  if (k != nullptr) check_relations(faults, c, reads, writes, *k);
}

}  // namespace

Status check_operands(const Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                      const KernelContext& k) {
  Faults faults(c);
  check(faults, c, reads, writes, &k);
  return status_of(faults.take());
}

std::optional<std::string> unsupported_types(const Compute& c, std::span<const Operand> reads,
                                             std::span<const Operand> writes) {
  Faults faults(c);
  check(faults, c, reads, writes, nullptr);
  if (faults.none()) return std::nullopt;
  std::string text = to_text(faults.take());
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace wt::exec
