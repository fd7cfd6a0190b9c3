#include "exec/comm/reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "exec/kernels/element.hpp"

namespace wt::exec {

namespace {

/// Element type T, added as A.
template <class T, class A>
void reduce(std::span<const void* const> inputs, void* to, int64_t n, plan::Reduction how) {
  auto get = [](const void* from, int64_t i) -> A {
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<A>(static_cast<const T*>(from)[i]);
    else
      return widen(static_cast<const T*>(from)[i]);
  };
  auto put = [](void* out, int64_t i, A x) {
    if constexpr (std::is_arithmetic_v<T>)
      static_cast<T*>(out)[i] = static_cast<T>(x);
    else
      static_cast<T*>(out)[i] = Narrow<T>::of(x);
  };
  // A strip of all inputs at a time: it stays in the nearest cache while the ranks are added to it.
  constexpr int64_t kStrip = 512;
  A strip[kStrip];
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t size = std::min(kStrip, n - begin);
    for (int64_t i = 0; i < size; ++i) strip[i] = get(inputs[0], begin + i);
    for (size_t k = 1; k < inputs.size(); ++k) {
      if (how == plan::Reduction::max)
        for (int64_t i = 0; i < size; ++i) strip[i] = std::max(strip[i], get(inputs[k], begin + i));
      else
        for (int64_t i = 0; i < size; ++i) strip[i] += get(inputs[k], begin + i);
    }
    if (how == plan::Reduction::average)
      for (int64_t i = 0; i < size; ++i) strip[i] /= static_cast<A>(inputs.size());
    for (int64_t i = 0; i < size; ++i) put(to, begin + i, strip[i]);
  }
}

}  // namespace

Status reduce_elements(std::span<const void* const> inputs, void* out, int64_t n, DType dtype, plan::Reduction how) {
  switch (dtype) {
    case DType::f64: reduce<double, double>(inputs, out, n, how); return ok_status();
    case DType::f32: reduce<float, float>(inputs, out, n, how); return ok_status();
    case DType::bf16: reduce<Bf16, float>(inputs, out, n, how); return ok_status();
    case DType::f16: reduce<F16, float>(inputs, out, n, how); return ok_status();
    case DType::i32: reduce<int32_t, int64_t>(inputs, out, n, how); return ok_status();
    case DType::f8:
    case DType::u8: break;
  }
  return Diagnostic{"", fmt::format("cannot reduce elements of type {}", to_text(dtype)), ""};
}

Result<std::vector<double>> reduce_gathered(const std::vector<std::string>& ranks, int64_t count, plan::Reduction how) {
  std::vector<double> out(static_cast<size_t>(count));
  std::vector<const void*> inputs;
  for (const std::string& bytes : ranks) {
    WT_CHECK(bytes.size() == out.size() * sizeof(double), "ranks bring different numbers of values");
    inputs.push_back(bytes.data());
  }
  if (const Status s = reduce_elements(inputs, out.data(), count, DType::f64, how); !s) return s.errors();
  return out;
}

}  // namespace wt::exec
