// What is random has no reference: dropout is held to what must be true of it, on every machine.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/exec/kernels/machines.hpp"

namespace wt::exec::test {
namespace {

using plan::Kernel;

constexpr double kProbability = 0.1;

class Dropout : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    const FoundMachine found = machine(std::get<0>(GetParam()));
    if (found.machine == nullptr) GTEST_SKIP() << found.missing;
    machine_ = found.machine;
  }
  DType storage() const { return std::get<1>(GetParam()); }

  /// Tensors: 0 x, 1 y, 2 mask, and for a residual 3 the residual, 4 a bias.
  Case make(Kernel kernel, int64_t rows, int64_t columns, uint64_t key) const {
    Case c;
    c.name = plan::to_text(kernel);
    c.compute.kernel = kernel;
    c.compute.dims = {rows, columns};
    c.compute.scalar = kProbability;
    c.context.random_key = key;
    const int64_t n = rows * columns;
    auto tensor = [&](DType t, int64_t size, int64_t seed) {
      Tensor x{t, {}};
      for (int64_t i = 0; i < size; ++i)
        x.values.push_back(t == DType::u8 ? (i + seed) % 2 : rounded(std::sin(double(i * 7 + seed)) + 1.5, t));
      c.tensors.push_back(x);
      return Slice{c.tensors.size() - 1, 0, size};
    };
    const Slice x = tensor(storage(), n, 1), y = tensor(storage(), n, 2), mask = tensor(DType::u8, n, 3);
    if (kernel == Kernel::dropout_forward) {
      c.reads = {x};
      c.writes = {y, mask};
    } else if (kernel == Kernel::residual_forward) {
      c.reads = {x, tensor(storage(), n, 4), tensor(storage(), columns, 5)};
      c.writes = {y, mask};
    } else {
      c.reads = {x, mask};
      c.writes = {y};
    }
    return c;
  }
  std::vector<Tensor> run(const Case& c) {
    std::vector<Tensor> tensors = c.tensors;
    const Status s = machine_->run(c, tensors);
    EXPECT_TRUE(s.ok()) << to_text(s.errors());
    return tensors;
  }
  void expect_close(double have, double want) const {
    EXPECT_LE(std::abs(have - want),
              4 * std::max(epsilon_of(storage()), epsilon_of(DType::f32)) * (1 + std::abs(want)));
  }
  Machine* machine_ = nullptr;
};

TEST_P(Dropout, KeepsItsShareAndScalesIt) {
  const auto t = run(make(Kernel::dropout_forward, 61, 97, 42));
  double kept = 0;
  for (size_t i = 0; i < t[0].values.size(); ++i) {
    const double mask = t[2].values[i];
    ASSERT_TRUE(mask == 0 || mask == 1) << mask;
    expect_close(t[1].values[i], mask * t[0].values[i] / (1 - kProbability));
    kept += mask;
  }
  const double n = 61 * 97, deviation = std::sqrt(n * kProbability * (1 - kProbability));
  EXPECT_NEAR(kept, n * (1 - kProbability), 5 * deviation);
}

TEST_P(Dropout, DependsOnKeyAndElementAlone) {
  const auto all = run(make(Kernel::dropout_forward, 40, 33, 7)), again = run(make(Kernel::dropout_forward, 40, 33, 7));
  const auto part = run(make(Kernel::dropout_forward, 20, 33, 7)),
             other = run(make(Kernel::dropout_forward, 40, 33, 8));
  EXPECT_EQ(all[2].values, again[2].values);
  EXPECT_TRUE(std::equal(part[2].values.begin(), part[2].values.end(), all[2].values.begin()));
  EXPECT_NE(all[2].values, other[2].values);
}

TEST_P(Dropout, SameMaskOnEveryMachine) {
  const Case c = make(Kernel::dropout_forward, 40, 33, 7);
  std::vector<Tensor> first = c.tensors;
  ASSERT_TRUE(machine("cpu").machine->run(c, first).ok());
  EXPECT_EQ(run(c)[2].values, first[2].values);
}

TEST_P(Dropout, ResidualDropsTheBranchOnly) {
  const auto t = run(make(Kernel::residual_forward, 21, 50, 3));
  double kept = 0;
  for (size_t i = 0; i < t[0].values.size(); ++i) {
    const double branch = t[0].values[i] + t[4].values[i % 50];
    expect_close(t[1].values[i], t[3].values[i] + t[2].values[i] * branch / (1 - kProbability));
    kept += t[2].values[i];
  }
  EXPECT_GT(kept, 21 * 50 * 0.8);
  EXPECT_LT(kept, 21 * 50);
}

TEST_P(Dropout, BackwardUsesTheMask) {
  for (const Kernel k : {Kernel::dropout_backward, Kernel::residual_backward}) {
    const auto t = run(make(k, 13, 31, 0));
    for (size_t i = 0; i < t[0].values.size(); ++i)
      expect_close(t[1].values[i], t[2].values[i] * t[0].values[i] / (1 - kProbability));
  }
}

std::vector<std::tuple<std::string, DType>> parameters() {
  std::vector<std::tuple<std::string, DType>> all;
  for (const std::string& m : machine_names())
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) all.emplace_back(m, t);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kernels, Dropout, testing::ValuesIn(parameters()), [](const auto& p) {
  return std::get<0>(p.param) + "_" + std::string(to_text(std::get<1>(p.param)));
});

}  // namespace
}  // namespace wt::exec::test
