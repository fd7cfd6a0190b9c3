// A job as a launch script with Megatron-LM's arguments (d98e8a64, 2026-08-22).
#include <fmt/format.h>

#include "core/spec/names.hpp"
#include "import/export.hpp"

namespace wt::import {

namespace {

class Flags {
 public:
  void on(bool value, std::string_view flag) {
    if (value) text_ += fmt::format(" \\\n  {}", flag);
  }
  template <class T>
  void value(std::string_view flag, const T& v) {
    text_ += fmt::format(" \\\n  {} {}", flag, v);
  }
  void more_than(int64_t least, std::string_view flag, int64_t v) {
    if (v > least) value(flag, v);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string without_commas(std::string words) {
  for (char& c : words)
    if (c == ',') c = ' ';
  return words;
}

void write_model(const ModelSpec& m, Flags& f) {
  f.value("--num-layers", m.layers);
  f.value("--hidden-size", m.hidden);
  f.value("--ffn-hidden-size", m.ffn_hidden);
  f.value("--num-attention-heads", m.heads);
  if (!m.mla) f.value("--kv-channels", m.head_dim);
  f.on(m.kv_heads != m.heads, fmt::format("--group-query-attention --num-query-groups {}", m.kv_heads));
  f.value("--max-position-embeddings", m.max_context);
  f.value("--vocab-size", m.vocab);
  f.value("--position-embedding-type", m.position == Position::rotary    ? "rope"
                                       : m.position == Position::learned ? "learned_absolute"
                                                                         : "none");
  f.value("--normalization", m.norm == Norm::rms_norm ? "RMSNorm" : "LayerNorm");
  f.on(m.gated_mlp, "--swiglu");
  f.on(!m.gated_mlp && m.activation == Activation::relu, "--squared-relu");
  f.on(!m.tied_embeddings, "--untie-embeddings-and-output-weights");
  f.on(!m.mlp_bias, "--disable-bias-linear");
  f.on(m.attention_bias && !m.mlp_bias, "--add-qkv-bias");
  f.on(m.qk_norm, "--qk-layernorm");
  f.more_than(0, "--mtp-num-layers", m.mtp_layers);
  if (m.moe) {
    f.value("--num-experts", m.moe->experts);
    f.value("--moe-router-topk", m.moe->top_k);
    f.value("--moe-ffn-hidden-size", m.moe->ffn_hidden);
    f.more_than(0, "--moe-shared-expert-intermediate-size", m.moe->shared_ffn_hidden);
    f.on(m.moe->router_bias, "--moe-router-enable-expert-bias");
    if (m.moe->first_dense_layers > 0)
      f.value("--moe-layer-freq",
              fmt::format("'([0]*{}+[1]*{})'", m.moe->first_dense_layers, m.layers - m.moe->first_dense_layers));
    f.more_than(1, "--moe-layer-freq", m.moe->layer_period);
  }
  if (m.mla) {
    f.on(true, "--multi-latent-attention");
    f.more_than(0, "--q-lora-rank", m.mla->q_lora_rank);
    f.value("--kv-lora-rank", m.mla->kv_lora_rank);
    f.value("--qk-head-dim", m.mla->qk_nope_head_dim);
    f.value("--qk-pos-emb-head-dim", m.mla->qk_rope_head_dim);
    f.value("--v-head-dim", m.mla->v_head_dim);
  }
}

void write_strategy(const StrategySpec& s, Flags& f) {
  f.value("--tensor-model-parallel-size", s.tensor);
  f.value("--pipeline-model-parallel-size", s.pipeline);
  f.more_than(1, "--context-parallel-size", s.context);
  f.more_than(1, "--expert-model-parallel-size", s.expert);
  if (s.context > 1)
    f.value("--cp-comm-type", s.context_exchange == ContextExchange::all_gather   ? "all_gather"
                              : s.context_exchange == ContextExchange::all_to_all ? "a2a"
                              : s.context_all_to_all > 1                          ? "a2a+p2p"
                                                                                  : "p2p");
  if (s.context_all_to_all > 1)
    f.value("--hierarchical-context-parallel-sizes",
            fmt::format("{} {}", s.context_all_to_all, s.context / s.context_all_to_all));
  f.more_than(1, "--num-virtual-stages-per-pipeline-rank", s.virtual_stages);
  f.more_than(0, "--microbatch-group-size-per-virtual-pipeline-stage", s.group_size);
  f.more_than(0, "--decoder-first-pipeline-num-layers", s.first_stage_layers);
  f.more_than(0, "--decoder-last-pipeline-num-layers", s.last_stage_layers);
  f.on(s.account_for_embedding, "--account-for-embedding-in-pipeline-split");
  f.on(s.account_for_loss, "--account-for-loss-in-pipeline-split");
  f.on(!s.overlap_p2p, "--no-overlap-p2p-communication");
  f.on(s.sequence_parallel, "--sequence-parallel");
  f.on(s.tensor_overlap, "--tp-comm-overlap");
  f.on(!s.tensor_async_backward, "--no-async-tensor-model-parallel-allreduce");
  f.on(s.data_parallel == DataParallel::distributed_optimizer, "--use-distributed-optimizer");
  f.on(s.data_parallel == DataParallel::fsdp2, "--use-torch-fsdp2");
  const bool zero = s.data_parallel == DataParallel::zero1 || s.data_parallel == DataParallel::zero2 ||
                    s.data_parallel == DataParallel::zero3;
  f.on(zero, fmt::format("--deepspeed --zero-stage {}", s.data_parallel == DataParallel::zero1   ? 1
                                                        : s.data_parallel == DataParallel::zero2 ? 2
                                                                                                 : 3));
  f.on(s.overlap_grad_reduce && !zero && s.data_parallel != DataParallel::fsdp2, "--overlap-grad-reduce");
  f.on(s.overlap_param_gather, "--overlap-param-gather");
  f.more_than(0, "--ddp-bucket-size", s.bucket_elements);
  if (s.recompute.kind == RecomputeKind::selective) f.value("--recompute-granularity", "selective");
  if (s.recompute.kind == RecomputeKind::selective && !s.recompute.modules.empty())
    f.value("--recompute-modules", without_commas(s.recompute.modules));
  if (!s.pipeline_layout.empty()) f.value("--pipeline-model-parallel-layout", fmt::format("'{}'", s.pipeline_layout));
  if (s.recompute.kind == RecomputeKind::full)
    f.value("--recompute-granularity", fmt::format("full --recompute-method {} --recompute-num-layers {}",
                                                   to_text(s.recompute.method), s.recompute.layers));
  f.on(s.offload.optimizer != OffloadDevice::none, "--optimizer-cpu-offload");
  f.on(s.offload.optimizer != OffloadDevice::none && s.offload.overlap, "--overlap-cpu-optimizer-d2h-h2d");
  if (s.offload.optimizer != OffloadDevice::none && s.offload.ratio < 1)
    f.value("--optimizer-offload-fraction", s.offload.ratio);
  f.more_than(0, "--cpu-offloading-num-layers", s.offload.activation_layers);
  f.on(s.attention == AttentionKernel::unfused, "--attention-backend unfused");
}

void write_experts(const StrategySpec& s, Flags& f) {
  const ExpertSpec& e = s.experts;
  f.more_than(0, "--expert-tensor-parallel-size", e.tensor);
  f.value("--moe-token-dispatcher-type", e.dispatcher == Dispatcher::flex ? "flex" : "alltoall");
  if (!e.dropless) f.value("--moe-expert-capacity-factor", e.imbalance);
  f.on(e.shared_overlap, "--moe-shared-expert-overlap");
  f.on(e.overlap_passes, "--overlap-moe-expert-parallel-comm");
}

void write_training(const JobSpec& j, Flags& f) {
  const TrainingSpec& t = j.training;
  f.value("--micro-batch-size", t.micro_batch);
  f.value("--global-batch-size", t.global_batch);
  f.value("--seq-length", t.seq_len);
  f.on(t.param_dtype == DType::bf16, "--bf16");
  f.on(t.param_dtype == DType::f16, "--fp16");
  f.on(t.compute_dtype == DType::f8, "--fp8-format hybrid");
  if (t.compute_dtype == DType::f8)
    f.value("--fp8-recipe", t.fp8_recipe == Fp8Recipe::block     ? "mxfp8"
                            : t.fp8_recipe == Fp8Recipe::current ? "tensorwise"
                                                                 : "delayed");
  f.on(t.fp8_params, "--fp8-param-gather");
  f.more_than(0, "--eval-interval", t.loop.evaluate_every);
  f.more_than(0, "--eval-iters", t.loop.evaluation_batches);
  f.on(t.param_dtype != DType::f32 && j.strategy.gradient_dtype == DType::f32, "--accumulate-allreduce-grads-in-fp32");
  f.on(t.param_dtype == DType::bf16 && j.strategy.gradient_dtype == DType::bf16, "--grad-reduce-in-bf16");
  f.value("--optimizer", to_text(t.optimizer));
  f.value("--clip-grad", t.gradient_clipping);
  f.value("--hidden-dropout", t.dropout ? 0.1 : 0.0);
  f.value("--attention-dropout", t.dropout ? 0.1 : 0.0);
  f.on(!t.gradient_fusion, "--no-gradient-accumulation-fusion");
  f.on(!t.fused_kernels, "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion");
  f.on(t.fused_loss, "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te");
  f.on(t.moment_dtype != DType::f32,
       fmt::format("--use-precision-aware-optimizer --exp-avg-dtype {0} --exp-avg-sq-dtype {0}",
                   spelled(t.moment_dtype)));
  f.value("--make-vocab-size-divisible-by", t.vocab_multiple);
  f.value("--seed", t.seed);
  if (t.total_tokens > 0)
    f.value("--train-samples", static_cast<int64_t>(t.total_tokens / static_cast<double>(t.seq_len)));
}

Written write(const JobSpec& j) {
  Flags f;
  write_model(j.model, f);
  write_strategy(j.strategy, f);
  if (j.model.moe) write_experts(j.strategy, f);
  write_training(j, f);
  return {fmt::format("#!/bin/bash\n# Written by `windtunnel export`. Add data, checkpoints, learning rate; "
                      "--vocab-size is for --tokenizer-type NullTokenizer.\n"
                      "torchrun --nnodes {} --nproc_per_node {} pretrain_gpt.py{}\n",
                      j.cluster.nodes, j.cluster.node.devices, f.take()),
          {}};
}

}  // namespace

extern const Exporter exporters_megatron;
const Exporter exporters_megatron = {"megatron", "Megatron-LM arguments", "job.sh", true, write};

}  // namespace wt::import
