// The gradients of a whole plan are derivatives of its loss: every weight of the one-rank plan against central
// differences. With the parity of all strategies to one rank, this anchors all of them.
#include <gtest/gtest.h>

#include <cmath>

#include "core/lower/lower.hpp"
#include "tests/reference/reference.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::reference {
namespace {

/// SGD without clipping and with rate 1: what a step takes off a weight is its gradient.
JobSpec plain_descent(JobSpec j) {
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  j.training.global_batch = 2;
  j.model.layers = 2;
  return j;
}

void expect_derivatives(const JobSpec& job) {
  const auto lowered = lower::lower(job);
  ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
  const plan::Plan& p = lowered.value();
  try {
    Reference run(p, {0, 1.0});
    std::map<std::pair<std::string, int64_t>, std::vector<double>> before;
    const auto all = run.weights();
    for (const auto& id : all) before[id] = run.weight(id.first, id.second);
    run.step();
    for (const auto& [name, layer] : all) {
      const auto& was = before.at({name, layer});
      const auto is = run.weight(name, layer);
      // Three elements spread over the tensor: each costs two runs.
      for (const size_t k : {size_t{0}, was.size() / 3, was.size() * 2 / 3 + 1}) {
        if (k >= was.size()) continue;
        auto loss = [&, n = name, l = layer](double at) {
          Reference moved(p, {0, 1.0});
          moved.nudge(n, l, static_cast<int64_t>(k), at);
          return moved.step();
        };
        constexpr double kStep = 1e-4;
        const double slope = (loss(kStep) - loss(-kStep)) / (2 * kStep);
        EXPECT_NEAR(was[k] - is[k], slope, 1e-7 + 1e-5 * std::abs(slope))
            << name << " layer " << layer << " element " << k;
      }
    }
  } catch (const Fault& f) { FAIL() << f.what(); }
}

TEST(Gradient, OfGpt) { expect_derivatives(plain_descent(tiny_job())); }

/// Plain ops of torch: their own operands in backward, the whole loss.
TEST(Gradient, OfEagerLlama) {
  JobSpec j = plain_descent(tiny_job());
  make_llama(j);
  j.training.fused_kernels = false;
  j.training.norm_kernel = NormKernel::eager_fp32;
  j.training.loss = LossKind::full_vocabulary;
  j.training.vocab_multiple = 16;  // with padding columns
  expect_derivatives(j);
}

TEST(Gradient, OfLlama) {
  JobSpec j = plain_descent(tiny_job());
  make_llama(j);
  expect_derivatives(j);
}

TEST(Gradient, OfEveryBias) {
  JobSpec j = plain_descent(tiny_job());
  make_llama(j);
  j.model.attention_bias = j.model.mlp_bias = j.model.output_bias = j.model.head_bias = true;
  expect_derivatives(j);
}

TEST(Gradient, OfQueryAndKeyNorms) {
  JobSpec j = plain_descent(tiny_job());
  make_llama(j);
  j.model.qk_norm = true;
  expect_derivatives(j);
}

TEST(Gradient, OfParallelBlocks) {
  JobSpec j = plain_descent(tiny_job());
  j.model.parallel_block = true;
  expect_derivatives(j);
  j.model.norms_per_layer = 1;
  expect_derivatives(j);
}

TEST(Gradient, OfEmbeddingNorm) {
  JobSpec j = plain_descent(tiny_job());
  j.model.embedding_norm = true;
  expect_derivatives(j);
}

TEST(Gradient, WithRecomputationAndUnfusedAttention) {
  JobSpec j = plain_descent(tiny_job());
  j.strategy.attention = AttentionKernel::unfused;
  j.strategy.recompute.kind = RecomputeKind::full;
  expect_derivatives(j);
}

}  // namespace
}  // namespace wt::reference
