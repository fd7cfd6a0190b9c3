// Recomputed parts of a layer in closed form: which products run again, what is no longer kept, what is refused; and pipeline
// layouts. That training is the same to the bit: tests/reference/recompute_test.cpp.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"

namespace wt::lower {
namespace {

using testing::HasSubstr;

Result<plan::Plan> lowered(std::vector<std::string> overrides) {
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-llama.yaml", overrides);
  if (!job) return job.errors();
  auto plan = lower(job.value());
  if (plan)
    if (const Status valid = plan::validate(plan.value()); !valid) return valid.errors();
  return plan;
}

struct Sums {
  double again = 0, forward = 0;  // FLOPs of products: recomputed, and of the forward
  int64_t kept = 0;               // bytes of activations of one layer and micro-batch
};
Sums sums(const plan::Plan& p) {
  Sums s;
  for (const plan::Block& b : p.blocks)
    if (b.name == "forward whole" || b.name == "backward whole")
      plan::for_each_op(b, [&](const plan::Op& o, uint32_t, int64_t, uint32_t) {
        const auto* c = std::get_if<plan::Compute>(&o.body);
        if (!c || c->kernel != plan::Kernel::gemm) return;
        if (o.phase == plan::Phase::recompute) s.again += c->work.flops;
        if (o.phase == plan::Phase::forward && o.name != "logits") s.forward += c->work.flops;
      });
  for (const plan::Buffer& b : p.buffers)
    if (b.scope == plan::Scope::micro_batch && b.per_layer) s.kept += b.bytes().n;
  return s;
}
Result<plan::Plan> whole(std::vector<std::string> overrides) {
  for (const char* one :
       {"strategy.tensor=1", "strategy.pipeline=1", "strategy.virtual_stages=1", "strategy.schedule=1f1b"})
    overrides.push_back(one);
  return lowered(std::move(overrides));
}
Sums with(const std::string& modules) {
  const auto plan = whole({"strategy.recompute.kind=selective", "strategy.recompute.modules=" + modules});
  EXPECT_TRUE(plan) << to_text(plan.errors());
  return plan ? sums(plan.value()) : Sums{};
}

// Every second layer is run again, less its last product where the checkpoint stops early: half of what all layers cost.
TEST(Recompute, OfEveryNthLayer) {
  const auto again = [](const char* every, const char* layers) {
    const auto plan = whole({"strategy.recompute.kind=full", std::string("strategy.recompute.every=") + every,
                             std::string("model.layers=") + layers});
    EXPECT_TRUE(plan) << to_text(plan.errors());
    return plan ? sums(plan.value()).again : 0;
  };
  const double one = again("1", "8") / 8;
  EXPECT_EQ(again("2", "8"), 4 * one);
  EXPECT_EQ(again("3", "8"), 2 * one);  // layers 2 and 5
  EXPECT_EQ(again("9", "8"), 0);
  // Its plan does not grow with the layers.
  const auto segments = [](const char* layers) {
    const auto plan = whole({"strategy.recompute.kind=full", "strategy.recompute.every=2",
                             "strategy.data_parallel=megatron", std::string("model.layers=") + layers});
    size_t n = 0;
    for (const plan::Block& b : plan.value().blocks)
      if (b.name == "forward whole") n += b.segments.size();
    return n;
  };
  EXPECT_EQ(segments("8"), segments("16"));
  EXPECT_THAT(
      to_text(whole({"strategy.recompute.kind=full", "strategy.recompute.every=2", "strategy.recompute.layers=2"})
                  .errors()),
      HasSubstr("every n-th layer is a checkpoint of its own"));
}

TEST(RecomputedParts, RunTheProductsOfThePartAgainAndKeepLess) {
  const auto none = whole({"strategy.recompute=none"});
  ASSERT_TRUE(none) << to_text(none.errors());
  const Sums kept = sums(none.value());
  for (const char* cheap : {"core_attn", "layernorm", "act"}) {
    const Sums s = with(cheap);
    EXPECT_EQ(s.again, 0) << cheap;
    EXPECT_LT(s.kept, kept.kept) << cheap;
  }
  const Sums mlp = with("mlp"), residual = with("residual"), both = with("mlp residual");
  EXPECT_GT(mlp.again, 0);
  EXPECT_GT(residual.again, 0);
  EXPECT_EQ(both.again, mlp.again + residual.again);
  EXPECT_LT(both.again, kept.forward);
  EXPECT_LT(both.kept, std::min(mlp.kept, residual.kept));
}

TEST(RecomputedParts, CoreAttentionIsWhatSelectiveMeans) {
  auto said = lowered({"strategy.recompute.kind=selective", "strategy.recompute.modules=core_attn"});
  auto short_form = lowered({"strategy.recompute=selective"});
  ASSERT_TRUE(said && short_form);
  EXPECT_EQ(plan::digest(said.value()), plan::digest(short_form.value()));
}

TEST(RecomputedParts, UnknownOnesAreRefusedWithThoseOfTheModel) {
  const auto plan = lowered({"strategy.recompute.kind=selective", "strategy.recompute.modules=core_atn, moe"});
  ASSERT_FALSE(plan);
  const std::string text = to_text(plan.errors());
  EXPECT_THAT(text, HasSubstr("unknown part 'core_atn'"));
  EXPECT_THAT(text, HasSubstr("the model has no part 'moe'"));
  EXPECT_THAT(text, HasSubstr("legal: core_attn, layernorm, mlp, act, residual"));
}

std::vector<std::vector<int64_t>> split(const std::string& layout, int64_t pipeline, int64_t chunks, int64_t layers) {
  const auto plan = lowered({fmt::format("model.layers={}", layers), fmt::format("strategy.pipeline={}", pipeline),
                             "strategy.tensor=1", fmt::format("strategy.virtual_stages={}", chunks),
                             fmt::format("strategy.schedule={}", chunks > 1 ? "interleaved" : "1f1b"),
                             "training.global_batch=32", "strategy.pipeline_layout=" + layout});
  EXPECT_TRUE(plan) << to_text(plan.errors());
  std::vector<std::vector<int64_t>> out;
  if (!plan) return out;
  for (const plan::Program& g : plan.value().programs) {
    out.emplace_back();
    for (const PartId part : g.chunks) out.back().push_back(plan.value().parts[part.v].layers);
  }
  return out;
}

TEST(PipelineLayout, IsMegatrons) {
  using Split = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(split("Ettt|tL", 2, 1, 4), (Split{{3}, {1}}));
  EXPECT_EQ(split("Et*3|(tt|)*2,t*4,L", 2, 2, 11), (Split{{3, 2}, {2, 4}}));
  EXPECT_EQ(split("E|t|t|L", 2, 2, 2), (Split{{0, 1}, {1, 0}}));  // stages of the embedding and the loss alone
}

TEST(PipelineLayout, AWrongOneIsRefused) {
  const auto refused = [](const std::string& layout) {
    const auto plan =
        lowered({"strategy.virtual_stages=1", "strategy.schedule=1f1b", "strategy.pipeline_layout=" + layout});
    return plan ? std::string("accepted") : to_text(plan.errors());
  };
  EXPECT_THAT(refused("Ett|t|tL"), HasSubstr("has 3 stages for pipeline 2 x virtual_stages 1"));
  EXPECT_THAT(refused("Ett|tL"), HasSubstr("has 3 layers of 4"));
  EXPECT_THAT(refused("tt|tt"), HasSubstr("does not begin with E"));
  EXPECT_THAT(refused("Etx|ttL"), HasSubstr("'x' is out of place"));
  EXPECT_THAT(refused("Et*99999999999|L"), HasSubstr("is no layout"));
  EXPECT_THAT(refused("E(t|(t)*2L"), HasSubstr("is no layout"));
  EXPECT_THAT(refused("Ett|ttmL"), HasSubstr("multi-token prediction"));
}

}  // namespace
}  // namespace wt::lower
