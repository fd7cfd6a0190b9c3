// Sharded data parallelism trains like one rank: every way to cut, gather and reduce, with accumulation, tensor
// parallelism and recomputation; no wait is missing.
#include <gtest/gtest.h>

#include <functional>

#include "tests/reference/alike.hpp"
#include "tests/reference/sharded.hpp"
#include "tests/reference/tiny.hpp"

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
    one.model.tied_embeddings = many.model.tied_embeddings;
    if (many.strategy.context > 1 && many.model.kv_heads < 4 && many.strategy.tensor > 1) continue;  // heads in copies
    try {
      expect_trains_like(train(one, 1), many);
    } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
  }
}

INSTANTIATE_TEST_SUITE_P(OnFiles, Units, testing::ValuesIn(kOnFiles), [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(Kinds, Units, testing::ValuesIn(kSharded), [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace wt::reference
