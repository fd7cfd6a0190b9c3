// Every way of sharded data parallelism that a test goes through: FSDP 1 and 2, ZeRO-2 and ZeRO-3. One list, for the reference
// interpreter and for the executor.
#pragma once

#include <functional>
#include <ostream>

#include "core/spec/specs.hpp"

namespace wt::reference {

/// A kind of sharded data parallelism over `ranks` data-parallel ranks, and what else the job says.
struct Sharded {
  const char* name;
  DataParallel kind;
  int64_t ranks;  // data-parallel
  std::function<void(JobSpec&)> change = [](JobSpec&) {};
};

inline void PrintTo(const Sharded& v, std::ostream* out) { *out << v.name; }

inline void tensor(JobSpec& j, int64_t t) {
  j.strategy.tensor = t;
  j.strategy.sequence_parallel = true;
  j.cluster.nodes *= t;
}
/// torch's stages reduce in the last micro-batch alone, and share no tables.
inline void stages(JobSpec& j, int64_t p) {
  j.strategy.pipeline = p;
  j.strategy.fsdp.no_sync = true;
  j.cluster.nodes *= p;
}
inline void sequences(JobSpec& j, int64_t c, ContextExchange how) {
  j.strategy.context = c;
  j.strategy.context_exchange = how;
  j.cluster.nodes *= c;
}
inline void small_buckets(JobSpec& j) {  // two layers of the gpt; one of its modules at a time
  j.strategy.bucket_elements = 4000;
  j.strategy.zero = {300, 40, 4000, 0};
}

inline void offload(JobSpec& j, OffloadDevice optimizer, OffloadDevice parameters) {
  j.strategy.offload.optimizer = optimizer;
  j.strategy.offload.parameters = parameters;
}

inline const Sharded kSharded[] = {
    {"fsdp_full", DataParallel::fsdp, 4},
    {"fsdp_forward_prefetch", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.forward_prefetch = true; }},
    {"fsdp_prefetch_post", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::post; }},
    {"fsdp_no_prefetch", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::none; }},
    {"fsdp_no_limit", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.limit_all_gathers = false; }},
    {"fsdp_shard_grad_op", DataParallel::fsdp, 2,
     [](JobSpec& j) { j.strategy.fsdp.sharding = ShardingKind::shard_grad_op; }},
    {"fsdp_no_shard", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.sharding = ShardingKind::no_shard; }},
    {"fsdp_hybrid", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_hybrid_zero2", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard_zero2;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_no_sync", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.no_sync = true; }},
    {"fsdp_no_sync_shard_grad_op", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::shard_grad_op;
     }},
    {"fsdp_no_sync_no_shard", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::no_shard;
     }},
    {"fsdp_one_micro_batch", DataParallel::fsdp, 4,
     [](JobSpec& j) {
       j.training.micro_batch = 4;
       j.strategy.fsdp.no_sync = true;
     }},
    {"fsdp_whole_model", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.wrap = WrapKind::model; }},
    {"fsdp_ends", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.wrap = WrapKind::block_and_ends; }},
    {"fsdp_keep_last", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.fsdp.keep_last = 2; }},
    {"fsdp_tp2", DataParallel::fsdp, 2, [](JobSpec& j) { tensor(j, 2); }},
    {"fsdp_tp2_whole_model", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.fsdp.wrap = WrapKind::model;
     }},
    {"fsdp_tp2_plain_no_sync", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.sequence_parallel = false;
       j.strategy.fsdp.no_sync = true;
     }},
    {"fsdp_recompute", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.recompute.kind = RecomputeKind::full; }},
    {"fsdp_recompute_block", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 2};
     }},
    {"fsdp2_recompute_every_2", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.recompute.kind = RecomputeKind::full;
       j.strategy.recompute.every = 2;
     }},
    {"fsdp2_full", DataParallel::fsdp2, 4},
    {"fsdp2_ends_keep_last", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
       j.strategy.fsdp.keep_last = 1;
     }},
    {"fsdp2_no_prefetch", DataParallel::fsdp2, 2,
     [](JobSpec& j) { j.strategy.fsdp.backward_prefetch = BackwardPrefetch::none; }},
    {"fsdp2_forward_prefetch", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.forward_prefetch = true; }},
    {"fsdp2_no_reshard", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 0; }},
    {"fsdp2_no_reshard_ends", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.fsdp.reshard_after_forward = 0;
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
     }},
    {"fsdp2_reshard_to_2", DataParallel::fsdp2, 4, [](JobSpec& j) { j.strategy.fsdp.reshard_after_forward = 2; }},
    {"fsdp2_hybrid", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp2_hybrid_reshard_to_2", DataParallel::fsdp2, 8,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 4;
       j.strategy.fsdp.reshard_after_forward = 2;
     }},
    {"fsdp2_no_sync", DataParallel::fsdp2, 2, [](JobSpec& j) { j.strategy.fsdp.no_sync = true; }},
    {"fsdp2_tp2_recompute", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"fsdp2_tp2_hybrid_no_sync", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       tensor(j, 2);
       j.strategy.fsdp.no_sync = true;
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_pp2", DataParallel::fsdp, 2, [](JobSpec& j) { stages(j, 2); }},
    {"fsdp_pp2_shard_grad_op", DataParallel::fsdp, 2,
     [](JobSpec& j) {
       stages(j, 2);
       j.strategy.fsdp.sharding = ShardingKind::shard_grad_op;
     }},
    {"fsdp2_pp2_ends", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       stages(j, 2);
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
     }},
    {"fsdp2_pp4_no_reshard", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       stages(j, 4);
       j.strategy.fsdp.reshard_after_forward = 0;
     }},
    {"fsdp2_tp2_pp2_interleaved", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       stages(j, 2);
       tensor(j, 2);
       j.strategy.virtual_stages = 2;
       j.strategy.schedule = "interleaved";
       j.strategy.fsdp.reshard_after_forward = 0;
       j.strategy.fsdp.wrap = WrapKind::block_and_ends;
     }},
    {"fsdp2_pp2_hybrid_looped_bfs", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       stages(j, 2);
       j.strategy.virtual_stages = 2;
       j.strategy.schedule = "looped-bfs";
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp_cp2", DataParallel::fsdp, 2, [](JobSpec& j) { sequences(j, 2, ContextExchange::ring); }},
    {"fsdp2_tp2_cp2_gather", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       sequences(j, 2, ContextExchange::all_gather);
     }},
    {"fsdp2_cp2_hybrid", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       sequences(j, 2, ContextExchange::all_to_all);
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
     }},
    {"fsdp2_cp2_pp2", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       sequences(j, 2, ContextExchange::ring);
       stages(j, 2);
     }},
    {"zero2_cp2", DataParallel::zero2, 2, [](JobSpec& j) { sequences(j, 2, ContextExchange::all_to_all); }},
    {"zero3_cp2", DataParallel::zero3, 2, [](JobSpec& j) { sequences(j, 2, ContextExchange::all_to_all); }},
    {"zero2", DataParallel::zero2, 4},
    {"zero2_overlap_small_buckets", DataParallel::zero2, 2,
     [](JobSpec& j) {
       j.strategy.bucket_elements = 4000;
       j.strategy.overlap_grad_reduce = true;
     }},
    {"zero2_tp2_one_micro_batch", DataParallel::zero2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.training.micro_batch = 8;
     }},
    {"zero3", DataParallel::zero3, 4},
    {"zero3_small_buckets", DataParallel::zero3, 2, [](JobSpec& j) { small_buckets(j); }},
    {"zero3_no_prefetch", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.zero.prefetch_elements = 0;
     }},
    {"zero3_far_ahead", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.zero.max_live_parameters = 8000;
       j.strategy.zero.max_reuse_distance = 5000;
     }},
    {"zero3_tp2_recompute", DataParallel::zero3, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       small_buckets(j);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"zero3_secondary_shard", DataParallel::zero3, 4, [](JobSpec& j) { j.strategy.zero.secondary_shard = 2; }},
    {"zero3_zeropp", DataParallel::zero3, 8,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.zero.secondary_shard = 4;
       j.strategy.zero.quantized_weights = true;
     }},
    {"fsdp_activations", DataParallel::fsdp, 2, [](JobSpec& j) { j.strategy.offload.activation_layers = 2; }},
    {"zero3_activations", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       j.strategy.offload.activation_layers = 4;
     }},
    {"fsdp2_activations_recompute", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       j.strategy.offload.activation_layers = 1;
       j.strategy.offload.pinned = false;
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"zero2_offload", DataParallel::zero2, 2, [](JobSpec& j) { offload(j, OffloadDevice::cpu, OffloadDevice::none); }},
    {"zero2_offload_tp2_one_micro_batch", DataParallel::zero2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       j.training.micro_batch = 8;
       offload(j, OffloadDevice::cpu, OffloadDevice::none);
     }},
    {"zero2_offload_alone", DataParallel::zero2, 1,
     [](JobSpec& j) { offload(j, OffloadDevice::cpu, OffloadDevice::none); }},
    {"zero3_offload_optimizer", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       offload(j, OffloadDevice::cpu, OffloadDevice::none);
       j.strategy.offload.overlap = true;
     }},
    {"zero3_offload_pageable", DataParallel::zero3, 4,
     [](JobSpec& j) {
       offload(j, OffloadDevice::cpu, OffloadDevice::cpu);
       j.strategy.offload.pinned = false;
     }},
    {"zero3_offload_alone", DataParallel::zero3, 1,
     [](JobSpec& j) { offload(j, OffloadDevice::cpu, OffloadDevice::cpu); }},
    {"zero3_offload_tp2_recompute", DataParallel::zero3, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       small_buckets(j);
       offload(j, OffloadDevice::cpu, OffloadDevice::cpu);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"fsdp_offload", DataParallel::fsdp, 2, [](JobSpec& j) { offload(j, OffloadDevice::cpu, OffloadDevice::cpu); }},
    {"fsdp_offload_alone", DataParallel::fsdp, 1,
     [](JobSpec& j) { offload(j, OffloadDevice::cpu, OffloadDevice::cpu); }},
    {"fsdp2_offload_tp2", DataParallel::fsdp2, 2,
     [](JobSpec& j) {
       tensor(j, 2);
       offload(j, OffloadDevice::cpu, OffloadDevice::cpu);
     }},
    {"fsdp2_offload_hybrid_pageable", DataParallel::fsdp2, 4,
     [](JobSpec& j) {
       j.strategy.fsdp.sharding = ShardingKind::hybrid_shard;
       j.strategy.fsdp.shard_size = 2;
       offload(j, OffloadDevice::cpu, OffloadDevice::cpu);
       j.strategy.offload.pinned = false;
     }},
};

/// On files, which no executor uses.
inline const Sharded kOnFiles[] = {
    {"zero3_nvme_optimizer", DataParallel::zero3, 2,
     [](JobSpec& j) { offload(j, OffloadDevice::nvme, OffloadDevice::none); }},
    {"zero3_nvme_all", DataParallel::zero3, 2,
     [](JobSpec& j) {
       small_buckets(j);
       offload(j, OffloadDevice::nvme, OffloadDevice::nvme);
       j.strategy.offload.overlap = true;
     }},
};

inline void apply(const Sharded& v, JobSpec& j) {
  j.strategy.data_parallel = v.kind;
  j.cluster.nodes = v.ranks;
  v.change(j);
  // Two stages cannot share a table that is cut in units.
  if (j.strategy.pipeline > 1) j.model.tied_embeddings = false;
}

}  // namespace wt::reference
