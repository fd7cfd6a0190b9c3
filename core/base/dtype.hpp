// Element types that tensors, wires and optimizer states may have.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace wt {

enum class DType : uint8_t { f64, f32, bf16, f16, f8, i32, u8 };

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f8:
    case DType::u8: return 1;
  }
  return 0;
}

std::string_view to_text(DType t);  // "bf16"
std::optional<DType> parse_dtype(
    std::string_view text);  // accepts fp32/f32/float32, bf16/bfloat16, fp16/f16/float16, fp8/f8

}  // namespace wt
