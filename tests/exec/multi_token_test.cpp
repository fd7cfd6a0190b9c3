// Multi-token prediction on CPU ranks: one rank's losses are those of the reference, and cut over tensor ranks, stages and
// replicas it trains like one rank.
#include <gtest/gtest.h>

#include "core/lower/lower.hpp"
#include "tests/exec/parity.hpp"
#include "tests/reference/experts.hpp"
#include "tests/reference/reference.hpp"

namespace wt::exec {
namespace {

TEST(MultiTokenParity, TrainsLikeOneRankAndTheReference) {
  JobSpec job = reference::expert_job();
  job.model.mtp_layers = 2;
  job.model.moe->first_dense_layers = 1;
  const Trained one = train(job);
  ASSERT_EQ(one.failure, "");
  const auto p = lower::lower(job);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  reference::Reference oracle(p.value(), {.learning_rate = 1e-2});
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_LT(relative(one.losses[i], oracle.step()), 1e-10) << i;

  JobSpec many = job;
  reference::cut_experts(many, 2, 2, 2, 2);
  reference::shard_optimizer(many);
  const Trained trained = train(many);
  ASSERT_EQ(trained.failure, "");
  expect_same_losses(trained, one, 1e-10);
  expect_same_weights(trained, one);
  expect_same_gradients(descended(many), OneStep(job));
}

}  // namespace
}  // namespace wt::exec
