// Every key of every spec, once: describe(visitor, spec) names the keys, their unit and their range. One visitor reads
// (read.cpp), another prints (print.cpp), so a key cannot be read and not printed.
// Not the checks that span several keys: those are in read.cpp.
#pragma once

#include <limits>

#include "core/spec/names.hpp"
#include "core/spec/quantity.hpp"
#include "core/spec/specs.hpp"

namespace wt {

enum class Need : uint8_t { optional, required };
inline constexpr Need kRequired = Need::required, kOptional = Need::optional;

// Ranges that keep every sum and product of a plan inside 64 bits; far above anything real.
struct Range {
  int64_t low = 0, high = 0;
};
inline constexpr Range kCount{1, int64_t{1} << 24}, kCountOr0{0, int64_t{1} << 24};
inline constexpr Range kWidth{1, int64_t{1} << 22}, kWidthOr0{0, int64_t{1} << 22};
// The deepest published transformer has 1,000 layers; time and memory of a plan grow with their number.
inline constexpr Range kLayers{1, 1 << 12}, kLayersOr0{0, 1 << 12};
inline constexpr Range kExperts{1, 1 << 16};
inline constexpr Range kLength{1, int64_t{1} << 31}, kLengthOr0{0, int64_t{1} << 31};

template <class V>
void describe(V& v, MoeSpec& m) {
  v.integer("experts", m.experts, kExperts, kRequired);
  v.integer("top_k", m.top_k, kExperts, kRequired);
  v.integer("ffn_hidden", m.ffn_hidden, kWidth, kRequired);
  v.integer("shared_ffn_hidden", m.shared_ffn_hidden, kWidthOr0, kOptional);
  v.integer("first_dense_layers", m.first_dense_layers, kLayersOr0, kOptional);
  v.integer("layer_period", m.layer_period, kLayers, kOptional);
  v.flag("router_bias", m.router_bias, kOptional);
  v.flag("shared_gate", m.shared_gate, kOptional);
}

template <class V>
void describe(V& v, MlaSpec& m) {
  v.integer("q_lora_rank", m.q_lora_rank, kWidthOr0, kRequired);
  v.integer("kv_lora_rank", m.kv_lora_rank, kWidth, kRequired);
  v.integer("qk_nope_head_dim", m.qk_nope_head_dim, kWidth, kRequired);
  v.integer("qk_rope_head_dim", m.qk_rope_head_dim, kWidth, kRequired);
  v.integer("v_head_dim", m.v_head_dim, kWidth, kRequired);
}

// What decides the parameter count must be said; what most models lack may be left out.
template <class V>
void describe(V& v, ModelSpec& m) {
  v.text("name", m.name, kOptional);
  v.text("source", m.source, kOptional);
  v.integer("layers", m.layers, kLayers, kRequired);
  v.integer("hidden", m.hidden, kWidth, kRequired);
  v.integer("ffn_hidden", m.ffn_hidden, kWidth, v.has("moe") ? kOptional : kRequired);
  v.integer("heads", m.heads, kWidth, kRequired);
  v.integer("kv_heads", m.kv_heads, kWidth, kOptional);
  v.integer("head_dim", m.head_dim, kWidth, kOptional);
  v.integer("vocab", m.vocab, kCount, kRequired);
  v.integer("max_context", m.max_context, kLength, kRequired);
  v.flag("gated_mlp", m.gated_mlp, kRequired);
  v.choice("activation", m.activation, kRequired);
  v.choice("norm", m.norm, kRequired);
  v.choice("position", m.position, kRequired);
  v.flag("tied_embeddings", m.tied_embeddings, kRequired);
  v.flag("attention_bias", m.attention_bias, kOptional);
  v.flag("output_bias", m.output_bias, kOptional);
  v.flag("mlp_bias", m.mlp_bias, kOptional);
  v.flag("qk_norm", m.qk_norm, kOptional);
  v.flag("parallel_block", m.parallel_block, kOptional);
  v.integer("norms_per_layer", m.norms_per_layer, Range{0, 8}, kOptional);
  v.flag("final_norm", m.final_norm, kOptional);
  v.flag("embedding_norm", m.embedding_norm, kOptional);
  v.integer("embedding_dim", m.embedding_dim, kWidthOr0, kOptional);
  v.integer("extra_positions", m.extra_positions, Range{0, 1 << 20}, kOptional);
  v.integer("sliding_window", m.sliding_window, kLengthOr0, kOptional);
  v.integer("sliding_period", m.sliding_period, kLayers, kOptional);
  v.integer("full_period", m.full_period, kLayersOr0, kOptional);
  v.flag("attention_sinks", m.attention_sinks, kOptional);
  v.flag("expert_bias", m.expert_bias, kOptional);
  v.integer("mtp_layers", m.mtp_layers, Range{0, 64}, kOptional);
  v.flag("head_bias", m.head_bias, kOptional);
  v.flag("causal", m.causal, kOptional);
  v.flag("head_transform", m.head_transform, kOptional);
  v.integer("segment_types", m.segment_types, Range{0, 1 << 20}, kOptional);
  v.section("moe", m.moe);
  v.section("mla", m.mla);
}

template <class V>
void describe(V& v, KernelPoint& p) {
  v.integers("dims", p.dims, kLengthOr0, kRequired);
  v.number("flops", p.flops, 0, 1e24, kOptional);
  v.bytes("bytes", p.bytes, kOptional);
  v.time("time", p.time, kRequired);
}

template <class V>
void describe(V& v, KernelCurve& k) {
  v.text("kernel", k.kernel, kRequired);
  v.text("variant", k.variant, kOptional);
  v.dtype("dtype", k.dtype, kRequired);
  v.time("latency", k.latency, kOptional);
  v.quantity(Quantity::flops_per_second, "rate", k.rate, kOptional);
  v.rate("bandwidth", k.bandwidth, kOptional);
  v.number("error", k.error, 0, 1e6, kOptional);
  v.list("points", k.points);
}

template <class V>
void describe(V& v, MeasuredDevice& d) {
  v.text("source", d.source, kRequired);
  v.time("op_overhead", d.op_overhead, kOptional);
  v.list("kernels", d.kernels);
}

template <class V>
void describe(V& v, TransferPoint& p) {
  v.bytes("bytes", p.bytes, kRequired);
  v.time("time", p.time, kRequired);
}

template <class V>
void describe(V& v, TransferLine& l) {
  v.bytes("from", l.from, kRequired);
  v.time("latency", l.latency, kRequired);
  v.rate("bandwidth", l.bandwidth, kOptional);
}

template <class V>
void describe(V& v, TransferCurve& t) {
  v.choice("kind", t.kind, kRequired);
  v.integer("ranks", t.ranks, Range{2, int64_t{1} << 24}, kRequired);
  v.integer("nodes", t.nodes, kCount, kRequired);
  v.dtype("dtype", t.dtype, kRequired);
  v.number("device_share", t.device_share, 0, 1, kOptional);
  v.number("error", t.error, 0, 1e6, kOptional);
  v.list("lines", t.lines);
  v.list("points", t.points);
}

template <class V>
void describe(V& v, DeviceSpec& d) {
  v.text("name", d.name, kOptional);
  v.text("vendor", d.vendor, kOptional);
  v.text("source", d.source, kOptional);
  v.choice("generation", d.generation, kRequired);
  v.bytes("memory", d.memory, kRequired);
  v.rate("memory_bandwidth", d.memory_bandwidth, kRequired);
  v.bytes("l2_cache", d.l2_cache, kOptional);
  v.integer("multiprocessors", d.multiprocessors, kCount, kRequired);
  v.quantity(Quantity::frequency, "clock", d.clock_hz, kOptional);
  v.quantity(Quantity::power, "power", d.power_watts, kOptional);
  v.peaks("peak", d.peak, kRequired);
  v.text("kernels", d.kernels, kOptional);
  v.bytes("context_memory", d.context_memory, kRequired);
  v.section("measured", d.measured);
}

template <class V>
void describe(V& v, ScaleUpSpec& s) {
  v.choice("kind", s.kind, kRequired);
  v.rate("bandwidth", s.bandwidth, kOptional);
  v.time("latency", s.latency, kOptional);
  v.integer("domain", s.domain, kCountOr0, kOptional);
  v.flag("sharp", s.sharp, kOptional);
}

template <class V>
void describe(V& v, FabricSpec& f) {
  v.choice("kind", f.kind, kRequired);
  v.integer("nics_per_node", f.nics_per_node, Range{0, 1024}, kOptional);
  v.rate("nic_bandwidth", f.nic_bandwidth, kOptional);
  v.number("nic_efficiency", f.nic_efficiency, 0, 1, kOptional);
  v.number("alltoall_efficiency", f.alltoall_efficiency, 0, 1, kOptional);
  v.time("latency", f.latency, kOptional);
  v.flag("rail_optimised", f.rail_optimised, kOptional);
  v.number("oversubscription", f.oversubscription, 0.01, 1000, kOptional);
  v.integer("nodes_per_leaf", f.nodes_per_leaf, kCountOr0, kOptional);
  v.flag("gpu_direct", f.gpu_direct, kOptional);
}

template <class V>
void describe(V& v, NodeSpec& n) {
  v.integer("devices", n.devices, Range{1, 1024}, kRequired);
  v.section("scale_up", n.scale_up, kRequired);
  v.rate("pcie_bandwidth", n.pcie_bandwidth, kRequired);
  v.rate("host_copy_bandwidth", n.host_copy_bandwidth, kOptional);
  v.bytes("host_memory", n.host_memory, kRequired);
  v.rate("host_memory_bandwidth", n.host_memory_bandwidth, kOptional);
  v.integer("cpu_cores", n.cpu_cores, Range{0, 1 << 16}, kOptional);
  v.text("cpu_vendor", n.cpu_vendor, kOptional);
  v.bytes("nvme", n.nvme, kOptional);
  v.rate("nvme_read", n.nvme_read, kOptional);
  v.rate("nvme_write", n.nvme_write, kOptional);
}

template <class V>
void describe(V& v, ClusterSpec& c) {
  v.text("name", c.name, kOptional);
  v.text("source", c.source, kOptional);
  v.section("device", c.device, kRequired);
  v.section("node", c.node, kRequired);
  v.section("fabric", c.fabric, kOptional);
  v.integer("nodes", c.nodes, kCount, kRequired);
  v.list("transfers", c.transfers);
  v.texts("notes", c.notes);
}

template <class V>
void describe(V& v, RecomputeSpec& r) {
  v.choice("kind", r.kind, kRequired);
  v.choice("method", r.method, kOptional);
  v.integer("layers", r.layers, kLayers, kOptional);
  v.flag("early_stop", r.early_stop, kOptional);
  v.integer("every", r.every, kLayers, kOptional);
  v.text("modules", r.modules, kOptional);
}

template <class V>
void describe(V& v, FsdpSpec& s) {
  v.choice("sharding", s.sharding, kOptional);
  v.integer("shard_size", s.shard_size, kCountOr0, kOptional);
  v.flag_or_count("reshard_after_forward", s.reshard_after_forward);
  v.choice("wrap", s.wrap, kOptional);
  v.choice("backward_prefetch", s.backward_prefetch, kOptional);
  v.flag("forward_prefetch", s.forward_prefetch, kOptional);
  v.flag("limit_all_gathers", s.limit_all_gathers, kOptional);
  v.flag("no_sync", s.no_sync, kOptional);
  v.integer("keep_last", s.keep_last, kLayersOr0, kOptional);
}

template <class V>
void describe(V& v, ZeroSpec& s) {
  constexpr Range elements{0, int64_t{1} << 50};
  v.integer("prefetch_elements", s.prefetch_elements, elements, kOptional);
  v.integer("persistence_threshold", s.persistence_threshold, elements, kOptional);
  v.integer("max_live_parameters", s.max_live_parameters, elements, kOptional);
  v.integer("max_reuse_distance", s.max_reuse_distance, elements, kOptional);
  v.integer("secondary_shard", s.secondary_shard, kCount, kOptional);
  v.flag("quantized_weights", s.quantized_weights, kOptional);
  v.flag("list_collectives", s.list_collectives, kOptional);
}

template <class V>
void describe(V& v, OffloadSpec& s) {
  v.choice("optimizer", s.optimizer, kOptional);
  v.choice("parameters", s.parameters, kOptional);
  v.number("ratio", s.ratio, 0, 1, kOptional);
  v.integer("activation_layers", s.activation_layers, kLayersOr0, kOptional);
  v.flag("pinned", s.pinned, kOptional);
  v.flag("overlap", s.overlap, kOptional);
}

template <class V>
void describe(V& v, ExpertSpec& s) {
  v.integer("tensor", s.tensor, kCountOr0, kOptional);
  v.number("imbalance", s.imbalance, 1, 1e5, kOptional);
  v.flag("dropless", s.dropless, kOptional);
  v.choice("routing", s.routing, kOptional);
  v.choice("dispatcher", s.dispatcher, kOptional);
  v.flag("shared_overlap", s.shared_overlap, kOptional);
  v.flag("overlap_passes", s.overlap_passes, kOptional);
}

template <class V>
void describe(V& v, ScheduleWeights& w) {
  constexpr Range units{0, 1'000'000};
  v.integer("forward", w.forward, units, kOptional);
  v.integer("input_gradient", w.input_gradient, units, kOptional);
  v.integer("weight_gradient", w.weight_gradient, units, kOptional);
  v.integer("message", w.message, units, kOptional);
}

template <class V>
void describe(V& v, StrategySpec& s) {
  v.integer("tensor", s.tensor, kCount, kOptional);
  v.integer("pipeline", s.pipeline, kCount, kOptional);
  v.integer("context", s.context, kCount, kOptional);
  v.choice("context_exchange", s.context_exchange, kOptional);
  v.integer("context_all_to_all", s.context_all_to_all, kCount, kOptional);
  v.integer("expert", s.expert, kCount, kOptional);
  v.integer("data", s.data, kCountOr0, kOptional);
  v.integer("virtual_stages", s.virtual_stages, kLayers, kOptional);
  v.flag("sequence_parallel", s.sequence_parallel, kOptional);
  v.flag("keep_gathered", s.keep_gathered, kOptional);
  v.text("schedule", s.schedule, kOptional);
  v.integer("group_size", s.group_size, kCountOr0, kOptional);
  v.section("schedule_weights", s.schedule_weights, kOptional);
  v.integer("max_in_flight", s.max_in_flight, kCountOr0, kOptional);
  v.text("schedule_file", s.schedule_file, kOptional);
  v.text("pipeline_layout", s.pipeline_layout, kOptional);
  v.integer("first_stage_layers", s.first_stage_layers, kLayersOr0, kOptional);
  v.integer("last_stage_layers", s.last_stage_layers, kLayersOr0, kOptional);
  v.flag("account_for_embedding", s.account_for_embedding, kOptional);
  v.flag("account_for_loss", s.account_for_loss, kOptional);
  v.flag("overlap_p2p", s.overlap_p2p, kOptional);
  v.flag("shard_messages", s.shard_messages, kOptional);
  v.flag("serial_messages", s.serial_messages, kOptional);
  v.choice("data_parallel", s.data_parallel, kOptional);
  v.bytes("ddp_bucket", s.ddp_bucket, kOptional);
  v.bytes("ddp_first_bucket", s.ddp_first_bucket, kOptional);
  v.integer("bucket_elements", s.bucket_elements, Range{0, int64_t{1} << 40}, kOptional);
  v.dtype("gradient_dtype", s.gradient_dtype, kOptional);
  v.flag("overlap_grad_reduce", s.overlap_grad_reduce, kOptional);
  v.flag("overlap_param_gather", s.overlap_param_gather, kOptional);
  v.choice("gradient_copies", s.gradient_copies, kOptional);
  v.section("ddp", s.ddp, kOptional);
  v.section("fsdp", s.fsdp, kOptional);
  v.section("zero", s.zero, kOptional);
  v.section("offload", s.offload, kOptional);
  v.section("experts", s.experts, kOptional);
  v.integer("kept_edges", s.kept_edges, Range{-1, 2}, kOptional);
  v.recompute("recompute", s.recompute);
  v.choice("attention", s.attention, kOptional);
  v.flag("tensor_async_backward", s.tensor_async_backward, kOptional);
  v.flag("tensor_overlap", s.tensor_overlap, kOptional);
}

template <class V>
void describe(V& v, DdpSpec& d) {
  v.flag("bucket_view", d.bucket_view, kOptional);
  v.flag("no_sync", d.no_sync, kOptional);
  v.flag("find_unused", d.find_unused, kOptional);
  v.choice("hook", d.hook, kOptional);
  v.integer("powersgd_rank", d.powersgd_rank, Range{1, 4096}, kOptional);
  v.flag("powersgd_error_feedback", d.powersgd_error_feedback, kOptional);
}

template <class V>
void describe(V& v, PackingSpec& p) {
  v.number("mean_length", p.mean_length, 0, 1e12, kOptional);
  v.number("deviation", p.deviation, 0, 1e12, kOptional);
}

template <class V>
void describe(V& v, LoopSpec& l) {
  constexpr Range steps{0, int64_t{1} << 40};
  v.number("loader", l.loader, 0, 1e12, kOptional);
  v.integer("evaluate_every", l.evaluate_every, steps, kOptional);
  v.integer("evaluation_batches", l.evaluation_batches, steps, kOptional);
}

template <class V>
void describe(V& v, LoraSpec& l) {
  v.integer("rank", l.rank, Range{0, 1 << 20}, kOptional);
  v.number("alpha", l.alpha, 0, 1e9, kOptional);
  v.flag("dropout", l.dropout, kOptional);
  v.texts("targets", l.targets);
  v.choice("base", l.base, kOptional);
}

template <class V>
void describe(V& v, TrainingSpec& t) {
  v.integer("micro_batch", t.micro_batch, kLength, kRequired);
  v.integer("global_batch", t.global_batch, kLength, kRequired);
  v.integer("seq_len", t.seq_len, kLength, kRequired);
  v.precision("precision", t);  // a short form: sets the next three, which may still be given
  v.dtype("compute_dtype", t.compute_dtype, kOptional);
  v.dtype("param_dtype", t.param_dtype, kOptional);
  v.flag("master_weights", t.master_weights, kOptional);
  v.choice("fp8_recipe", t.fp8_recipe, kOptional);
  v.flag("fp8_params", t.fp8_params, kOptional);
  v.choice("optimizer", t.optimizer, kOptional);
  v.flag("fused_optimizer", t.fused_optimizer, kOptional);
  v.dtype("moment_dtype", t.moment_dtype, kOptional);
  v.number("gradient_clipping", t.gradient_clipping, 0, 1e9, kOptional);
  v.flag("dropout", t.dropout, kOptional);
  v.flag("fused_kernels", t.fused_kernels, kOptional);
  v.flag("packed_qkv", t.packed_qkv, kOptional);
  v.flag("packed_qkv_gradient", t.packed_qkv_gradient, kOptional);
  v.choice("norm_kernel", t.norm_kernel, kOptional);
  v.choice("loss", t.loss, kOptional);
  v.flag("blocking_launch", t.blocking_launch, kOptional);
  v.flag("gradient_fusion", t.gradient_fusion, kOptional);
  v.flag("fused_loss", t.fused_loss, kOptional);
  v.integer("loss_chunk", t.loss_chunk, Range{0, int64_t{1} << 40}, kOptional);
  v.integer("loss_metrics", t.loss_metrics, Range{0, 16}, kOptional);
  v.integer("vocab_multiple", t.vocab_multiple, kWidth, kOptional);
  v.section("lora", t.lora, kOptional);
  v.section("packing", t.packing, kOptional);
  v.section("loop", t.loop, kOptional);
  v.number("total_tokens", t.total_tokens, 0, 1e18, kOptional);
  v.natural("seed", t.seed, kOptional);
  v.time("host_issue", t.host_issue, kOptional);
  v.text("host_profile", t.host_profile, kOptional);
  v.number("fragmentation", t.fragmentation, 0, 0.9, kOptional);
}

}  // namespace wt
