// One rank of the executor in doubles against PyTorch, whose values tests/exec/fixtures/make_pytorch.py kept: the loss of
// 20 steps, the first gradients, the weights after the last step.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/exec/train.hpp"
#include "tests/exec/variants.hpp"

namespace wt::exec {
namespace {

using Json = nlohmann::json;

void expect_described(const std::vector<double>& x, const Json& want, double tolerance, const std::string& what) {
  SCOPED_TRACE(what);
  const double norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  EXPECT_NEAR(norm, want.at("norm"), tolerance * std::max(1.0, norm));
  EXPECT_NEAR(std::accumulate(x.begin(), x.end(), 0.0), want.at("sum"), tolerance * std::max(1.0, norm));
  for (const Json& e : want.at("elements")) EXPECT_NEAR(x.at(e[0].get<size_t>()), e[1].get<double>(), tolerance);
}

class PyTorch : public testing::TestWithParam<Variant> {};

TEST_P(PyTorch, TrainsTheSame) {
  const Json all = Json::parse(std::ifstream(WT_SOURCE_DIR "/tests/exec/fixtures/pytorch.json"));
  const Json& want = all.at(GetParam().name);
  JobSpec job = reference::tiny_job();
  GetParam().change(job);
  const Trained trained = train(job);
  ASSERT_EQ(trained.failure, "");
  ASSERT_EQ(trained.losses.size(), want.at("losses").size());
  for (size_t i = 0; i < trained.losses.size(); ++i) {
    const double loss = want.at("losses")[i];
    EXPECT_NEAR(trained.losses[i], loss, 1e-10 * loss) << "step " << i;
  }

  // Plain descent with rate 1 takes the gradient off the weights.
  job.training.optimizer = OptimizerKind::sgd;
  job.training.gradient_clipping = 0;
  TrainOptions one;
  one.learning_rate = 1;
  one.steps = 0;
  const Trained before = train(job, one);
  one.steps = 1;
  const Trained after = train(job, one);
  ASSERT_EQ(before.failure + after.failure, "");

  ASSERT_EQ(trained.weights.size(), want.at("tensors").size());
  for (const Json& t : want.at("tensors")) {
    const WeightId id{t.at("name"), t.at("layer")};
    const std::string what = id.first + " layer " + std::to_string(id.second);
    std::vector<double> gradient = before.weights.at(id);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] -= after.weights.at(id)[i];
    expect_described(gradient, t.at("gradient"), 1e-12, "gradient of " + what);
    expect_described(trained.weights.at(id), t.at("weight"), 1e-8, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PyTorch, testing::ValuesIn(models()), [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace wt::exec
