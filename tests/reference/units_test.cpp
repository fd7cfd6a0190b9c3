// Sharded data parallelism trains like one rank: every way to cut, gather and reduce, with accumulation, tensor
// parallelism and recomputation; no wait is missing.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/reference/sharded.hpp"
#include "tests/reference/tiny.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {
namespace {

void bf16(JobSpec& j, DType wire) {
  j.training.param_dtype = j.training.compute_dtype = DType::bf16;
  j.training.master_weights = true;
  j.strategy.gradient_dtype = wire;
}

struct Model {
  const char* name;
  std::function<void(JobSpec&)> change;
};
const Model kModels[] = {
    {"gpt", [](JobSpec&) {}},
    {"llama, 16 bit with fp32 on the wire",
     [](JobSpec& j) {
       make_llama(j);
       bf16(j, DType::f32);
     }},
    {"embedding norm, 16 bit on the wire, unclipped",
     [](JobSpec& j) {
       j.model.embedding_norm = true;
       j.model.tied_embeddings = false;
       j.training.gradient_clipping = 0;
       bf16(j, DType::bf16);
     }},
    {"qk norm, tied, tight clip",
     [](JobSpec& j) {
       make_llama(j);
       j.model.tied_embeddings = j.model.qk_norm = true;
       j.training.gradient_clipping = 0.01;
     }},
};

class Units : public testing::TestWithParam<Sharded> {};

TEST_P(Units, TrainLikeOneRank) {
  const Sharded& v = GetParam();
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    JobSpec one = tiny_job();
    model.change(one);
    JobSpec many = one;
    apply(v, many);
    if (many.strategy.pipeline > 1) one.model.tied_embeddings = many.model.tied_embeddings = false;
    if (many.strategy.context > 1 && many.model.kv_heads < 4 && many.strategy.tensor > 1) continue;  // heads in copies
    try {
      const auto lowered = lower::lower(many);
      ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
      EXPECT_EQ(races(lowered.value()), std::vector<std::string>{});
      const Trained a = train(one, 1), b = train(many, 2);
      for (size_t i = 0; i < kSteps; ++i)
        EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "step " << i;
      ASSERT_EQ(a.weights.size(), b.weights.size());
      for (const auto& [id, x] : a.weights) {
        const auto& y = b.weights.at(id);
        double worst = 0;
        for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
        EXPECT_LT(worst, 1e-7) << id.first << " layer " << id.second;
      }
    } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Units, testing::ValuesIn(kSharded), [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace wt::reference
