// Offload against closed forms that do not use lowering's code: bytes that cross the link to the host in a step, what a rank
// keeps on device, host and drives, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "small_job.hpp"

namespace wt::lower {
namespace {

constexpr int64_t kLayers = 6, kHidden = 64, kVocab = 1024, kData = 4, kMicroBatches = 3;
constexpr int64_t kBlock = kSmallBlock, kRoot = small_root(kVocab);
constexpr int64_t kAll = kLayers * kBlock + kRoot, kOwned = kAll / kData;

JobSpec job(DataParallel kind, OffloadDevice optimizer, OffloadDevice parameters = OffloadDevice::none) {
  JobSpec j = small_job({.layers = kLayers, .vocab = kVocab, .devices = kData});
  j.training.global_batch = kMicroBatches * kData;
  j.strategy.data_parallel = kind;
  j.strategy.gradient_dtype = DType::bf16;
  j.strategy.zero.persistence_threshold = 0;  // every weight comes and goes
  j.strategy.zero.max_reuse_distance = 0;
  if (kind != DataParallel::zero3) j.strategy.zero = {};
  j.strategy.offload.optimizer = optimizer;
  j.strategy.offload.parameters = parameters;
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

/// Bytes of a step by "device pinned"; the host's bytes of kernels under "host". Tokens and scalars left out.
std::map<std::string, int64_t> copied(const plan::Plan& p) {
  std::map<std::string, int64_t> bytes;
  for (const auto& i : p.programs[0].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& o, uint32_t, int64_t, uint32_t) {
      if (const auto* c = std::get_if<plan::Copy>(&o.body); c && c->bytes > 4 && o.reads.count > 0)
        bytes[std::string(to_text(c->from)) + " " + std::string(to_text(c->to))] += c->bytes;
      if (const auto* c = std::get_if<plan::Compute>(&o.body); c && o.stream == plan::Stream::host)
        bytes["host"] += c->work.bytes_read + c->work.bytes_written;
    });
  return bytes;
}

/// Bytes that a rank owns all the time.
std::map<plan::Space, int64_t> owned(const plan::Plan& p) {
  std::map<plan::Space, int64_t> bytes;
  const plan::Part& part = p.parts[0];
  for (const BufferId id : part.persistent) {
    const plan::Buffer& b = p.buffer(id);
    bytes[b.space] += b.bytes().n * (b.per_layer ? part.layers : 1);
  }
  return bytes;
}

constexpr int64_t kSlack = 4096;  // padding to the shard group, clipped norms

/// DS-8: sums go out and come back in the dtype of the wire, the last goes out in fp32; fp32 weights come back.
TEST(Offload, ZeroTwoMovesSumsAndFp32) {
  const plan::Plan p = lowered(job(DataParallel::zero2, OffloadDevice::cpu));
  auto b = copied(p);
  EXPECT_NEAR(b["device pinned"], kOwned * ((kMicroBatches - 1) * 2 + 4), kSlack);
  EXPECT_NEAR(b["pinned device"], kOwned * ((kMicroBatches - 1) * 2 + 4), kSlack);
  EXPECT_NEAR(b["host"], kOwned * 28, kSlack);  // read w, m, v, g; written w, m, v
  auto o = owned(p);
  EXPECT_NEAR(o[plan::Space::device], 2 * kAll, kSlack);
  EXPECT_NEAR(o[plan::Space::pinned], kOwned * (12 + 4 + 2), kSlack);  // 18 bytes, as DeepSpeed's estimator counts
}

TEST(Offload, ZeroTwoWithOneMicroBatchSendsFp32Once) {
  JobSpec j = job(DataParallel::zero2, OffloadDevice::cpu);
  j.training.global_batch = kData;
  auto b = copied(lowered(j));
  EXPECT_NEAR(b["device pinned"], kOwned * 4, kSlack);
  EXPECT_NEAR(b["pinned device"], kOwned * 4, kSlack);
}

/// Each pass brings the rank's shard in; the host makes the 16-bit weights where they stay.
TEST(Offload, ZeroThreeBringsShardsIn) {
  const plan::Plan p = lowered(job(DataParallel::zero3, OffloadDevice::cpu, OffloadDevice::cpu));
  auto b = copied(p);
  // Embedding and head are gathered once a pass that they are in: forward and backward, the head in both at once.
  const int64_t head = kVocab * kHidden + kHidden;
  EXPECT_NEAR(b["pinned device"], kMicroBatches * (2 * kAll - head) / kData * 2 + (kMicroBatches - 1) * kOwned * 2,
              kSlack * 4);
  EXPECT_NEAR(b["host"], kOwned * (28 + 6), kSlack);
  EXPECT_LT(owned(p)[plan::Space::device], kSlack);
  EXPECT_NEAR(owned(p)[plan::Space::pinned], kOwned * (2 + 12 + 4 + 2), kSlack);
}

TEST(Offload, OnFilesStateIsReadAndWrittenOnce) {
  const plan::Plan p = lowered(job(DataParallel::zero3, OffloadDevice::nvme));
  auto b = copied(p);
  EXPECT_NEAR(b["nvme pinned"], kOwned * 12, kSlack);
  EXPECT_NEAR(b["pinned nvme"], kOwned * 12, kSlack);
  EXPECT_NEAR(owned(p)[plan::Space::nvme], kOwned * 12, kSlack);
}

/// FS1-9: fp32 shards in, gradients of the shard's dtype out in every micro-batch, sums on the host.
TEST(Offload, FsdpAddsOnTheHost) {
  JobSpec j = job(DataParallel::fsdp, OffloadDevice::cpu, OffloadDevice::cpu);
  const plan::Plan p = lowered(j);
  auto b = copied(p);
  EXPECT_NEAR(b["device pinned"], kMicroBatches * kOwned * 4, kSlack);
  // Blocks twice, the root once: it stays from forward to backward.
  EXPECT_NEAR(b["pinned device"], kMicroBatches * (2 * kLayers * kBlock + 2 * kRoot - kRoot) / kData * 4,
              kMicroBatches * kRoot / kData * 4 + kSlack);
  EXPECT_LT(owned(p)[plan::Space::device], kSlack);
  EXPECT_NEAR(owned(p)[plan::Space::pinned], kOwned * 16, kSlack);
}

/// Megatron's CPU optimizer: gradients as they are, 16-bit weights back.
TEST(Offload, DistributedOptimizer) {
  JobSpec j = job(DataParallel::distributed_optimizer, OffloadDevice::cpu);
  j.strategy.gradient_dtype = DType::f32;
  auto b = copied(lowered(j));
  EXPECT_NEAR(b["device pinned"], kOwned * 4, kSlack);
  EXPECT_NEAR(b["pinned device"], kOwned * 2, kSlack);
  EXPECT_NEAR(b["host"], kOwned * (28 + 6), kSlack);
}

/// What goes out comes back, and the device never holds the activations of all layers.
TEST(Offload, ActivationsComeBack) {
  JobSpec j = job(DataParallel::fsdp, OffloadDevice::none);
  j.strategy.offload.activation_layers = 3;
  const plan::Plan p = lowered(j);
  auto b = copied(p);
  EXPECT_GT(b["device pinned"], 0);
  EXPECT_EQ(b["device pinned"], b["pinned device"]);
  j.strategy.offload.activation_layers = 6;
  EXPECT_EQ(copied(lowered(j))["device pinned"], 2 * b["device pinned"]);
}

std::string refusal(const JobSpec& j) {
  const auto r = lower(j);
  return r.ok() ? "" : to_text(r.errors());
}

TEST(Offload, WhatFrameworksRefuse) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(job(DataParallel::zero2, OffloadDevice::none, OffloadDevice::cpu)),
              HasSubstr("weights that are whole cannot leave the device"));
  EXPECT_THAT(refusal(job(DataParallel::zero2, OffloadDevice::nvme)), HasSubstr("DeepSpeed does at stage 3"));
  EXPECT_THAT(refusal(job(DataParallel::zero3, OffloadDevice::none, OffloadDevice::cpu)),
              HasSubstr("offload_param without offload_optimizer"));
  EXPECT_THAT(refusal(job(DataParallel::fsdp2, OffloadDevice::none, OffloadDevice::cpu)),
              HasSubstr("one without the other"));
  JobSpec j = job(DataParallel::zero3, OffloadDevice::none);
  j.strategy.zero.secondary_shard = 3;
  EXPECT_THAT(refusal(j), HasSubstr("groups of 3 are not smaller parts of 4"));
}

/// hpZ: the backward gathers inside the node; qwZ: half the bytes.
TEST(ZeroPlusPlus, GathersInsideTheNodeAndInEightBits) {
  auto gathered = [](const JobSpec& j) {
    const plan::Plan p = lowered(j);
    std::map<std::string, int64_t> bytes;
    for (const auto& i : p.programs[0].steps[0].order)
      plan::for_each_op(p.block(i.block), [&](const plan::Op& o, uint32_t, int64_t, uint32_t) {
        if (const auto* c = std::get_if<plan::Collective>(&o.body); c && c->kind == plan::CollectiveKind::all_gather)
          bytes[p.group(c->group).name] += c->bytes;
      });
    return bytes;
  };
  JobSpec j = job(DataParallel::zero3, OffloadDevice::none);
  j.strategy.zero.secondary_shard = 2;
  auto b = gathered(j);
  EXPECT_NEAR(b["dp_near"], kMicroBatches * kLayers * kBlock * 2, kSlack);
  const int64_t far = b["dp"];
  j.strategy.zero.quantized_weights = true;
  b = gathered(j);
  EXPECT_NEAR(b["dp_near"], kMicroBatches * kLayers * kBlock, kSlack);
  EXPECT_NEAR(b["dp"], far / 2, kSlack);
}

/// Elements that lie in a space, by role.
int64_t elements(const plan::Plan& p, plan::Role role, plan::Space space) {
  int64_t n = 0;
  for (const plan::Buffer& b : p.buffers)
    if (b.scope == plan::Scope::persistent && !b.view && b.role == role && b.space == space) n += b.elements();
  return n;
}

// Megatron's --optimizer-offload-fraction: the state of so much of the parameters is on the host, the rest on the device, and
// nothing is on both. The cut falls between two parameters.
TEST(Offload, APartOfTheOptimizer) {
  for (const double ratio : {0.3, 0.7}) {
    JobSpec j = job(DataParallel::distributed_optimizer, OffloadDevice::cpu);
    j.strategy.offload.ratio = ratio;
    const plan::Plan p = lowered(j);
    for (const plan::Role role : {plan::Role::master, plan::Role::moment1, plan::Role::moment2}) {
      const int64_t host = elements(p, role, plan::Space::pinned), device = elements(p, role, plan::Space::device);
      EXPECT_NEAR(static_cast<double>(host), ratio * kOwned, kVocab * kHidden / kData);  // the largest parameter
      EXPECT_GT(host, 0);
      EXPECT_NEAR(static_cast<double>(host + device), kOwned, 512);  // buckets are padded
    }
  }
  JobSpec j = job(DataParallel::zero1, OffloadDevice::cpu);
  j.strategy.offload.ratio = 0.5;
  EXPECT_THAT(to_text(lower(j).errors()), testing::HasSubstr("DeepSpeed offloads a part at stage 3 only"));
}

}  // namespace
}  // namespace wt::lower
