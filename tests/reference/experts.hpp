// Layers of experts and the ways to cut them that a test goes through. One list, for the reference interpreter and for the
// executor.
#pragma once

#include <functional>
#include <ostream>

#include "tests/reference/tiny.hpp"

namespace wt::reference {

/// A model, or a way to cut one.
struct ExpertVariant {
  const char* name;
  std::function<void(JobSpec&)> change;
};
inline void PrintTo(const ExpertVariant& v, std::ostream* out) { *out << v.name; }

inline JobSpec expert_job() {
  JobSpec j = tiny_job();
  make_llama(j);
  j.model.name = "tiny mixture";
  j.model.kv_heads = 4;  // copies of key/value heads on several ranks are not one tensor
  j.model.moe = MoeSpec{.experts = 4, .top_k = 2, .ffn_hidden = 12};
  j.strategy.data_parallel = DataParallel::megatron;
  return j;
}

inline const ExpertVariant kExpertModels[] = {
    {"even", [](JobSpec&) {}},
    {"top_k",  // a slot for every row at every expert: nothing is dropped
     [](JobSpec& j) {
       j.strategy.experts.routing = RoutingKind::top_k;
       j.strategy.experts.imbalance = 4;
     }},
    {"shared", [](JobSpec& j) { j.model.moe->shared_ffn_hidden = 8; }},
    {"plain_gelu",
     [](JobSpec& j) {
       j.model.gated_mlp = false;
       j.model.activation = Activation::gelu;
       j.model.moe->experts = 8;
       j.model.moe->top_k = 4;
     }},
    {"dense_first", [](JobSpec& j) { j.model.moe->first_dense_layers = 1; }},
    {"every_second", [](JobSpec& j) { j.model.moe->layer_period = 2; }},
    {"fp8",  // the interpreter rounds nothing: 8-bit copies must be those of what the products read
     [](JobSpec& j) {
       j.model.moe->shared_ffn_hidden = 8;
       j.model.moe->first_dense_layers = 1;
       j.training.param_dtype = DType::bf16;
       j.training.compute_dtype = DType::f8;
       j.cluster.device.peak[DType::f8] = {1e15};
       j.training.master_weights = true;
     }},
    {"dropping_counts", [](JobSpec& j) { j.strategy.experts.dropless = false; }},
};

inline void cut_experts(JobSpec& j, int64_t tensor, int64_t pipeline, int64_t data, int64_t expert,
                        int64_t expert_tensor = 0) {
  j.strategy.tensor = tensor;
  j.strategy.pipeline = pipeline;
  j.strategy.expert = expert;
  j.strategy.experts.tensor = expert_tensor;
  j.strategy.sequence_parallel = tensor > 1;
  j.cluster.nodes = tensor * pipeline * data;
}

inline void shard_optimizer(JobSpec& j) {
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = true;
  j.strategy.bucket_elements = 3000;
}

inline const ExpertVariant kExpertStrategies[] = {
    {"dp2", [](JobSpec& j) { cut_experts(j, 1, 1, 2, 1); }},
    {"ep2", [](JobSpec& j) { cut_experts(j, 1, 1, 2, 2); }},
    {"ep4", [](JobSpec& j) { cut_experts(j, 1, 1, 4, 4); }},
    {"ep2_edp2", [](JobSpec& j) { cut_experts(j, 1, 1, 4, 2); }},
    {"tp2_etp2", [](JobSpec& j) { cut_experts(j, 2, 1, 1, 1); }},
    {"tp2_etp1", [](JobSpec& j) { cut_experts(j, 2, 1, 1, 1, 1); }},  // copies of the experts on the tensor ranks
    {"tp2_ep2_etp2", [](JobSpec& j) { cut_experts(j, 2, 1, 2, 2); }},
    {"tp2_ep2_etp1", [](JobSpec& j) { cut_experts(j, 2, 1, 2, 2, 1); }},  // the expert group is the tensor group
    {"tp2_ep4_etp1", [](JobSpec& j) { cut_experts(j, 2, 1, 2, 4, 1); }},
    {"tp4_ep2_etp1", [](JobSpec& j) { cut_experts(j, 4, 1, 1, 2, 1); }},  // cuts the tensor axis
    {"tp4_ep2_etp2", [](JobSpec& j) { cut_experts(j, 4, 1, 1, 2, 2); }},
    {"pp2_ep2", [](JobSpec& j) { cut_experts(j, 1, 2, 2, 2); }},
    {"pp2_tp2_ep2_interleaved",
     [](JobSpec& j) {
       cut_experts(j, 2, 2, 2, 2);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
     }},
    {"ep2_ddp",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 2);
       j.strategy.data_parallel = DataParallel::ddp;
       j.strategy.ddp_bucket = {20000};
       j.strategy.ddp_first_bucket = {1000};
     }},
    {"ep2_distributed",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 2);
       j.strategy.data_parallel = DataParallel::distributed_optimizer;
     }},
    {"ep2_distributed_overlap",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 2);
       shard_optimizer(j);
     }},
    {"ep4_distributed_overlap",  // an expert has one copy
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 4);
       shard_optimizer(j);
     }},
    {"pp2_tp2_ep2_distributed_overlap_recompute",
     [](JobSpec& j) {
       cut_experts(j, 2, 2, 2, 2, 1);
       shard_optimizer(j);
       j.strategy.recompute.kind = RecomputeKind::full;
     }},
    {"ep2_recompute_block",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 2, 2);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 1};
     }},
    {"ep2_recompute_uniform_3",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 2, 2);
       j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 3};
     }},
    {"ep2_overlap_passes",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 2, 2);
       j.strategy.experts.overlap_passes = true;
     }},
    {"ep2_distributed_overlap_passes",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 2);
       shard_optimizer(j);
       j.strategy.experts.overlap_passes = true;
     }},
    {"pp2_tp2_ep2_interleaved_overlap_passes",
     [](JobSpec& j) {
       cut_experts(j, 2, 2, 2, 2);
       j.strategy.schedule = "interleaved";
       j.strategy.virtual_stages = 2;
       j.strategy.experts.overlap_passes = true;
     }},
    {"ep2_edp2_flex",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 4, 2);
       j.strategy.experts.dispatcher = Dispatcher::flex;
     }},
    {"ep2_shared_overlap",
     [](JobSpec& j) {
       cut_experts(j, 1, 1, 2, 2);
       j.strategy.experts.shared_overlap = true;
     }},
};

}  // namespace wt::reference
