// Small jobs for tests, from YAML text, lowered.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/lower/lower.hpp"
#include "core/spec/read.hpp"

namespace wt::report {

struct Lowered {
  JobSpec job;
  plan::Plan plan;
};

/// A GPT of 24 equal layers on DGX A100 nodes; `overrides` as on the command line.
inline Lowered lowered(std::vector<std::string> overrides, std::string strategy = "{}") {
  const std::string text = R"(
model:
  layers: 24
  hidden: 1024
  ffn_hidden: 4096
  heads: 16
  vocab: 51200
  max_context: 2048
  gated_mlp: false
  activation: gelu
  norm: layer_norm
  position: learned
  tied_embeddings: true
  attention_bias: true
  output_bias: true
  mlp_bias: true
cluster: {from: dgx-a100-80, nodes: 1}
strategy: )" + strategy + R"(
training: {micro_batch: 1, global_batch: 64, seq_len: 2048, precision: bf16, vocab_multiple: 128}
)";
  auto job = parse_job(text, std::string(WT_SOURCE_DIR) + "/examples/test.yaml", overrides);
  EXPECT_TRUE(job.ok()) << (job.ok() ? "" : to_text(job.errors()));
  if (!job.ok()) return {};
  auto plan = lower::lower(job.value());
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : to_text(plan.errors()));
  if (!plan.ok()) return {std::move(job.value()), {}};
  return {std::move(job.value()), std::move(plan.value())};
}

}  // namespace wt::report
