// Layers of experts and latent attention on real devices: under every way to cut them they train like one rank, losses over 20
// steps, weights after them and the gradients of a step; and one rank like the reference.
#include <gtest/gtest.h>

#include "core/lower/lower.hpp"
#include "tests/exec/parity.hpp"
#include "tests/exec/variants.hpp"
#include "tests/reference/experts.hpp"
#include "tests/reference/reference.hpp"

namespace wt::exec {
namespace {

using reference::ExpertVariant;

void expect_like_reference(const JobSpec& job, const Trained& one) {
  const auto p = lower::lower(job);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  reference::Reference oracle(p.value(), {.learning_rate = 1e-2});
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_LT(relative(one.losses[i], oracle.step()), 1e-10) << i;
  for (const auto& [name, layer] : oracle.weights())
    EXPECT_LT(worst_difference(one.weights.at({name, layer}), oracle.weight(name, layer)), 1e-8) << name;
}

class ExpertParity : public testing::TestWithParam<ExpertVariant> {
 protected:
  JobSpec job() const {
    JobSpec j = reference::expert_job();
    GetParam().change(j);
    return j;
  }
  /// Those with all kinds of exchange; in doubles every cut for one model, from which the others differ in a kernel (the
  /// reference goes through every cut of each).
  std::vector<ExpertVariant> cuts(DType floats) const {
    const std::string_view model = GetParam().name;
    const bool every = floats == DType::f64 && model == "shared";
    std::vector<ExpertVariant> out;
    for (const ExpertVariant& v : reference::kExpertStrategies) {
      const std::string_view name = v.name;
      const bool few = name == "ep2_edp2" || name == "pp2_tp2_ep2_interleaved";
      const bool some = few || name == "tp4_ep2_etp2" || name == "ep2_distributed_overlap";
      if (kSanitized ? few : some || every) out.push_back(v);
    }
    return out;
  }
};

TEST_P(ExpertParity, InDoublesEveryCutTrainsLikeOneRank) {
  const Trained one = train(job());
  ASSERT_EQ(one.failure, "");
  expect_like_reference(job(), one);
  const OneStep step(job());
  for (const ExpertVariant& strategy : cuts(DType::f64)) {
    SCOPED_TRACE(strategy.name);
    JobSpec many = job();
    strategy.change(many);
    const Trained trained = train(many);
    EXPECT_EQ(trained.failure, "");
    if (!trained.failure.empty()) continue;
    expect_same_losses(trained, one, 1e-10);
    expect_same_weights(trained, one);
    expect_same_gradients(descended(many), step);
  }
}

TEST_P(ExpertParity, InSinglesLossesAreThoseOfOneRank) {
  TrainOptions o;
  o.floats = DType::f32;
  o.weights = false;
  const Trained one = train(job(), o);
  // Where the router chooses, a rounding can give a row to another expert: a jump of the loss, not a drift. With eight
  // small experts Adam divides by gradients that are hardly above the rounding.
  const bool sensitive = job().strategy.experts.routing == RoutingKind::top_k || job().model.moe->experts == 8;
  const double tolerance = sensitive ? 1e-3 : 1e-4;
  for (const ExpertVariant& strategy : cuts(DType::f32)) {
    SCOPED_TRACE(strategy.name);
    JobSpec many = job();
    strategy.change(many);
    const Trained trained = train(many, o);
    EXPECT_EQ(trained.failure, "");
    expect_same_losses(trained, one, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertParity, testing::ValuesIn(reference::kExpertModels),
                         [](const auto& c) { return c.param.name; });

class LatentParity : public testing::TestWithParam<int64_t> {};

TEST_P(LatentParity, EveryCutTrainsLikeOneRank) {
  const JobSpec alone = reference::latent_job(GetParam());
  const Trained one = train(alone);
  ASSERT_EQ(one.failure, "");
  expect_like_reference(alone, one);
  const OneStep step(alone);
  for (const char* name :
       {"tp2", "tp2_sp", "dp2_distributed_overlap", "recompute_full", "tp2_pp2_dp2", "pp2_interleaved_chunks"}) {
    SCOPED_TRACE(name);
    const auto all = strategies();
    const auto it = std::find_if(all.begin(), all.end(), [&](const Variant& v) { return v.name == name; });
    ASSERT_NE(it, all.end());
    JobSpec many = alone;
    it->change(many);
    const Trained trained = train(many);
    ASSERT_EQ(trained.failure, "");
    expect_same_losses(trained, one, 1e-10);
    expect_same_weights(trained, one);
    expect_same_gradients(descended(many), step);
  }
}

INSTANTIATE_TEST_SUITE_P(QueryRank, LatentParity, testing::Values(0, 6));

}  // namespace
}  // namespace wt::exec
