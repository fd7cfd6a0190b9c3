// Multi-token prediction: gradients of its weights, and through it of those of the model, are those of the loss; every cut
// trains like one rank; the plan holds the parameters and the products of the formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "core/lower/lower.hpp"
#include "core/report/report.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/experts.hpp"

namespace wt::reference {
namespace {

JobSpec ahead(int64_t depths) {
  JobSpec j = tiny_job();
  make_llama(j);
  j.model.kv_heads = 4;
  j.model.mtp_layers = depths;
  j.strategy.data_parallel = DataParallel::megatron;
  return j;
}

struct Model {
  const char* name;
  std::function<void(JobSpec&)> change;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

const Model kModels[] = {
    {"one_depth", [](JobSpec& j) { j = ahead(1); }},
    {"two_depths", [](JobSpec& j) { j = ahead(2); }},
    {"tied_layer_norm",
     [](JobSpec& j) {
       j = ahead(1);
       j.model.norm = Norm::layer_norm;
       j.model.tied_embeddings = true;
       j.training.micro_batch = 2;
     }},
    {"experts",
     [](JobSpec& j) {
       j = expert_job();
       j.model.mtp_layers = 1;
       j.model.moe->first_dense_layers = 1;
     }},
};
void cut(JobSpec& j, int64_t tensor, int64_t pipeline, int64_t data, bool sequence_parallel = true) {
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.strategy.sequence_parallel = sequence_parallel && tensor > 1;
  j.cluster.nodes = tensor * pipeline * data;
}
const Model kCuts[] = {
    {"dp2", [](JobSpec& j) { cut(j, 1, 1, 2); }},
    {"tp2", [](JobSpec& j) { cut(j, 2, 1, 1, j.model.moe.has_value()); }},
    {"tp2_sp", [](JobSpec& j) { cut(j, 2, 1, 1); }},
    {"pp2", [](JobSpec& j) { cut(j, 1, 2, 1); }},
    {"pp2_layout",
     [](JobSpec& j) {
       cut(j, 1, 2, 1);
       j.strategy.pipeline_layout = "Ettt|t" + std::string(static_cast<size_t>(j.model.mtp_layers), 'm') + "L";
     }},
    {"tp2_pp2_dp2_recompute_distributed",
     [](JobSpec& j) {
       cut(j, 2, 2, 2);
       shard_optimizer(j);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"pp2_dp2_interleaved_distributed",
     [](JobSpec& j) {
       cut(j, 1, 2, 2);
       shard_optimizer(j);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 1};
     }},
    {"dp2_ddp_selective",
     [](JobSpec& j) {
       cut(j, 1, 1, 2);
       j.strategy.data_parallel = DataParallel::ddp;
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
       j.strategy.recompute = {.kind = RecomputeKind::selective, .modules = "layernorm core_attn"};
     }},
};

class MultiToken : public testing::TestWithParam<Model> {};

TEST_P(MultiToken, EveryCutTrainsLikeOneRank) {
  JobSpec one;
  GetParam().change(one);
  Trained a;
  try {
    a = train(one, 1);
  } catch (const Fault& f) { FAIL() << f.what(); }
  for (const Model& c : kCuts) {
    SCOPED_TRACE(c.name);
    JobSpec many = one;
    c.change(many);
    expect_trains_like(a, many);
  }
}

TEST_P(MultiToken, PlanHoldsTheParametersOfTheModel) {
  JobSpec j;
  GetParam().change(j);
  j.model.vocab = 24;  // no padding
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  EXPECT_EQ(p.value().parts[0].parameters, count_parameters(j.model).total());
}

INSTANTIATE_TEST_SUITE_P(Models, MultiToken, testing::ValuesIn(kModels), [](const auto& c) { return c.param.name; });

TEST(MultiTokenGradients, AreThoseOfTheLoss) {
  JobSpec j = ahead(2);
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  j.training.global_batch = 2;
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  constexpr double kRate = 1e-2, kStep = 1e-5;
  const Options options{.learning_rate = kRate, .same_tokens = true};
  struct Where {
    const char* name;
    int64_t layer;
  };
  // The first depth's layer is number 4 of the model; what stands before it gets gradients through both depths.
  for (const Where& w :
       {Where{"mtp0.embedding_norm.gamma", -1}, Where{"mtp0.hidden_norm.gamma", -1}, Where{"mtp0.proj", -1},
        Where{"mtp1.proj", -1}, Where{"mtp1.final_norm.gamma", -1}, Where{"qkv", 4}, Where{"fc2", 5}, Where{"qkv", 1},
        Where{"embedding", -1}, Where{"head", -1}, Where{"final_norm.gamma", -1}})
    for (const int64_t index : {1, 9}) {
      Reference run(p.value(), options), up(p.value(), options), down(p.value(), options);
      const double before = run.weight(w.name, w.layer)[static_cast<size_t>(index)];
      run.step();
      const double gradient = (before - run.weight(w.name, w.layer)[static_cast<size_t>(index)]) / kRate;
      up.nudge(w.name, w.layer, index, kStep);
      down.nudge(w.name, w.layer, index, -kStep);
      const double quotient = (up.step() - down.step()) / (2 * kStep);
      EXPECT_NEAR(gradient, quotient, 1e-7 + 1e-4 * std::abs(quotient)) << w.name << " " << w.layer << " " << index;
    }
}

/// Untrained, every head guesses: the loss is ln V once for the model and a tenth of it for the depths together.
TEST(MultiTokenLoss, OfAllDepthsCountsATenth) {
  for (const int64_t depths : {0, 1, 2}) {
    JobSpec j = ahead(depths);
    const double loss = train(j, 1).losses[0], guess = std::log(static_cast<double>(j.model.vocab));
    EXPECT_NEAR(loss, (depths > 0 ? 1.1 : 1.0) * guess, 0.05 * guess) << depths;
  }
}

TEST(MultiTokenPlan, WhatCannotBePlannedIsRefused) {
  const auto refused = [](const char* what, const std::function<void(JobSpec&)>& change) {
    JobSpec j = ahead(1);
    change(j);
    const auto p = lower::lower(j);
    ASSERT_FALSE(p.ok()) << what;
    EXPECT_NE(to_text(p.errors()).find(what), std::string::npos) << to_text(p.errors());
  };
  refused("multi-token prediction in sharded units", [](JobSpec& j) {
    cut(j, 1, 1, 2);
    j.strategy.data_parallel = DataParallel::fsdp2;
  });
  refused("multi-token prediction with context parallelism", [](JobSpec& j) {
    j.strategy.context = 2;
    j.cluster.nodes = 2;
  });
  refused("layers of multi-token prediction (m) of 1", [](JobSpec& j) {
    cut(j, 1, 2, 1);
    j.strategy.pipeline_layout = "Ett|ttL";
  });
}

}  // namespace
}  // namespace wt::reference
