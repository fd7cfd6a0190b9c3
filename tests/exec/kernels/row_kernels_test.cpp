// The row loops of every instruction set that this processor has, beside those that any has; all lengths around the
// widths of vectors.
#include <gtest/gtest.h>

#include <cmath>

#include "exec/kernels/cpu/row_kernels.hpp"

namespace wt::exec {
namespace {

template <class A>
std::vector<A> row(int64_t n, int seed, A low, A high) {
  std::vector<A> x;
  for (int64_t i = 0; i < n; ++i)
    x.push_back(low + (high - low) * static_cast<A>(uniform(static_cast<uint64_t>(seed), static_cast<uint64_t>(i))));
  return x;
}

template <class A>
void same(const std::vector<A>& a, const std::vector<A>& b, const char* isa, const char* what, int64_t n) {
  const A epsilon = std::numeric_limits<A>::epsilon();
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::abs(a[i] - b[i]), 16 * epsilon * (1 + std::abs(b[i])))
        << what << " on " << isa << ", element " << i << " of " << n;
}

template <class A>
void every_set_agrees() {
  const auto all = runnable_row_kernels<A>();
  const RowKernels<A>& base = *all[0];
  for (const RowKernels<A>* k : all)
    for (int64_t n = 0; n < 140; n += n < 70 ? 1 : 13) {
      const auto x = row<A>(n, 1, A(-2), A(2)), y = row<A>(n, 2, A(-1), A(1)), z = row<A>(n, 3, A(0), A(1));
      const A *px = x.data(), *py = y.data(), *pz = z.data();
      auto sum = [&](A have, A want, const char* what) {
        ASSERT_LE(std::abs(have - want), std::numeric_limits<A>::epsilon() * A(n + 1))
            << what << " on " << k->name << ", " << n;
      };
      sum(k->sum(px, n), base.sum(px, n), "sum");
      sum(k->dot(px, py, n), base.dot(px, py, n), "dot");
      sum(k->squares(px, A(0.3), n) / 4, base.squares(px, A(0.3), n) / 4, "squares");
      ASSERT_EQ(k->maximum(px, n), base.maximum(px, n)) << k->name << n;
      auto check = [&](const char* what, auto f) {
        std::vector<A> have = z, have2 = y, want = z, want2 = y;
        f(*k, have.data(), have2.data());
        f(base, want.data(), want2.data());
        same(have, want, k->name, what, n);
        same(have2, want2, k->name, what, n);
      };
      using R = const RowKernels<A>&;
      check("add", [&](R r, A* a, A*) { r.add(px, py, a, n); });
      check("add in place", [&](R r, A* a, A*) { r.add(px, a, a, n); });
      check("scale", [&](R r, A* a, A*) { r.scale(A(1.7), px, a, n); });
      check("add_scaled", [&](R r, A* a, A*) { r.add_scaled(A(1.7), px, a, n); });
      check("add_product", [&](R r, A* a, A*) { r.add_product(px, py, a, n); });
      check("exponentials", [&](R r, A* a, A*) { r.exponentials(A(1.7), px, A(0.3), a, n); });
      check("normalize", [&](R r, A* a, A* b) {
        r.normalize(px, A(0.1), A(1.1), py, pz, a, n);
        r.normalize(px, A(0), A(1.1), py, nullptr, b, n);
      });
      check("normalize_gradient",
            [&](R r, A* a, A*) { r.normalize_gradient(px, py, pz, A(0.1), A(1.1), A(0.2), A(0.3), a, n); });
      check("normalize_gains", [&](R r, A* a, A* b) { r.normalize_gains(px, py, A(0.1), A(1.1), a, b, n); });
      for (const auto kind : {ActivationKind::gelu, ActivationKind::silu, ActivationKind::relu}) {
        check("activate", [&](R r, A* a, A* b) {
          r.activate(kind, px, py, a, n);
          r.activate(kind, px, nullptr, b, n);
        });
        check("activate_gradient", [&](R r, A* a, A* b) { r.activate_gradient(kind, pz, px, py, a, b, n); });
      }
      check("turn", [&](R r, A* a, A* b) { r.turn(px, py, A(-1), a, b, n); });
      check("softmax_gradient", [&](R r, A* a, A*) { r.softmax_gradient(px, py, A(0.2), A(0.5), a, n); });
      check("adam", [&](R r, A* a, A* b) {
        const UpdateRule<A> rule{A(0.5), A(0.01), A(0.1), A(0.9), A(0.95), A(1e-8), A(2), A(3)};
        std::vector<A> v = z;
        r.adam(rule, px, b, py, pz, b, a, v.data(), n);
      });
      std::vector<uint8_t> mask(static_cast<size_t>(n)), mask_base(static_cast<size_t>(n));
      check("drop", [&](R r, A* a, A* b) {
        auto& m = &r == &base ? mask_base : mask;
        r.drop(5, 100, 0.3f, px, a, m.data(), n);
        r.masked(m.data(), A(1.5), py, b, n);
      });
      if (k != &base) { ASSERT_EQ(mask, mask_base); }
    }
}

TEST(RowKernels, EveryInstructionSetAgreesInFloat) { every_set_agrees<float>(); }
TEST(RowKernels, EveryInstructionSetAgreesInDouble) { every_set_agrees<double>(); }

TEST(RowKernels, StorageTypesAgreeWithTheElementFunctions) {
  for (const RowKernels<float>* k : runnable_row_kernels<float>())
    for (int64_t n = 0; n < 70; ++n) {
      const auto x = row<float>(n, 4, -3, 3);
      std::vector<Bf16> brain(x.size());
      std::vector<F16> half(x.size());
      std::vector<float> back(x.size());
      k->narrow[static_cast<size_t>(DType::bf16)](x.data(), brain.data(), n);
      k->narrow[static_cast<size_t>(DType::f16)](x.data(), half.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(brain[i].bits, Narrow<Bf16>::of(x[i]).bits);
        ASSERT_EQ(half[i].bits, Narrow<F16>::of(x[i]).bits);
      }
      k->widen[static_cast<size_t>(DType::bf16)](brain.data(), back.data(), n);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], widen(brain[i]));
      k->widen[static_cast<size_t>(DType::f16)](half.data(), back.data(), n);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], widen(half[i]));
    }
}

}  // namespace
}  // namespace wt::exec
