// Every kernel on every machine, for every storage type and option, beside the reference in doubles. The tolerance
// stands at difference() in case.hpp.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cctype>

#include "core/spec/specs.hpp"
#include "exec/kernels/math.hpp"
#include "tests/exec/kernels/machines.hpp"

namespace wt::exec::test {
namespace {

using plan::Kernel;

constexpr auto kKernels = static_cast<int>(Kernel::deal_sequence) + 1;
bool is_attention(Kernel k) {
  return (k >= Kernel::attention_forward && k <= Kernel::scores_backward) || k == Kernel::latent_attention_forward ||
         k == Kernel::latent_attention_backward;
}
bool is_random(Kernel k) {
  return k == Kernel::dropout_forward || k == Kernel::dropout_backward || k == Kernel::residual_backward;
}

using Parameter = std::tuple<std::string, int, DType>;

class Conformance : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    const FoundMachine found = machine(std::get<0>(GetParam()));
    if (found.machine == nullptr) GTEST_SKIP() << found.missing;
    machine_ = found.machine;
  }
  Kernel kernel() const { return static_cast<Kernel>(std::get<1>(GetParam())); }
  DType storage() const { return std::get<2>(GetParam()); }
  Machine* machine_ = nullptr;
};

// By hand: one element, odd sizes, and sizes beyond every tile (attention: 128 queries, 256 keys).
std::vector<Sizes> sizes_of(Kernel k) {
  if (is_attention(k)) return {{1, 1, 1, 1, 1}, {2, 7, 2, 3, 5}, {1, 150, 1, 2, 16}, {1, 301, 1, 1, 8}};
  if (k >= Kernel::rope_forward && k <= Kernel::qk_norm_backward)
    return {{1, 1, 1, 1, 1}, {2, 5, 2, 3, 7}, {1, 67, 1, 2, 32}};
  if (k == Kernel::latent_assemble || k == Kernel::latent_scatter || k == Kernel::regroup)
    return {{1, 1, 1, 1, 1}, {2, 5, 2, 3, 7}, {3, 67, 8, 4, 31}};
  if (k == Kernel::grouped_gemm) return {{1, 1, 1, 1, 1}, {7, 13, 5, 3, 1}, {130, 70, 97, 2, 1}};
  return {{1, 1, 1, 1, 1}, {7, 13, 5, 11, 3}, {33, 65, 17, 40, 1}, {130, 70, 97, 5, 1}, {3, 5001, 2, 9, 1}};
}

TEST_P(Conformance, HandPickedSizes) {
  for (Sizes s : sizes_of(kernel()))
    for (uint32_t options = 0; options < 1u << options_of(kernel()); ++options) {
      s.options = options;
      s.seed = options + 1;
      EXPECT_EQ(difference(*machine_, build(kernel(), storage(), s)), "");
    }
}

TEST_P(Conformance, AnySizes) {
  const bool ok = rc::check([&] {
    const auto small = [](int64_t most) { return rc::gen::inRange<int64_t>(1, most + 1); };
    Sizes s;
    s.a = *small(20);
    s.b = *small(is_attention(kernel()) ? 40 : 90);
    s.c = *small(6);
    s.d = *small(4);
    s.e = *small(20);
    if ((kernel() >= Kernel::rope_forward && kernel() <= Kernel::scores_backward) ||
        (kernel() >= Kernel::latent_attention_forward && kernel() <= Kernel::latent_scatter))
      s.a = 1 + s.a % 3;
    s.options = *rc::gen::inRange<uint32_t>(0, 1u << options_of(kernel()));
    s.seed = *rc::gen::arbitrary<uint64_t>();
    const std::string wrong = difference(*machine_, build(kernel(), storage(), s));
    if (!wrong.empty()) RC_FAIL(wrong);
  });
  EXPECT_TRUE(ok);
}

std::string name_of(const testing::TestParamInfo<Parameter>& p) {
  return std::get<0>(p.param) + "_" + std::string(plan::to_text(static_cast<Kernel>(std::get<1>(p.param)))) + "_" +
         std::string(to_text(std::get<2>(p.param)));
}

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const std::string& m : machine_names())
    for (int k = 0; k < kKernels; ++k) {
      if (is_random(static_cast<Kernel>(k))) continue;
      for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) all.emplace_back(m, k, t);
      if (static_cast<Kernel>(k) == Kernel::gemm || static_cast<Kernel>(k) == Kernel::grouped_gemm)
        all.emplace_back(m, k, DType::f8);
    }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kernels, Conformance, testing::ValuesIn(parameters()), name_of);

TEST(CudaMachine, IsHere) {
  const FoundMachine found = machine("cuda");
  if (found.missing.starts_with("skipped: no GPU")) GTEST_SKIP() << found.missing;
  EXPECT_NE(found.machine, nullptr) << found.missing;
}

TEST(Conformance, FunctionsAreThoseOfTheSpec) {
  EXPECT_EQ(static_cast<int>(ActivationKind::gelu), static_cast<int>(Activation::gelu));
  EXPECT_EQ(static_cast<int>(ActivationKind::silu), static_cast<int>(Activation::silu));
  EXPECT_EQ(static_cast<int>(ActivationKind::relu), static_cast<int>(Activation::relu));
  EXPECT_EQ(static_cast<int>(RoutingRule::even), static_cast<int>(RoutingKind::even));
  EXPECT_EQ(static_cast<int>(RoutingRule::top_k), static_cast<int>(RoutingKind::top_k));
  EXPECT_EQ(static_cast<int>(NormKind::layer_norm), static_cast<int>(Norm::layer_norm));
  EXPECT_EQ(static_cast<int>(NormKind::rms_norm), static_cast<int>(Norm::rms_norm));
}

}  // namespace
}  // namespace wt::exec::test
