// Makes a case of a kernel from sizes and option bits. For build_case.cpp and build_expert_case.cpp; tests call build().
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "tests/exec/kernels/case.hpp"
#include "tests/reference/kernels.hpp"

namespace wt::exec::test {

using plan::Kernel;

class Builder {
 public:
  Builder(Kernel kernel, DType storage, const Sizes& s) : s_(s), storage_(storage), random_(s.seed) {
    c_.compute.kernel = kernel;
    c_.compute.dtype = storage;
    c_.name = fmt::format("{} {} sizes {},{},{},{},{} options {:#x} seed {}", plan::to_text(kernel), to_text(storage),
                          s.a, s.b, s.c, s.d, s.e, s.options, s.seed);
  }
  Case build();

 private:
  bool option(int bit) const { return (s_.options >> bit & 1) != 0; }
  DType wide() const { return storage_ == DType::f64 ? DType::f64 : DType::f32; }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }

  // Most of an element, hence of a product of two: where few of them are summed they may cancel to much less.
  static constexpr double kInput = 1;
  size_t tensor(DType t, int64_t n, double low = -kInput, double high = kInput) {
    Tensor x{t, {}};
    for (int64_t i = 0; i < n; ++i) x.values.push_back(rounded(uniform(low, high), t));
    c_.tensors.push_back(std::move(x));
    return c_.tensors.size() - 1;
  }
  size_t indices(int64_t n, int64_t past) {
    Tensor x{DType::i32, {}};
    for (int64_t i = 0; i < n; ++i) x.values.push_back(static_cast<double>(random_() % static_cast<uint64_t>(past)));
    c_.tensors.push_back(std::move(x));
    return c_.tensors.size() - 1;
  }
  Slice all(size_t t) const { return {t, 0, static_cast<int64_t>(c_.tensors[t].values.size())}; }
  void read(size_t t) { c_.reads.push_back(all(t)); }
  void write(size_t t) { c_.writes.push_back(all(t)); }
  void dims(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0, int64_t e = 0) {
    c_.compute.dims = {a, b, c, d, e};
  }

  /// What a reference kernel makes of tensors: for inputs that must fit each other.
  void from_reference(Kernel kernel, std::vector<size_t> reads, std::vector<size_t> writes) {
    plan::Compute op = c_.compute;
    op.kernel = kernel;
    auto operands = [&](const std::vector<size_t>& of) {
      std::vector<reference::Operand> out;
      for (const size_t t : of) out.push_back({&c_.tensors[t].values, 0, all(t).size});
      return out;
    };
    reference::run_kernel(op, operands(reads), operands(writes), {c_.context.group_index, c_.context.group_size});
    for (const size_t t : writes)
      for (double& v : c_.tensors[t].values) v = rounded(v, c_.tensors[t].dtype);
  }

  void gemm();
  void norm();
  void heads();
  void attention();
  void context();
  void experts();
  void moved_rows();
  void latent();
  void elementwise();
  void tables();
  void loss();
  void optimizer();

  const Sizes& s_;
  const DType storage_;
  std::mt19937_64 random_;
  Case c_;
};

}  // namespace wt::exec::test
