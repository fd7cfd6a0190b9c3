// Recomputed parts change no number: a model of each kind with every part run again, alone and together, trains to the bit
// like the same plan without, cut over tensor ranks and not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "tests/reference/tiny.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {
namespace {

JobSpec gpt() { return tiny_job(); }
JobSpec llama() {
  JobSpec j = tiny_job();
  make_llama(j);
  return j;
}
JobSpec experts() {
  JobSpec j = llama();
  MoeSpec m;
  m.experts = 4;
  m.top_k = 2;
  m.ffn_hidden = 8;
  m.shared_ffn_hidden = 8;
  m.first_dense_layers = 1;
  j.model.moe = m;
  j.strategy.experts.routing = RoutingKind::top_k;
  j.strategy.experts.imbalance = 4;
  return j;
}
JobSpec latent() {
  JobSpec j = llama();
  j.model.kv_heads = 4;
  j.model.head_dim = 6;
  j.model.mla =
      MlaSpec{.q_lora_rank = 6, .kv_lora_rank = 8, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2, .v_head_dim = 3};
  return j;
}
JobSpec unfused() {
  JobSpec j = gpt();
  j.strategy.attention = AttentionKernel::unfused;
  return j;
}

struct Kind {
  const char* name;
  JobSpec (*make)();
  std::vector<std::string> parts;
};

class RecomputedParts : public testing::TestWithParam<Kind> {};

TEST_P(RecomputedParts, TrainToTheBitLikeKeptOnes) {
  std::vector<std::string> asked = GetParam().parts;
  std::string all;
  for (const std::string& part : asked) all += (all.empty() ? "" : ", ") + part;
  asked.push_back(all);
  for (const int64_t tensor : {1, 2}) {
    JobSpec kept = GetParam().make();
    kept.strategy.data_parallel = DataParallel::megatron;
    kept.strategy.tensor = tensor;
    kept.strategy.sequence_parallel = tensor > 1;
    kept.cluster.nodes = tensor;
    Trained a;
    try {
      a = train(kept, 2);
    } catch (const Fault& f) { FAIL() << f.what(); }
    for (const std::string& parts : asked) {
      SCOPED_TRACE(fmt::format("{}, tensor {}", parts, tensor));
      JobSpec again = kept;
      again.strategy.recompute.kind = RecomputeKind::selective;
      again.strategy.recompute.modules = parts;
      const auto plan = lower::lower(again);
      ASSERT_TRUE(plan) << to_text(plan.errors());
      const Status valid = plan::validate(plan.value());
      EXPECT_TRUE(valid) << (valid ? "" : to_text(valid.errors()).substr(0, 600));
      const bool remakes = std::ranges::any_of(plan.value().blocks, [](const plan::Block& b) {
        return std::ranges::any_of(b.ops, [](const plan::Op& o) { return o.phase == plan::Phase::recompute; });
      });
      EXPECT_TRUE(remakes);
      try {
        const Trained b = train(again, 2);
        for (size_t i = 0; i < kSteps; ++i) EXPECT_EQ(b.losses[i], a.losses[i]) << "step " << i;
        for (const auto& [id, x] : a.weights) EXPECT_EQ(b.weights.at(id), x) << id.first << " layer " << id.second;
      } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, RecomputedParts,
    testing::Values(
        Kind{"gpt", gpt, {"core_attn", "layernorm", "mlp", "act", "residual", "layernorm, act, residual"}},
        Kind{"llama", llama, {"core_attn", "layernorm", "mlp", "act", "residual"}},
        Kind{"unfused", unfused, {"core_attn", "layernorm", "mlp"}},
        Kind{"latent", latent, {"core_attn", "mla_up_proj", "layernorm", "mlp"}},
        Kind{"experts", experts, {"core_attn", "layernorm", "moe_act", "shared_experts", "moe", "mlp", "act"}}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace wt::reference
