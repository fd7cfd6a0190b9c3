// What the reference does not know of a step: loss scale, weight decay, and the two copies of a cast to 8 bits.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/exec/kernels/machines.hpp"

namespace wt::exec::test {
namespace {

using plan::Kernel;

class StepValuesOf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const FoundMachine found = machine(GetParam());
    if (found.machine == nullptr) GTEST_SKIP() << found.missing;
    machine_ = found.machine;
  }
  std::vector<Tensor> run(const Case& c) {
    std::vector<Tensor> tensors = c.tensors;
    const Status s = machine_->run(c, tensors);
    EXPECT_TRUE(s.ok()) << to_text(s.errors());
    return tensors;
  }
  Machine* machine_ = nullptr;
};

TEST_P(StepValuesOf, LossScaleMultipliesTheLossGradientAndDividesTheRest) {
  const Sizes sizes{6, 11, 2, 3, 1, 0, 9};
  Case loss = build(Kernel::loss_backward, DType::f32, sizes);
  const auto plain = run(loss);
  loss.values.loss_scale = 1024;
  const auto scaled = run(loss);
  const size_t out = loss.writes[0].tensor;
  for (size_t i = 0; i < plain[out].values.size(); ++i)
    EXPECT_NEAR(scaled[out].values[i], 1024 * plain[out].values[i], 1e-4);

  for (const Kernel k : {Kernel::square_sum, Kernel::adam, Kernel::sgd}) {
    Case c = build(k, DType::f32, sizes);
    if (k == Kernel::square_sum) c.tensors[c.writes[0].tensor].values = {0};
    const auto want = run(c);
    for (double& g : c.tensors[c.reads[0].tensor].values) g *= 1024;
    c.values.loss_scale = 1024;
    const auto have = run(c);
    for (const Slice& w : c.writes)
      for (size_t i = 0; i < want[w.tensor].values.size(); ++i)
        EXPECT_NEAR(have[w.tensor].values[i], want[w.tensor].values[i], 1e-6 * (1 + std::abs(want[w.tensor].values[i])))
            << plan::to_text(k);
  }
}

TEST_P(StepValuesOf, WeightDecayIsDecoupled) {
  for (const Kernel k : {Kernel::adam, Kernel::sgd}) {
    Case c = build(k, DType::f64, {5, 7, 1, 1, 1, 0, 4});
    c.values.learning_rate = 0.01;
    const auto plain = run(c);
    c.values.weight_decay = 0.1;
    const auto decayed = run(c);
    const size_t master = c.writes[1].tensor, parameter = c.writes[0].tensor;
    for (size_t i = 0; i < plain[master].values.size(); ++i) {
      EXPECT_NEAR(decayed[master].values[i], plain[master].values[i] - 0.01 * 0.1 * c.tensors[master].values[i], 1e-14);
      EXPECT_EQ(decayed[parameter].values[i], decayed[master].values[i]);
    }
  }
}

TEST_P(StepValuesOf, CastToEightBitsWritesTheTransposedCopyToo) {
  const int64_t m = 37, n = 70;
  Case c;
  c.name = "cast";
  c.compute.kernel = Kernel::cast;
  c.compute.dtype = DType::f8;
  c.compute.dims = {m * n};
  c.shape = {m, n};
  Tensor x{DType::bf16, {}};
  for (int64_t i = 0; i < m * n; ++i) x.values.push_back(rounded(20 * std::sin(double(i)), DType::bf16));
  const Tensor blank{DType::f8, std::vector<double>(static_cast<size_t>(m * n), 0)};
  c.tensors = {x, blank, blank};
  c.reads = {{0, 0, m * n}};
  c.writes = {{1, 0, m * n}, {2, 0, m * n}};
  const auto t = run(c);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double want = rounded(x.values[static_cast<size_t>(i * n + j)], DType::f8);
      ASSERT_EQ(t[1].values[static_cast<size_t>(i * n + j)], want);
      ASSERT_EQ(t[2].values[static_cast<size_t>(j * m + i)], want);
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, StepValuesOf, testing::ValuesIn(machine_names()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace wt::exec::test
