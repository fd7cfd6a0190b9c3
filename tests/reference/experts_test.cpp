// Layers of experts under every way to cut them give the loss of one rank, step by step, and the same weights after: under the
// even load, and with the router's own choices where there are slots for all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "core/lower/lower.hpp"
#include "tests/reference/tiny.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {
namespace {

struct Variant {
  const char* name;
  std::function<void(JobSpec&)> change;
};

JobSpec expert_job() {
  JobSpec j = tiny_job();
  make_llama(j);
  j.model.name = "tiny mixture";
  j.model.kv_heads = 4;  // copies of key/value heads on several ranks are not one tensor
  j.model.moe = MoeSpec{.experts = 4, .top_k = 2, .ffn_hidden = 12};
  j.strategy.data_parallel = DataParallel::megatron;
  return j;
}

const Variant kModels[] = {
    {"even", [](JobSpec&) {}},
    {"top_k",  // a slot for every row at every expert: nothing is dropped
     [](JobSpec& j) {
       j.strategy.experts.routing = RoutingKind::top_k;
       j.strategy.experts.imbalance = 4;
     }},
    {"shared", [](JobSpec& j) { j.model.moe->shared_ffn_hidden = 8; }},
    {"plain_gelu",
     [](JobSpec& j) {
       j.model.gated_mlp = false;
       j.model.activation = Activation::gelu;
       j.model.moe->experts = 8;
       j.model.moe->top_k = 4;
     }},
    {"dense_first", [](JobSpec& j) { j.model.moe->first_dense_layers = 1; }},
    {"every_second", [](JobSpec& j) { j.model.moe->layer_period = 2; }},
    {"fp8",  // the interpreter rounds nothing: 8-bit copies must be those of what the products read
     [](JobSpec& j) {
       j.model.moe->shared_ffn_hidden = 8;
       j.model.moe->first_dense_layers = 1;
       j.training.param_dtype = DType::bf16;
       j.training.compute_dtype = DType::f8;
       j.cluster.device.peak[DType::f8] = {1e15};
       j.training.master_weights = true;
     }},
    {"dropping_counts", [](JobSpec& j) { j.strategy.experts.dropless = false; }},
};

void cut(JobSpec& j, int64_t tensor, int64_t pipeline, int64_t data, int64_t expert, int64_t expert_tensor = 0) {
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.strategy.expert = expert;
  j.strategy.experts.tensor = expert_tensor;
  j.strategy.sequence_parallel = tensor > 1;
  j.cluster.nodes = tensor * pipeline * data;
}

void shard(JobSpec& j) {
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
  j.strategy.bucket_elements = 3000;
}

const Variant kStrategies[] = {
    {"dp2", [](JobSpec& j) { cut(j, 1, 1, 2, 1); }},
    {"ep2", [](JobSpec& j) { cut(j, 1, 1, 2, 2); }},
    {"ep4", [](JobSpec& j) { cut(j, 1, 1, 4, 4); }},
    {"ep2_edp2", [](JobSpec& j) { cut(j, 1, 1, 4, 2); }},
    {"tp2_etp2", [](JobSpec& j) { cut(j, 2, 1, 1, 1); }},
    {"tp2_etp1", [](JobSpec& j) { cut(j, 2, 1, 1, 1, 1); }},  // copies of the experts on the tensor ranks
    {"tp2_ep2_etp2", [](JobSpec& j) { cut(j, 2, 1, 2, 2); }},
    {"tp2_ep2_etp1", [](JobSpec& j) { cut(j, 2, 1, 2, 2, 1); }},  // the expert group is the tensor group
    {"tp2_ep4_etp1", [](JobSpec& j) { cut(j, 2, 1, 2, 4, 1); }},
    {"tp4_ep2_etp1", [](JobSpec& j) { cut(j, 4, 1, 1, 2, 1); }},  // cuts the tensor axis
    {"tp4_ep2_etp2", [](JobSpec& j) { cut(j, 4, 1, 1, 2, 2); }},
    {"pp2_ep2", [](JobSpec& j) { cut(j, 1, 2, 2, 2); }},
    {"pp2_tp2_ep2_interleaved",
     [](JobSpec& j) {
       cut(j, 2, 2, 2, 2);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
     }},
    {"ep2_ddp",
     [](JobSpec& j) {
       cut(j, 1, 1, 4, 2);
       j.strategy.data_parallel = DataParallel::ddp;
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
     }},
    {"ep2_distributed",
     [](JobSpec& j) {
       cut(j, 1, 1, 4, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
     }},
    {"ep2_distributed_overlap",
     [](JobSpec& j) {
       cut(j, 1, 1, 4, 2);
       shard(j);
     }},
    {"ep4_distributed_overlap",  // an expert has one copy
     [](JobSpec& j) {
       cut(j, 1, 1, 4, 4);
       shard(j);
     }},
    {"pp2_tp2_ep2_distributed_overlap_recompute",
     [](JobSpec& j) {
       cut(j, 2, 2, 2, 2, 1);
       shard(j);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"ep2_recompute_block",
     [](JobSpec& j) {
       cut(j, 1, 1, 2, 2);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 1};
     }},
    {"ep2_recompute_uniform_3",
     [](JobSpec& j) {
       cut(j, 1, 1, 2, 2);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 3};
     }},
    {"ep2_shared_overlap",
     [](JobSpec& j) {
       cut(j, 1, 1, 2, 2);
       j.strategy.experts.shared_overlap = true;
     }},
};

class Experts : public testing::TestWithParam<Variant> {};

TEST_P(Experts, EveryCutTrainsLikeOneRank) {
  JobSpec one = expert_job();
  GetParam().change(one);
  Trained a;
  try {
    a = train(one, 1);
  } catch (const Fault& f) { FAIL() << f.what(); }
  for (const double loss : a.losses) ASSERT_TRUE(std::isfinite(loss));
  for (const Variant& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name);
    JobSpec many = one;
    strategy.change(many);
    Trained b;
    try {
      const auto lowered = lower::lower(many);
      ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
      EXPECT_EQ(races(lowered.value()), std::vector<std::string>{});
      b = train(many, 2);
    } catch (const Fault& f) {
      ADD_FAILURE() << f.what();
      continue;
    }
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "step " << i;
    ASSERT_EQ(a.weights.size(), b.weights.size());
    for (const auto& [id, x] : a.weights) {
      const auto& y = b.weights.at(id);
      double worst = 0;
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
      EXPECT_LT(worst, 1e-7) << id.first << " layer " << id.second;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Experts, testing::ValuesIn(kModels), [](const auto& c) { return c.param.name; });

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

/// Expert parallelism moves what the formula of facts MG-24 says: tokens x k x h each way, forward and backward.
TEST(ExpertPlans, ExchangeTheRowsOfAllChoices) {
  JobSpec j = expert_job();
  cut(j, 1, 1, 2, 2);
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
  EXPECT_EQ(faults([](JobSpec& j) { cut(j, 1, 1, 3, 3); }), (Keys{"strategy.expert", "training.global_batch"}));
  EXPECT_EQ(faults([](JobSpec& j) { cut(j, 1, 1, 2, 4); }), Keys{"strategy.expert"});
  EXPECT_EQ(faults([](JobSpec& j) { j.model.moe->top_k = 5; }), Keys{"model.moe.top_k"});
  EXPECT_EQ(faults([](JobSpec& j) {
              j.model.moe.reset();
              j.strategy.expert = 2;
            }),
            Keys{"strategy.expert"});
  EXPECT_EQ(faults([](JobSpec& j) {
              cut(j, 2, 1, 1, 1);
              j.strategy.sequence_parallel = false;
            }),
            Keys{"strategy.sequence_parallel"});
}

}  // namespace
}  // namespace wt::reference
