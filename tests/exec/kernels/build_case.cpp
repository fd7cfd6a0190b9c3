// Makes a case of every kernel: each builder reads the sizes and option bits that options_of() announces.
#include <cmath>

#include "exec/kernels/layout.hpp"
#include "exec/kernels/math.hpp"
#include "tests/exec/kernels/builder.hpp"

namespace wt::exec::test {

void Builder::gemm() {
  dims(s_.a, s_.b, s_.c);
  c_.compute.transpose_a = option(0);
  c_.compute.transpose_b = option(1);
  c_.compute.accumulate = option(2);
  read(tensor(storage_, s_.a * s_.c));
  read(tensor(storage_, s_.c * s_.b));
  const DType out = option(4) || storage_ == DType::f8 ? wide() : storage_;
  if (option(3)) read(tensor(storage_ == DType::f8 ? wide() : storage_, s_.b));
  write(tensor(out, s_.a * s_.b));
  c_.terms = static_cast<double>(s_.c);
  c_.magnitude = kInput;
}

void Builder::norm() {
  const int64_t rows = s_.a, h = s_.b;
  const bool layer = !option(0), biased = option(1);
  const size_t stats_size = static_cast<size_t>(rows) * (layer ? 2 : 1);
  dims(rows, h);
  c_.compute.function = layer ? 0 : 1;
  c_.compute.scalar = 1e-5;
  c_.terms = static_cast<double>(std::max(rows, h));
  if (c_.compute.kernel == Kernel::bias_gradient) {
    read(tensor(storage_, rows * h));
    write(tensor(option(0) ? wide() : storage_, h));
    c_.magnitude = kInput;
  } else if (c_.compute.kernel == Kernel::norm_forward) {
    const size_t x = tensor(storage_, rows * h, -1, 2);
    // Rows whose values are close lose in the subtraction of their mean what |x| / deviation says.
    for (int64_t r = 0; layer && r < rows; ++r) {
      double mean = 0, squares = 0, most = 0;
      for (int64_t i = 0; i < h; ++i)
        mean += c_.tensors[x].values[static_cast<size_t>(r * h + i)] / static_cast<double>(h);
      for (int64_t i = 0; i < h; ++i) {
        const double v = c_.tensors[x].values[static_cast<size_t>(r * h + i)];
        squares += (v - mean) * (v - mean) / static_cast<double>(h);
        most = std::max(most, std::abs(v));
      }
      c_.magnitude = std::max(c_.magnitude, most / std::sqrt(squares + c_.compute.scalar));
    }
    read(x);
    read(tensor(storage_, h));
    if (biased) read(tensor(storage_, h));
    write(tensor(storage_, rows * h));
    write(tensor(wide(), static_cast<int64_t>(stats_size)));
  } else {
    const size_t dy = tensor(storage_, rows * h);
    c_.magnitude = 3;
    read(dy);
    read(tensor(storage_, rows * h));
    read(tensor(storage_, h));
    read(tensor(wide(), static_cast<int64_t>(stats_size), 0.1, 1.2));
    write(option(3) ? dy : tensor(storage_, rows * h));
    const DType gain = option(2) ? wide() : storage_;
    write(tensor(gain, h));
    if (biased) write(tensor(gain, h));
  }
}

/// a samples, b positions, c key heads, d queries on each, e half the head size.
void Builder::heads() {
  const Kernel k = c_.compute.kernel;
  dims(s_.a, s_.b, s_.c * s_.d, s_.c, 2 * s_.e);
  const Heads a = Heads::of(c_.compute);
  c_.terms = static_cast<double>(a.d);
  const size_t in = tensor(storage_, a.tokens() * a.width());
  const size_t out = option(0) ? in : tensor(storage_, a.tokens() * a.width());
  read(in);
  if (k == Kernel::rope_forward || k == Kernel::rope_backward) return write(out);
  c_.compute.scalar = 1e-6;
  const bool forward = k == Kernel::qk_norm_forward;
  if (!forward) read(tensor(storage_, a.tokens() * a.width()));
  read(tensor(storage_, a.d));
  read(tensor(storage_, a.d));
  const int64_t stats = a.tokens() * (a.heads + a.kv_heads);
  if (!forward) read(tensor(wide(), stats, 0.5, 1.5));
  write(out);
  if (forward) return write(tensor(wide(), stats));
  write(tensor(option(1) ? wide() : storage_, a.d));
  write(tensor(option(1) ? wide() : storage_, a.d));
  c_.terms = static_cast<double>(stats);
}

void Builder::attention() {
  dims(s_.a, s_.b, s_.c * s_.d, s_.c, s_.e);
  c_.compute.causal = option(0);
  if (option(1)) c_.compute.scalar = static_cast<double>(1 + random_() % static_cast<uint64_t>(s_.b));
  const Heads a = Heads::of(c_.compute);
  const int64_t out_size = a.tokens() * a.heads * a.d, scores_size = a.tokens() * a.heads * a.seq;
  const size_t qkv = tensor(storage_, a.tokens() * a.width());
  auto wide_of = [&](int64_t n) { return tensor(wide(), n); };
  c_.terms = static_cast<double>(std::max(a.seq, a.d) * a.share());
  c_.products_in_storage = true;
  c_.magnitude = kInput;
  switch (c_.compute.kernel) {
    case Kernel::attention_forward:
      read(qkv);
      write(tensor(storage_, out_size));
      write(wide_of(a.tokens() * a.heads));
      return;
    case Kernel::attention_backward: {
      const size_t out = tensor(storage_, out_size), lse = wide_of(a.tokens() * a.heads);
      from_reference(Kernel::attention_forward, {qkv}, {out, lse});
      read(tensor(storage_, out_size));
      read(qkv);
      read(out);
      read(lse);
      write(tensor(storage_, a.tokens() * a.width()));
      return;
    }
    case Kernel::scores_forward:
      read(qkv);
      write(tensor(storage_, scores_size));
      return;
    case Kernel::softmax_forward:
      read(tensor(storage_, scores_size, -3, 3));
      write(tensor(storage_, scores_size));
      return;
    case Kernel::context_forward:
      read(tensor(storage_, scores_size, 0, 1));
      read(qkv);
      write(tensor(storage_, out_size));
      return;
    case Kernel::context_backward:
      read(tensor(storage_, out_size));
      read(tensor(storage_, scores_size, 0, 1));
      read(qkv);
      write(tensor(storage_, scores_size));
      write(tensor(storage_, a.tokens() * a.width()));
      return;
    case Kernel::softmax_backward: {
      const size_t d_probs = tensor(storage_, scores_size);
      read(d_probs);
      read(tensor(storage_, scores_size, 0, 1));
      write(option(2) ? d_probs : tensor(storage_, scores_size));
      return;
    }
    default:
      read(tensor(storage_, scores_size));
      read(qkv);
      write(tensor(storage_, a.tokens() * a.width()));
  }
}

/// Ranks that share sequences: those of a row, of another member (not causal: a row then sees all), or of all members.
void Builder::context() {
  const int64_t ranks = 1 + (s_.d - 1) % 4, batch = 1 + (s_.a - 1) % 3, kv_heads = 1 + (s_.c - 1) % 2;
  const int64_t length = 2 * (1 + (s_.b - 1) % 20), d = s_.e, heads = 2 * kv_heads;
  c_.context.group_size = ranks;
  c_.context.group_index = static_cast<int64_t>(s_.seed % static_cast<uint64_t>(ranks));
  c_.terms = static_cast<double>(std::max(ranks * length, d) * 2);
  c_.products_in_storage = true;
  c_.magnitude = kInput;
  const int64_t q_size = batch * length * heads * d, kv_size = 2 * batch * length * kv_heads * d;
  const auto rows = [&] { return tensor(storage_, q_size); };
  const auto sums = [&] { return tensor(wide(), batch * length * heads); };
  dims(batch, length, heads, kv_heads, d);
  const bool every = option(0);
  c_.compute.function = every ? plan::kAllBlocks : static_cast<uint8_t>((s_.a + s_.c) % ranks);
  c_.compute.causal = option(1) && (every || c_.compute.function == 0);
  const auto keys = [&] { return tensor(storage_, kv_size * (every ? ranks : 1)); };
  switch (c_.compute.kernel) {
    case Kernel::split_qkv:
      read(tensor(storage_, q_size + kv_size));
      write(rows());
      write(tensor(storage_, kv_size));
      return;
    case Kernel::join_qkv:
      read(rows());
      read(tensor(storage_, kv_size));
      write(tensor(storage_, q_size + kv_size));
      return;
    case Kernel::block_attention_forward:
      read(rows());
      read(keys());
      write(rows());
      write(sums());
      return;
    case Kernel::block_attention_backward: {
      const size_t q = rows(), kv = keys(), out = rows(), lse = sums();
      from_reference(Kernel::block_attention_forward, {q, kv}, {out, lse});
      c_.compute.accumulate = option(2);
      read(rows());
      for (const size_t t : {q, kv, out, lse}) read(t);
      write(rows());
      write(keys());
      return;
    }
    case Kernel::merge_attention: {
      const size_t part = rows(), part_lse = sums(), out = rows(), lse = sums();
      for (const size_t t : {part, part_lse, out, lse}) read(t);
      write(option(0) ? out : rows());
      write(option(0) ? lse : sums());
      return;
    }
    default:  // whole rows change places
      dims(batch * length, heads * d, batch);
      read(tensor(storage_, q_size * ranks));
      write(tensor(storage_, q_size * ranks));
  }
}

void Builder::elementwise() {
  const int64_t rows = s_.a, h = s_.b, n = rows * h;
  dims(rows, h);
  switch (c_.compute.kernel) {
    case Kernel::activation_forward:
    case Kernel::activation_backward: {
      c_.compute.function = static_cast<uint8_t>(s_.options % 3);
      c_.compute.gated = s_.options / 3 % 2 != 0;
      const bool biased = s_.options / 6 % 2 != 0;
      c_.magnitude = 7;  // of x: gelu's left tail is a difference of numbers of its size
      const int64_t wide_h = c_.compute.gated ? 2 * h : h;
      const bool backward = c_.compute.kernel == Kernel::activation_backward;
      if (backward) read(tensor(storage_, n));
      read(tensor(storage_, rows * wide_h, -6, 6));
      if (biased) read(tensor(storage_, wide_h));
      write(tensor(storage_, backward ? rows * wide_h : n));
      return;
    }
    case Kernel::residual_forward:
      read(tensor(storage_, n));
      read(tensor(storage_, n));
      if (option(0)) read(tensor(storage_, h));
      write(tensor(storage_, n));
      return;
    case Kernel::add: {
      const size_t a = tensor(storage_, n);
      read(a);
      read(tensor(option(1) ? wide() : storage_, n));
      write(option(0) ? a : tensor(storage_, n));
      return;
    }
    case Kernel::scale: {
      const size_t x = tensor(storage_, n);
      c_.compute.scalar = 0.37;
      read(x);
      write(option(0) ? x : tensor(storage_, n));
      return;
    }
    case Kernel::cast: {
      const DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8};
      read(tensor(storage_, n, -100, 100));
      write(tensor(types[s_.options % 5], n));
      return;
    }
    case Kernel::transpose:
      read(tensor(storage_, n));
      write(tensor(storage_, n));
      return;
    case Kernel::concat_columns:
    case Kernel::slice_columns: {
      const int64_t ranks = s_.c;
      c_.context.group_size = ranks;
      c_.context.group_index = s_.d % ranks;
      read(tensor(storage_, n * ranks));
      write(tensor(storage_, c_.compute.kernel == Kernel::concat_columns ? n * ranks : n));
      return;
    }
    case Kernel::fill_zero:
      for (int i = 0; i < 1 + (option(0) ? 2 : 0); ++i) write(tensor(storage_, n + i));
      return;
    default:  // copy
      c_.context.group_size = option(0) ? 3 : 1;
      c_.context.group_index = option(0) ? 2 : 0;
      for (int i = 0; i < (option(1) ? 3 : 1); ++i) {
        read(tensor(storage_, (n + i) * c_.context.group_size));
        write(tensor(storage_, n + i));
      }
  }
}

void Builder::tables() {
  const int64_t rows = s_.a * s_.c, h = s_.b, shard = s_.d + 1;
  const Kernel k = c_.compute.kernel;
  const DType gradient = option(1) ? wide() : storage_;
  c_.terms = static_cast<double>(rows);
  c_.magnitude = kInput;
  c_.context.group_size = option(0) ? 2 : 1;
  c_.context.group_index = option(0) ? 1 : 0;
  if (k == Kernel::embedding_forward || k == Kernel::embedding_backward) {
    dims(rows, h, shard);
    const size_t tokens = indices(rows, shard * c_.context.group_size);
    const size_t table = tensor(k == Kernel::embedding_forward ? storage_ : gradient, shard * h);
    const size_t x = tensor(storage_, rows * h);
    if (k == Kernel::embedding_forward) {
      read(tokens);
      read(table);
      write(x);
    } else {
      read(x);
      read(tokens);
      write(table);
    }
    return;
  }
  // a positions of c samples on each rank that shares sequences (an even number where several do), in a table for one more
  if (s_.a % 2 != 0) c_.context.group_size = 1, c_.context.group_index = 0;
  dims(rows, h, s_.c);
  const size_t x = tensor(storage_, rows * h);
  read(x);
  const size_t table =
      tensor(k == Kernel::position_forward ? storage_ : gradient, (s_.a * c_.context.group_size + 1) * h);
  if (k == Kernel::position_forward) read(table);
  write(k == Kernel::position_backward ? table : (option(2) ? x : tensor(storage_, rows * h)));
}

void Builder::loss() {
  const int64_t rows = s_.a, columns = s_.b + 1, ranks = option(0) ? 2 : 1;
  c_.context.group_size = ranks;
  c_.context.group_index = ranks - 1;
  c_.context.micro_batches = 1 + s_.c;
  const int64_t vocabulary = columns * ranks - (option(1) ? std::min<int64_t>(columns - 1, 3) : 0);  // some padding
  dims(rows, vocabulary, columns);
  const size_t logits = tensor(storage_, rows * columns, -4, 4), most = tensor(wide(), rows, 3, 5);
  const size_t labels = indices(rows, vocabulary);
  c_.terms = static_cast<double>(std::max(rows, columns));
  const auto sums = [&] { return tensor(wide(), 2 * rows, 1, 9); };
  switch (c_.compute.kernel) {
    case Kernel::loss_max:
      read(logits);
      write(most);
      return;
    case Kernel::loss_sums:
      read(logits);
      read(most);
      read(labels);
      write(sums());
      return;
    case Kernel::loss_forward:
      c_.magnitude = 1;  // max + log(sum) - target: terms of the logits' size may cancel
      read(sums());
      read(most);
      write(tensor(wide(), 1));
      return;
    default:
      read(logits);
      read(most);
      read(sums());
      read(labels);
      write(option(2) ? logits : tensor(storage_, rows * columns));
  }
}

void Builder::optimizer() {
  const int64_t n = s_.a * s_.b;
  dims(n);
  c_.values.step = static_cast<int64_t>(s_.seed % 7);
  if (c_.compute.kernel == Kernel::square_sum) {
    c_.terms = c_.magnitude = static_cast<double>(n);
    const size_t bucket = tensor(storage_, n + 8);
    c_.reads.push_back({bucket, 4, n});
    c_.context.group_size = 2;
    c_.context.group_index = option(0) ? 1 : 0;
    if (option(1)) c_.reads.push_back({bucket, 0, 4 + n / 2});              // begins before x
    if (option(2)) c_.reads.push_back({bucket, 4 + n / 2, n - n / 2 + 4});  // ends behind it
    c_.compute.function = option(3) && c_.reads.size() > 1 ? 1 : 0;
    write(tensor(wide(), 1, 1, 2));
    return;
  }
  const bool adam = c_.compute.kernel == Kernel::adam;
  const size_t gradient = tensor(option(3) ? wide() : storage_, n);
  read(gradient);
  if (option(0)) {
    read(tensor(wide(), 1, 0.1, option(2) ? 0.2 : 40));
    c_.compute.scalar = 1;
  }
  const size_t master = tensor(wide(), n);
  read(master);
  const size_t parameter = option(1) ? master : tensor(storage_, n);
  write(parameter);
  write(master);
  if (!adam) return;
  for (const double low : {-1.0, 0.0}) {
    const size_t moment = tensor(wide(), n, low, 1);
    read(moment);
    write(moment);
  }
}

Case Builder::build() {
  switch (c_.compute.kernel) {
    case Kernel::gemm: gemm(); break;
    case Kernel::bias_gradient:
    case Kernel::norm_forward:
    case Kernel::norm_backward: norm(); break;
    case Kernel::rope_forward:
    case Kernel::rope_backward:
    case Kernel::qk_norm_forward:
    case Kernel::qk_norm_backward: heads(); break;
    case Kernel::attention_forward:
    case Kernel::attention_backward:
    case Kernel::scores_forward:
    case Kernel::softmax_forward:
    case Kernel::context_forward:
    case Kernel::context_backward:
    case Kernel::softmax_backward:
    case Kernel::scores_backward: attention(); break;
    case Kernel::activation_forward:
    case Kernel::activation_backward:
    case Kernel::residual_forward:
    case Kernel::add:
    case Kernel::scale:
    case Kernel::fill_zero:
    case Kernel::cast:
    case Kernel::copy:
    case Kernel::transpose:
    case Kernel::concat_columns:
    case Kernel::slice_columns: elementwise(); break;
    case Kernel::embedding_forward:
    case Kernel::embedding_backward:
    case Kernel::position_forward:
    case Kernel::position_backward: tables(); break;
    case Kernel::loss_max:
    case Kernel::loss_sums:
    case Kernel::loss_forward:
    case Kernel::loss_backward: loss(); break;
    case Kernel::square_sum:
    case Kernel::adam:
    case Kernel::sgd: optimizer(); break;
    case Kernel::residual_backward:  // random: held to properties, not to the reference
    case Kernel::dropout_forward:
    case Kernel::dropout_backward: break;
    case Kernel::route_forward:
    case Kernel::route_backward:
    case Kernel::grouped_gemm:
    case Kernel::expert_activation_forward:
    case Kernel::expert_activation_backward: experts(); break;
    case Kernel::permute:
    case Kernel::unpermute:
    case Kernel::regroup: moved_rows(); break;
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::latent_assemble:
    case Kernel::latent_scatter:
    case Kernel::split_latent:
    case Kernel::join_latent: latent(); break;
    case Kernel::split_qkv:
    case Kernel::join_qkv:
    case Kernel::block_attention_forward:
    case Kernel::block_attention_backward:
    case Kernel::merge_attention:
    case Kernel::split_columns:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence: context(); break;
    case Kernel::orthogonalize: break;  // of random columns ill conditioned: held to its property
  }
  return std::move(c_);
}

int options_of(Kernel k) {
  switch (k) {
    case Kernel::gemm: return 5;
    case Kernel::grouped_gemm:
    case Kernel::norm_backward:
    case Kernel::activation_forward:
    case Kernel::activation_backward:
    case Kernel::square_sum:
    case Kernel::adam:
    case Kernel::sgd: return 4;
    case Kernel::softmax_backward:
    case Kernel::cast:
    case Kernel::embedding_backward:
    case Kernel::position_forward:
    case Kernel::position_backward:
    case Kernel::loss_max:
    case Kernel::loss_sums:
    case Kernel::loss_forward:
    case Kernel::block_attention_backward:
    case Kernel::expert_activation_forward:
    case Kernel::expert_activation_backward:
    case Kernel::loss_backward: return 3;
    case Kernel::block_attention_forward:
    case Kernel::norm_forward:
    case Kernel::qk_norm_forward:
    case Kernel::qk_norm_backward:
    case Kernel::attention_forward:
    case Kernel::attention_backward:
    case Kernel::softmax_forward:
    case Kernel::add:
    case Kernel::copy: return 2;
    case Kernel::route_forward:
    case Kernel::route_backward:
    case Kernel::permute:
    case Kernel::unpermute:
    case Kernel::regroup:
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::merge_attention:
    case Kernel::bias_gradient:
    case Kernel::rope_forward:
    case Kernel::rope_backward:
    case Kernel::residual_forward:
    case Kernel::embedding_forward:
    case Kernel::scale:
    case Kernel::fill_zero: return 1;
    default: return 0;
  }
}

Case build(Kernel k, DType storage, const Sizes& s) { return Builder(k, storage, s).build(); }

}  // namespace wt::exec::test
