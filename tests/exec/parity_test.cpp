// Every strategy trains like one rank, and one rank like the reference: losses over 20 steps, weights after them, and the
// gradients of a step (what plain descent with rate 1 takes off the weights).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/lower/lower.hpp"
#include "tests/exec/parity.hpp"
#include "tests/exec/variants.hpp"
#include "tests/reference/reference.hpp"

namespace wt::exec {
namespace {

JobSpec job_of(const Variant& model) {
  JobSpec j = reference::tiny_job();
  model.change(j);
  return j;
}

struct Case {
  Variant model, strategy;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Variant& m : models())
    for (const Variant& s : strategies()) all.push_back({m, s});
  return all;
}

/// Of one rank; each test asks for it again. `job`: a strategy may ask for tables of their own at both ends.
const Trained& one_rank(const Variant& model, const JobSpec& job, DType floats) {
  static std::map<std::tuple<std::string, bool, DType>, Trained> known;
  auto& t = known[{model.name, job.model.tied_embeddings, floats}];
  if (t.losses.empty()) {
    TrainOptions o;
    o.floats = floats;
    o.steps = kSteps;
    JobSpec alone = job_of(model);
    alone.model.tied_embeddings = job.model.tied_embeddings;
    t = train(alone, o);
  }
  return t;
}

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, LossesInDoublesAreThoseOfOneRank) {
  JobSpec job = job_of(GetParam().model);
  GetParam().strategy.change(job);
  const Trained one = one_rank(GetParam().model, job, DType::f64), many = train(job);
  ASSERT_EQ(one.failure, "");
  ASSERT_EQ(many.failure, "");
  expect_same_losses(many, one, 1e-10);
  expect_same_weights(many, one);
}

TEST_P(Parity, LossesInSinglesAreThoseOfOneRank) {
  JobSpec job = job_of(GetParam().model);
  GetParam().strategy.change(job);
  TrainOptions o;
  o.floats = DType::f32;
  const Trained& one = one_rank(GetParam().model, job, DType::f32);
  const Trained many = train(job, o);
  ASSERT_EQ(many.failure, "");
  expect_same_losses(many, one, 1e-4);
}

TEST_P(Parity, GradientsAreThoseOfOneRank) {
  JobSpec alone = job_of(GetParam().model), job = alone;
  GetParam().strategy.change(job);
  alone.model.tied_embeddings = job.model.tied_embeddings;
  expect_same_gradients(descended(job), OneStep(alone));
}

INSTANTIATE_TEST_SUITE_P(All, Parity, testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.model.name + "_" + c.param.strategy.name; });

/// Sharded weights are put together from the shards that the ranks keep between steps.
class ShardedParity : public testing::TestWithParam<Variant> {};

TEST_P(ShardedParity, InDoublesTrainsLikeOneRank) {
  for (const Variant& model : models()) {
    SCOPED_TRACE(model.name);
    JobSpec job = job_of(model);
    GetParam().change(job);
    const Trained &one = one_rank(model, job, DType::f64), many = train(job);
    ASSERT_EQ(one.failure, "");
    ASSERT_EQ(many.failure, "");
    expect_same_losses(many, one, 1e-10);
    expect_same_weights(many, one);
    JobSpec alone = job_of(model);
    alone.model.tied_embeddings = job.model.tied_embeddings;
    expect_same_gradients(descended(job), OneStep(alone));
  }
}

TEST_P(ShardedParity, InSinglesLossesAreThoseOfOneRank) {
  JobSpec job = job_of(models()[1]);
  GetParam().change(job);
  TrainOptions o;
  o.floats = DType::f32;
  o.weights = false;
  const Trained &one = one_rank(models()[1], job, DType::f32), many = train(job, o);
  ASSERT_EQ(many.failure, "");
  expect_same_losses(many, one, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShardedParity, testing::ValuesIn(sharded_strategies()),
                         [](const auto& c) { return c.param.name; });

/// The executor's one rank against plain loops that know nothing of devices, arenas or kernels.
TEST(Reference, TrainsTheSame) {
  for (const Variant& model : models()) {
    SCOPED_TRACE(model.name);
    const auto p = lower::lower(job_of(model));
    ASSERT_TRUE(p.ok());
    reference::Reference oracle(p.value(), {.learning_rate = 1e-2});
    const Trained& one = one_rank(model, job_of(model), DType::f64);
    ASSERT_EQ(one.failure, "");
    for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_LT(relative(one.losses[i], oracle.step()), 1e-10) << i;
    for (const auto& [name, layer] : oracle.weights())
      EXPECT_LT(worst_difference(one.weights.at({name, layer}), oracle.weight(name, layer)), 1e-8) << name;
  }
}

JobSpec with_strategy(JobSpec j, const char* name) {
  const auto all = strategies();
  const auto it = std::find_if(all.begin(), all.end(), [&](const Variant& v) { return v.name == name; });
  EXPECT_NE(it, all.end()) << name;
  it->change(j);
  return j;
}

/// What is dropped depends on the sample, the layer and the element: equal under every strategy whose ranks hold whole
/// rows, and again when a layer is recomputed.
TEST(Dropout, IsTheSameUnderEveryStrategy) {
  JobSpec job = reference::tiny_job();
  job.training.dropout = true;
  TrainOptions o;
  o.steps = 5;
  const Trained one = train(job, o);
  ASSERT_EQ(one.failure, "");
  const Trained& without = one_rank(models()[0], job_of(models()[0]), DType::f64);
  EXPECT_GT(relative(one.losses[0], without.losses[0]), 1e-6);
  EXPECT_GT(relative(one.losses[1], one.losses[0]), 1e-6);
  for (const char* name : {"tp2", "pp2_1f1b", "pp2_interleaved_chunks", "dp2_ddp", "dp2_zero1", "recompute_full"}) {
    SCOPED_TRACE(name);
    const Trained many = train(with_strategy(job, name), o);
    ASSERT_EQ(many.failure, "");
    for (size_t i = 0; i < many.losses.size(); ++i)
      EXPECT_LT(relative(many.losses[i], one.losses[i]), 1e-10) << "step " << i;
  }
}

/// To the bit: neither the timing of threads nor their number decides a sum.
TEST(Repeats, ToTheBit) {
  TrainOptions o;
  o.steps = 6;
  o.floats = std::nullopt;
  const JobSpec job = with_strategy(reference::tiny_job(), "tp2_pp2_dp2_interleaved_distributed");
  const Trained first = train(job, o), again = train(job, o);
  o.inproc.threads_per_rank = 3;
  const Trained threaded = train(job, o);
  ASSERT_EQ(first.failure + again.failure + threaded.failure, "");
  EXPECT_EQ(first.losses, again.losses);
  EXPECT_EQ(first.weights, again.weights);
  EXPECT_EQ(first.losses, threaded.losses);
  EXPECT_EQ(first.weights, threaded.weights);
}

/// A plan that is wrong in one place must be told from one rank: each bug by the loss curve.
TEST(Bugs, AreSeenByTheLossCurve) {
  struct Bug {
    const char* name;
    const char* strategy;
    std::function<bool(plan::Op&)> plant;  // true: this op had it
  };
  auto compute = [](plan::Op& o, plan::Kernel k) {
    auto* c = std::get_if<plan::Compute>(&o.body);
    return c && c->kernel == k ? c : nullptr;
  };
  const Bug bugs[] = {
      {"gradients not divided by the replicas", "dp2_megatron",
       [&](plan::Op& o) {
         auto* c = compute(o, plan::Kernel::scale);
         return c && (c->scalar = 1, true);
       }},
      {"a maximum in place of a sum", "tp2",
       [](plan::Op& o) {
         auto* c = std::get_if<plan::Collective>(&o.body);
         return c && c->kind == plan::CollectiveKind::all_reduce && (c->reduction = plan::Reduction::max, true);
       }},
      {"weight gradients that do not add up", "pp2_1f1b",
       [&](plan::Op& o) {
         auto* c = compute(o, plan::Kernel::gemm);
         return c && c->accumulate && (c->accumulate = false, true);
       }},
      {"attention that sees the future", "tp2_sp",
       [&](plan::Op& o) {
         auto* c = compute(o, plan::Kernel::attention_forward);
         return c && (c->causal = false, true);
       }},
      {"another clipping", "dp2_zero1",
       [&](plan::Op& o) {
         auto* c = compute(o, plan::Kernel::adam);
         return c && (c->scalar = 1e-3, true);
       }},
  };
  for (const Bug& bug : bugs) {
    SCOPED_TRACE(bug.name);
    auto p = lower::lower(with_strategy(reference::tiny_job(), bug.strategy));
    ASSERT_TRUE(p.ok());
    bool planted = false;
    for (plan::Block& b : p.value().blocks)
      for (plan::Op& o : b.ops) planted = bug.plant(o) || planted;
    ASSERT_TRUE(planted);
    TrainOptions o;
    o.steps = 3;
    const Trained broken = train(p.value(), o);
    const Trained& one = one_rank(models()[0], job_of(models()[0]), DType::f64);
    bool seen = !broken.failure.empty();
    for (size_t i = 0; i < broken.losses.size(); ++i)
      seen = seen || !(relative(broken.losses[i], one.losses[i]) < 1e-10);
    EXPECT_TRUE(seen);
  }
}

}  // namespace
}  // namespace wt::exec
