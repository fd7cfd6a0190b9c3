// Adapters, hooks, packed documents, a loss in pieces and windows by layer in the simulator: ranks folded or not, blocks
// summarised or op by op give the same times, bit for bit; and each does to the step what it is there for.
#include <gtest/gtest.h>

#include <functional>

#include "core/lower/lower.hpp"
#include "fake_pricing.hpp"
#include "sim/simulate.hpp"

namespace wt::sim {
namespace {

JobSpec job() {
  JobSpec j;
  j.name = "adapters";
  auto& m = j.model;
  m.layers = 6;
  m.hidden = 64;
  m.ffn_hidden = 256;
  m.heads = m.kv_heads = 8;
  m.head_dim = 8;
  m.vocab = 128;
  m.max_context = 64;
  m.attention_bias = m.mlp_bias = true;
  j.cluster.nodes = 2;
  j.cluster.node.devices = 4;
  j.cluster.device.name = "test";
  j.cluster.device.peak[DType::bf16] = {1e15};
  j.training.micro_batch = 1;
  j.training.global_batch = 24;
  j.training.seq_len = 64;
  j.strategy.ddp_bucket = j.strategy.ddp_first_bucket = {100'000};
  return j;
}

int64_t step(const JobSpec& j, bool all_ranks = false, bool op_by_op = false) {
  const auto p = lower::lower(j);
  EXPECT_TRUE(p.ok()) << to_text(p.errors());
  if (!p.ok()) return 0;
  FakePricing pricing;
  pricing.machine = {4, 4, 0};
  SimulateOptions options;
  options.all_ranks = all_ranks;
  options.op_by_op = op_by_op;
  options.steps = 2;
  const auto r = simulate(p.value(), pricing, options);
  EXPECT_TRUE(r.ok()) << to_text(r.errors());
  return r.ok() ? r.value().step_time.count_ps() : 0;
}

TEST(AdaptersSimulated, FoldedAndSummarisedAreEqual) {
  const std::pair<const char*, std::function<void(JobSpec&)>> kinds[] = {
      {"lora", [](JobSpec& j) { j.training.lora.rank = 4; }},
      {"lora in 4 bits",
       [](JobSpec& j) {
         j.training.lora.rank = 4;
         j.training.lora.base = BaseWeights::nf4;
         j.strategy.data_parallel = DataParallel::distributed_optimizer;
       }},
      {"lora in units",
       [](JobSpec& j) {
         j.training.lora.rank = 4;
         j.strategy.data_parallel = DataParallel::zero3;
       }},
      {"lora, tensor 2, pipeline 2",
       [](JobSpec& j) {
         j.training.lora.rank = 4;
         j.strategy.tensor = j.strategy.pipeline = 2;
         j.strategy.sequence_parallel = true;
       }},
      {"packed",
       [](JobSpec& j) {
         j.training.packing = {16, 8};
       }},
      {"loss in pieces", [](JobSpec& j) { j.training.loss_chunk = 16; }},
      {"windows",
       [](JobSpec& j) {
         j.model.sliding_window = 16;
         j.model.sliding_period = 2;
       }},
      {"copies", [](JobSpec& j) { j.strategy.ddp.bucket_view = false; }},
      {"halves", [](JobSpec& j) { j.strategy.ddp.hook = CommHook::bf16_compress; }},
      {"powersgd", [](JobSpec& j) { j.strategy.ddp.hook = CommHook::powersgd; }},
      {"every micro-batch", [](JobSpec& j) { j.strategy.ddp.no_sync = false; }},
      {"unused", [](JobSpec& j) { j.strategy.ddp.find_unused = true; }},
  };
  for (const auto& [name, change] : kinds) {
    SCOPED_TRACE(name);
    JobSpec j = job();
    change(j);
    const int64_t folded = step(j);
    EXPECT_GT(folded, 0);
    EXPECT_EQ(folded, step(j, true));
    EXPECT_EQ(folded, step(j, false, true));
  }
}

}  // namespace
}  // namespace wt::sim
