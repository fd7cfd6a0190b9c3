// Parameter counts against the totals that the published checkpoints have, to the last parameter.
#include "core/spec/parameters.hpp"

#include <gtest/gtest.h>

#include "core/spec/read.hpp"

namespace wt {
namespace {

struct Known {
  const char* name;
  int64_t total;
};

class Published : public testing::TestWithParam<Known> {};

TEST_P(Published, TotalIsExact) {
  const ModelSpec m = read_model(GetParam().name).value();
  EXPECT_EQ(count_parameters(m).total(), GetParam().total);
  EXPECT_NEAR(static_cast<double>(estimate_parameters(m)), static_cast<double>(GetParam().total), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Models, Published,
                         testing::Values(Known{"gpt2", 124439808}, Known{"gpt2-xl", 1557611200},
                                         Known{"llama2-7b", 6738415616}, Known{"llama2-70b", 68976648192},
                                         Known{"llama3-8b", 8030261248}, Known{"llama3.1-405b", 405853388800},
                                         Known{"mistral-7b", 7241732096}, Known{"mixtral-8x7b", 46702792704},
                                         Known{"gemma-7b", 8537680896}, Known{"gemma2-9b", 9241705984},
                                         Known{"qwen3-8b", 8190735360}, Known{"qwen3-235b-a22b", 235093634560},
                                         Known{"gpt-oss-120b", 116829156672}, Known{"gpt-oss-20b", 20914757184},
                                         Known{"deepseek-v3", 671026419200}, Known{"deepseek-v2", 235741434880},
                                         Known{"deepseek-v2-lite", 15706484224}, Known{"bloom-176b", 176247271424},
                                         Known{"gpt-neox-20b", 20554567680}, Known{"pythia-6.9b", 6857302016},
                                         Known{"bert-large", 335174458}));

TEST(Parameters, ActiveCountsTheChosenExpertsOnly) {
  const ModelSpec dense = read_model("llama3-8b").value();
  EXPECT_EQ(active_parameters(dense), count_parameters(dense).total());
  EXPECT_NEAR(active_parameters(read_model("deepseek-v3").value()) / 1e9, 37.55, 0.01);
  EXPECT_NEAR(active_parameters(read_model("mixtral-8x7b").value()) / 1e9, 12.88, 0.01);
  EXPECT_NEAR(active_parameters(read_model("qwen3-235b-a22b").value()) / 1e9, 22.19, 0.01);
  EXPECT_NEAR(active_parameters(read_model("llama4-maverick").value()) / 1e9, 17.18, 0.01);
}

TEST(Parameters, MultiTokenPredictionLayer) {
  ModelSpec m = read_model("deepseek-v3").value();
  const int64_t without = count_parameters(m).total(), active = active_parameters(m);
  m.mtp_layers = 1;
  const ParameterCount c = count_parameters(m);
  EXPECT_NEAR(c.mtp / 1e9, 11.61, 0.005);
  EXPECT_EQ(c.total(), without + c.mtp);
  const int64_t h = 7168;
  const int64_t attention = h * 1536 + 1536 * 128 * 192 + h * (512 + 64) + 512 * 128 * 256 + 128 * 128 * h;
  const int64_t experts = (256 + 1) * 3 * h * 2048 + 256 * h + 256, norms = 2 * h + 1536 + 512;
  EXPECT_EQ(c.mtp, attention + experts + norms + 2 * h * h + 3 * h);
  // Of its 256 experts a token sees 8.
  const int64_t unseen = 248 * int64_t{3} * 7168 * 2048;
  EXPECT_EQ(active_parameters(m), active + c.mtp - unseen);
}

TEST(Parameters, KindsAddUpByHand) {
  // One layer, all sizes different primes or powers, every switch on.
  ModelSpec m;
  m.layers = 1;
  m.hidden = 10;
  m.ffn_hidden = 7;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 3;
  m.vocab = 11;
  m.max_context = 5;
  m.extra_positions = 2;
  m.gated_mlp = true;
  m.tied_embeddings = false;
  m.attention_bias = m.output_bias = m.mlp_bias = m.qk_norm = m.embedding_norm = m.head_bias = true;
  m.attention_sinks = true;
  const ParameterCount c = count_parameters(m);
  EXPECT_EQ(c.embedding, 110);
  EXPECT_EQ(c.position, 70);
  EXPECT_EQ(c.attention, 10 * 12 + 2 * 10 * 6 + 12 * 10 + (12 + 2 * 6) + 10 + 4);
  EXPECT_EQ(c.mlp, 3 * 10 * 7 + 2 * 7 + 10);
  EXPECT_EQ(c.norms, 2 * 20 + 2 * 6 + 20 + 20);  // two of the layer, q and k, final, embedding
  EXPECT_EQ(c.head, 110 + 11);
  EXPECT_EQ(c.experts + c.router + c.mtp, 0);
}

}  // namespace
}  // namespace wt
