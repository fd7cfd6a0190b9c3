// A job as a DeepSpeed configuration. Model, sequence length and stages go to the script; its engine takes them as arguments.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/spec/names.hpp"
#include "import/export.hpp"

namespace wt::import {

namespace {

using Json = nlohmann::ordered_json;

/// What is cut is what the stage says: Megatron's distributed optimizer cuts what stage 1 cuts, FSDP all three, or gradients
/// and states alone where weights stay from forward to backward.
int stage_of(const StrategySpec& s) {
  switch (s.data_parallel) {
    case DataParallel::distributed_optimizer:
    case DataParallel::zero1: return 1;
    case DataParallel::zero2: return 2;
    case DataParallel::zero3: return 3;
    case DataParallel::fsdp:
      switch (s.fsdp.sharding) {
        case ShardingKind::no_shard: return 0;
        case ShardingKind::shard_grad_op:
        case ShardingKind::hybrid_shard_zero2: return 2;
        case ShardingKind::full_shard:
        case ShardingKind::hybrid_shard: return 3;
      }
      return 3;
    case DataParallel::fsdp2: return s.fsdp.reshard_after_forward == 0 ? 2 : 3;
    case DataParallel::ddp:
    case DataParallel::megatron: break;
  }
  return 0;
}

Json zero_of(const StrategySpec& s) {
  Json z;
  const int stage = stage_of(s);
  z["stage"] = stage;
  if (stage >= 2) z["overlap_comm"] = s.overlap_grad_reduce;
  if (stage >= 1 && s.bucket_elements > 0) z["reduce_bucket_size"] = s.bucket_elements;
  if (stage == 3) {
    z["stage3_prefetch_bucket_size"] = s.zero.prefetch_elements;
    z["stage3_param_persistence_threshold"] = s.zero.persistence_threshold;
    z["stage3_max_live_parameters"] = s.zero.max_live_parameters;
    z["stage3_max_reuse_distance"] = s.zero.max_reuse_distance;
    if (s.zero.secondary_shard > 1) z["zero_hpz_partition_size"] = s.zero.secondary_shard;
    if (s.zero.quantized_weights) z["zero_quantized_weights"] = true;
  }
  for (const auto& [key, device] :
       {std::pair{"offload_optimizer", s.offload.optimizer}, {"offload_param", s.offload.parameters}}) {
    if (device == OffloadDevice::none) continue;
    z[key] = {{"device", to_text(device)}, {"pin_memory", s.offload.pinned}};
    if (device == OffloadDevice::nvme) z[key]["nvme_path"] = "/local_nvme";
  }
  if (s.offload.optimizer != OffloadDevice::none && s.offload.ratio < 1)
    z["offload_optimizer"]["ratio"] = s.offload.ratio;
  if (s.offload.optimizer == OffloadDevice::nvme && s.offload.overlap) z["offload_optimizer"]["pipeline_write"] = true;
  return z;
}

Written write(const JobSpec& j) {
  const StrategySpec& s = j.strategy;
  const TrainingSpec& t = j.training;
  Json c;
  c["train_batch_size"] = t.global_batch;
  c["train_micro_batch_size_per_gpu"] = t.micro_batch;
  c["gradient_clipping"] = t.gradient_clipping;
  if (t.param_dtype == DType::f16) c["fp16"]["enabled"] = true;
  if (t.param_dtype == DType::bf16) c["bf16"]["enabled"] = true;
  if (t.param_dtype == DType::bf16 && t.moment_dtype == DType::bf16) c["bf16"]["bf16_optimizer_states"] = true;
  c["zero_optimization"] = zero_of(s);
  // No "params": a job has no learning rate, and DeepSpeed takes the optimizer's own default where there is none.
  c["optimizer"] = {{"type", t.optimizer == OptimizerKind::sgd ? "SGD" : "AdamW"}};
  if (s.gradient_dtype != t.param_dtype) c["communication_data_type"] = spelled(s.gradient_dtype);
  if (s.tensor > 1 && s.pipeline == 1) c["tensor_parallel"]["autotp_size"] = s.tensor;
  if (s.context > 1 && s.context_exchange == ContextExchange::all_to_all) c["sequence_parallel_size"] = s.context;
  Written out{c.dump(2) + "\n", {fmt::format("training.seq_len={}", t.seq_len)}};
  if (s.pipeline > 1) out.beside.push_back(fmt::format("strategy.pipeline={}", s.pipeline));
  if (s.tensor > 1 && s.pipeline > 1) out.beside.push_back(fmt::format("strategy.tensor={}", s.tensor));
  if (s.recompute.kind != RecomputeKind::none) {
    out.beside.push_back(fmt::format("strategy.recompute.kind={}", to_text(s.recompute.kind)));
    if (s.recompute.layers != 1) out.beside.push_back(fmt::format("strategy.recompute.layers={}", s.recompute.layers));
    if (s.recompute.method != RecomputeMethod::uniform)
      out.beside.push_back(fmt::format("strategy.recompute.method={}", to_text(s.recompute.method)));
    if (s.recompute.every != 1) out.beside.push_back(fmt::format("strategy.recompute.every={}", s.recompute.every));
    if (!s.recompute.modules.empty())
      out.beside.push_back(fmt::format("strategy.recompute.modules={}", s.recompute.modules));
  }
  return out;
}

}  // namespace

extern const Exporter exporters_deepspeed;
const Exporter exporters_deepspeed = {"deepspeed", "DeepSpeed JSON", "ds_config.json", false, write};

}  // namespace wt::import
