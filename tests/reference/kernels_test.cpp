// Each kernel pair against central differences: the backward kernels are the derivatives of the forward ones.
// And the forward kernels against closed forms that do not use their code, where there is one.
#include "tests/reference/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace wt::reference {
namespace {

using plan::Compute;
using plan::Kernel;
using Values = std::vector<double>;

std::vector<Operand> operands(std::vector<Values>& data) {
  std::vector<Operand> list;
  for (Values& v : data) list.push_back({&v, 0, static_cast<int64_t>(v.size())});
  return list;
}

/// Runs the kernel; outputs begin as given (accumulating kernels add to them).
std::vector<Values> run(const Compute& c, std::vector<Values> reads, std::vector<Values> writes, KernelContext k = {}) {
  run_kernel(c, operands(reads), operands(writes), k);
  return writes;
}

Values zeros(size_t n) { return Values(n, 0.0); }

Values random_values(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Values v(n);
  for (double& x : v) x = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
  return v;
}

Compute kernel(Kernel k, std::initializer_list<int64_t> dims) {
  Compute c;
  c.kernel = k;
  std::copy(dims.begin(), dims.end(), c.dims.begin());
  return c;
}

struct Case {
  std::string name;
  std::vector<size_t> inputs;  // sizes
  /// The output whose gradient is given.
  std::function<Values(const std::vector<Values>&)> forward;
  /// Gradients of the inputs; an empty one is not checked.
  std::function<std::vector<Values>(const std::vector<Values>&, const Values& dy)> backward;
};

class KernelGradient : public testing::TestWithParam<Case> {};

TEST_P(KernelGradient, IsTheDerivative) {
  const Case& c = GetParam();
  std::vector<Values> in;
  for (size_t i = 0; i < c.inputs.size(); ++i) in.push_back(random_values(c.inputs[i], 17 * i + 3));
  const Values y = c.forward(in), dy = random_values(y.size(), 99);
  const auto gradients = c.backward(in, dy);
  ASSERT_EQ(gradients.size(), in.size());
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < in.size(); ++i) {
    if (gradients[i].empty()) continue;
    ASSERT_EQ(gradients[i].size(), in[i].size());
    for (size_t k = 0; k < in[i].size(); ++k) {
      auto value = [&](double at) {
        auto moved = in;
        moved[i][k] += at;
        const Values out = c.forward(moved);
        double sum = 0;
        for (size_t o = 0; o < out.size(); ++o) sum += out[o] * dy[o];
        return sum;
      };
      EXPECT_NEAR(gradients[i][k], (value(kStep) - value(-kStep)) / (2 * kStep), 2e-8)
          << "input " << i << " element " << k;
    }
  }
}

Case norm_case(std::string name, uint8_t function, bool beta) {
  Compute f = kernel(Kernel::norm_forward, {3, 5}), b = kernel(Kernel::norm_backward, {3, 5});
  f.function = b.function = function;
  f.scalar = b.scalar = 1e-5;
  const size_t stats = function == 0 ? 6 : 3;
  std::vector<size_t> sizes{15, 5};
  if (beta) sizes.push_back(5);
  return {std::move(name), sizes,
          [=](const auto& in) {
            return run(f, in, {zeros(15), zeros(stats)})[0];
          },
          [=](const auto& in, const Values& dy) {
            const Values saved = run(f, in, {zeros(15), zeros(stats)})[1];
            std::vector<Values> out{zeros(15), zeros(5)};
            if (beta) out.push_back(zeros(5));
            return run(b, {dy, in[0], in[1], saved}, out);
          }};
}

constexpr int64_t kBatch = 2, kSeq = 3, kHeads = 4, kKv = 2, kDim = 4;
constexpr size_t kQkv = kBatch * kSeq * (kHeads + 2 * kKv) * kDim, kOut = kBatch * kSeq * kHeads * kDim,
                 kScores = kBatch * kHeads * kSeq * kSeq;

Compute attention(Kernel k, bool causal, int64_t window) {
  Compute c = kernel(k, {kBatch, kSeq, kHeads, kKv, kDim});
  c.causal = causal;
  c.scalar = static_cast<double>(window);
  return c;
}

Case attention_case(std::string name, bool causal, int64_t window) {
  return {std::move(name),
          {kQkv},
          [=](const auto& in) {
            return run(attention(Kernel::attention_forward, causal, window), in,
                       {zeros(kOut), zeros(kBatch * kHeads * kSeq)})[0];
          },
          [=](const auto& in, const Values& dy) {
            const auto saved = run(attention(Kernel::attention_forward, causal, window), in,
                                   {zeros(kOut), zeros(kBatch * kHeads * kSeq)});
            return run(attention(Kernel::attention_backward, causal, window), {dy, in[0], saved[0], saved[1]},
                       {zeros(kQkv)});
          }};
}

struct Unfused {
  Values scores, probs, out;
};
Unfused unfused(const Values& qkv, bool causal) {
  Unfused u;
  u.scores = run(attention(Kernel::scores_forward, causal, 0), {qkv}, {zeros(kScores)})[0];
  u.probs = run(attention(Kernel::softmax_forward, causal, 0), {u.scores}, {zeros(kScores)})[0];
  u.out = run(attention(Kernel::context_forward, causal, 0), {u.probs, qkv}, {zeros(kOut)})[0];
  return u;
}

Case activation_case(std::string name, uint8_t function, bool gated) {
  Compute f = kernel(Kernel::activation_forward, {3, 4}), b = kernel(Kernel::activation_backward, {3, 4});
  f.function = b.function = function;
  f.gated = b.gated = gated;
  const size_t wide = gated ? 24 : 12;
  return {std::move(name),
          {wide},
          [=](const auto& in) { return run(f, in, {zeros(12)})[0]; },
          [=](const auto& in, const Values& dy) {
            return run(b, {dy, in[0]}, {zeros(wide)});
          }};
}

/// Vocabulary of 5 real columns and one of padding; three tokens; two micro-batches.
constexpr int64_t kRows = 3, kColumns = 6, kWords = 5;
KernelContext two_micro_batches() {
  KernelContext k;
  k.micro_batches = 2;
  return k;
}
Compute loss_kernel(Kernel k) { return kernel(k, {kRows, kWords, kColumns}); }
const Values kLabels{4, 0, 2};
struct Loss {
  Values max, sums, loss;
};
Loss loss_of(const Values& logits) {
  Loss l;
  l.max = run(loss_kernel(Kernel::loss_max), {logits}, {zeros(kRows)})[0];
  l.sums = run(loss_kernel(Kernel::loss_sums), {logits, l.max, kLabels}, {zeros(2 * kRows)})[0];
  l.loss = run(loss_kernel(Kernel::loss_forward), {l.sums, l.max}, {zeros(1)}, two_micro_batches())[0];
  return l;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (bool bias : {false, true}) {
    // y = x W^T (+ b) with x [3,4], W [2,4].
    Compute f = kernel(Kernel::gemm, {3, 2, 4}), dx = kernel(Kernel::gemm, {3, 4, 2}),
            dw = kernel(Kernel::gemm, {2, 4, 3});
    f.transpose_b = true;
    dw.transpose_a = true;
    dw.accumulate = true;
    std::vector<size_t> sizes{12, 8};
    if (bias) sizes.push_back(2);
    all.push_back({bias ? "linear_bias" : "linear", sizes, [=](const auto& in) { return run(f, in, {zeros(6)})[0]; },
                   [=](const auto& in, const Values& dy) {
                     std::vector<Values> g{run(dx, {dy, in[1]}, {zeros(12)})[0], run(dw, {dy, in[0]}, {zeros(8)})[0]};
                     if (bias) g.push_back(run(kernel(Kernel::bias_gradient, {3, 2}), {dy}, {zeros(2)})[0]);
                     return g;
                   }});
  }
  all.push_back(norm_case("layer_norm", 0, true));
  all.push_back(norm_case("rms_norm", 1, false));
  all.push_back({"rope",
                 {kQkv},
                 [](const auto& in) { return run(attention(Kernel::rope_forward, true, 0), in, {zeros(kQkv)})[0]; },
                 [](const auto&, const Values& dy) {
                   return run(attention(Kernel::rope_backward, true, 0), {dy}, {zeros(kQkv)});
                 }});
  {
    Compute f = attention(Kernel::qk_norm_forward, true, 0), b = attention(Kernel::qk_norm_backward, true, 0);
    f.scalar = b.scalar = 1e-6;
    constexpr size_t kStats = kBatch * kSeq * (kHeads + kKv);
    all.push_back({"qk_norm",
                   {kQkv, kDim, kDim},
                   [=](const auto& in) {
                     return run(f, in, {zeros(kQkv), zeros(kStats)})[0];
                   },
                   [=](const auto& in, const Values& dy) {
                     const Values saved = run(f, in, {zeros(kQkv), zeros(kStats)})[1];
                     return run(b, {dy, in[0], in[1], in[2], saved}, {zeros(kQkv), zeros(kDim), zeros(kDim)});
                   }});
  }
  all.push_back(attention_case("attention", false, 0));
  all.push_back(attention_case("attention_causal", true, 0));
  all.push_back(attention_case("attention_window", true, 2));
  for (bool causal : {false, true})
    all.push_back({causal ? "unfused_attention_causal" : "unfused_attention",
                   {kQkv},
                   [=](const auto& in) { return unfused(in[0], causal).out; },
                   [=](const auto& in, const Values& dy) {
                     const Unfused u = unfused(in[0], causal);
                     auto at = [&](Kernel k) { return attention(k, causal, 0); };
                     // The v part first, then q and k into the same buffer.
                     auto d = run(at(Kernel::context_backward), {dy, u.probs, in[0]}, {zeros(kScores), zeros(kQkv)});
                     const Values ds = run(at(Kernel::softmax_backward), {d[0], u.probs}, {zeros(kScores)})[0];
                     return run(at(Kernel::scores_backward), {ds, in[0]}, {d[1]});
                   }});
  for (bool gated : {false, true}) {
    all.push_back(activation_case(gated ? "geglu" : "gelu", 0, gated));
    all.push_back(activation_case(gated ? "swiglu" : "silu", 1, gated));
    all.push_back(activation_case(gated ? "reglu" : "relu", 2, gated));
  }
  all.push_back({"residual",
                 {6, 6, 2},
                 [](const auto& in) {
                   return run(kernel(Kernel::residual_forward, {3, 2}), in, {zeros(6)})[0];
                 },
                 [](const auto&, const Values& dy) {
                   return std::vector<Values>{dy, dy, run(kernel(Kernel::bias_gradient, {3, 2}), {dy}, {zeros(2)})[0]};
                 }});
  {
    const Values tokens{1, 7, 4, 5};  // on rank 1 of 2 with 4 rows each: 7, 4 and 5 are its own
    KernelContext second;
    second.group_index = 1;
    second.group_size = 2;
    all.push_back({"embedding",
                   {4 * 3},
                   [=](const auto& in) {
                     return run(kernel(Kernel::embedding_forward, {4, 3, 4}), {tokens, in[0]}, {zeros(12)}, second)[0];
                   },
                   [=](const auto&, const Values& dy) {
                     return run(kernel(Kernel::embedding_backward, {4, 3, 4}), {dy, tokens}, {zeros(12)}, second);
                   }});
  }
  all.push_back(
      {"position",
       {12, 9},
       [](const auto& in) {
         return run(kernel(Kernel::position_forward, {4, 3, 2}), in, {zeros(12)})[0];
       },
       [](const auto&, const Values& dy) {
         return std::vector<Values>{dy, run(kernel(Kernel::position_backward, {4, 3, 2}), {dy}, {zeros(9)})[0]};
       }});
  all.push_back({"loss",
                 {kRows * kColumns},
                 [](const auto& in) { return loss_of(in[0]).loss; },
                 [](const auto& in, const Values& dy) {
                   const Loss l = loss_of(in[0]);
                   auto d = run(loss_kernel(Kernel::loss_backward), {in[0], l.max, l.sums, kLabels},
                                {zeros(kRows * kColumns)}, two_micro_batches());
                   for (double& x : d[0]) x *= dy[0];
                   return d;
                 }});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, KernelGradient, testing::ValuesIn(cases()), [](const auto& c) { return c.param.name; });

TEST(Kernels, FusedAndUnfusedAttentionAgree) {
  const Values qkv = random_values(kQkv, 5);
  for (bool causal : {false, true}) {
    const Values fused =
        run(attention(Kernel::attention_forward, causal, 0), {qkv}, {zeros(kOut), zeros(kBatch * kHeads * kSeq)})[0];
    const Values plain = unfused(qkv, causal).out;
    for (size_t i = 0; i < kOut; ++i) EXPECT_NEAR(fused[i], plain[i], 1e-14);
  }
}

TEST(Kernels, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  EXPECT_NEAR(loss_of(Values(kRows * kColumns, 3.0)).loss[0], std::log(5.0) / 2, 1e-15);  // one of two micro-batches
}

TEST(Kernels, AttentionOfOneTokenIsItsValue) {
  Compute c = kernel(Kernel::attention_forward, {1, 1, 1, 1, 2});
  EXPECT_EQ(run(c, {{1, 2, 3, 4, 5, 6}}, {zeros(2), zeros(1)})[0], (Values{5, 6}));
}

TEST(Kernels, RopeKeepsLengthsAndTheFirstPosition) {
  const Values qkv = random_values(kQkv, 5);
  const Values out = run(attention(Kernel::rope_forward, true, 0), {qkv}, {zeros(kQkv)})[0];
  double before = 0, after = 0;
  for (size_t i = 0; i < kQkv; ++i) before += qkv[i] * qkv[i], after += out[i] * out[i];
  EXPECT_NEAR(before, after, 1e-12);
  for (size_t i = 0; i < kQkv / kSeq; ++i) EXPECT_EQ(out[i], qkv[i]);
}

TEST(Kernels, FirstStepOfAdamIsTheLearningRate) {
  Compute c = kernel(Kernel::adam, {2});
  KernelContext k;
  k.learning_rate = 0.1;
  const auto out = run(c, {{3, -5}, {1, 1}, {0, 0}, {0, 0}}, {zeros(2), zeros(2), zeros(2), zeros(2)}, k);
  EXPECT_NEAR(out[0][0], 0.9, 1e-8);
  EXPECT_NEAR(out[0][1], 1.1, 1e-8);
  EXPECT_EQ(out[0], out[1]);
  // With a norm of 10 (its square is given) clipped at 1 the moments see a tenth.
  c.scalar = 1;
  const auto clipped = run(c, {{3, -5}, {100}, {1, 1}, {0, 0}, {0, 0}}, {zeros(2), zeros(2), zeros(2), zeros(2)}, k);
  EXPECT_NEAR(clipped[2][0], 0.03, 1e-8);
}

TEST(Kernels, SquareSumLeavesDuplicatesOut) {
  Values bucket{1, 2, 3, 4, 5, 6}, sum{10};
  const Operand x{&bucket, 2, 3}, inside{&bucket, 3, 1}, across{&bucket, 4, 2}, out{&sum, 0, 1};
  Compute c = kernel(Kernel::square_sum, {3});
  KernelContext k;
  run_kernel(c, {x, inside, across}, {out}, k);
  EXPECT_EQ(sum[0], 10 + 9 + 16 + 25);  // the first rank of the group counts all
  k.group_index = 1;
  run_kernel(c, {x, inside, across}, {out}, k);
  EXPECT_EQ(sum[0], 60 + 9);
  c.function = 1;  // the last duplicate nowhere
  k.group_index = 0;
  run_kernel(c, {x, inside, across}, {out}, k);
  EXPECT_EQ(sum[0], 69 + 9 + 16);
}

TEST(Kernels, WrongSizesAreFaults) {
  EXPECT_THROW(run(kernel(Kernel::gemm, {2, 2, 2}), {zeros(4), zeros(3)}, {zeros(4)}), Fault);
  EXPECT_THROW(run(kernel(Kernel::copy, {4}), {zeros(4)}, {zeros(2)}), Fault);
}

}  // namespace
}  // namespace wt::reference
