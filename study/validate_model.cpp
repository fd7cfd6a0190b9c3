// The `model` of a row's job, and how its layers lie on stages.
#include <fmt/format.h>

#include "study/validate_terms.hpp"
#include "study/validate_words.hpp"

namespace wt::study {

YAML::Node model_of(const Case& row, std::vector<std::string>& assumptions) {
  YAML::Node m;
  const int64_t heads = *row.heads;
  m["name"] = row.model.empty() ? row.id : row.model;
  m["layers"] = *row.layers;
  m["hidden"] = *row.hidden;
  const bool gated = row.gated_mlp.value_or(false);
  if (row.ffn_hidden)
    m["ffn_hidden"] = *row.ffn_hidden;
  else {
    m["ffn_hidden"] = 4 * *row.hidden;
    assumptions.push_back("ffn_hidden not given: 4 x hidden");
  }
  m["heads"] = heads;
  m["kv_heads"] = row.kv_heads.value_or(heads);
  m["head_dim"] = row.head_dim.value_or(*row.hidden / heads);
  if (row.mla) {
    m["kv_heads"] = heads;
    m["head_dim"] = row.mla->qk_nope_head_dim + row.mla->qk_rope_head_dim;
    m["mla"]["q_lora_rank"] = row.mla->q_lora_rank;
    m["mla"]["kv_lora_rank"] = row.mla->kv_lora_rank;
    m["mla"]["qk_nope_head_dim"] = row.mla->qk_nope_head_dim;
    m["mla"]["qk_rope_head_dim"] = row.mla->qk_rope_head_dim;
    m["mla"]["v_head_dim"] = row.mla->v_head_dim;
  }
  if (row.moe) {
    m["moe"]["experts"] = row.moe->experts;
    m["moe"]["top_k"] = row.moe->top_k;
    m["moe"]["ffn_hidden"] = row.moe->ffn_hidden;
    m["moe"]["shared_ffn_hidden"] = row.moe->shared_ffn_hidden;
    m["moe"]["first_dense_layers"] = row.moe->first_dense_layers;
    m["moe"]["layer_period"] = row.moe->layer_period;
  }
  if (row.mtp_layers > 0) m["mtp_layers"] = row.mtp_layers;
  m["vocab"] = *row.vocab;
  m["max_context"] = *row.seq_len;
  m["gated_mlp"] = gated;
  m["activation"] = gated ? "silu" : "gelu";
  m["norm"] = gated ? "rms_norm" : "layer_norm";
  m["position"] = has(row.attention, "alibi") ? "alibi" : gated || has(row.attention, "rotary") ? "rotary" : "learned";
  m["tied_embeddings"] = row.tied_embeddings.value_or(!gated);
  for (const char* key : {"attention_bias", "output_bias", "mlp_bias"}) m[key] = !gated;
  if (has(row.attention, "parallel residual")) m["parallel_block"] = true;
  if (has(row.attention, "bidirectional")) m["causal"] = false;
  return m;
}

void split_layers(const Case& row, YAML::Node strategy, int64_t stages, bool balanced,
                  std::vector<std::string>& assumptions) {
  const int64_t layers = *row.layers;
  const int64_t pipeline = strategy["pipeline"].as<int64_t>();
  if (layers % stages == 0) return;
  if ((layers + 2) % stages == 0) {
    strategy["account_for_embedding"] = true;
    strategy["account_for_loss"] = true;
    assumptions.push_back(
        fmt::format("{} layers on {} stages: embedding and head count as a layer each", layers, stages));
  } else if ((layers + 1) % stages == 0) {
    strategy["account_for_embedding"] = true;
    assumptions.push_back(fmt::format("{} layers on {} stages: the embedding counts as a layer", layers, stages));
  } else if (balanced && stages == pipeline && pipeline > 2) {
    const int64_t most = (layers + 2 + pipeline - 1) / pipeline, first = most - 1,
                  last = layers - first - (pipeline - 2) * most;
    if (last < 1) return;
    strategy["first_stage_layers"] = first;
    strategy["last_stage_layers"] = last;
    assumptions.push_back(
        fmt::format("{} layers on {} stages: {} each, {} first, {} last (DeepSpeed's balanced partition)", layers,
                    stages, most, first, last));
  } else if (has(row.framework, "NeMo") || has(row.framework, "Megatron-Bridge")) {
    // Megatron-Bridge recipes/deepseek/deepseek_v3.py, set_deepseek_v3_pipeline_model_parallel_layout: 61 layers as 16, 16,
    // 16, 13; 8 x 7, 5; 4 x 15, 1; multi-token prediction before the loss.
    const int64_t most = (layers + stages - 1) / stages, last = layers - (stages - 1) * most;
    const std::string ahead(static_cast<size_t>(row.mtp_layers), 'm');
    if (const int64_t first = layers - (stages - 2) * most; last < 1 && stages > 2 && first > 0) {
      // DEEPSEEK_V3_PRETRAIN_CONFIG_H100_V1: Et|(tt|)*30mL
      strategy["pipeline_layout"] = fmt::format("Et*{}|(t*{}|)*{}{}L", first, most, stages - 2, ahead);
      assumptions.push_back(
          fmt::format("{} layers on {} stages: {} first, {} each, the loss alone", layers, stages, first, most));
      return;
    }
    if (last < 1 || stages < 2) return;
    strategy["pipeline_layout"] = fmt::format(
        "Et*{}|{}t*{}{}L", most, stages > 2 ? fmt::format("(t*{}|)*{}", most, stages - 2) : "", last, ahead);
    assumptions.push_back(fmt::format("{} layers on {} stages: {} each, {} last", layers, stages, most, last));
  }
}

}  // namespace wt::study
