// Every element type prints, parses back and has a size.
#include "core/base/dtype.hpp"

#include <gtest/gtest.h>

namespace wt {
namespace {

TEST(DType, ParsesWhatItPrints) {
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8, DType::i32, DType::u8}) {
    EXPECT_EQ(parse_dtype(to_text(t)), t) << to_text(t);
    EXPECT_GT(size_of(t), 0) << to_text(t);
  }
}

TEST(DType, KnowsTheSpellingsOfFrameworks) {
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("fp8"), DType::f8);
  EXPECT_EQ(parse_dtype("BF16"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, Sizes) {
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f8), 1);
}

}  // namespace
}  // namespace wt
