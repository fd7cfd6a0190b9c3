#include "exec/convert.hpp"

#include <cmath>
#include <cstdint>

#include "exec/kernels/element.hpp"

namespace wt::exec {

namespace {

template <class T>
void store_as(std::span<const double> values, void* out) {
  for (size_t i = 0; i < values.size(); ++i) static_cast<T*>(out)[i] = Narrow<T>::of(values[i]);
}
template <class T>
void store_whole(std::span<const double> values, void* out) {
  for (size_t i = 0; i < values.size(); ++i) static_cast<T*>(out)[i] = static_cast<T>(std::llround(values[i]));
}
template <class T>
void load_as(const void* from, std::span<double> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(widen(static_cast<const T*>(from)[i]));
}
template <class T>
void load_whole(const void* from, std::span<double> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(static_cast<const T*>(from)[i]);
}

}  // namespace

void store(std::span<const double> values, DType dtype, void* out) {
  switch (dtype) {
    case DType::f64: return store_as<double>(values, out);
    case DType::f32: return store_as<float>(values, out);
    case DType::bf16: return store_as<Bf16>(values, out);
    case DType::f16: return store_as<F16>(values, out);
    case DType::f8: return store_as<F8>(values, out);
    case DType::i32: return store_whole<int32_t>(values, out);
    case DType::u8: return store_whole<uint8_t>(values, out);
  }
}

void load(const void* from, DType dtype, std::span<double> out) {
  switch (dtype) {
    case DType::f64: return load_as<double>(from, out);
    case DType::f32: return load_as<float>(from, out);
    case DType::bf16: return load_as<Bf16>(from, out);
    case DType::f16: return load_as<F16>(from, out);
    case DType::f8: return load_as<F8>(from, out);
    case DType::i32: return load_whole<int32_t>(from, out);
    case DType::u8: return load_whole<uint8_t>(from, out);
  }
}

}  // namespace wt::exec
