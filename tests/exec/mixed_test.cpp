// Training in 16 bits under every strategy beside one rank in 16 bits, and beside PyTorch's doubles.
//
// Tolerance: bf16 keeps 8 bits, fp16 11, and every strategy rounds elsewhere (partial sums of a tensor group, gradients that are
// reduced in another order), so two runs differ by a rounding of activations in each layer, which Adam's step (divided by the
// root of a squared gradient that is as noisy) carries into the weights. Losses of 20 steps are held to half an eps of the type
// for each of the 4 layers in bf16 (2^-6) and to one in fp16 (2^-8), whose gradients are rounded as they are reduced.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/lower/lower.hpp"
#include "tests/exec/parity.hpp"
#include "tests/exec/variants.hpp"
#include "tests/reference/experts.hpp"

namespace wt::exec {
namespace {

JobSpec in_16_bits(JobSpec j, DType type) {
  j.training.param_dtype = j.training.compute_dtype = type;
  j.training.master_weights = true;
  return j;
}

double tolerance_of(DType type) { return std::ldexp(1, type == DType::bf16 ? -6 : -8); }

TrainOptions as_stored() {
  TrainOptions o;
  o.floats = std::nullopt;
  o.weights = false;
  o.steps = 8;          // what the rounding does is there in the second
  o.loss_scale = 8192;  // nothing overflows on 8 ranks, where sums are eight times the mean, and little underflows
  return o;
}

double worst(const std::vector<double>& x, const std::vector<double>& y) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, relative(x[i], y[i]));
  return most;
}

class Mixed : public testing::TestWithParam<DType> {};

TEST_P(Mixed, LossesAreThoseOfOneRankAndOfPyTorch) {
  const auto known = nlohmann::json::parse(std::ifstream(WT_SOURCE_DIR "/tests/exec/fixtures/pytorch.json"));
  const double tolerance = tolerance_of(GetParam());
  double furthest = 0;
  for (const Variant& model : models()) {
    JobSpec alone = reference::tiny_job();
    model.change(alone);
    const Trained one = train(in_16_bits(alone, GetParam()), as_stored());
    ASSERT_EQ(one.failure, "");
    const auto exact = known.at(model.name).at("losses").get<std::vector<double>>();
    EXPECT_LT(worst(one.losses, exact), tolerance) << model.name;
    EXPECT_GT(worst(one.losses, exact), 1e-7) << "nothing was rounded";
    std::vector<Variant> all = model.name == "gpt" ? strategies() : sharded_strategies();
    if (kSanitized) all.resize(6);
    // What the two types do apart (loss scaling) does not depend on the strategy: one of them goes through every third.
    const size_t every = GetParam() == DType::f16 ? 3 : 1;
    for (size_t i = 0; i < all.size(); i += every) {
      const Variant& v = all[i];
      SCOPED_TRACE(model.name + " " + v.name);
      JobSpec job = in_16_bits(alone, GetParam());
      v.change(job);
      if (job.model.tied_embeddings != alone.model.tied_embeddings) continue;  // another model
      if (!lower::lower(job).ok()) continue;  // what a kind refuses in this type is lowering's to say
      const Trained many = train(job, as_stored());
      ASSERT_EQ(many.failure, "");
      ASSERT_EQ(many.losses.size(), one.losses.size());
      // ZeRO++ gathers weights in 8 bits, of which 7 are the value: 2^-6 in either type.
      const double allowed = job.strategy.zero.quantized_weights ? std::max(tolerance, std::ldexp(1.0, -6)) : tolerance;
      EXPECT_LT(worst(many.losses, one.losses), allowed);
      EXPECT_LT(worst(many.losses, exact), allowed);
      furthest = std::max(furthest, worst(many.losses, one.losses));
    }
  }
  RecordProperty("furthest_from_one_rank", std::to_string(furthest));
}

/// Gradients of a router and of small experts lie near the rounding of either type, and Adam makes full steps of what is left:
/// 2^-6 for both (in singles the same jobs drift by up to 4e-4, in doubles by 1e-10).
TEST_P(Mixed, ExpertsAreThoseOfOneRank) {
  const JobSpec alone = in_16_bits(reference::expert_job(), GetParam());
  const Trained one = train(alone, as_stored());
  ASSERT_EQ(one.failure, "");
  for (const reference::ExpertVariant& v : reference::kExpertStrategies) {
    if (kSanitized && std::string_view(v.name) != "ep2_edp2") continue;
    SCOPED_TRACE(v.name);
    JobSpec job = alone;
    v.change(job);
    const Trained many = train(job, as_stored());
    ASSERT_EQ(many.failure, "");
    EXPECT_LT(worst(many.losses, one.losses), tolerance_of(DType::bf16));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Mixed, testing::Values(DType::bf16, DType::f16),
                         [](const auto& c) { return std::string(to_text(c.param)); });

/// Steps that were skipped, if they are the first ones; -1: others.
int64_t skipped(const Trained& t) {
  int64_t n = 0;
  for (const StepOutcome& s : t.summary.steps)
    if (s.skipped && n++ != s.step) return -1;
  return n;
}

/// From a loss scale that is far too large steps are skipped, on every rank, until it fits. How many depends on what is summed
/// before it is divided, so on the strategy; after as many skips one rank trains alike.
TEST(LossScaling, SkipsUntilTheScaleFits) {
  TrainOptions o = as_stored();
  o.steps = 20;
  constexpr int kFirst = 24;
  const JobSpec alone = in_16_bits(reference::tiny_job(), DType::f16);
  const auto one_from = [&](int64_t power) {
    TrainOptions from = o;
    from.loss_scale = std::ldexp(1, static_cast<int>(power));
    return train(alone, from);
  };
  const int64_t skips = skipped(one_from(kFirst));
  EXPECT_GT(skips, 1);
  std::vector<Variant> all = strategies();
  for (Variant& v : sharded_strategies()) all.push_back(std::move(v));
  for (const char* name :
       {"tp2_sp", "dp2_ddp", "dp2_distributed_overlap", "tp2_pp2_dp2", "fsdp_full", "zero2", "zero3"}) {
    SCOPED_TRACE(name);
    const auto it = std::find_if(all.begin(), all.end(), [&](const Variant& v) { return v.name == name; });
    ASSERT_NE(it, all.end());
    JobSpec job = alone;
    it->change(job);
    o.loss_scale = std::ldexp(1, kFirst);
    const Trained many = train(job, o);
    ASSERT_EQ(many.failure, "");
    const int64_t n = skipped(many);
    EXPECT_GE(n, skips);
    EXPECT_LE(n, skips + 3);  // up to 4 data-parallel ranks, and one for rounding
    EXPECT_EQ(many.summary.steps.back().loss_scale, std::ldexp(1, static_cast<int>(kFirst - n)));
    const Trained one = one_from(kFirst + n - skips);
    ASSERT_EQ(skipped(one), n);
    EXPECT_LT(worst(many.losses, one.losses), tolerance_of(DType::f16));
  }
}

}  // namespace
}  // namespace wt::exec
