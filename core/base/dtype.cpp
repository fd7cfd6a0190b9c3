#include "core/base/dtype.hpp"

namespace wt {

std::string_view to_text(DType t) {
  switch (t) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f8: return "f8";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view s) {
  if (s == "f64" || s == "fp64" || s == "float64") return DType::f64;
  if (s == "f32" || s == "fp32" || s == "float32") return DType::f32;
  if (s == "bf16" || s == "bfloat16") return DType::bf16;
  if (s == "f16" || s == "fp16" || s == "float16") return DType::f16;
  if (s == "f8" || s == "fp8" || s == "float8") return DType::f8;
  if (s == "i32" || s == "int32") return DType::i32;
  if (s == "u8" || s == "uint8") return DType::u8;
  return std::nullopt;
}

}  // namespace wt
