// Multi-head latent attention under the strategies that cut it gives the loss of one rank, and gradients are those of the loss.
#include <gtest/gtest.h>

#include <cmath>

#include "core/lower/lower.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::reference {
namespace {

class Latent : public testing::TestWithParam<int64_t> {};

TEST_P(Latent, EveryCutTrainsLikeOneRank) {
  const JobSpec one = latent_job(GetParam());
  Trained a;
  try {
    a = train(one, 1);
  } catch (const Fault& f) { FAIL() << f.what(); }
  struct Cut {
    int64_t tensor, pipeline, data;
    bool sequence_parallel;
    RecomputeKind recompute;
  };
  for (const Cut& cut : {Cut{2, 1, 1, false, RecomputeKind::none}, Cut{2, 1, 1, true, RecomputeKind::none},
                         Cut{2, 2, 2, true, RecomputeKind::full}, Cut{2, 1, 1, true, RecomputeKind::selective}}) {
    SCOPED_TRACE(testing::Message() << cut.tensor << " " << cut.pipeline << " " << cut.data << " "
                                    << cut.sequence_parallel);
    JobSpec many = one;
    many.strategy.tensor = cut.tensor;
    many.strategy.pipeline = cut.pipeline;
    many.strategy.sequence_parallel = cut.sequence_parallel;
    many.strategy.recompute.kind = cut.recompute;
    many.cluster.nodes = cut.tensor * cut.pipeline * cut.data;
    try {
      expect_alike(a, train(many, 2));
    } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
  }
}

INSTANTIATE_TEST_SUITE_P(QueryRank, Latent, testing::Values(0, 6));

TEST(LatentGradients, AreThoseOfTheLoss) {
  JobSpec j = latent_job(6);
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  j.training.global_batch = 2;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  constexpr double kRate = 1e-2, kStep = 1e-5;
  const Options options{.learning_rate = kRate, .same_tokens = true};
  for (const char* name : {"q_down", "q_down.gamma", "q_up", "kv_down", "kv_down.gamma", "kv_up"})
    for (const int64_t index : {1, 5}) {
      Reference run(p.value(), options), up(p.value(), options), down(p.value(), options);
      const double before = run.weight(name, 1)[static_cast<size_t>(index)];
      run.step();
      const double gradient = (before - run.weight(name, 1)[static_cast<size_t>(index)]) / kRate;
      up.nudge(name, 1, index, kStep);
      down.nudge(name, 1, index, -kStep);
      const double quotient = (up.step() - down.step()) / (2 * kStep);
      EXPECT_NEAR(gradient, quotient, 1e-7 + 1e-4 * std::abs(quotient)) << name << " " << index;
    }
}

}  // namespace
}  // namespace wt::reference
