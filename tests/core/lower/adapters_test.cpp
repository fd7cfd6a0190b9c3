// Adapters, packed documents, a loss in pieces and DDP's hooks against closed forms that do not use lowering's code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"

namespace wt::lower {
namespace {

using testing::HasSubstr;

JobSpec llama7b() {
  JobSpec j;
  j.model = read_model("llama2-7b").value();
  j.cluster = read_cluster("dgx-a100-80").value();
  j.cluster.nodes = 1;
  j.training.micro_batch = 1;
  j.training.global_batch = 8;
  j.training.seq_len = 2048;
  j.training.vocab_multiple = 1;
  j.strategy.data_parallel = DataParallel::ddp;
  j.strategy.gradient_dtype = DType::bf16;
  return j;
}

plan::Plan lowered(const JobSpec& j) {
  auto r = lower(j);
  EXPECT_TRUE(r.ok()) << to_text(r.errors());
  if (!r.ok()) return {};
  const auto valid = plan::validate(r.value());
  EXPECT_TRUE(valid.ok()) << to_text(valid.errors());
  return r.value();
}

/// Elements of owned storage by role.
std::map<plan::Role, int64_t> kept(const plan::Plan& p) {
  std::map<plan::Role, int64_t> n;
  for (const plan::Part& part : p.parts)
    for (const BufferId b : part.persistent) n[p.buffer(b).role] += p.buffer(b).elements();
  return n;
}

int64_t ops_of(const plan::Plan& p, std::string_view text) {
  int64_t n = 0;
  for (const plan::Block& b : p.blocks)
    plan::for_each_op(
        b, [&](const plan::Op& op, uint32_t, int64_t, uint32_t) { n += op.name.find(text) != std::string::npos; });
  return n;
}

double flops_of(const plan::Plan& p) {
  double n = 0;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      if (const auto* c = std::get_if<plan::Compute>(&op.body); c && c->kernel == plan::Kernel::gemm)
        n += c->work.flops;
    });
  return n;
}

// The published count: rank 8 on q and v of Llama-2-7B trains 4,194,304 of 6,742,609,920 parameters.
TEST(Lora, TrainsAsManyParametersAsPublished) {
  JobSpec j = llama7b();
  j.training.lora.rank = 8;
  j.training.lora.targets = {"q", "v"};
  const plan::Plan p = lowered(j);
  auto n = kept(p);
  EXPECT_EQ(n[plan::Role::gradient], 4'194'304);
  EXPECT_EQ(n[plan::Role::moment1], 4'194'304);
  EXPECT_EQ(n[plan::Role::master], 4'194'304);
  EXPECT_EQ(n[plan::Role::weight], 6'738'415'616 + 4'194'304);
}

TEST(Lora, FrozenWeightsHaveNoWeightGradient) {
  JobSpec full = llama7b(), j = full;
  j.training.lora.rank = 16;
  const plan::Plan p = lowered(j);
  for (const char* name : {"qkv wgrad", "proj wgrad", "fc1 wgrad", "fc2 wgrad", "logits wgrad", "embedding backward"})
    EXPECT_EQ(ops_of(p, name), 0) << name;
  // Products: 4 of 6 P T FLOPs are left of a frozen model, and 6 per adapter parameter.
  const double whole = flops_of(lowered(full)), tokens = 2048;
  const int64_t h = 4096, f = 11008, adapters = 32 * 16 * ((h + 3 * h) + (h + h) + (h + 2 * f) + (f + h));
  EXPECT_NEAR(flops_of(p), whole * 4 / 6 + 6.0 * static_cast<double>(adapters) * tokens, 1e-9 * whole);
}

// User case P106: a frozen backbone is whole on every rank with ZeRO 2 and cut over them with ZeRO 3.
TEST(Lora, FrozenWeightsAreWholeWithZero2AndCutWithZero3) {
  JobSpec j = llama7b();
  j.training.lora.rank = 8;
  j.training.lora.targets = {"q", "v"};
  const auto bytes = [&](DataParallel kind) {
    j.strategy.data_parallel = kind;
    const plan::Plan p = lowered(j);
    int64_t n = 0;
    for (const plan::Part& part : p.parts)
      for (const BufferId b : part.persistent)
        if (p.buffer(b).role == plan::Role::weight)
          n += p.buffer(b).bytes().n * (p.buffer(b).per_layer ? part.layers : 1);
    return static_cast<double>(n);
  };
  const double backbone = 2 * 6'738'415'616.0, adapters = 2 * 4'194'304.0;
  EXPECT_NEAR(bytes(DataParallel::zero2), backbone + adapters, 1e-6 * backbone);
  // 65 norms and the adapters, small as they are, stay whole.
  EXPECT_NEAR(bytes(DataParallel::zero3), backbone / 8 + adapters, 1e-4 * backbone);
}

TEST(Lora, FourBitsKeepHalfAByteAndItsScales) {
  JobSpec j = llama7b();
  j.training.lora.rank = 16;
  j.training.lora.base = BaseWeights::nf4;
  const plan::Plan p = lowered(j);
  int64_t packed = 0;
  for (const plan::Part& part : p.parts)
    for (const BufferId b : part.persistent)
      if (p.buffer(b).dtype == DType::u8) packed += p.buffer(b).bytes().n;
  const double products = 32.0 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008);
  EXPECT_NEAR(static_cast<double>(packed), products * (0.5 + 1.0 / 64 + 4.0 / (64 * 256)), 1e-6 * products);
}

TEST(Lora, RefusesWhatItCannotPlan) {
  JobSpec j = llama7b();
  j.training.lora.rank = 8;
  j.training.lora.targets = {"qkv", "q", "mixer"};
  j.training.lora.base = BaseWeights::nf4;
  j.strategy.data_parallel = DataParallel::zero3;
  const std::string text = to_text(lower(j).errors());
  EXPECT_THAT(text, HasSubstr("'mixer' is not a product of a layer"));
  EXPECT_THAT(text, HasSubstr("'qkv' and a part of it are both targets"));
  EXPECT_THAT(text, HasSubstr("4-bit weights in sharded units"));
}

// Gemma 3: five of six layers see 1,024 tokens back, the sixth sees everything.
TEST(Windows, AreThoseOfEachLayer) {
  JobSpec j = llama7b();
  j.model.sliding_window = 256;
  j.model.full_period = 6;
  const plan::Plan p = lowered(j);
  std::map<double, int64_t> layers;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t layer, uint32_t) {
      if (op.name != "attention") return;
      const auto& c = std::get<plan::Compute>(op.body);
      EXPECT_EQ(c.scalar, (layer + 1) % 6 == 0 ? 0 : 256) << layer;
      ++layers[c.work.flops];
    });
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers.begin()->second, 27);  // of 32
  EXPECT_NEAR(layers.begin()->first / layers.rbegin()->first, 2 * (256.0 / 2048) * (1 - 256.0 / 2048 / 2), 1e-12);
}

TEST(Packing, ScoresAreTheSumOfSquares) {
  JobSpec j = llama7b();
  const auto scores = [](const plan::Plan& p) {
    for (const plan::Block& b : p.blocks)
      for (const plan::Op& op : b.ops)
        if (op.name == "attention") return std::get<plan::Compute>(op.body).work.flops;
    return 0.0;
  };
  const double whole = scores(lowered(j));
  j.training.packing.mean_length = 512;  // all alike: 4 documents of a quarter each
  EXPECT_DOUBLE_EQ(scores(lowered(j)), whole / 4);
  j.training.packing.deviation = 512;
  const plan::Plan uneven = lowered(j);
  EXPECT_GT(scores(uneven), 1.3 * whole / 4);
  EXPECT_LT(scores(uneven), whole);
  EXPECT_DOUBLE_EQ(scores(uneven), scores(lowered(j)));  // of the seed alone
  j.training.seed = 7;
  EXPECT_NE(scores(uneven), scores(lowered(j)));
}

TEST(ChunkedLoss, LogitsAreNeverWhole) {
  JobSpec j = llama7b();
  j.training.loss_chunk = 256;
  const plan::Plan p = lowered(j);
  int64_t largest = 0;
  for (const plan::Buffer& b : p.buffers)
    if (b.name.starts_with("logits") && !b.view) largest = std::max(largest, b.bytes().n);
  std::map<BufferId, bool> used;
  for (const plan::Block& b : p.blocks)
    for (const plan::BufferRef& r : b.refs)
      if (p.buffer(r.buffer).name == "logits" || p.buffer(r.buffer).name == "logits_f32") ADD_FAILURE() << b.name;
  EXPECT_EQ(ops_of(p, "logits dgrad"), 8);
}

TEST(Ddp, HalvesAndViews) {
  JobSpec j = llama7b();
  j.strategy.gradient_dtype = DType::f32;
  const auto sent = [](const plan::Plan& p) {
    int64_t bytes = 0;
    for (const auto& i : p.programs[0].steps[0].order)
      plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
        if (const auto* c = std::get_if<plan::Collective>(&op.body); c && c->bytes > 4) bytes += c->bytes;
      });
    return bytes;
  };
  const plan::Plan plain = lowered(j);
  const int64_t parameters = kept(plain)[plan::Role::gradient];
  EXPECT_EQ(sent(plain), 4 * parameters);
  j.strategy.ddp.hook = CommHook::bf16_compress;
  EXPECT_EQ(sent(lowered(j)), 2 * parameters);
  j.strategy.ddp.hook = CommHook::none;
  j.strategy.ddp.bucket_view = false;
  const plan::Plan copied = lowered(j);
  EXPECT_EQ(sent(copied), 4 * parameters);
  EXPECT_EQ(kept(copied)[plan::Role::bucket], parameters);
  j.strategy.ddp.bucket_view = true;
  j.strategy.ddp.no_sync = false;
  j.training.global_batch = 24;
  EXPECT_EQ(sent(lowered(j)), 3 * 4 * parameters);
}

// Rank r: a matrix n x m goes as r (n + m) values; what has one dimension, as it is.
TEST(Ddp, PowerSgdSendsFactors) {
  JobSpec j = llama7b();
  j.strategy.gradient_dtype = DType::f32;
  j.strategy.ddp.hook = CommHook::powersgd;
  j.strategy.ddp.powersgd_rank = 4;
  const plan::Plan p = lowered(j);
  int64_t bytes = 0;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      if (const auto* c = std::get_if<plan::Collective>(&op.body); c && c->bytes > 4) bytes += c->bytes;
    });
  const int64_t h = 4096, f = 11008, v = 32000;
  const int64_t factors = 4 * (32 * ((h + 3 * h) + (h + h) + (h + 2 * f) + (f + h)) + 2 * (v + h));
  EXPECT_EQ(bytes, 4 * (factors + 65 * h));
  EXPECT_EQ(ops_of(p, "powersgd orthogonalize"), 32 * 4 + 2);
}

}  // namespace
}  // namespace wt::lower
