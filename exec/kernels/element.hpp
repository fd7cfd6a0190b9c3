// How an element is stored (16- and 8-bit floats as their bits) and how it becomes a float and back, on both devices.
// Not arithmetic: kernels compute in double when something is stored in double, else in float. Invariant: narrowing
// rounds to nearest even; bf16 and f16 overflow to infinity, f8 (e4m3, no infinity) saturates at 448; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "exec/kernels/host_device.hpp"

namespace wt::exec {

WT_HOST_DEVICE uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
WT_HOST_DEVICE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct F8 {  // e4m3: bias 7, largest 448, 0x7f is NaN
  uint8_t bits;
};

WT_HOST_DEVICE double widen(double x) { return x; }
WT_HOST_DEVICE float widen(float x) { return x; }
WT_HOST_DEVICE float widen(Bf16 x) { return float_of(uint32_t{x.bits} << 16); }
WT_HOST_DEVICE float widen(F16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  // The exponent moves by 127 - 15 = 112: a product by 2^112 also makes denormals normal.
  const float scaled = float_of(rest << 13) * float_of((112u + 127u) << 23);
  const uint32_t magnitude = rest >= 0x7c00u ? (rest << 13) | 0x7f800000u : bits_of(scaled);
  return float_of(sign | magnitude);
}
WT_HOST_DEVICE float widen(F8 x) {
  const uint32_t sign = (x.bits & 0x80u) << 24, rest = x.bits & 0x7fu;
  const float scaled = float_of(rest << 20) * float_of((120u + 127u) << 23);  // 127 - 7 = 120
  return float_of(sign | (rest == 0x7fu ? 0x7fc00000u : bits_of(scaled)));
}

/// To the storage type T from the type of the arithmetic.
template <class T>
struct Narrow;
template <>
struct Narrow<double> {
  static WT_HOST_DEVICE double of(double x) { return x; }
};
template <>
struct Narrow<float> {
  static WT_HOST_DEVICE float of(float x) { return x; }
  static WT_HOST_DEVICE float of(double x) { return static_cast<float>(x); }
};
template <>
struct Narrow<Bf16> {
  static WT_HOST_DEVICE Bf16 of(float x) {
    const uint32_t u = bits_of(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : rounded)};
  }
  static WT_HOST_DEVICE Bf16 of(double x) { return of(static_cast<float>(x)); }
};
template <>
struct Narrow<F16> {
  static WT_HOST_DEVICE F16 of(float x) {
    const uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
    // Below 2^-14 the result is a denormal in steps of 2^-24: adding 0.5 (steps of 2^-24) rounds to them.
    const uint32_t denormal = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f);
    const uint32_t normal = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    const uint32_t finite = rest < (113u << 23) ? denormal : normal;
    const uint32_t large = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;  // 65520 and more round to infinity
    return {static_cast<uint16_t>(sign | (rest >= 0x477ff000u ? large : finite))};
  }
  static WT_HOST_DEVICE F16 of(double x) { return of(static_cast<float>(x)); }
};
template <>
struct Narrow<F8> {
  static WT_HOST_DEVICE F8 of(float x) {
    const uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u, rest = u & 0x7fffffffu;
    // Below 2^-6 a denormal in steps of 2^-9: 2^14 has that step in float.
    const uint32_t denormal = bits_of(float_of(rest) + 16384.0f) - bits_of(16384.0f);
    const uint32_t normal = (rest - (120u << 23) + 0x7ffffu + ((rest >> 20) & 1u)) >> 20;
    const uint32_t finite = rest < (121u << 23) ? denormal : normal;
    const uint32_t bounded = rest > 0x7f800000u ? 0x7fu : (rest > 0x43e00000u ? 0x7eu : finite);  // 448 = 0x43e00000
    return {static_cast<uint8_t>(sign | bounded)};
  }
  static WT_HOST_DEVICE F8 of(double x) { return of(static_cast<float>(x)); }
};

template <class T>
inline constexpr DType kDTypeOf = DType::f32;
template <>
inline constexpr DType kDTypeOf<double> = DType::f64;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::bf16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::f16;
template <>
inline constexpr DType kDTypeOf<F8> = DType::f8;

constexpr bool is_float(DType t) { return t != DType::i32 && t != DType::u8; }

}  // namespace wt::exec
