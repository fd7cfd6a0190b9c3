// Layers of experts under every way to cut them give the loss of one rank, step by step, and the same weights after: under the
// even load, and with the router's own choices where there are slots for all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/lower/lower.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/experts.hpp"

namespace wt::reference {
namespace {

class Experts : public testing::TestWithParam<ExpertVariant> {};

TEST_P(Experts, EveryCutTrainsLikeOneRank) {
  JobSpec one = expert_job();
  GetParam().change(one);
  Trained a;
  try {
    a = train(one, 1);
  } catch (const Fault& f) { FAIL() << f.what(); }
  for (const double loss : a.losses) ASSERT_TRUE(std::isfinite(loss));
  for (const ExpertVariant& strategy : kExpertStrategies) {
    SCOPED_TRACE(strategy.name);
    JobSpec many = one;
    strategy.change(many);
    expect_trains_like(a, many);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Experts, testing::ValuesIn(kExpertModels), [](const auto& c) { return c.param.name; });

/// The gradient of every new parameter against a difference quotient of the loss: plain descent by the rate times it.
TEST(ExpertGradients, AreThoseOfTheLoss) {
  JobSpec j = expert_job();
  j.model.moe->shared_ffn_hidden = 8;
  j.strategy.experts.routing = RoutingKind::top_k;
  j.strategy.experts.imbalance = 4;
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  j.training.global_batch = 2;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  constexpr double kRate = 1e-2, kStep = 1e-5;
  const Options options{.learning_rate = kRate, .same_tokens = true};
  for (const char* name : {"router", "expert_fc1", "expert_fc2", "shared_fc1", "shared_fc2"})
    for (const int64_t index : {3, 40}) {
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

/// A rank holds what the model says and no more: in a mixed model a layer has either experts or a dense MLP.
TEST(ExpertPlans, HoldTheParametersOfTheModel) {
  for (const ExpertVariant& model : kExpertModels) {
    JobSpec j = expert_job();
    model.change(j);
    const auto p = lower::lower(j);
    ASSERT_TRUE(p.ok()) << model.name << to_text(p.errors());
    ASSERT_EQ(p.value().parts.size(), 1u);
    EXPECT_EQ(p.value().parts[0].parameters, count_parameters(j.model).total()) << model.name;
  }
}

/// Expert parallelism moves what the formula of facts MG-24 says: tokens x k x h each way, forward and backward.
TEST(ExpertPlans, ExchangeTheRowsOfAllChoices) {
  JobSpec j = expert_job();
  cut_experts(j, 1, 1, 2, 2);
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  const int64_t rows = j.training.seq_len * j.training.micro_batch, wanted = rows * 2 * j.model.hidden * 4;
  int found = 0;
  for (const plan::Block& b : p.value().blocks)
    for (const plan::Op& o : b.ops) {
      const auto* c = std::get_if<plan::Collective>(&o.body);
      if (!c || c->kind != plan::CollectiveKind::all_to_all || o.name.ends_with("weights")) continue;
      EXPECT_EQ(c->bytes, wanted) << b.name << " " << o.name;
      ++found;
    }
  EXPECT_EQ(found, 4);  // one segment of layers in each direction
}

/// The flex dispatcher says what its rows have in common, and has no passes of its own over rows before and after.
TEST(ExpertPlans, FlexLeavesTheRowsToTheTransport) {
  JobSpec j = expert_job();
  cut_experts(j, 1, 1, 2, 2);
  j.strategy.experts.dispatcher = Dispatcher::flex;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  int exchanges = 0, passes = 0;
  for (const plan::Block& b : p.value().blocks)
    for (const plan::Op& o : b.ops) {
      if (const auto* c = std::get_if<plan::Collective>(&o.body); c && c->kind == plan::CollectiveKind::all_to_all) {
        EXPECT_EQ(c->copies, j.model.moe->top_k) << o.name;
        ++exchanges;
      } else if (o.name == "permute" || o.name == "unpermute") {
        EXPECT_EQ(std::get<plan::Compute>(o.body).work.bytes_read, 0) << b.name << " " << o.name;
        ++passes;
      }
    }
  EXPECT_EQ(exchanges, 6);  // rows out and back in both directions, weights out, their gradients back
  EXPECT_EQ(passes, 4);
  const auto again = plan::parse_plan(plan::print(p.value()));
  ASSERT_TRUE(again.ok()) << to_text(again.errors());
  EXPECT_EQ(plan::print(again.value()), plan::print(p.value()));
  EXPECT_NE(plan::print(p.value()).find(" copies 2"), std::string::npos);
}

TEST(ExpertPlans, RefusesByName) {
  const auto faults = [](auto change) {
    JobSpec j = expert_job();
    change(j);
    const auto p = lower::lower(j);
    std::set<std::string> keys;
    if (!p.ok())
      for (const auto& f : p.errors()) keys.insert(f.where);
    return keys;
  };
  using Keys = std::set<std::string>;
  EXPECT_EQ(faults([](JobSpec& j) { cut_experts(j, 1, 1, 3, 3); }), (Keys{"strategy.expert", "training.global_batch"}));
  EXPECT_EQ(faults([](JobSpec& j) { cut_experts(j, 1, 1, 2, 4); }), Keys{"strategy.expert"});
  EXPECT_EQ(faults([](JobSpec& j) { j.model.moe->top_k = 5; }), Keys{"model.moe.top_k"});
  EXPECT_EQ(faults([](JobSpec& j) {
              j.model.moe.reset();
              j.strategy.expert = 2;
            }),
            Keys{"strategy.expert"});
  EXPECT_EQ(faults([](JobSpec& j) {
              cut_experts(j, 2, 1, 1, 1);
              j.strategy.sequence_parallel = false;
            }),
            Keys{"strategy.sequence_parallel"});
}

}  // namespace
}  // namespace wt::reference
