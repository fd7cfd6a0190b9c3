// Operands that do not fit an op are refused with every fault in words; nothing is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/kernels/check.hpp"
#include "exec/kernels/cpu/run.hpp"

namespace wt::exec {
namespace {

using plan::Kernel;
using testing::ElementsAre;

std::vector<std::string> faults(const plan::Compute& c, std::vector<Operand> reads, std::vector<Operand> writes) {
  std::vector<std::string> out;
  InlineWorkers workers;
  const Status s = run_cpu_kernel(c, reads, writes, {}, workers);
  if (!s.ok())
    for (const Diagnostic& d : s.errors()) out.push_back(d.where + ": " + d.what);
  return out;
}

plan::Compute op(Kernel kernel, std::array<int64_t, 5> dims = {}) {
  plan::Compute c;
  c.kernel = kernel;
  c.dims = dims;
  return c;
}

float memory[64];
Operand floats(int64_t n) { return {memory, DType::f32, n, {}}; }

TEST(CheckOperands, TooFewAndTooMany) {
  EXPECT_THAT(faults(op(Kernel::gemm, {2, 2, 2}), {floats(4)}, {}),
              ElementsAre("gemm: 1 reads, not 2 to 3", "gemm: 0 writes, not 1"));
  EXPECT_THAT(faults(op(Kernel::square_sum), {}, {floats(1)}), ElementsAre("square_sum: 0 reads, not 1 or more"));
}

TEST(CheckOperands, EverySizeAndTypeAtOnce) {
  Operand tokens = floats(3);
  Operand nowhere = floats(2 * 4);
  nowhere.data = nullptr;
  EXPECT_THAT(faults(op(Kernel::embedding_forward, {2, 4, 8}), {tokens, floats(31)}, {nowhere}),
              ElementsAre("embedding_forward: read 0 (tokens) is stored as f32, not as i32",
                          "embedding_forward: read 0 (tokens) has 3 elements, the dims say 2",
                          "embedding_forward: read 1 (table) has 31 elements, the dims say 32",
                          "embedding_forward: write 0 (x) has no memory"));
}

TEST(CheckOperands, WhatFollowsFromEachOther) {
  EXPECT_THAT(faults(op(Kernel::attention_forward, {1, 2, 3, 2, 4}), {floats(8)}, {floats(8), floats(8)}),
              ElementsAre("attention_forward: 3 heads on 2 key/value heads"));
  EXPECT_THAT(faults(op(Kernel::cast), {floats(4)}, {floats(5)}),
              ElementsAre("cast: what is written has 5 elements, not 4"));
  EXPECT_THAT(faults(op(Kernel::copy), {floats(4)}, {floats(4), floats(4)}),
              ElementsAre("copy: copies 1 buffers to 2"));
  EXPECT_THAT(faults(op(Kernel::sgd, {4}), {floats(4), floats(4)}, {floats(4), floats(4)}),
              ElementsAre("sgd: no learning rate was given"));
  EXPECT_THAT(faults(op(Kernel::position_forward, {5, 2, 2}), {floats(10), floats(4)}, {floats(10)}),
              ElementsAre("position_forward: 5 rows are not whole positions of 2 sequences"));
}

TEST(CheckOperands, TypesAloneBeforeThereIsMemory) {
  const Operand x{nullptr, DType::bf16, 0, {}}, mask{nullptr, DType::f32, 0, {}}, bytes{nullptr, DType::u8, 0, {}};
  const Operand reads[] = {x}, good[] = {x, bytes}, bad[] = {x, mask};
  const plan::Compute c = op(Kernel::dropout_forward, {4, 4});
  EXPECT_EQ(unsupported_types(c, reads, good), std::nullopt);
  EXPECT_EQ(unsupported_types(c, reads, bad), "dropout_forward: write 1 (mask) is stored as f32, not as u8");
}

}  // namespace
}  // namespace wt::exec
