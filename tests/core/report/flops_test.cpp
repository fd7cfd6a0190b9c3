// FLOP formulas against published figures (facts/frameworks 9; user cases P01, P48, P62).
#include <gtest/gtest.h>

#include "core/report/report.hpp"

namespace wt::report {
namespace {

ModelSpec gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab) {
  ModelSpec m;
  m.layers = layers;
  m.hidden = hidden;
  m.ffn_hidden = 4 * hidden;
  m.heads = m.kv_heads = heads;
  m.head_dim = hidden / heads;
  m.vocab = vocab;
  m.max_context = 2048;
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  return m;
}

TrainingSpec training(int64_t batch, int64_t sequence) {
  TrainingSpec t;
  t.global_batch = batch;
  t.seq_len = sequence;
  return t;
}

ModelSpec llama405b() {
  ModelSpec m = gpt(126, 16384, 128, 128256);
  m.kv_heads = 8;
  m.ffn_hidden = 53248;
  m.gated_mlp = true;
  m.tied_embeddings = false;
  m.position = Position::rotary;
  m.norm = Norm::rms_norm;
  m.attention_bias = m.output_bias = m.mlp_bias = false;
  return m;
}

// L=32 h=4096 s=2048, batch 2048 on 16 GPUs in 75.25 s: the log prints 149.1 TFLOPs (P01).
TEST(Flops, MegatronDeepSpeedLogWithoutRecompute) {
  const double flops = step_flops(gpt(32, 4096, 32, 50257), training(2048, 2048), FlopFormula::model_full, 1);
  EXPECT_NEAR(flops / 75.25 / 16 / 1e12, 149.1, 149.1 * 0.02);
}

// Narayanan et al. 2021, section 5.1 and table 1: 1T parameters (L=128 h=25600) on 3,072 GPUs, batch 3072,
// 163 TFLOP/s per GPU; "84 days for 450 B tokens".
TEST(Flops, NarayananOneTrillion) {
  const double step =
      step_flops(gpt(128, 25600, 160, 51200), training(3072, 2048), FlopFormula::narayanan_recompute, 1);
  const double per_token = step / 3072 / 2048;
  EXPECT_NEAR(450e9 * per_token / (163e12 * 3072) / 86400, 84, 3);
}

// Their relation 96 : 72 of recompute to none, where the vocabulary term is not multiplied by 4/3.
TEST(Flops, RecomputeCountsFourThirdsOfTheLayers) {
  ModelSpec m = gpt(24, 2048, 16, 1);
  TrainingSpec t = training(64, 2048);
  t.vocab_multiple = 1;
  const double with = step_flops(m, t, FlopFormula::narayanan_recompute, 1);
  const double without = step_flops(m, t, FlopFormula::model_full, 1);
  EXPECT_NEAR(with / without, 4.0 / 3.0, 1e-4);
}

// torchtitan#481: Llama 3.1 405B at 8,192 tokens, 109 tokens/s/GPU = 287.5 TFLOPs = 29.1 % of 989 (P48).
TEST(Flops, PalmOnLlama405B) {
  const double per_token = step_flops(llama405b(), training(1, 8192), FlopFormula::palm, 1) / 8192;
  EXPECT_NEAR(per_token * 109 / 1e12, 287.5, 0.5);
  EXPECT_NEAR(per_token * 109 / 989e12, 0.291, 0.001);
}

TEST(Flops, SixN) {
  const double per_token = step_flops(llama405b(), training(4, 8192), FlopFormula::six_n, 1) / 8192 / 4;
  EXPECT_NEAR(per_token / 6, 405.85e9, 0.01e9);
}

// h = 4096, s = 8192: s/6h = 0.33, so that counting half of attention reports about 12.5 % fewer FLOPs.
TEST(Flops, CausalHalf) {
  const ModelSpec m = gpt(32, 4096, 32, 128);
  const double full = step_flops(m, training(1, 8192), FlopFormula::model_full, 1);
  const double causal = step_flops(m, training(1, 8192), FlopFormula::model_causal, 1);
  EXPECT_NEAR(1 - causal / full, 0.125, 0.001);
}

TEST(Flops, VocabularyIsPaddedToTheTensorDegree) {
  const ModelSpec m = gpt(1, 128, 2, 129);
  const TrainingSpec t = training(1, 16);
  const double one = step_flops(m, t, FlopFormula::model_causal, 1),
               four = step_flops(m, t, FlopFormula::model_causal, 4);
  EXPECT_DOUBLE_EQ(four - one, 3.0 * 16 * 2 * 128 * (512 - 256));
}

TEST(Flops, ExpertsCountForTheChosenOnly) {
  ModelSpec m = gpt(4, 1024, 8, 1024);
  const double dense = step_flops(m, training(1, 512), FlopFormula::model_causal, 1);
  m.moe = MoeSpec{.experts = 64, .top_k = 2, .ffn_hidden = 2048};
  EXPECT_DOUBLE_EQ(step_flops(m, training(1, 512), FlopFormula::model_causal, 1), dense);  // 2 x 2048 = 4096
  m.moe->shared_ffn_hidden = 512;
  EXPECT_DOUBLE_EQ(step_flops(m, training(1, 512), FlopFormula::model_causal, 1) - dense,
                   3.0 * 512 * 4 * 4.0 * 1024 * 512);
  m.moe = MoeSpec{.experts = 64, .top_k = 2, .ffn_hidden = 4096, .first_dense_layers = 2};
  EXPECT_DOUBLE_EQ(step_flops(m, training(1, 512), FlopFormula::model_causal, 1) - dense,
                   3.0 * 512 * 2 * 4.0 * 1024 * 4096);
}

TEST(Flops, WindowsBoundTheKeys) {
  ModelSpec m = gpt(2, 1024, 8, 1024);
  const double causal = step_flops(m, training(1, 4096), FlopFormula::model_causal, 1);
  m.sliding_window = 4096;
  EXPECT_DOUBLE_EQ(step_flops(m, training(1, 4096), FlopFormula::model_causal, 1), causal);
  m.sliding_window = 1024;  // mean keys: w - w^2/2s = 1024 - 128 = 896 of 2048
  EXPECT_DOUBLE_EQ(causal - step_flops(m, training(1, 4096), FlopFormula::model_causal, 1),
                   3.0 * 4096 * 2 * 4 * (2048 - 896) * 1024);
  m.sliding_period = 2;
  EXPECT_DOUBLE_EQ(causal - step_flops(m, training(1, 4096), FlopFormula::model_causal, 1),
                   3.0 * 4096 * 4 * (2048 - 896) * 1024);
  m.causal = false;
  m.sliding_window = 0;
  EXPECT_DOUBLE_EQ(step_flops(m, training(1, 4096), FlopFormula::model_causal, 1),
                   step_flops(m, training(1, 4096), FlopFormula::model_full, 1));
}

TEST(Flops, NamesGoBothWays) {
  for (FlopFormula f : kFlopFormulas) {
    EXPECT_EQ(parse_formula(id_of(f)), f);
    EXPECT_FALSE(text_of(f).empty());
  }
  EXPECT_FALSE(parse_formula("7n"));
}

// Counts of PEFT for LLaMA-7B: rank 8 beside q and v, and beside every projection.
TEST(Flops, ParametersOfAdapters) {
  ModelSpec m = gpt(32, 4096, 32, 32000);
  m.ffn_hidden = 11008;
  m.gated_mlp = true;
  LoraSpec l;
  l.rank = 8;
  l.targets = {"q", "v"};
  EXPECT_EQ(adapter_parameters(m, l), 4'194'304);
  l.targets = {"all"};
  EXPECT_EQ(adapter_parameters(m, l), 19'988'480);
  l.rank = 0;
  EXPECT_EQ(adapter_parameters(m, l), 0);
}

// A frozen product has no weight gradient: two thirds of what training all would take, where attention is nothing.
TEST(Flops, FrozenProductsHaveNoWeightGradients) {
  const ModelSpec m = gpt(32, 4096, 32, 32000);
  TrainingSpec t = training(1, 1);
  const double all = step_flops(m, t, FlopFormula::trained_causal, 1);
  EXPECT_EQ(all, step_flops(m, t, FlopFormula::model_causal, 1));
  EXPECT_FALSE(applies(FlopFormula::trained_causal, t));
  t.lora.rank = 1;
  EXPECT_NEAR(step_flops(m, t, FlopFormula::trained_causal, 1), all * 2 / 3, 0.001 * all);
  t.seq_len = 1 << 20;  // attention is all: it has no weights
  EXPECT_NEAR(step_flops(m, t, FlopFormula::trained_causal, 1), step_flops(m, t, FlopFormula::model_causal, 1),
              0.02 * step_flops(m, t, FlopFormula::model_causal, 1));
}

}  // namespace
}  // namespace wt::report
