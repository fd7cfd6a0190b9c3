// Context parallelism: however a sequence is shared, a model trains as on one rank, and no wait is missing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/lower/lower.hpp"
#include "tests/reference/alike.hpp"
#include "tests/reference/tiny.hpp"

namespace wt::reference {
namespace {

struct Variant {
  const char* name;
  std::function<void(JobSpec&)> change;
  bool alone = true;  // models: with context parallelism alone, not beside other strategies; strategies: what it is
};

const Variant kModels[] = {
    {"gpt", [](JobSpec&) {}, false},
    {"llama", [](JobSpec& j) { make_llama(j); }, false},
    {"qk_norm",
     [](JobSpec& j) {
       make_llama(j);
       j.model.qk_norm = true;
     }},
    {"bidirectional", [](JobSpec& j) { j.model.causal = false; }},
    {"windowed",
     [](JobSpec& j) {
       make_llama(j);
       j.model.sliding_window = 3;
     }},
    {"experts",  // a slot for every row at every expert: nothing is dropped
     [](JobSpec& j) {
       make_llama(j);
       j.model.kv_heads = 4;
       j.model.moe = MoeSpec{.experts = 4, .top_k = 2, .ffn_hidden = 12};
       j.strategy.experts.routing = RoutingKind::top_k;
       j.strategy.experts.imbalance = 4;
       j.strategy.data_parallel = DataParallel::megatron;
     }},
    {"micro_batch_2", [](JobSpec& j) { j.training.micro_batch = 2; }},
};

void cut(JobSpec& j, int64_t context, ContextExchange exchange, int64_t others = 1) {
  j.strategy.context = context;
  j.strategy.context_exchange = exchange;
  j.cluster.nodes = context * others;
}

void with_tensor(JobSpec& j) {
  j.strategy.tensor = 2;
  j.strategy.sequence_parallel = true;
}

const Variant kStrategies[] = {
    {"ring2", [](JobSpec& j) { cut(j, 2, ContextExchange::ring); }},
    {"ring4", [](JobSpec& j) { cut(j, 4, ContextExchange::ring); }},
    {"gather2", [](JobSpec& j) { cut(j, 2, ContextExchange::all_gather); }},
    {"gather4", [](JobSpec& j) { cut(j, 4, ContextExchange::all_gather); }},
    {"heads2", [](JobSpec& j) { cut(j, 2, ContextExchange::all_to_all); }},
    {"hierarchical4",
     [](JobSpec& j) {
       cut(j, 4, ContextExchange::ring);
       j.strategy.context_all_to_all = 2;
     }},
    {"ring2_tp2",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::ring, 2);
       with_tensor(j);
     },
     false},
    {"gather2_tp2",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::all_gather, 2);
       with_tensor(j);
     },
     false},
    {"ring2_pp2",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::ring, 2);
       j.strategy.pipeline = 2;
     },
     false},
    {"heads2_pp2",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::all_to_all, 2);
       j.strategy.pipeline = 2;
     },
     false},
    {"ring2_dp2_distributed",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::ring, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
       j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
       j.strategy.bucket_elements = 5000;
     },
     false},
    {"gather2_dp2_distributed",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::all_gather, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
     },
     false},
    {"ring2_selective",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::ring);
       j.strategy.recompute.kind = RecomputeKind::selective;
     },
     false},
    {"heads2_selective",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::all_to_all);
       j.strategy.recompute.kind = RecomputeKind::selective;
     },
     false},
    {"ring4_full",
     [](JobSpec& j) {
       cut(j, 4, ContextExchange::ring);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 2};
     },
     false},
    {"gather2_full",
     [](JobSpec& j) {
       cut(j, 2, ContextExchange::all_gather);
       j.strategy.recompute.kind = RecomputeKind::full;
     },
     false},
};

class SharedSequence : public testing::TestWithParam<Variant> {};

TEST_P(SharedSequence, TrainsLikeOneRank) {
  JobSpec one = tiny_job();
  GetParam().change(one);
  const Trained a = train(one, 1);
  int ran = 0;
  for (const Variant& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name);
    if (GetParam().alone && !strategy.alone) continue;
    JobSpec many = one;
    strategy.change(many);
    const bool heads_fit = many.model.kv_heads % (many.strategy.tensor * many.strategy.context_all_to_all) == 0;
    const bool ring = many.strategy.context_exchange == ContextExchange::ring;
    const auto lowered = lower::lower(many);
    if (!lowered.ok() && ((ring && many.model.sliding_window > 0) || !heads_fit)) continue;
    ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
    ++ran;
    expect_trains_like(a, many);
  }
  EXPECT_GE(ran, 3);
}

/// The ranks of a sequence also share the experts.
TEST(Context, ExpertsOnTheRanksOfASequence) {
  JobSpec one = tiny_job();
  kModels[5].change(one);
  ASSERT_TRUE(one.model.moe);
  const Trained a = train(one, 1);
  for (const int64_t expert : {2, 4}) {
    JobSpec many = one;
    cut(many, 4, ContextExchange::ring);
    many.strategy.expert = expert;
    const Trained b = train(many, 2);
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "ep " << expert << " step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SharedSequence, testing::ValuesIn(kModels),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace wt::reference
