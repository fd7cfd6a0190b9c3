// Hugging Face config.json: each architecture with the few keys its published file cannot leave out, against the number
// of parameters that the checkpoint has; then the traps of single keys.
#include "core/spec/hf_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/spec/read.hpp"

namespace wt {
namespace {

ImportedModel read(const std::string& body) {
  Result<ImportedModel> r = parse_hf_config(body, "folder/config.json");
  EXPECT_TRUE(r.ok()) << (r.ok() ? "" : to_text(r.errors()));
  return r.ok() ? r.value() : ImportedModel{};
}
int64_t total(const std::string& body) { return count_parameters(read(body).model).total(); }
bool warns(const ImportedModel& m, const std::string& part) {
  return std::any_of(m.warnings.begin(), m.warnings.end(),
                     [&](const std::string& w) { return w.find(part) != std::string::npos; });
}

TEST(HfConfig, PublishedTotals) {
  EXPECT_EQ(total(R"({"model_type": "gpt2"})"), 124439808);
  EXPECT_EQ(total(R"({"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48})"), 1557611200);  // XL
  EXPECT_EQ(total(R"({"model_type": "gptj"})"), 6050882784);
  EXPECT_EQ(total(R"({"model_type": "gpt_neox"})"), 20554567680);
  EXPECT_EQ(total(R"({"model_type": "opt"})"), 125239296);
  EXPECT_EQ(total(R"({"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096,
                      "num_attention_heads": 16, "word_embed_proj_dim": 512, "do_layer_norm_before": false})"),
            331196416);  // OPT-350M
  EXPECT_EQ(total(R"({"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16})"),
            559214592);  // BLOOM-560M
  EXPECT_EQ(total(R"({"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112})"), 176247271424);
  EXPECT_EQ(total(R"({"model_type": "falcon"})"), 6921720704);  // 7B, tied
  EXPECT_EQ(total(R"({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
                      "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": true})"),
            41303293952);  // 40B, tied
  EXPECT_EQ(total(R"({"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576,
                      "n_positions": 8192, "vocab_size": 49152})"),
            15517456384);  // StarCoder
  EXPECT_EQ(total(R"({"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240,
                      "num_hidden_layers": 32})"),
            2779683840);                                      // Phi-2
  EXPECT_EQ(total(R"({"model_type": "phi3"})"), 3821079552);  // mini
  EXPECT_EQ(total(R"({"model_type": "llama"})"), 6738415616);
  EXPECT_EQ(total(R"({"model_type": "mistral"})"), 7241732096);
  EXPECT_EQ(total(R"({"model_type": "mixtral"})"), 46702792704);
  EXPECT_EQ(total(R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                      "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": true})"),
            494032768);  // Qwen2.5-0.5B
  EXPECT_EQ(total(R"({"model_type": "qwen3", "num_hidden_layers": 36, "num_key_value_heads": 8,
                      "intermediate_size": 12288})"),
            8190735360);                                            // 8B
  EXPECT_EQ(total(R"({"model_type": "qwen2_moe"})"), 14315784192);  // Qwen1.5-MoE-A2.7B
  EXPECT_EQ(total(R"({"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128})"), 30532122624);
  EXPECT_EQ(total(R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
                      "num_attention_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "q_lora_rank": null,
                      "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "num_experts_per_tok": 6})"),
            15706484224);  // Lite
  EXPECT_EQ(total(R"({"model_type": "deepseek_v3"})"), 671026419200);
  EXPECT_EQ(total(R"({"model_type": "gemma"})"), 8537680896);
  EXPECT_EQ(total(R"({"model_type": "gemma2"})"), 2614341888);  // 2B
  EXPECT_EQ(total(R"({"model_type": "gemma3_text", "hidden_size": 1152, "num_attention_heads": 4,
                      "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144})"),
            999885952);  // 1B
  EXPECT_EQ(total(R"({"model_type": "gpt_oss"})"), 116829156672);
  EXPECT_EQ(total(R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32})"), 20914757184);
  EXPECT_EQ(total(R"({"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                      "intermediate_size": 4096})"),
            335174458);  // large, with the masked-language-model head
}

TEST(HfConfig, EveryArchitectureIsTested) {  // a new row of the table needs a line above
  EXPECT_EQ(hf_model_types().size(), 23u);
}

TEST(HfConfig, AbsentIsNotNull) {
  EXPECT_EQ(read(R"({"model_type": "mistral"})").model.kv_heads, 8);
  EXPECT_EQ(read(R"({"model_type": "mistral", "num_key_value_heads": null})").model.kv_heads, 32);
  EXPECT_EQ(read(R"({"model_type": "mistral"})").model.sliding_window, 4096);
  EXPECT_EQ(read(R"({"model_type": "mistral", "sliding_window": null})").model.sliding_window, 0);
  EXPECT_EQ(read(R"({"model_type": "llama"})").model.kv_heads, 32);
  EXPECT_EQ(read(R"({"model_type": "llama", "num_key_value_heads": null})").model.kv_heads, 32);
  EXPECT_EQ(read(R"({"model_type": "deepseek_v3", "q_lora_rank": null})").model.mla->q_lora_rank, 0);
}

TEST(HfConfig, HeadsNeedNotFillHidden) {
  EXPECT_EQ(read(R"({"model_type": "gemma"})").model.head_dim, 256);
  EXPECT_EQ(read(R"({"model_type": "qwen3"})").model.head_dim, 128);
  EXPECT_EQ(read(R"({"model_type": "qwen3_moe"})").model.head_dim, 64);
  EXPECT_EQ(read(R"({"model_type": "gpt_oss"})").model.head_dim, 64);
  EXPECT_EQ(read(R"({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128})").model.head_dim, 128);
  // In DeepSeek files head_dim is the rotary part, not a head.
  const ModelSpec m = read(R"({"model_type": "deepseek_v3", "head_dim": 64})").model;
  EXPECT_EQ(m.head_dim, 192);
  EXPECT_EQ(count_parameters(m).total(), 671026419200);
}

TEST(HfConfig, FalconKeyValueHeads) {
  EXPECT_EQ(read(R"({"model_type": "falcon"})").model.kv_heads, 1);
  EXPECT_EQ(read(R"({"model_type": "falcon", "multi_query": false})").model.kv_heads, 71);
  EXPECT_EQ(read(R"({"model_type": "falcon", "num_kv_heads": 71})").model.kv_heads, 1);  // multi_query wins
  EXPECT_EQ(read(R"({"model_type": "falcon"})").model.norms_per_layer, 1);
  EXPECT_EQ(read(R"({"model_type": "falcon", "new_decoder_architecture": true})").model.norms_per_layer, 2);
  EXPECT_EQ(read(R"({"model_type": "falcon", "alibi": true})").model.position, Position::alibi);
}

TEST(HfConfig, Windows) {
  EXPECT_EQ(read(R"({"model_type": "qwen2", "sliding_window": 4096})").model.sliding_window, 0);
  EXPECT_EQ(read(R"({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": true,
                     "max_window_layers": 0})")
                .model.sliding_window,
            4096);
  EXPECT_EQ(read(R"({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": true,
                     "max_window_layers": 32})")
                .model.sliding_window,
            0);
  EXPECT_TRUE(warns(read(R"({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 20})"),
                    "max_window_layers"));
  const ModelSpec oss = read(R"({"model_type": "gpt_oss"})").model;
  EXPECT_EQ(oss.sliding_window, 128);
  EXPECT_EQ(oss.sliding_period, 2);
  EXPECT_TRUE(oss.attention_sinks && oss.expert_bias && oss.moe->router_bias);
  EXPECT_EQ(read(R"({"model_type": "gemma3_text"})").model.full_period, 6);
  EXPECT_FALSE(warns(read(R"({"model_type": "gpt_oss", "num_hidden_layers": 2,
                              "layer_types": ["sliding_attention", "full_attention"]})"),
                     "layer_types"));
  EXPECT_TRUE(warns(read(R"({"model_type": "gpt_oss", "num_hidden_layers": 2,
                             "layer_types": ["full_attention", "full_attention"]})"),
                    "layer_types"));
}

TEST(HfConfig, DenseLayersOfMoe) {
  EXPECT_EQ(read(R"({"model_type": "qwen3_moe", "mlp_only_layers": [1, 0]})").model.moe->first_dense_layers, 2);
  EXPECT_EQ(read(R"({"model_type": "qwen3_moe", "decoder_sparse_step": 2})").model.moe->layer_period, 2);
  EXPECT_EQ(read(R"({"model_type": "deepseek_v3"})").model.moe->first_dense_layers, 3);
}

TEST(HfConfig, NestedTextConfig) {
  const ImportedModel m = read(R"({"model_type": "gemma3", "tie_word_embeddings": true, "vision_config": {},
                                   "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 3}})");
  EXPECT_EQ(m.model.layers, 3);
  EXPECT_TRUE(warns(m, "text_config"));
}

TEST(HfConfig, ContradictionsAreSaid) {
  const ImportedModel m = read(R"({"model_type": "qwen2_moe", "architectures": ["Qwen3MoeForCausalLM"],
      "use_qk_norm": true, "qkv_bias": false, "head_dim": 128, "shared_expert_intermediate_size": 0})");
  EXPECT_TRUE(warns(m, "architectures names Qwen3MoeForCausalLM"));
  EXPECT_TRUE(m.model.qk_norm);
  EXPECT_FALSE(m.model.attention_bias);
  EXPECT_FALSE(m.model.moe->shared_gate);
  EXPECT_FALSE(warns(read(R"({"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]})"), "names"));
}

TEST(HfConfig, SaysWhatHasNoEffect) {
  const ImportedModel m = read(R"({"model_type": "llama", "rope_scaling": {"factor": 8.0}, "use_cache": true,
      "quantization_config": {"quant_method": "fp8"}, "mlp_bia": true})");
  EXPECT_TRUE(warns(m, "rope_scaling, use_cache"));
  EXPECT_TRUE(warns(m, "quantization_config"));
  EXPECT_TRUE(warns(m, "did you mean 'mlp_bias'?"));
  EXPECT_TRUE(warns(m, "default of its class: hidden_size 4096"));
  EXPECT_TRUE(warns(read(R"({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})"), "mtp_layers"));
}

std::string refusal(const std::string& body) {
  const Result<ImportedModel> r = parse_hf_config(body, "c.json");
  return r.ok() ? "" : to_text(r.errors());
}

TEST(HfConfig, SizeOfTheClassIsNeverSilent) {
  // Null where the class takes no None: the class default stands in, and is told.
  const ImportedModel m = read(R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": null})");
  EXPECT_EQ(m.model.ffn_hidden, 11008);
  EXPECT_TRUE(warns(m, "intermediate_size 11008 (null in the file)"));
  EXPECT_TRUE(warns(read(R"({"model_type": "gpt2", "n_embd": null})"), "n_embd 768 (null in the file)"));
  // Null where the class makes something of it is no default.
  EXPECT_FALSE(warns(read(R"({"model_type": "mistral", "num_key_value_heads": null})"), "null in the file"));
  EXPECT_TRUE(warns(read(R"({"model_type": "llama"})"), "hidden_size 4096, num_hidden_layers 32"));
}

TEST(HfConfig, MisspelledSizesAreRefused) {
  for (const auto& [key, meant] : {std::pair{"hiden_size", "hidden_size"},
                                   {"num_hidden_layer", "num_hidden_layers"},
                                   {"n_layers", "n_layer"},
                                   {"num_key_value_head", "num_key_value_heads"},
                                   {"intermediate_szie", "intermediate_size"}}) {
    const std::string said = refusal(std::string("{\"model_type\": \"llama\",\n\"") + key + "\": 64}");
    EXPECT_NE(said.find(std::string("c.json:2:1: ") + key), std::string::npos) << said;
    EXPECT_NE(said.find(std::string("did you mean '") + meant + "'?"), std::string::npos) << said;
  }
  // The size is given under its own name: what the other key says changes nothing.
  EXPECT_EQ(refusal(R"({"model_type": "llama", "hidden_size": 4096, "hiden_size": 64})"), "");
}

TEST(HfConfig, ExpertsOfADenseClassAreRefused) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const std::string said = refusal(std::string("{\"model_type\": \"llama\", \"") + key + "\": 8}");
    EXPECT_NE(said.find("a llama has no experts"), std::string::npos) << key << ": " << said;
    EXPECT_NE(said.find("mixtral"), std::string::npos) << said;
  }
  for (const char* none : {"null", "0", "1"})
    EXPECT_EQ(refusal(std::string("{\"model_type\": \"llama\", \"num_local_experts\": ") + none + "}"), "");
  EXPECT_EQ(refusal(R"({"model_type": "mixtral", "num_local_experts": 8})"), "");
  // Other keys that only another class reads: a warning.
  EXPECT_TRUE(
      warns(read(R"({"model_type": "llama", "q_lora_rank": 1536})"), "not read for this model_type: q_lora_rank"));
}

TEST(HfConfig, DuplicateKeys) {
  // Real files write rope_scaling twice: it costs nothing, the last is used, as Python does.
  const ImportedModel m =
      read("{\"model_type\": \"llama\",\n\"rope_scaling\": {\"factor\": 8.0},\n\"rope_scaling\": null}");
  EXPECT_TRUE(warns(m, "line 3: 'rope_scaling' is written twice (first at line 2); the last is used"));
  EXPECT_FALSE(warns(m, "without effect"));
  // The same size twice is odd, two different sizes are a fault.
  EXPECT_TRUE(warns(read("{\"model_type\": \"llama\", \"vocab_size\": 32000, \"vocab_size\": 32000}"), "twice"));
  EXPECT_FALSE(parse_hf_config("{\"model_type\": \"llama\", \"vocab_size\": 32000, \"vocab_size\": 1}", "c.json").ok());
}

TEST(HfConfig, NameAndTwoFileForms) {
  EXPECT_EQ(read(R"({"model_type": "gpt2"})").model.name, "folder");
  EXPECT_EQ(parse_hf_config(R"({"model_type": "gpt2"})", "a/my-model.json").value().model.name, "my-model");
  // The byte-order mark of Windows editors.
  EXPECT_EQ(total("\xEF\xBB\xBF{\"model_type\": \"gpt2\"}"), 124439808);
  // v5 names: dtype for torch_dtype, rope_parameters for rope_scaling.
  EXPECT_EQ(total(R"({"model_type": "llama", "dtype": "bfloat16", "rope_parameters": {"rope_theta": 1e6}})"),
            6738415616);
}

TEST(HfConfig, WhatIsReadPassesTheStrictReader) {
  for (const std::string& type : hf_model_types()) {
    const Result<ImportedModel> m =
        parse_hf_config("{\"model_type\": \"" + type + "\", \"num_experts_per_tok\": 2}", "x.json");
    ASSERT_TRUE(m.ok()) << to_text(m.errors());
    const Result<ModelSpec> again = parse_model(print_model(m.value().model), "x.yaml");
    ASSERT_TRUE(again.ok()) << type << "\n" << to_text(again.errors());
    EXPECT_TRUE(again.value() == m.value().model) << type;
  }
}

}  // namespace
}  // namespace wt
