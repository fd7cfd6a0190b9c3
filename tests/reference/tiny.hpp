// A model small enough for plain loops, yet with a number of layers, heads and tokens that every strategy can cut.
#pragma once

#include "core/spec/specs.hpp"

namespace wt::reference {

inline JobSpec tiny_job() {
  JobSpec j;
  j.name = "tiny";
  auto& m = j.model;
  m.name = "tiny gpt";
  m.layers = 4;
  m.hidden = 16;
  m.ffn_hidden = 24;
  m.heads = 4;
  m.kv_heads = 4;
  m.head_dim = 4;
  m.vocab = 22;
  m.max_context = 12;
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  j.cluster.nodes = 1;
  j.cluster.node.devices = 1;
  j.cluster.device.name = "reference";
  for (DType t : {DType::f32, DType::bf16, DType::f16}) j.cluster.device.peak[t] = {1e15};
  auto& t = j.training;
  t.micro_batch = 1;
  t.global_batch = 16;
  t.seq_len = 8;
  t.vocab_multiple = 2;
  t.param_dtype = t.compute_dtype = DType::f32;
  t.master_weights = false;
  t.gradient_clipping = 1;
  return j;
}

/// Llama's choices: rotary positions, RMS norms, gated SiLU, grouped queries, no biases, untied embeddings.
inline void make_llama(JobSpec& j) {
  auto& m = j.model;
  m.name = "tiny llama";
  m.kv_heads = 2;
  m.attention_bias = m.output_bias = m.mlp_bias = false;
  m.position = Position::rotary;
  m.norm = Norm::rms_norm;
  m.gated_mlp = true;
  m.activation = Activation::silu;
  m.tied_embeddings = false;
}

/// DeepSeek's latent attention; q_rank 0: queries straight from the input.
inline JobSpec latent_job(int64_t q_rank) {
  JobSpec j = tiny_job();
  make_llama(j);
  j.model.name = "tiny latent";
  j.model.kv_heads = 4;
  j.model.head_dim = 6;
  j.model.mla =
      MlaSpec{.q_lora_rank = q_rank, .kv_lora_rank = 8, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2, .v_head_dim = 3};
  j.strategy.data_parallel = DataParallel::megatron;
  return j;
}

}  // namespace wt::reference
