// What only the whole job can show to be illegal. All faults at once, in the key names of a job file, with the legal
// values nearest to the user's. What later strategies will bring is refused here by name, never lowered to less.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/lower/context.hpp"
#include "core/lower/schedule.hpp"
#include "core/spec/names.hpp"

namespace wt::lower {

namespace {

class Faults {
 public:
  template <class... A>
  void add(std::string where, fmt::format_string<A...> what, A&&... args) {
    list_.push_back({std::move(where), fmt::format(what, std::forward<A>(args)...), ""});
  }
  void add(const Diagnostics& faults) { list_.insert(list_.end(), faults.begin(), faults.end()); }
  void add(const std::vector<JobFault>& faults) {
    for (const JobFault& e : faults) list_.push_back({e.key, e.what, e.hint});
  }
  void hint(std::string text) { list_.back().hint = std::move(text); }
  Diagnostics take() { return std::move(list_); }

 private:
  Diagnostics list_;
};

/// "nearest legal: 4, 8" among the divisors of n. Only where `wanted` is none of them: a hint never names what was
/// refused.
std::string nearest_divisors(int64_t n, int64_t wanted) {
  int64_t below = 0, above = 0;
  for (int64_t d = 1; d <= n && d <= 65536; ++d)
    if (n % d == 0) {
      if (d <= wanted) below = d;
      if (d >= wanted && above == 0) above = d;
    }
  std::string out = "nearest legal: ";
  if (below) out += std::to_string(below);
  if (above && above != below) out += (below ? ", " : "") + std::to_string(above);
  return out;
}

/// The smallest n of which `n * each` is a multiple of `whole`.
int64_t smallest_factor(int64_t whole, int64_t each) { return whole / std::gcd(whole, each); }

std::string nearest_multiples(int64_t wanted, int64_t unit) {
  const int64_t below = wanted / unit * unit;
  return below > 0 ? fmt::format("nearest legal: {}, {}", below, below + unit) : fmt::format("nearest legal: {}", unit);
}

void check_latent(const JobSpec& j, Faults& f) {
  const auto& m = j.model;
  if (m.qk_norm || m.attention_bias || m.output_bias || m.sliding_window > 0 || m.position != Position::rotary)
    f.add("model.mla",
          "latent attention with qk_norm, biases, windows or other than rotary positions cannot be planned yet");
  if (m.parallel_block || m.norms_per_layer != 2)
    f.add("model.mla", "latent attention in parallel blocks, or with other than two norms, cannot be planned yet");
  if (j.strategy.attention != AttentionKernel::flash)
    f.add("strategy.attention", "latent attention is fused"), f.hint("legal: flash");
  if (j.strategy.keep_gathered)
    f.add("strategy.keep_gathered", "with latent attention cannot be planned yet"), f.hint("legal: false");
}

void check_model(const JobSpec& j, Faults& f) {
  const auto& m = j.model;
  const auto& s = j.strategy;
  for (const auto& faults_of :
       {expert_faults, adapter_faults, packing_faults, ddp_faults, chunked_loss_faults, multi_token_faults})
    f.add(faults_of(j));
  if (m.mla) check_latent(j, f);
  if (m.embedding_dim != 0 && m.embedding_dim != m.hidden)
    f.add("model.embedding_dim", "an embedding of {} projected to hidden {} cannot be planned yet", m.embedding_dim,
          m.hidden),
        f.hint(fmt::format("legal: {}, which plans the model with an embedding as wide as its layers", m.hidden));
  if (m.head_transform || m.segment_types > 0)
    f.add("model.head_transform", "BERT's head transform and segment embeddings cannot be planned yet"),
        f.hint("legal: head_transform: false and segment_types: 0, which plan the model without them");
  if (m.heads % s.tensor != 0) {
    f.add("strategy.tensor", "{} attention heads do not divide over tensor = {}", m.heads, s.tensor);
    f.hint(nearest_divisors(m.heads, s.tensor));
  }
  if (m.kv_heads % s.tensor != 0 && s.tensor % m.kv_heads != 0) {
    f.add("strategy.tensor", "{} key/value heads neither divide over tensor = {} nor repeat on it", m.kv_heads,
          s.tensor);
    f.hint(nearest_divisors(m.kv_heads, s.tensor));
  }
  if (has_layers(m, LayerKind::dense) && m.ffn_hidden % s.tensor != 0) {
    f.add("strategy.tensor", "ffn_hidden = {} does not divide over tensor = {}", m.ffn_hidden, s.tensor);
    f.hint(nearest_divisors(m.ffn_hidden, s.tensor));
  }
}

void check_world(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  const int64_t world = j.cluster.ranks(), cut = s.tensor * s.pipeline * s.context;
  if (cut <= 0 || world <= 0) return;
  // Both grids of a stage must fit in it: that of the dense layers and that of the experts.
  const int64_t experts = j.model.moe ? s.expert * (s.experts.tensor > 0 ? s.experts.tensor : s.tensor) : 1;
  const int64_t least =
      cut <= world && experts > 0 && experts <= world ? s.pipeline * std::lcm(s.tensor * s.context, experts) : cut;
  const std::string nodes = fmt::format(
      "cluster.nodes {}", nearest_multiples(j.cluster.nodes, smallest_factor(least, j.cluster.node.devices)));
  if (s.data == 0 && world % cut != 0) {
    f.add("strategy", "{} ranks ({} nodes of {}) are not a multiple of tensor {} x pipeline {} x context {} = {}",
          world, j.cluster.nodes, j.cluster.node.devices, s.tensor, s.pipeline, s.context, cut);
    f.hint(nodes);
  }
  if (experts > world) {
    f.add("strategy.expert", "expert {} x tensor {} of experts are more than the {} ranks of the cluster", s.expert,
          experts / s.expert, world);
    f.hint(fmt::format("legal: up to {}", std::max<int64_t>(1, world / (experts / s.expert))));
  } else if (s.data == 0 && world % least != 0 && experts > 1) {
    f.add(
        "strategy.expert",
        "{} ranks are not a multiple of {}: pipeline {} x the least stage that holds tensor {} x context {} and expert "
        "{} x tensor {} of experts",
        world, least, s.pipeline, s.tensor, s.context, s.expert, experts / s.expert);
    f.hint(nodes);
  }
  if (s.data != 0 && cut * s.data != world) {
    f.add("strategy.data",
          "tensor {} x pipeline {} x context {} x data {} = {} is not the {} ranks of the cluster ({} nodes of {})",
          s.tensor, s.pipeline, s.context, s.data, cut * s.data, world, j.cluster.nodes, j.cluster.node.devices);
    if (world % cut == 0) f.hint(fmt::format("legal: {}", world / cut));
  }
}

/// Data-parallel ranks; 0 where the ranks of the cluster make no such number, which is a fault of its own: what would
/// follow from it is none.
int64_t data_ranks(const JobSpec& j) {
  const auto& s = j.strategy;
  const int64_t cut = s.tensor * s.pipeline * s.context, world = j.cluster.ranks();
  if (world % cut != 0) return 0;
  return s.data == 0 || s.data == world / cut ? world / cut : 0;
}

void check_batch(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  const auto& t = j.training;
  const int64_t data = data_ranks(j);
  const int64_t unit = t.micro_batch * std::max<int64_t>(1, data);
  if (data != 0 && t.global_batch % unit != 0) {
    f.add("training.global_batch", "{} is not a multiple of micro_batch {} x data {} = {}", t.global_batch,
          t.micro_batch, data, unit);
    f.hint(nearest_multiples(t.global_batch, unit));
  } else if (t.global_batch / unit > 65535) {
    f.add("training.global_batch", "{} micro-batches in a step are more than 65535", t.global_batch / unit);
  }
  if (t.seq_len <= 0) f.add("training.seq_len", "must be at least 1");
  if (j.model.position == Position::learned && t.seq_len > j.model.max_context) {
    f.add("training.seq_len", "{} exceeds the {} learned positions of the model", t.seq_len, j.model.max_context);
    f.hint(fmt::format("legal: up to {}", j.model.max_context));
  }
  if (s.context > 1 && t.seq_len % (2 * s.context) != 0) {
    f.add("training.seq_len", "{} tokens do not divide over 2 x context = {} pieces", t.seq_len, 2 * s.context);
    f.hint(nearest_multiples(t.seq_len, 2 * s.context));
  } else if (s.sequence_parallel && s.tensor > 1 && (t.seq_len / s.context * t.micro_batch) % s.tensor != 0) {
    f.add("training.seq_len", "{} tokens of a micro-batch do not divide over tensor = {}, as sequence_parallel needs",
          t.seq_len / s.context * t.micro_batch, s.tensor);
    f.hint(nearest_multiples(t.seq_len, s.context * smallest_factor(s.tensor, t.micro_batch)));
  }
}

/// Context parallelism as Transformer Engine accepts it.
void check_context(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  const bool ring = s.context_exchange == ContextExchange::ring;
  if (s.context_all_to_all > 1 &&
      (!ring || s.context % s.context_all_to_all != 0 || s.context_all_to_all >= s.context)) {
    f.add("strategy.context_all_to_all", "groups of {} in a {} of {}", s.context_all_to_all,
          to_text(s.context_exchange), s.context);
    f.hint("legal with context_exchange: ring: a divisor of context below it");
    return;
  }
  if (s.context == 1) return;
  if (s.attention != AttentionKernel::flash)
    f.add("strategy.attention", "context parallelism needs flash attention"), f.hint("legal: flash");
  if (j.model.mla)
    f.add("strategy.context", "context parallelism with latent attention cannot be planned yet"), f.hint("legal: 1");
  if (has_units(s) && s.fsdp.reshard_after_forward > 1)
    f.add("strategy.fsdp.reshard_after_forward", "to groups of {} beside context parallelism cannot be planned yet",
          s.fsdp.reshard_after_forward),
        f.hint("legal: true, false");
  if (ring && attention_window(j) > 0)
    f.add("strategy.context_exchange", "a ring knows no sliding window"), f.hint("legal: all_gather, all_to_all");
  if (ring && s.context / s.context_all_to_all > 254)
    f.add("strategy.context", "a ring of {} ranks", s.context / s.context_all_to_all), f.hint("legal: up to 254");
  const int64_t cut = ring ? s.context_all_to_all : s.context_exchange == ContextExchange::all_to_all ? s.context : 1;
  const int64_t heads = j.model.heads / s.tensor, kv_heads = std::max<int64_t>(1, j.model.kv_heads / s.tensor);
  if (heads % cut != 0 || kv_heads % cut != 0) {
    f.add(ring ? "strategy.context_all_to_all" : "strategy.context",
          "{} heads and {} key/value heads of a tensor rank do not divide over {} ranks", heads, kv_heads, cut);
    f.hint(nearest_divisors(std::gcd(heads, kv_heads), cut));
  }
}

/// Whether the layers left beside stages of `first` and `last` layers (0: not fixed) divide over the others.
bool divides(const JobSpec& j, int64_t first, int64_t last) {
  const auto& s = j.strategy;
  const int64_t others = s.pipeline - (first > 0) - (last > 0), rest = j.model.layers - first - last;
  if (rest < 0 || others < 0) return false;
  return others == 0 ? rest == 0 : rest >= others * s.virtual_stages && rest % (others * s.virtual_stages) == 0;
}

/// first_stage_layers and last_stage_layers, each in the name of the key that the job says.
void check_fixed_stages(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  const bool first = s.first_stage_layers > 0;
  const std::string key = first ? "strategy.first_stage_layers" : "strategy.last_stage_layers";
  if (s.pipeline == 1) {
    f.add(key, "an uneven split needs pipeline > 1");
    f.hint("legal: 0");
  } else if (!divides(j, s.first_stage_layers, s.last_stage_layers)) {
    const int64_t others = s.pipeline - first - (s.last_stage_layers > 0);
    f.add(key, "the {} layers left of {} do not divide over the {} other stages x {} virtual_stages",
          j.model.layers - s.first_stage_layers - s.last_stage_layers, j.model.layers, others, s.virtual_stages);
    std::vector<int64_t> legal;
    constexpr size_t kShown = 8;
    for (int64_t n = s.virtual_stages; n <= j.model.layers && legal.size() < kShown; n += s.virtual_stages)
      if (first ? divides(j, n, s.last_stage_layers) : divides(j, 0, n)) legal.push_back(n);
    f.hint(legal.empty() ? "no number of layers divides here: change pipeline or virtual_stages"
                         : fmt::format("legal: {}", fmt::join(legal, ", ")));
  }
  for (const auto& [name, n] : {std::pair{"strategy.first_stage_layers", s.first_stage_layers},
                                std::pair{"strategy.last_stage_layers", s.last_stage_layers}})
    if (n % s.virtual_stages != 0)
      f.add(name, "{} layers do not divide over virtual_stages = {}", n, s.virtual_stages),
          f.hint(nearest_multiples(n, s.virtual_stages));
}

/// " or ..." where counting the embedding and the loss as layers makes the split even: nothing where it does not.
std::string counted_ends(const JobSpec& j, int64_t stages) {
  if (j.strategy.account_for_embedding || j.strategy.account_for_loss || j.model.layers < stages) return "";
  if ((j.model.layers + 1) % stages == 0) return "; or account_for_loss: true, or account_for_embedding: true";
  if ((j.model.layers + 2) % stages == 0) return "; or account_for_embedding: true with account_for_loss: true";
  return "";
}

void check_pipeline(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  const int64_t stages = s.pipeline * s.virtual_stages;
  if (!find_schedule(s.schedule)) {
    std::vector<std::string_view> names;
    for (const Schedule* k : all_schedules()) names.push_back(k->name);
    f.add("strategy.schedule", "unknown schedule '{}'", s.schedule);
    f.hint(fmt::format("legal: {}", fmt::join(names, ", ")));
  }
  const Schedule* schedule = find_schedule(s.schedule);
  const bool split = schedule && schedule->splits_backward;
  const bool zigzag = schedule && schedule->placement == plan::PlacementKind::zigzag;
  if (split && s.recompute.kind == RecomputeKind::full)
    f.add("strategy.recompute.kind",
          "full recompute with schedule {}, which splits the backward, cannot be planned yet", s.schedule),
        f.hint("legal: none, selective");
  if (split && (has_units(s) || s.data_parallel == DataParallel::zero1))
    f.add("strategy.data_parallel", "{} with schedule {}, which splits the backward, cannot be planned yet",
          to_text(s.data_parallel), s.schedule),
        f.hint("legal: ddp, megatron, distributed_optimizer");
  if (split && (j.model.moe || j.model.mla))
    f.add("strategy.schedule", "{} splits the backward, which layers of {} cannot be planned with yet", s.schedule,
          j.model.moe ? "experts" : "latent attention"),
        f.hint("legal: 1f1b, interleaved, gpipe");
  if (split && j.training.compute_dtype == DType::f8)
    f.add("training.precision", "fp8 products with schedule {}, which splits the backward, cannot be planned yet",
          s.schedule),
        f.hint("legal: bf16, fp16, fp32");
  if (zigzag && j.model.tied_embeddings)
    f.add("model.tied_embeddings",
          "schedule {} has the embedding and the head on one rank as two chunks: tables that "
          "they share cannot be planned yet",
          s.schedule),
        f.hint("legal: false");
  if (zigzag && (s.first_stage_layers > 0 || s.last_stage_layers > 0 || s.account_for_embedding || s.account_for_loss))
    f.add("strategy.first_stage_layers", "uneven stages with schedule {} cannot be planned yet", s.schedule),
        f.hint("legal: 0, account_for_embedding: false, account_for_loss: false");
  if (s.experts.overlap_passes) {
    const std::string key = "strategy.experts.overlap_passes";
    if (!j.model.moe || s.expert * std::max<int64_t>(1, s.experts.tensor) == 1)
      f.add(key, "there is no exchange of experts to hide"), f.hint("legal: false, or expert: 2 or more");
    if (schedule && (!schedule->pairs || (s.schedule == "1f1b" && s.pipeline > 1)))
      f.add(key,
            "pairs of a forward and a backward need virtual stages (Megatron asserts this), and schedule {} has none",
            s.schedule),
          f.hint("legal: schedule: interleaved, or pipeline: 1");
    if (s.recompute.kind == RecomputeKind::full)
      f.add(key, "with full recompute (Megatron refuses it)"), f.hint("legal: recompute: none, selective");
    if (has_units(s)) f.add(key, "with sharded units cannot be planned yet"), f.hint("legal: false");
  }
  if (schedule && schedule->reads_file && s.schedule_file.empty())
    f.add("strategy.schedule_file", "schedule {} reads a table, and none is given", s.schedule),
        f.hint("legal: a path to a CSV file");
  if (s.virtual_stages > 1 && s.pipeline == 1)
    f.add("strategy.virtual_stages", "{} virtual stages need pipeline > 1", s.virtual_stages), f.hint("legal: 1");
  const int64_t extra = (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0);
  const bool fixed = s.first_stage_layers > 0 || s.last_stage_layers > 0;
  if (fixed && extra > 0)
    f.add("strategy.first_stage_layers", "cannot be combined with account_for_embedding or account_for_loss");
  if (!s.pipeline_layout.empty()) {
    if (fixed || extra > 0)
      f.add("strategy.pipeline_layout", "says the layers of every stage"),
          f.hint("remove first_stage_layers, last_stage_layers, account_for_embedding and account_for_loss");
    else if (const auto layers = layers_of_layout(j); !layers)
      f.add(layers.errors());
    return;
  }
  const int64_t units = j.model.layers + extra;
  if (!fixed && units % stages != 0) {
    const bool chunks = units % s.pipeline == 0;  // else no number of chunks helps
    f.add(chunks ? "strategy.virtual_stages" : "strategy.pipeline",
          "{} layers{} do not divide over {} stages (pipeline {} x virtual_stages {})", j.model.layers,
          extra ? fmt::format(" + {} for embedding and loss", extra) : "", stages, s.pipeline, s.virtual_stages);
    const std::string legal = chunks ? nearest_divisors(units / s.pipeline, s.virtual_stages)
                              : units % s.virtual_stages == 0
                                  ? nearest_divisors(units / s.virtual_stages, s.pipeline)
                                  : fmt::format("pipeline x virtual_stages must divide {}", units);
    f.hint(legal + (zigzag ? "" : counted_ends(j, stages)));
  }
  if (fixed) check_fixed_stages(j, f);
}

/// Layers of the longest model chunk, of a split that check_pipeline lets pass.
int64_t longest_chunk(const JobSpec& j) {
  const auto& s = j.strategy;
  if (!s.pipeline_layout.empty()) {
    const auto layers = layers_of_layout(j);
    return layers ? *std::max_element(layers.value().begin(), layers.value().end()) : 0;
  }
  const int64_t extra = (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0);
  if (s.first_stage_layers == 0 && s.last_stage_layers == 0)
    return (j.model.layers + extra) / (s.pipeline * s.virtual_stages);
  const int64_t others = s.pipeline - (s.first_stage_layers > 0) - (s.last_stage_layers > 0);
  const int64_t rest = j.model.layers - s.first_stage_layers - s.last_stage_layers;
  return std::max({s.first_stage_layers, s.last_stage_layers, others > 0 ? rest / others : 0}) / s.virtual_stages;
}

/// Whether a chunk holds the embedding or the head alone.
bool has_bare_end(const JobSpec& j) {
  const auto& s = j.strategy;
  if (!s.pipeline_layout.empty()) {
    const auto layers = layers_of_layout(j);
    return layers && *std::min_element(layers.value().begin(), layers.value().end()) == 0;
  }
  return (s.account_for_embedding || s.account_for_loss) && longest_chunk(j) == 1;
}

void check_data(const JobSpec& j, Faults& f) {
  const auto& s = j.strategy;
  if (s.overlap_param_gather && s.data_parallel != DataParallel::distributed_optimizer)
    f.add("strategy.overlap_param_gather", "needs data_parallel: distributed_optimizer");
  else if (s.overlap_param_gather && !s.overlap_grad_reduce)
    f.add("strategy.overlap_param_gather", "needs overlap_grad_reduce: true");
  if (s.keep_gathered && s.tensor > 1 && !s.sequence_parallel)
    f.add("strategy.keep_gathered", "needs sequence_parallel: true");
  if (s.keep_gathered && j.training.compute_dtype == DType::f8)
    f.add("strategy.keep_gathered", "fp8 products keep 8-bit shards"), f.hint("legal: false");
  if (j.training.fused_loss && j.training.loss == LossKind::full_vocabulary)
    f.add("training.fused_loss", "the fused loss is vocabulary-parallel"), f.hint("legal: loss: vocabulary_parallel");
  if (s.gradient_copies == GradientCopies::narrow && s.gradient_dtype != DType::f32)
    f.add("strategy.gradient_copies", "narrow makes 16-bit copies of fp32 gradients"),
        f.hint("legal: gradient_dtype: fp32");
  if (s.gradient_copies == GradientCopies::flat_step &&
      (s.data_parallel != DataParallel::megatron || s.gradient_dtype == DType::f32))
    f.add("strategy.gradient_copies", "flat_step is for 16-bit gradients of data_parallel: megatron");
  if (s.tensor_overlap && s.tensor > 1 && !s.sequence_parallel)
    f.add("strategy.tensor_overlap", "needs sequence_parallel: true");
  if (s.data_parallel == DataParallel::zero1 && s.overlap_grad_reduce)
    f.add("strategy.overlap_grad_reduce", "zero1 reduces at the accumulation boundary"), f.hint("legal: false");
  f.add(check_recompute_modules(j));
  if (s.recompute.kind == RecomputeKind::full && s.recompute.layers < 1)
    f.add("strategy.recompute.layers", "must be at least 1");
  if (s.recompute.kind == RecomputeKind::full && s.recompute.layers > 30000)
    f.add("strategy.recompute.layers", "{} is out of range", s.recompute.layers);
  if (s.recompute.every > 1 && (s.recompute.method != RecomputeMethod::uniform || s.recompute.layers != 1))
    f.add("strategy.recompute.every", "{}: every n-th layer is a checkpoint of its own", s.recompute.every),
        f.hint("legal: with method: uniform, layers: 1");
  if ((j.training.loop.evaluate_every > 0) != (j.training.loop.evaluation_batches > 0))
    f.add("training.loop", "evaluations need both: evaluate_every and evaluation_batches");
  const int64_t chunk = longest_chunk(j);  // 0: there is no such split, which is a fault of its own
  if (s.recompute.kind == RecomputeKind::full && s.recompute.method == RecomputeMethod::block && chunk > 0 &&
      s.recompute.layers > chunk) {
    f.add("strategy.recompute.layers", "block recompute of {} layers in chunks of {}", s.recompute.layers, chunk);
    f.hint(fmt::format("legal: 1 to {}", chunk));
  }
  if (j.cluster.device.peak.find(j.training.compute_dtype) == j.cluster.device.peak.end()) {
    std::vector<std::string_view> have;
    for (const auto& [dtype, peak] : j.cluster.device.peak)
      if (dtype != DType::f64) have.push_back(spelled(dtype));  // nobody trains in it: no legal precision
    f.add("training.precision", "{} has no {} matrix products", j.cluster.device.name,
          spelled(j.training.compute_dtype));
    f.hint(fmt::format("legal: {}", fmt::join(have, ", ")));
  }
}

/// Products and the weights they read. Any other pair would be priced as something that it is not.
void check_precision(const JobSpec& j, Faults& f) {
  const TrainingSpec& t = j.training;
  const DataParallel kind = j.strategy.data_parallel;
  const bool fsdp = kind == DataParallel::fsdp || kind == DataParallel::fsdp2;
  if (t.fp8_params && t.compute_dtype != DType::f8)
    f.add("training.fp8_params", "has no effect without precision: fp8"), f.hint("legal: false");
  else if (t.fp8_params && (!t.master_weights || !(kind == DataParallel::megatron || kind == DataParallel::ddp ||
                                                   kind == DataParallel::distributed_optimizer)))
    f.add("training.fp8_params", "8-bit weights with data_parallel: {}{} cannot be planned", to_text(kind),
          t.master_weights ? "" : " and no master weights"),
        f.hint("legal: false, or data_parallel: megatron, distributed_optimizer with master_weights: true");
  bool legal = false;
  switch (t.compute_dtype) {
    case DType::f32: legal = t.param_dtype == DType::f32; break;
    case DType::f8: legal = t.param_dtype == DType::bf16 || t.param_dtype == DType::f16; break;
    case DType::bf16:
    case DType::f16: legal = t.param_dtype == t.compute_dtype || (fsdp && t.param_dtype == DType::f32); break;
    default: break;
  }
  if (legal) return;
  f.add("training.param_dtype", "{} weights under {} products cannot be planned with data_parallel: {}",
        spelled(t.param_dtype), spelled(t.compute_dtype), to_text(kind));
  f.hint(
      "legal as compute_dtype with param_dtype: bf16 with bf16, fp16 with fp16, fp8 with bf16 or fp16, fp32 with "
      "fp32 (master_weights: true keeps fp32 copies in the optimizer); data_parallel: fsdp and fsdp2 also keep fp32 "
      "weights and gather them in bf16 or fp16");
}

/// Byte counts of a plan are 64-bit integers: refuses what they could not hold, long before a device could.
void check_size(const JobSpec& j, Faults& f) {
  const auto& m = j.model;
  const auto& t = j.training;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  double width = number(std::max({m.hidden, 2 * m.ffn_hidden, m.heads * m.head_dim}));
  if (j.strategy.attention == AttentionKernel::unfused) width = std::max(width, number(m.heads) * number(t.seq_len));
  const double elements = number(t.global_batch) * number(t.seq_len) * (number(m.layers) * width + number(m.vocab));
  constexpr double kBytesOfAll = 16;  // of every tensor of a layer as wide as the widest, kept to the end of the step
  if (elements * kBytesOfAll > 0x1p62)
    f.add("training", "{} sequences of {} tokens through {} layers of width {:.0f} are more bytes than can be counted",
          t.global_batch, t.seq_len, m.layers, width);
}

/// What the frameworks refuse, and what cannot be planned yet.
void check_units(const JobSpec& j, Faults& f) {
  const StrategySpec& s = j.strategy;
  const FsdpSpec& u = s.fsdp;
  const bool fsdp2 = s.data_parallel == DataParallel::fsdp2, torch = fsdp2 || s.data_parallel == DataParallel::fsdp;
  if (!torch && u != FsdpSpec{})
    f.add("strategy.fsdp", "has no effect with data_parallel: {}", to_text(s.data_parallel)),
        f.hint("remove it, or data_parallel: fsdp, fsdp2");
  if (s.data_parallel != DataParallel::zero3 && s.zero != ZeroSpec{})
    f.add("strategy.zero", "has no effect with data_parallel: {}", to_text(s.data_parallel)),
        f.hint("remove it, or data_parallel: zero3");
  if (s.data_parallel == DataParallel::zero3 && s.zero.secondary_shard > 1 && data_ranks(j) != 0) {
    const int64_t ranks = data_ranks(j) * s.context;
    if (ranks % s.zero.secondary_shard != 0 || s.zero.secondary_shard >= ranks) {
      f.add("strategy.zero.secondary_shard", "groups of {} are not smaller parts of {} data-parallel ranks",
            s.zero.secondary_shard, ranks);
      f.hint(nearest_divisors(ranks, s.zero.secondary_shard));
    }
  }
  if (!has_units(s)) return;
  if (s.pipeline > 1) {
    if (!torch)
      f.add("strategy.pipeline", "DeepSpeed's pipeline engine refuses ZeRO 2 and 3: it runs with stages 0 and 1"),
          f.hint("legal: 1, or data_parallel: zero1");
    if (torch && !u.no_sync)
      f.add("strategy.fsdp.no_sync",
            "torch's pipeline stages reduce gradients once a step, after the last micro-batch"),
          f.hint("legal: true");
    if (torch && has_bare_end(j))
      f.add("strategy.virtual_stages", "a chunk without a layer cannot be cut in units yet"),
          f.hint("fewer virtual stages, or a layout with a layer in each");
    if (torch && u.wrap == WrapKind::model)
      f.add("strategy.fsdp.wrap", "one unit for a stage cannot be planned yet"), f.hint("legal: block, block_and_ends");
    if (torch && j.model.tied_embeddings)
      f.add("model.tied_embeddings", "tables that two stages share cannot be cut in units"), f.hint("legal: false");
  }
  if (j.training.compute_dtype == DType::f8 && !torch)
    f.add("training.precision", "fp8 products of weights that DeepSpeed cuts cannot be planned yet"),
        f.hint("legal: bf16, fp16, fp32");
  if (s.recompute.kind == RecomputeKind::full && s.recompute.method == RecomputeMethod::uniform &&
      s.recompute.layers > 1)
    f.add("strategy.recompute.layers", "{} layers of one checkpoint with units of one layer cannot be planned yet",
          s.recompute.layers),
        f.hint("legal: 1");
  if (!torch) return;
  // Ranks of a sequence share the shards.
  const int64_t data = data_ranks(j) * s.context;
  if (data == 0) return;
  const bool hybrid = u.sharding == ShardingKind::hybrid_shard || u.sharding == ShardingKind::hybrid_shard_zero2;
  if (hybrid && s.context > 1 && shard_sizes(j, data).shard % s.context != 0)
    f.add("strategy.fsdp.shard_size", "shard groups of {} ranks do not hold whole sequences of {}",
          shard_sizes(j, data).shard, s.context),
        f.hint(nearest_multiples(shard_sizes(j, data).shard, s.context));
  if (u.shard_size > 0 && !hybrid)
    f.add("strategy.fsdp.shard_size", "needs sharding: hybrid_shard or hybrid_shard_zero2");
  const int64_t shard = shard_sizes(j, data).shard;
  if (hybrid && data % shard != 0) {
    f.add(u.shard_size > 0 ? "strategy.fsdp.shard_size" : "strategy.fsdp.sharding",
          "{} data-parallel ranks are not a multiple of shard groups of {}", data, shard);
    f.hint(nearest_divisors(data, shard));
  }
  if (fsdp2 && u.sharding != ShardingKind::full_shard && u.sharding != ShardingKind::hybrid_shard) {
    f.add("strategy.fsdp.sharding", "fsdp2 has no {}", to_text(u.sharding));
    f.hint("legal: full_shard, hybrid_shard, with reshard_after_forward: false for what stays gathered");
  }
  if (!fsdp2 && u.reshard_after_forward != 1) {
    f.add("strategy.fsdp.reshard_after_forward", "is fsdp2's: fsdp says it with sharding");
    f.hint("legal: sharding: full_shard, shard_grad_op");
  }
  if (fsdp2 && u.reshard_after_forward > 1 &&
      (shard % u.reshard_after_forward != 0 || u.reshard_after_forward >= shard)) {
    f.add("strategy.fsdp.reshard_after_forward", "groups of {} are not smaller parts of shard groups of {}",
          u.reshard_after_forward, shard);
    f.hint(nearest_divisors(shard, u.reshard_after_forward));
  }
  if (fsdp2 && u.backward_prefetch == BackwardPrefetch::post)
    f.add("strategy.fsdp.backward_prefetch", "fsdp2 has no post"), f.hint("legal: pre, none");
  if (u.keep_last > j.model.layers)
    f.add("strategy.fsdp.keep_last", "{} blocks of {}", u.keep_last, j.model.layers),
        f.hint(fmt::format("legal: 0 to {}", j.model.layers));
}

}  // namespace

Diagnostics check_job(const JobSpec& job) {
  Faults f;
  const auto& s = job.strategy;
  for (const auto& [key, n] :
       {std::pair{"strategy.tensor", s.tensor},
        std::pair{"strategy.pipeline", s.pipeline},
        std::pair{"strategy.context", s.context},
        std::pair{"strategy.expert", s.expert},
        std::pair{"strategy.virtual_stages", s.virtual_stages},
        std::pair{"strategy.context_all_to_all", s.context_all_to_all},
        std::pair{"training.micro_batch", job.training.micro_batch},
        std::pair{"training.global_batch", job.training.global_batch},
        std::pair{"training.vocab_multiple", job.training.vocab_multiple},
        std::pair{"model.layers", job.model.layers},
        std::pair{"model.hidden", job.model.hidden},
        std::pair{"model.heads", job.model.heads},
        std::pair{"model.kv_heads", job.model.kv_heads},
        std::pair{"model.head_dim", job.model.head_dim},
        std::pair{"model.vocab", job.model.vocab},
        std::pair{"model.ffn_hidden", has_layers(job.model, LayerKind::dense) ? job.model.ffn_hidden : int64_t{1}},
        std::pair{"model.moe.experts", job.model.moe ? job.model.moe->experts : int64_t{1}},
        std::pair{"model.moe.top_k", job.model.moe ? job.model.moe->top_k : int64_t{1}},
        std::pair{"model.moe.ffn_hidden", job.model.moe ? job.model.moe->ffn_hidden : int64_t{1}},
        std::pair{"model.moe.layer_period", job.model.moe ? job.model.moe->layer_period : int64_t{1}},
        std::pair{"cluster.nodes", job.cluster.nodes},
        std::pair{"cluster.node.devices", job.cluster.node.devices}}) {
    if (n < 1) f.add(key, "must be at least 1, got {}", n);
    if (n > (int64_t{1} << 31)) f.add(key, "{} is out of range", n);
  }
  Diagnostics basic = f.take();
  if (!basic.empty()) return basic;
  check_model(job, f);
  check_world(job, f);
  check_batch(job, f);
  check_context(job, f);
  check_pipeline(job, f);
  check_data(job, f);
  check_precision(job, f);
  check_units(job, f);
  f.add(offload_faults(job));
  check_size(job, f);
  return f.take();
}

}  // namespace wt::lower
