// 8-bit products against closed forms: which weights are kept, and moved, in 8 bits (fp8_params), and that latent
// attention's products take 8-bit operands. What each costs is the simulator's.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/lower/lower.hpp"
#include "small_job.hpp"

namespace wt::lower {
namespace {

JobSpec job() {
  JobSpec j = small_job({.layers = 4, .kv_heads = 8});
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  j.strategy.tensor = 2;
  j.strategy.sequence_parallel = true;
  j.training.compute_dtype = DType::f8;
  return j;
}

plan::Plan plan_of(const JobSpec& j) {
  auto p = lower(j);
  EXPECT_TRUE(p.ok()) << (p.ok() ? "" : to_text(p.errors()));
  return p.ok() ? std::move(p.value()) : plan::Plan{};
}

/// Bytes of a rank's persistent buffers by the start of their name; per-layer buffers count once a layer.
double kept(const plan::Plan& p, const std::string& prefix, int64_t layers) {
  double bytes = 0;
  for (const plan::Buffer& b : p.buffers)
    if (b.scope == plan::Scope::persistent && !b.view && b.name.starts_with(prefix))
      bytes += static_cast<double>(b.bytes().n * (b.per_layer ? layers : 1));
  return bytes;
}

double bytes_gathered(const plan::Plan& p) {
  double bytes = 0;
  for (const plan::Block& block : p.blocks)
    for (const plan::Op& op : block.ops)
      if (const auto* c = std::get_if<plan::Collective>(&op.body);
          c && c->kind == plan::CollectiveKind::all_gather && p.group(c->group).name == "dp")
        bytes += static_cast<double>(c->bytes);
  return bytes;
}

/// Elements of the products of a tensor rank of two: qkv, proj, fc1 (gate and up), fc2.
constexpr double kProducts = 4.0 * (3 * 64 * 64 + 64 * 64 + 3 * 64 * 256) / 2;
/// The embedding and the head, and the norms: padding of a bucket aside.
constexpr double kRest = 2.0 * 1024 * 64 / 2 + (2 * 4 + 1) * 64;

TEST(Fp8Params, WeightsOfProductsAreKeptIn8BitsAlone) {
  JobSpec j = job();
  const plan::Plan wide = plan_of(j);
  EXPECT_NEAR(kept(wide, "weights.", 4), 2 * (kProducts + kRest), 4096);
  double copies = 0;
  for (const plan::Buffer& b : wide.buffers)
    if (b.name.ends_with(".f8") || b.name.ends_with(".f8t"))
      if (b.scope == plan::Scope::persistent) copies += static_cast<double>(b.bytes().n) * 4;
  EXPECT_DOUBLE_EQ(copies, 2 * kProducts);

  j.training.fp8_params = true;
  const plan::Plan narrow = plan_of(j);
  EXPECT_NEAR(kept(narrow, "weights.", 4), kProducts + 2 * kRest, 4096);
  copies = 0;
  for (const plan::Buffer& b : narrow.buffers)
    if (b.scope == plan::Scope::persistent && (b.name.ends_with(".f8") || b.name.ends_with(".f8t")))
      copies += static_cast<double>(b.bytes().n) * 4;
  EXPECT_DOUBLE_EQ(copies, kProducts) << "the transposed copy alone";
  // Master weights, moments and gradients are of as many elements as before.
  for (const char* states : {"master.", "moment1.", "moment2.", "grads."})
    EXPECT_NEAR(kept(narrow, states, 4), kept(wide, states, 4), 8192) << states;
  EXPECT_NEAR(bytes_gathered(wide), 2 * (kProducts + kRest), 4096);
  EXPECT_NEAR(bytes_gathered(narrow), kProducts + 2 * kRest, 4096);
}

TEST(Fp8Params, OverlappedGathersBringEveryWeightBeforeItIsRead) {
  JobSpec j = job();
  j.training.fp8_params = true;
  j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
  j.strategy.bucket_elements = 20000;
  const plan::Plan p = plan_of(j);  // validation refuses a plan that reads what was not written
  EXPECT_NEAR(bytes_gathered(p), kProducts + 2 * kRest, 16384);
}

TEST(Fp8Params, IsRefusedWhereItMeansNothing) {
  JobSpec j = job();
  j.training.fp8_params = true;
  j.training.compute_dtype = DType::bf16;
  EXPECT_FALSE(lower(j).ok());
  j.training.compute_dtype = DType::f8;
  j.strategy.data_parallel = DataParallel::fsdp2;
  EXPECT_FALSE(lower(j).ok());
  j.strategy.data_parallel = DataParallel::megatron;
  EXPECT_TRUE(lower(j).ok());
}

TEST(Fp8Latent, EveryProductButTheRoutersTakes8BitOperands) {
  JobSpec j = job();
  j.model.mla =
      MlaSpec{.q_lora_rank = 32, .kv_lora_rank = 16, .qk_nope_head_dim = 8, .qk_rope_head_dim = 4, .v_head_dim = 8};
  j.model.head_dim = 12;
  const plan::Plan p = plan_of(j);
  std::map<std::string, int> eight, wider;
  for (const plan::Block& block : p.blocks)
    for (const plan::Op& op : block.ops)
      if (const auto* c = std::get_if<plan::Compute>(&op.body); c && c->kernel == plan::Kernel::gemm)
        ++(c->dtype == DType::f8 ? eight : wider)[op.name];
  for (const char* name : {"q down", "q up", "kv down", "kv up", "proj", "fc1", "fc2"}) {
    const std::string n = name;
    EXPECT_GT(eight[n], 0) << n;
    EXPECT_GT(eight[n + " dgrad"], 0) << n;
    EXPECT_GT(eight[n + " wgrad"], 0) << n;
  }
  for (const auto& [name, count] : wider) EXPECT_TRUE(name.starts_with("logits") || name.starts_with("head")) << name;
  // What a layer keeps of the low-rank rows for its weight gradients is 8-bit.
  for (const plan::Buffer& b : p.buffers)
    if (b.name == "q_down_normed" || b.name == "kv_down_normed") {
      EXPECT_EQ(b.scope, plan::Scope::invocation) << b.name;
    }
}

}  // namespace
}  // namespace wt::lower
