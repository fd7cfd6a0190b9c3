// A small Llama on a test device, for tests that hold plans to closed forms and to the engine: every size divides by every
// degree that they use. What a test is about it sets itself.
#pragma once

#include "core/spec/specs.hpp"

namespace wt::lower {

struct SmallSizes {
  int64_t layers = 6, kv_heads = 4, vocab = 1024, seq_len = 128;
  int64_t nodes = 1, devices = 8;  // of a node
};

inline JobSpec small_job(const SmallSizes& sizes = {}) {
  JobSpec j;
  j.name = "small";
  ModelSpec& m = j.model;
  m.layers = sizes.layers;
  m.hidden = 64;
  m.ffn_hidden = 256;
  m.heads = 8;
  m.kv_heads = sizes.kv_heads;
  m.head_dim = 8;
  m.vocab = sizes.vocab;
  m.max_context = sizes.seq_len;
  m.gated_mlp = true;
  m.norm = Norm::rms_norm;
  m.activation = Activation::silu;
  m.position = Position::rotary;
  m.tied_embeddings = false;
  j.cluster.nodes = sizes.nodes;
  j.cluster.node.devices = sizes.devices;
  j.cluster.device.name = "test";
  j.cluster.device.peak[DType::bf16] = {1e15};
  j.cluster.device.peak[DType::f8] = {2e15};
  j.training.micro_batch = 1;
  j.training.global_batch = sizes.nodes * sizes.devices;
  j.training.seq_len = sizes.seq_len;
  j.training.vocab_multiple = 1;
  return j;
}

/// Parameters of one of its blocks (q, k, v of 8 and 4 heads of 8, output, gated MLP, two norms), and of what is around.
constexpr int64_t kSmallBlock = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 256 + 2 * 64;
constexpr int64_t small_root(int64_t vocab) { return 2 * vocab * 64 + 64; }

}  // namespace wt::lower
