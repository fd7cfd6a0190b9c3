// Sizes of one rank's share, mesh, groups, parameters and activation buffers. Shapes only: nothing is ordered here.
#include <algorithm>
#include <cmath>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::Init;
using plan::Role;
using plan::Scope;

namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

void make_sizes(Context& c) {
  const auto& m = c.job.model;
  const auto& st = c.job.strategy;
  const auto& tr = c.job.training;
  Sizes& n = c.n;
  n.t = st.tensor;
  n.p = st.pipeline;
  n.v = st.virtual_stages;
  n.dp = st.data * st.context;
  make_context_sizes(c);
  n.document = document_length(c.job);
  n.b = tr.micro_batch;
  n.s = tr.seq_len / n.cp;
  n.tokens = n.b * n.s;
  n.sequence_parallel = st.sequence_parallel && n.t > 1;
  n.rows = n.sequence_parallel ? n.tokens / n.t : n.tokens;
  n.h = m.hidden;
  n.d = m.head_dim;
  n.heads = m.heads / n.t;
  n.kv_heads = std::max<int64_t>(1, m.kv_heads / n.t);  // fewer groups than ranks: each rank keeps a copy of one
  n.qkv = (n.heads + 2 * n.kv_heads) * n.d;
  n.attention = n.heads * n.d;
  n.ffn = m.ffn_hidden / n.t;
  n.fc1 = m.gated_mlp ? 2 * n.ffn : n.ffn;
  n.padded_vocab = round_up(m.vocab, tr.vocab_multiple * n.t);
  n.vocab = n.padded_vocab / n.t;
  n.micro_batches = tr.global_batch / (tr.micro_batch * st.data);
  c.act = working_dtype(tr);
  c.grad = has_units(st) ? c.act : st.gradient_dtype;
  c.fresh_gradients = has_units(st);
}

void make_mesh(Context& c) {
  auto& p = c.plan;
  // Levels of data parallelism, the common refinement of replicas, shard groups and the smaller groups in them: replicas
  // outermost, so that the ranks of a node share one copy.
  const int64_t data = c.job.strategy.data;
  // The ranks of a sequence have the same weights and share the shards.
  const ShardSizes sizes = shard_sizes(c.job, c.n.dp);
  const int64_t copies = c.n.dp / sizes.shard, far = sizes.shard / sizes.near / c.n.cp;
  const bool hybrid = has_units(c.job.strategy) && copies > 1 && sizes.shard > 1;
  p.mesh.axes = {{"pp", c.n.p}, {"dp", hybrid ? copies : data / sizes.near}};
  if (hybrid) p.mesh.axes.push_back({"dp_shard", far});
  if (sizes.near > 1) p.mesh.axes.push_back({"dp_near", sizes.near});
  const auto first_context = static_cast<uint32_t>(p.mesh.axes.size());
  if (c.n.ring > 1) p.mesh.axes.push_back({"cp", c.n.ring});
  if (c.n.heads_cut > 1) p.mesh.axes.push_back({c.n.ring > 1 ? "cp_heads" : "cp", c.n.heads_cut});
  p.mesh.axes.push_back({"tp", c.n.t});
  const auto last = static_cast<uint32_t>(p.mesh.axes.size() - 1);
  const AxisId pp{0}, tp{last};
  std::vector<AxisId> dp;
  for (uint32_t i = 1; i < last; ++i) dp.push_back(AxisId{i});
  auto add = [&](std::string name, std::vector<AxisId> axes, std::optional<plan::AxisFilter> filter = {}) {
    p.groups.push_back({std::move(name), std::move(axes), std::move(filter)});
    return GroupId{static_cast<uint32_t>(p.groups.size() - 1)};
  };
  c.tp = add("tp", {tp});
  c.dp = add(c.n.cp > 1 ? "dp_cp" : "dp", dp);
  c.pp = add("pp", {pp});
  c.model = add("model", {pp, tp});
  if (c.n.cp > 1) {
    const std::vector<AxisId> context(dp.begin() + (first_context - 1), dp.end());
    c.cp = c.ring = c.heads = add("cp", context);
    if (context.size() > 1) {
      c.ring = add("cp_ring", {context.front()});
      c.heads = add("cp_heads", {context.back()});
    }
  }
  auto with = [](std::vector<AxisId> some, AxisId more) {
    some.push_back(more);
    return some;
  };
  std::vector<AxisId> world = with(dp, tp);
  world.insert(world.begin(), pp);
  c.world = add("world", world);
  c.norm = shards_optimizer(c.job.strategy) ? c.world : c.model;
  if (has_units(c.job.strategy)) {
    const std::vector<AxisId> cut(dp.begin() + (hybrid ? 1 : 0), dp.end());
    if (sizes.shard > 1) c.shard = hybrid ? add("dp_shard", cut) : c.dp;
    if (copies > 1) c.replicas = hybrid ? add("dp_replicas", {dp[0]}) : c.dp;
    if (sizes.near > 1) c.near = add("dp_near", {dp.back()});
    std::vector<AxisId> model_shards = with(cut, tp);
    model_shards.insert(model_shards.begin(), pp);
    c.norm = hybrid ? add("norm", model_shards) : sizes.shard > 1 ? c.world : c.model;
  }
  if ((c.job.model.tied_embeddings || c.job.model.mtp_layers > 0) && c.n.p > 1)
    c.embedding = add("embedding", {pp}, plan::AxisFilter{pp, {0, c.n.p - 1}});
}

}  // namespace

int add_parameter(Context& c, std::string name, std::vector<int64_t> shape, std::vector<plan::Shard> shards,
                  bool per_layer, Init init, double scale) {
  Parameter q;
  q.name = name;
  q.per_layer = per_layer;
  Buffer w;
  w.role = Role::weight;
  w.name = name;
  w.dtype = c.act;
  w.scope = Scope::persistent;
  w.per_layer = per_layer;
  w.view = true;
  w.shape = std::move(shape);
  w.shards = std::move(shards);
  w.init = init;
  w.init_scale = scale;
  q.elements = w.elements();
  q.tensor_duplicate = w.shards.empty() && c.n.t > 1;
  q.frozen = c.freezing;
  if (!q.frozen && !c.fresh_gradients && !c.job.training.gradient_fusion && w.shape.size() == 2 &&
      init == Init::normal && name != "position") {
    Buffer f;
    f.name = name + ".fresh";
    f.role = Role::transient;
    f.dtype = c.act;
    f.per_layer = per_layer;
    f.shape = w.shape;
    q.fresh = c.add_buffer(std::move(f));
  }
  // The router's products stay as they are.
  const bool product = per_layer && w.shape.size() >= 2 && name != "router";
  q.kept_narrow = c.narrow() && product && c.training().fp8_params;
  if (q.kept_narrow) w.dtype = DType::f8;
  q.weight = c.add_buffer(w);
  if (!q.frozen) {
    Buffer g = w;
    g.role = Role::gradient;
    g.name = name + ".grad";
    g.dtype = c.grad;
    g.init = Init::none;
    g.init_scale = 0;
    q.gradient = c.add_buffer(std::move(g));
  } else if (c.training().lora.base == BaseWeights::nf4 && per_layer && w.shape.size() >= 2) {
    pack_weight(c, q);
  }
  if (c.narrow() && product) {
    w.view = false;
    w.role = Role::copy;
    w.dtype = DType::f8;
    w.init = Init::none;
    w.init_scale = 0;
    if (has_units(c.strategy())) w.scope = Scope::invocation;  // made again from what was gathered
    w.name = name + ".f8";
    if (!q.kept_narrow) q.narrow = c.add_buffer(w);
    w.name = name + ".f8t";
    q.narrow_transposed = c.add_buffer(std::move(w));
  }
  if (!q.frozen && c.strategy().data_parallel == DataParallel::zero1) {
    Buffer l;
    l.name = name + ".loaded";
    l.role = Role::copy;
    l.dtype = c.act;
    l.per_layer = per_layer;
    l.shape = {q.elements};
    q.loaded = c.add_buffer(std::move(l));
  }
  c.parameters.push_back(std::move(q));
  return static_cast<int>(c.parameters.size() - 1);
}

namespace {

/// Registration order is Megatron's: embedding, layers, final norm, head. Buckets run through it backwards.
void make_parameters(Context& c) {
  const auto& m = c.job.model;
  const Sizes& n = c.n;
  ParameterIds& id = c.id;
  const bool cut = n.t > 1;
  auto shard = [&](uint8_t dim, int64_t blocks = 1) {
    return cut ? std::vector<plan::Shard>{{dim, c.tp, blocks}} : std::vector<plan::Shard>{};
  };
  auto weight = [&](const char* name, std::vector<int64_t> shape, std::vector<plan::Shard> sh, bool layer,
                    double scale) {
    return add_parameter(c, name, std::move(shape), std::move(sh), layer, Init::normal, scale);
  };
  auto zeros = [&](const char* name, int64_t size, std::vector<plan::Shard> sh, bool layer) {
    return add_parameter(c, name, {size}, std::move(sh), layer, Init::zeros, 0);
  };
  auto gain = [&](const char* name, int64_t size, bool layer) {
    return add_parameter(c, name, {size}, {}, layer, Init::ones, 0);
  };
  const double sigma = kSigma, sigma_out = output_sigma(m);
  const bool beta = m.norm == Norm::layer_norm;

  c.freezing = c.training().lora.rank > 0;
  id.embedding = weight("embedding", {n.vocab, n.h}, shard(0), false, sigma);
  if (m.position == Position::learned)
    id.position = weight("position", {m.max_context + m.extra_positions, n.h}, {}, false, sigma);
  if (m.embedding_norm) {
    id.embedding_gamma = gain("embedding_norm.gamma", n.h, false);
    id.embedding_beta = zeros("embedding_norm.beta", n.h, {}, false);
  }
  id.norm1_gamma = gain("norm1.gamma", n.h, true);
  if (beta) id.norm1_beta = zeros("norm1.beta", n.h, {}, true);
  // Rows of qkv are grouped by key/value head (its queries, then k, then v), so a contiguous cut keeps groups whole.
  if (m.mla)
    make_latent_parameters(c);
  else
    id.qkv = weight("qkv", {n.qkv, n.h}, shard(0), true, sigma);
  if (m.attention_bias) id.qkv_bias = zeros("qkv.bias", n.qkv, shard(0), true);
  if (m.qk_norm) {
    id.q_gamma = gain("q_norm.gamma", n.d, true);
    id.k_gamma = gain("k_norm.gamma", n.d, true);
  }
  id.proj = weight("proj", {n.h, n.attention}, shard(1), true, sigma_out);
  if (m.output_bias) id.proj_bias = zeros("proj.bias", n.h, {}, true);
  if (m.norms_per_layer > 1 || !m.parallel_block) {
    id.norm2_gamma = gain("norm2.gamma", n.h, true);
    if (beta) id.norm2_beta = zeros("norm2.beta", n.h, {}, true);
  }
  if (has_layers(m, LayerKind::dense)) {
    id.fc1 = weight("fc1", {n.fc1, n.h}, shard(0, m.gated_mlp ? 2 : 1), true, sigma);
    if (m.mlp_bias) id.fc1_bias = zeros("fc1.bias", n.fc1, shard(0, m.gated_mlp ? 2 : 1), true);
    id.fc2 = weight("fc2", {n.h, n.ffn}, shard(1), true, sigma_out);
    if (m.mlp_bias) id.fc2_bias = zeros("fc2.bias", n.h, {}, true);
    for (const int k : {id.fc1, id.fc1_bias, id.fc2, id.fc2_bias})
      if (k >= 0) c.parameters[static_cast<size_t>(k)].of = LayerKind::dense;
  }
  if (m.moe) make_expert_parameters(c);
  if (m.final_norm) {
    id.final_gamma = gain("final_norm.gamma", n.h, false);
    if (beta) id.final_beta = zeros("final_norm.beta", n.h, {}, false);
  }
  if (m.tied_embeddings) {
    // With one stage the head reads the embedding table; with more the last stage keeps a copy of it.
    if (n.p > 1) id.embedding_copy = weight("embedding_copy", {n.vocab, n.h}, shard(0), false, sigma);
    id.head = n.p > 1 ? id.embedding_copy : id.embedding;
  } else {
    if (n.p > 1 && m.mtp_layers > 0)
      id.embedding_copy = weight("embedding_copy", {n.vocab, n.h}, shard(0), false, sigma);
    id.head = weight("head", {n.vocab, n.h}, shard(0), false, sigma);
  }
  if (m.head_bias) id.head_bias = zeros("head.bias", n.vocab, shard(0), false);
  // With sequence parallelism these see only their own rows on each tensor rank.
  if (n.sequence_parallel)
    for (int k : {id.norm1_gamma, id.norm1_beta, id.norm2_gamma, id.norm2_beta, id.final_gamma, id.final_beta,
                  id.embedding_gamma, id.embedding_beta, id.proj_bias, id.fc2_bias})
      if (k >= 0 && !c.frozen(k)) c.parameters[static_cast<size_t>(k)].partial_over_tensor = true;
  // q and k gains are shared by heads that different tensor ranks hold.
  if (n.t > 1)
    for (int k : {id.q_gamma, id.k_gamma})
      if (k >= 0 && !c.frozen(k)) c.parameters[static_cast<size_t>(k)].partial_over_tensor = true;
  c.freezing = false;
  make_multi_token_parameters(c);
  make_adapter_parameters(c);
}

struct Maker {
  Context& c;
  std::string suffix;
  Scope scope;
  BufferId operator()(const char* name, Role role, DType dtype, std::vector<int64_t> shape,
                      bool per_layer = true) const {
    Buffer b;
    b.name = name + suffix;
    b.role = role;
    b.dtype = dtype;
    b.scope = scope;
    b.per_layer = per_layer;
    b.shape = std::move(shape);
    return c.add_buffer(std::move(b));
  }
};

LayerBuffers make_layer(Context& c, const std::string& suffix, Scope scope, bool core_attention_saved) {
  const Sizes& n = c.n;
  const auto& m = c.job.model;
  const bool dropout = c.job.training.dropout;
  const int64_t stats = m.norm == Norm::layer_norm ? 2 : 1;
  const Maker make{c, suffix, scope};
  const Maker core{c, suffix, core_attention_saved ? scope : Scope::invocation};
  LayerBuffers l;
  // With fp8 products the 8-bit inputs are kept; the 16-bit ones go as soon as they are cast.
  const bool f8 = c.narrow();
  // The input of a frozen product is read by nobody in the backward.
  const auto of = [&](bool kept) { return Maker{c, suffix, kept ? scope : Scope::invocation}; };
  const bool keeps_qkv = c.keeps_input(c.id.qkv, Product::qkv), keeps_proj = c.keeps_input(c.id.proj, Product::proj);
  const bool keeps_fc1 = c.keeps_input(c.id.fc1, Product::fc1), keeps_fc2 = c.keeps_input(c.id.fc2, Product::fc2);
  const Maker wide = of(!f8 && keeps_fc2);
  if (f8) {
    l.norm1_f8 = of(keeps_qkv)("norm1_f8", Role::activation, DType::f8, {n.rows, n.h});
    l.attention_f8 = of(keeps_proj)("attention_f8", Role::activation, DType::f8, {n.tokens, n.attention});
    l.norm2_f8 = of(keeps_fc1)("norm2_f8", Role::activation, DType::f8, {n.rows, n.h});
    l.activation_f8 = of(keeps_fc2)("activation_f8", Role::activation, DType::f8, {n.tokens, n.ffn});
  }
  // What is gathered before a product is kept as its shard, or as the product read it.
  const bool gathered = n.sequence_parallel && c.job.strategy.keep_gathered;
  const bool shards = !f8 && !gathered;
  const NormKernel norm = m.norm == Norm::rms_norm ? c.job.training.norm_kernel : NormKernel::fused;
  if (gathered) {
    l.norm1_full = of(keeps_qkv)("norm1_gathered", Role::activation, c.act, {n.tokens, n.h});
    l.norm2_full = of(keeps_fc1)("norm2_gathered", Role::activation, c.act, {n.tokens, n.h});
  }
  if (norm != NormKernel::fused) {
    l.norm1_normed = make("norm1_normed", Role::activation, c.act, {n.rows, n.h});
    l.norm2_normed = make("norm2_normed", Role::activation, c.act, {n.rows, n.h});
  }
  if (norm == NormKernel::eager_fp32) {
    l.norm1_wide = make("norm1_in_f32", Role::activation, DType::f32, {n.rows, n.h});
    l.norm2_wide = make("norm2_in_f32", Role::activation, DType::f32, {n.rows, n.h});
  }
  const bool eager = !c.job.training.fused_kernels;
  if (eager && m.gated_mlp && has_layers(m, LayerKind::dense))
    l.gate = make("gate_activated", Role::activation, c.act, {n.tokens, n.ffn});
  if (eager && c.job.training.packed_qkv && m.position == Position::rotary)
    l.unrotated = make("qk_unrotated", Role::activation, c.act, {n.tokens, (n.heads + n.kv_heads) * n.d});
  l.norm1 = of(shards && (keeps_qkv || (m.norms_per_layer == 1 && keeps_fc1)))("norm1_out", Role::activation, c.act,
                                                                               {n.rows, n.h});
  l.stats1 = make("norm1_stats", Role::activation, DType::f32, {n.rows, stats});
  // Context parallelism keeps what it made of q, k and v instead.
  const Maker exchanged{c, suffix, n.cp > 1 && core_attention_saved ? Scope::invocation : scope};
  l.qkv = (m.qk_norm ? make : exchanged)("qkv_out", Role::activation, c.act, {n.tokens, n.qkv});
  l.attention_in = l.qkv;
  if (m.qk_norm) {
    // The norm's backward needs what the norm read, attention's what it wrote. (v is in both: frameworks share it.)
    l.qk_stats = make("qk_norm_stats", Role::activation, DType::f32, {n.tokens, n.heads + n.kv_heads});
    l.attention_in = exchanged("qkv_normed", Role::activation, c.act, {n.tokens, n.qkv});
  }
  const bool flash = c.job.strategy.attention == AttentionKernel::flash;
  l.attention = of(flash || (keeps_proj && !f8))("attention_out", Role::activation, c.act, {n.tokens, n.attention});
  if (c.job.strategy.attention == AttentionKernel::flash) {
    l.lse = core("attention_lse", Role::activation, DType::f32, {n.b * n.heads / n.heads_cut, n.s * n.heads_cut});
    if (n.cp > 1) make_context_layer(c, l, suffix, core.scope);
  } else {
    l.scores = Maker{c, suffix, Scope::invocation}("scores", Role::transient, c.act, {n.b * n.heads, n.s, n.s});
    l.probs = core("probs", Role::activation, c.act, {n.b * n.heads, n.s, n.s});
    if (dropout) {
      l.dropped = core("probs_dropped", Role::activation, c.act, {n.b * n.heads, n.s, n.s});
      l.attention_mask = core("attention_mask", Role::activation, DType::u8, {n.b * n.heads, n.s, n.s});
    }
  }
  // The sum after attention feeds norm2 and its backward; in a parallel block only the sum after the MLP.
  const Maker residual{c, suffix, m.parallel_block ? Scope::invocation : scope};
  l.residual = residual("residual", Role::activation, c.act, {n.rows, n.h});
  if (dropout) {
    l.residual_mask = make("residual_mask", Role::activation, DType::u8, {n.rows, n.h});
    l.output_mask = make("output_mask", Role::activation, DType::u8, {n.rows, n.h});
  }
  l.norm2 = of(shards && keeps_fc1)("norm2_out", Role::activation, c.act, {n.rows, n.h});
  l.stats2 = make("norm2_stats", Role::activation, DType::f32, {n.rows, stats});
  if (has_layers(m, LayerKind::dense)) {
    l.fc1 = make("fc1_out", Role::activation, c.act, {n.tokens, n.fc1});
    l.activation = wide("activation_out", Role::activation, c.act, {n.tokens, n.ffn});
  }
  if (m.mla) make_latent_layer(c, l, suffix, scope);
  if (m.moe) make_expert_layer(c, l, suffix, scope);
  make_adapter_layer(c, l, suffix, scope);
  return l;
}

void make_activations(Context& c) {
  const Sizes& n = c.n;
  const auto& st = c.job.strategy;
  c.saved = make_layer(c, "", Scope::micro_batch, !recomputes_core_attention(st));
  c.remade = make_layer(c, ".remade", Scope::invocation, true);

  const Maker tmp{c, "", Scope::invocation};
  auto layer = [&](const char* name, int64_t rows, int64_t columns) {
    return tmp(name, Role::transient, c.act, {rows, columns});
  };
  TransientBuffers& x = c.tmp;
  x.norm1_full = layer("norm1_full", n.tokens, n.h);
  x.norm2_full = layer("norm2_full", n.tokens, n.h);
  if (c.narrow()) {
    auto narrow = [&](const char* name, int64_t rows, int64_t columns) {
      return tmp(name, Role::transient, DType::f8, {rows, columns});
    };
    x.norm1_full_f8 = narrow("norm1_full_f8", n.tokens, n.h);
    x.norm2_full_f8 = narrow("norm2_full_f8", n.tokens, n.h);
    x.branch_f8 = narrow("d_branch_f8", n.rows, n.h);
    x.branch_full_f8 = narrow("d_branch_full_f8", n.tokens, n.h);
    x.d_fc1_f8 = narrow("d_fc1_f8", n.tokens, n.fc1);
    x.d_qkv_f8 = narrow("d_qkv_f8", n.tokens, n.qkv);
  }
  x.projection = layer("proj_out", n.tokens, n.h);
  x.projection_sum = layer("proj_sum", n.rows, n.h);
  x.fc2 = layer("fc2_out", n.tokens, n.h);
  x.fc2_sum = layer("fc2_sum", n.rows, n.h);
  x.flow = layer("hidden.remade", n.rows, n.h);
  x.branch = layer("d_branch", n.rows, n.h);
  x.branch_full = layer("d_branch_full", n.tokens, n.h);
  x.attention_branch = x.branch;
  x.attention_branch_full = x.branch_full;
  if (has_layers(c.job.model, LayerKind::dense)) {
    x.d_activation = layer("d_activation", n.tokens, n.ffn);
    x.d_fc1 = layer("d_fc1", n.tokens, n.fc1);
  }
  x.d_norm2_full = layer("d_norm2_full", n.tokens, n.h);
  x.d_norm2 = layer("d_norm2", n.rows, n.h);
  x.d_residual_norm = layer("d_residual_norm", n.rows, n.h);
  x.d_residual = layer("d_residual", n.rows, n.h);
  x.d_attention = layer("d_attention", n.tokens, n.attention);
  if (st.attention == AttentionKernel::unfused) {
    x.d_probs = tmp("d_probs", Role::transient, c.act, {n.b * n.heads, n.s, n.s});
    x.d_scores = tmp("d_scores", Role::transient, c.act, {n.b * n.heads, n.s, n.s});
  }
  x.d_qkv = layer("d_qkv", n.tokens, n.qkv);
  x.d_norm1_full = layer("d_norm1_full", n.tokens, n.h);
  x.d_norm1 = layer("d_norm1", n.rows, n.h);
  x.d_hidden_norm = layer("d_hidden_norm", n.rows, n.h);
  x.d_hidden = layer("d_hidden", n.rows, n.h);
  if (c.job.model.mla) make_latent_transients(c);
  if (c.job.model.moe) make_expert_transients(c);
  if (n.cp > 1) make_context_transients(c);
  make_adapter_transients(c);

  const Maker mb{c, "", Scope::micro_batch};
  const Maker rank{c, "", Scope::rank};
  EdgeBuffers& e = c.edge;
  const auto& m = c.job.model;
  e.tokens = (c.frozen(c.id.embedding) ? tmp : mb)("tokens", Role::tokens, DType::i32, {n.tokens}, false);
  e.labels = (c.training().loss_chunk > 0 ? tmp : mb)("labels", Role::labels, DType::i32,
                                                      {n.tokens + n.b * m.mtp_layers}, false);
  e.hidden = mb("hidden", Role::activation, c.act, {n.rows, n.h});
  if (n.p > 1 && kept_edges(st) == 2) e.received = mb("received", Role::activation, c.act, {n.rows, n.h}, false);
  if (n.p > 1 && st.shard_messages && n.t > 1 && !n.sequence_parallel && n.tokens % n.t == 0) {
    const auto piece = [&](const char* name) { return tmp(name, Role::transient, c.act, {n.rows / n.t, n.h}, false); };
    e.sent_piece = piece("sent_piece");
    e.received_piece = piece("received_piece");
    e.sent_gradient_piece = piece("sent_gradient_piece");
    e.received_gradient_piece = piece("received_gradient_piece");
  }
  e.embedded = tmp("embedded", Role::transient, c.act, {n.tokens, n.h}, false);
  e.positioned = tmp("positioned", Role::transient, c.act, {n.tokens, n.h}, false);
  if (m.embedding_norm) {
    e.normed_embedding = mb("embedding_norm_in", Role::activation, c.act, {n.rows, n.h}, false);
    e.embedding_stats = mb("embedding_norm_stats", Role::activation, DType::f32, {n.rows, 2}, false);
  }
  if (c.job.training.dropout)
    e.embedding_mask = mb("embedding_mask", Role::activation, DType::u8, {n.rows, n.h}, false);
  make_head_buffers(c, e, "", {});
  e.d_embedded = tmp("d_embedded", Role::transient, c.act, {n.rows, n.h}, false);
  e.d_positioned = tmp("d_positioned", Role::transient, c.act, {n.tokens, n.h}, false);
  make_loss_pieces(c);
  make_multi_token_buffers(c);
  c.grad_norm = rank("grad_norm", Role::scalar, DType::f32, {1}, false);
  if (updates_on_host(c.strategy()) && c.training().gradient_clipping > 0) {
    c.host_norm = rank("host_norm", Role::scalar, DType::f32, {1}, false);
    c.plan.buffers[c.host_norm.v].space = plan::Space::pinned;
  }
  if (n.separate_experts) c.expert_grad_norm = rank("expert_grad_norm", Role::scalar, DType::f32, {1}, false);
  c.overflow = rank("overflow", Role::scalar, DType::f32, {1}, false);
}

}  // namespace

void make_buffers(Context& c) {
  make_sizes(c);
  if (c.job.model.mla) make_latent_sizes(c);
  if (c.job.model.moe) make_expert_sizes(c);
  make_mesh(c);
  if (c.job.model.moe) make_expert_groups(c);
  make_parameters(c);
  make_activations(c);
  drop_modules(c);
  make_activation_twins(c);
  auto& p = c.plan;
  p.micro_batches = c.n.micro_batches;
  p.micro_batch_size = c.n.b;
  p.sequence = c.job.training.seq_len;
  p.seed = c.job.training.seed;
}

}  // namespace wt::lower
