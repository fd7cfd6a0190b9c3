// What every lowering pass knows: the job, the plan being built, the sizes of one rank's share and the ids of the buffers.
// Passes talk to each other only through this. No behaviour beyond making buffers.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/lower/block_builder.hpp"
#include "core/lower/buffer_ids.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::lower {

/// One rank's share of everything.
struct Sizes {
  int64_t t = 1, p = 1, v = 1, dp = 1;  // tensor, pipeline, virtual stages; ranks with the same weights: data x context
  int64_t cp = 1;                       // ranks of a sequence, of which
  int64_t ring = 1, heads_cut = 1;      // see each other's keys; exchange heads (context.cpp): cp = ring * heads_cut
  int64_t b = 1, s = 1, tokens = 1;     // sequences of a micro-batch, a rank's tokens of each, b * s
  int64_t rows = 1;                     // rows of a hidden state: tokens, or tokens / t with sequence parallelism
  int64_t h = 1, d = 1;                 // hidden, head dimension
  int64_t heads = 1, kv_heads = 1;      // of this rank
  int64_t qkv = 1, attention = 1;       // columns of the packed q,k,v and of the attention output
  int64_t ffn = 1, fc1 = 1;             // MLP width of this rank; columns of the first product (2 ffn if gated)
  int64_t vocab = 1, padded_vocab = 1;  // rows of the embedding shard; of the whole padded table
  int64_t micro_batches = 1;
  bool sequence_parallel = false;
  // Experts: of the model, chosen by a token, of this rank; ranks that share them, that cut one, that hold copies of one.
  int64_t experts = 0, top_k = 0, local_experts = 0, ep = 1, etp = 1, edp = 1;
  int64_t capacity = 0;                    // slots that one rank has for one expert
  int64_t slots = 0, expert_rows = 0;      // of all experts on one rank; rows that come to the experts of a rank
  int64_t expert_ffn = 0, expert_fc1 = 0;  // of one expert on this rank, as ffn and fc1
  int64_t shared_ffn = 0, shared_fc1 = 0;  // of the shared expert on this rank; 0: none
  int64_t document = 0;                    // tokens of packed documents; 0: a sequence is one
  bool separate_experts = false;           // their gradients are reduced over other ranks than those of the rest
};

/// Part of a model chunk with what lowering must remember beside plan::Part.
struct ChunkPart {
  PartId id;
  bool embedding = false, head = false;
  int64_t layers = 0;
  int64_t mtp = 0;                       // the last of them: each of a depth of multi-token prediction, behind the head
  bool split_buckets = false;            // gradients are reduced bucket by bucket inside the backward
  bool receives = false, sends = false;  // from the previous, to the next stage
  bool back = false;                     // on a V's way back
  bool tied_copy = false;                // last stage's copy of the embedding table
  std::vector<LayerKind> kinds;          // of each layer
  int64_t stack() const { return layers - mtp; }
  struct Instance {
    int parameter;
    int64_t layer;
    int64_t offset;
  };  // offset in its bucket
  struct Bucket {
    std::vector<Instance> members;  // in the order in which gradients become ready
    int64_t elements = 0;           // padded
    bool expert = false;            // of experts: reduced over the copies of those
    bool narrow_weights = false;    // 8-bit weights (fp8_params)
    bool on_host = false;           // updated by the host
    BufferId gradient, weight, gradient_shard, weight_shard, master, moment1, moment2, main_gradient;
    BufferId low_gradient;  // beside fp32 gradients: what autograd made, in the dtype of the weights
    // PyTorch DDP: the bucket beside gradients that are no views of it; what a hook sends in its place.
    BufferId bucket, half, error, left, right;
    struct Matrix {  // that PowerSGD sends as P [n, r] and Q [m, r]: views of left and right; of the bucket, of error
      int64_t n, m;
      BufferId gradient, p, q, error;
    };
    std::vector<Matrix> matrices;
    std::vector<BufferId> vectors;  // views of what it sends as it is
    BufferId flat, wide, narrow;    // copies of GradientCopies: of the bucket, in fp32, in the dtype of the weights
    BufferId flat_step, list_step, clone;  // of the owned part: for the update, for the master weights
    HostSide host;
  };
  BufferId used;                   // DDP's map of parameters that took part (find_unused_parameters)
  BufferId frozen, frozen_packed;  // weights that are not trained, as kernels read them, and in 4 bits
  BufferId norm_copy;              // the largest owned gradient in 64 bits
  // DeepSpeed handles what the rank owns in one piece: cloned for the master weights, flattened and in fp32 for the update.
  BufferId clone, first_step, step_flat, step_list, step_main;
  BufferId narrow;              // all gradients in the dtype of the weights, for the reduction
  BufferId accumulated;         // the largest gradient of one micro-batch in fp32, before it is added
  BufferId kept_outputs;        // logits that the pipeline engine keeps
  std::vector<Bucket> buckets;  // bucket 0: the last parameters
  // What the offloaded layers saved, of the forward that is built first, for the backward.
  std::shared_ptr<std::map<int64_t, std::vector<BufferId>>> offloaded =
      std::make_shared<std::map<int64_t, std::vector<BufferId>>>();
  std::vector<Unit> units;  // instead of buckets where units are sharded: those of a layer, then the root's
  // Of the first and the last micro-batch, where those differ from the others.
  BlockId forward, forward_first, backward, backward_first, backward_last;
  BlockId backward_input, backward_weight, backward_weight_last;  // of schedules that split the backward
  BlockId load, build, master, moments, outputs, narrow_weights, zero, reduce, tail, sum_squares, update, gather;
};

struct Context {
  const JobSpec& job;
  plan::Plan& plan;
  Sizes n{};
  DType act = DType::bf16;  // activations and the weights that compute reads
  DType grad = DType::f32;  // gradient accumulation buffer and wire; of units: as autograd makes them
  GroupId tp{}, dp{}, pp{}, world{}, model{}, embedding{};  // dp: ranks with the same weights
  GroupId cp{}, ring{}, heads{};                            // invalid without context parallelism
  GroupId shard{}, replicas{}, near{};  // of units: over which they are cut, copied, cut again after the forward
  GroupId norm{};                       // ranks whose gradients differ
  GroupId ep{}, etp{}, edp{};  // experts: ranks that share them, that cut one, that hold copies; invalid: one rank
  GroupId expert_peers{}, expert_norm{};  // ep and etp together; ranks whose gradients of experts differ
  bool freezing = false;                  // parameters that are made now are not trained
  bool fresh_gradients = false;           // products write gradients, they do not add to them
  std::vector<Parameter> parameters{};
  ParameterIds id{};
  LayerBuffers saved{}, remade{};
  std::array<RemadeOps, 2> remade_ops{};  // by LayerKind
  TransientBuffers tmp{};
  LatentTransients latent{};
  ExpertTransients expert{};
  ContextTransients exchange{};
  std::array<Adapter, kProducts> adapters{};
  std::map<uint32_t, BufferId> on_host{};  // the host's copy of a saved activation
  std::vector<BufferId> handed{};          // made by input gradients, read by weight gradients in a block of their own
  EdgeBuffers edge{};
  std::vector<MultiToken> mtp{};
  BufferId grad_norm{}, expert_grad_norm{}, overflow{};
  BufferId host_norm{};  // the norm in host memory, where the update reads it
  std::vector<ChunkPart> parts{};

  const ModelSpec& model_spec() const { return job.model; }
  const StrategySpec& strategy() const { return job.strategy; }
  const TrainingSpec& training() const { return job.training; }

  BufferId add_buffer(plan::Buffer b) {
    plan.buffers.push_back(std::move(b));
    return {static_cast<uint32_t>(plan.buffers.size() - 1)};
  }
  /// One for each layer.
  BufferId add_layer_buffer(std::string name, plan::Role role, plan::Scope scope, DType dtype,
                            std::vector<int64_t> shape) {
    plan::Buffer b;
    b.name = std::move(name);
    b.role = role;
    b.dtype = dtype;
    b.scope = scope;
    b.per_layer = true;
    b.shape = std::move(shape);
    return add_buffer(std::move(b));
  }
  BlockId add_block(plan::Block b) {
    if (b.ops.empty()) return {};
    plan.blocks.push_back(std::move(b));
    return {static_cast<uint32_t>(plan.blocks.size() - 1)};
  }
  bool has(int parameter) const { return parameter >= 0; }
  /// Layers of this kind have the parameter, which is of layers.
  bool of_layer(int parameter, LayerKind kind) const {
    const std::optional<LayerKind> of = parameters[static_cast<size_t>(parameter)].of;
    return !of || *of == without_window(kind);
  }
  /// Ranks that hold copies of what a bucket holds.
  int64_t copies(const ChunkPart::Bucket& k) const { return k.expert ? n.edp : n.dp; }
  GroupId copies_group(const ChunkPart::Bucket& k) const { return k.expert ? edp : dp; }
  bool replicated() const { return n.dp > 1 || (n.separate_experts && n.edp > 1); }
  plan::BufferRef weight(int parameter, int layer_offset = 0) const {
    return {parameters[static_cast<size_t>(parameter)].weight, static_cast<int16_t>(layer_offset), 0};
  }
  /// The weight as matrix products read it.
  plan::BufferRef operand(int parameter, int layer_offset = 0) const {
    const Parameter& q = parameters[static_cast<size_t>(parameter)];
    return {q.narrow.valid() ? q.narrow : q.weight, static_cast<int16_t>(layer_offset), 0};
  }
  /// Whether the weight gradient of a product, or its adapter's, reads what the product read.
  bool keeps_input(int parameter, Product p) const {
    return !frozen(parameter) || adapters[static_cast<size_t>(p)].rank > 0;
  }
  bool frozen(int parameter) const { return parameter >= 0 && parameters[static_cast<size_t>(parameter)].frozen; }
  bool narrow() const { return job.training.compute_dtype == DType::f8; }
  plan::BufferRef gradient(int parameter, int layer_offset = 0) const {
    return {parameters[static_cast<size_t>(parameter)].gradient, static_cast<int16_t>(layer_offset), 0};
  }
};

/// Of the weights in a bucket.
inline DType weight_dtype(const Context& c, const ChunkPart::Bucket& k) { return k.narrow_weights ? DType::f8 : c.act; }
/// Times that a 16-bit tensor is read to make its 8-bit copies: a scale of its own maximum needs a pass before the cast.
inline int64_t narrowing_passes(const Context& c) { return c.training().fp8_recipe == Fp8Recipe::current ? 2 : 1; }
/// Calls f(first, layers, kind) for each run of layers of one kind.
template <class F>
void each_run(const ChunkPart& part, F&& f) {
  for (size_t i = 0, end = 0; i < part.kinds.size(); i = end) {
    while (end < part.kinds.size() && part.kinds[end] == part.kinds[i]) ++end;
    f(static_cast<int64_t>(i), static_cast<int64_t>(end - i), part.kinds[i]);
  }
}

/// Standard deviations of initial weights; of those that write to the residual stream.
inline constexpr double kSigma = 0.02;
inline double output_sigma(const ModelSpec& m) { return kSigma / std::sqrt(2.0 * static_cast<double>(m.layers)); }

inline plan::BufferRef ref(BufferId b, int64_t layer_offset = 0) { return {b, static_cast<int16_t>(layer_offset), 0}; }

// --- passes, in the order lower() runs them ----------------------------------------------------------------------

/// What a strategy finds at fault in a job: (key, what, hint).
struct JobFault {
  std::string key, what, hint;
};
/// Every illegal or contradictory number of the job, in its key names. core/lower/check.cpp
Diagnostics check_job(const JobSpec& job);
/// Sizes, mesh, groups, parameters and activation buffers. core/lower/buffers.cpp
void make_buffers(Context&);
/// Layers of each global stage. core/lower/partition.cpp
std::vector<int64_t> layers_of_stages(const JobSpec&, const plan::Placement&);
/// The same as StrategySpec::pipeline_layout says, or what is wrong with it.
Result<std::vector<int64_t>> layers_of_layout(const JobSpec&);

/// core/lower/strategies/tensor.cpp: entering and leaving the regions whose weights are cut over the tensor group.
/// How a collective and the product beside it share time: `apart`: the product waits for it (or it for the product) unless
/// the order of issue puts another product between them; `cut`: both are cut in pieces (user buffers).
enum class Beside : uint8_t { apart, cut };
/// What a column-parallel product reads: gathered under sequence parallelism.
plan::BufferRef enter_region(BlockBuilder&, const Context&, plan::BufferRef x, plan::BufferRef x_full, plan::Phase,
                             Beside = Beside::apart);
/// The sum of the partial outputs of a row-parallel product: scattered rows or all rows.
plan::BufferRef leave_region(BlockBuilder&, const Context&, plan::BufferRef partial, plan::BufferRef sum, plan::Phase,
                             Beside = Beside::apart);
/// Pieces of a product that gathers its input piece by piece (1: not cut).
int64_t gather_pieces(const Context&);
/// Pieces of a product whose output is reduced and scattered piece by piece.
int64_t scatter_pieces(const Context&);

/// core/lower/strategies/experts.cpp: layers of experts and expert parallelism.
LayerKind kind_of(const ModelSpec&, int64_t layer);
bool has_layers(const ModelSpec&, LayerKind);
std::vector<JobFault> expert_faults(const JobSpec&);
void make_expert_sizes(Context&);
/// Cuts the axes of the mesh where the grid of experts needs it, and makes its groups.
void make_expert_groups(Context&);
void make_expert_parameters(Context&);
void make_expert_layer(Context&, LayerBuffers&, const std::string& suffix, plan::Scope);
void make_expert_transients(Context&);
/// From the rows after the norm to what is added to the residual, and the gradient of those rows.
plan::BufferRef experts_forward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::Phase,
                                plan::BufferRef x, bool to_last_kept);
plan::BufferRef experts_backward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::BufferRef x,
                                 plan::BufferRef d);
/// core/lower/strategies/latent.cpp: multi-head latent attention.
void make_latent_sizes(Context&);
void make_latent_parameters(Context&);
void make_latent_layer(Context&, LayerBuffers&, const std::string& suffix, plan::Scope);
void make_latent_transients(Context&);
/// From the rows after the norm to the attention output, and from the gradient of that to the gradient of those rows.
void latent_forward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::Phase, plan::BufferRef x);
plan::BufferRef latent_backward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::BufferRef x,
                                plan::BufferRef d);
/// core/lower/buffers.cpp
int add_parameter(Context&, std::string name, std::vector<int64_t> shape, std::vector<plan::Shard>, bool per_layer,
                  plan::Init, double scale);
/// core/lower/strategies/context.cpp: attention over a sequence that several ranks share.
void make_context_sizes(Context&);
void make_context_layer(Context&, LayerBuffers&, const std::string& suffix, plan::Scope kept);
void make_context_transients(Context&);
/// From attention_in to `out`, and what the backward needs; and from the gradient of `out` to that of attention_in.
void context_attention_forward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::Phase,
                               plan::BufferRef out);
void context_attention_backward(BlockBuilder&, const Context&, const LayerBuffers&, int j, plan::BufferRef d_out,
                                plan::BufferRef d_qkv);
/// core/lower/strategies/packing.cpp: tokens of the documents that attention is planned with; 0: a sequence is one.
int64_t document_length(const JobSpec&);
std::vector<JobFault> packing_faults(const JobSpec&);
void note_packing(const JobSpec&, std::vector<std::string>& out);
/// core/lower/strategies/chunked_loss.cpp: head and cross entropy in one, a piece of the tokens at a time.
std::vector<JobFault> chunked_loss_faults(const JobSpec&);
void make_loss_pieces(Context&);
void place_loss_pieces(Context&, const ChunkPart&);
void chunked_head_forward(BlockBuilder&, const Context&);
/// The gradient of what the final norm wrote.
plan::BufferRef chunked_head_backward(BlockBuilder&, const Context&);
/// Window of attention in tokens that has an effect on every layer; 0: none.
int64_t attention_window(const JobSpec&);
/// Whether the layer, unlike others of the model, sees no farther than the window. Not with context parallelism.
bool has_window(const JobSpec&, int64_t layer);

/// core/lower/strategies/adapters.cpp: weights that are not trained, and low-rank adapters beside them.
std::vector<JobFault> adapter_faults(const JobSpec&);
void note_adapters(const Context&, std::vector<std::string>& out);
/// Marks what is frozen and adds the adapters' parameters; after all others are made.
void make_adapter_parameters(Context&);
void make_adapter_layer(Context&, LayerBuffers&, const std::string& suffix, plan::Scope);
void make_adapter_transients(Context&);
/// y += what the adapter makes of x; d_in += its share of the input's gradient; the gradients of A and B.
void adapter_forward(BlockBuilder&, const Context&, const LayerBuffers&, Product, int j, plan::Phase, plan::BufferRef x,
                     plan::BufferRef y);
void adapter_input(BlockBuilder&, const Context&, const LayerBuffers&, Product, int j, plan::BufferRef d_out,
                   plan::BufferRef d_in);
void adapter_weight(BlockBuilder&, const Context&, const LayerBuffers&, Product, int j, plan::BufferRef d_out,
                    plan::BufferRef x);
/// A frozen matrix of a layer is kept in 4 bits. The weight of such a product, made whole before it is read.
void pack_weight(Context&, Parameter&);
void widen_packed(BlockBuilder&, const Context&, int parameter, int j, plan::Phase);

/// core/lower/transformer.cpp: one layer, embedding, head.
void embedding_forward(BlockBuilder&, const Context&);
void embedding_backward(BlockBuilder&, const Context&);
/// to_last_kept: only up to what the backward reads (RecomputeSpec::early_stop); `out` is not written then.
void layer_forward(BlockBuilder&, const Context&, const LayerBuffers&, int j, LayerKind, plan::BufferRef in,
                   plan::BufferRef out, plan::Phase, bool to_last_kept = false);
void layer_backward(BlockBuilder&, const Context&, const LayerBuffers&, int j, LayerKind, plan::BufferRef in,
                    plan::BufferRef d_out, plan::BufferRef d_in);

/// core/lower/head.cpp: from the hidden state to the loss.
/// `loss`: the one that it is added to; invalid: a new one.
void make_head_buffers(Context&, HeadBuffers&, const std::string& suffix, BufferId loss);
void head_forward(BlockBuilder&, const Context&, const ChunkPart&);
void head_backward(BlockBuilder&, const Context&, const ChunkPart&);
/// The loss of normed rows, and their gradient from it. `share`: what a micro-batch's mean counts for (0: 1).
void head_loss(BlockBuilder&, const Context&, const HeadBuffers&, plan::BufferRef x, plan::BufferRef labels,
               double share);
plan::BufferRef head_loss_backward(BlockBuilder&, const Context&, const HeadBuffers&, plan::BufferRef x,
                                   plan::BufferRef labels, double share);

/// core/lower/strategies/multi_token.cpp: multi-token prediction beside the head.
std::vector<JobFault> multi_token_faults(const JobSpec&);
void make_multi_token_parameters(Context&);
void make_multi_token_buffers(Context&);
void place_labels_ahead(Context&, const ChunkPart&);
/// From what the final norm wrote to the losses of all depths.
void multi_token_forward(BlockBuilder&, const Context&, const ChunkPart&);
/// Adds the gradient of what the final norm wrote to `d`.
void multi_token_backward(BlockBuilder&, const Context&, const ChunkPart&, plan::BufferRef d);

/// core/lower/strategies/recompute.cpp: the layer segments of a forward and a backward under the recompute setting.
/// Hooks add ops before or after layers; layers are iterations of one segment where the hooks call them alike.
enum class Way : uint8_t { forward, backward };
struct LayerPlace {
  int64_t layer = 0;
  int offset = 0;                          // from the first layer of the segment
  int64_t item = 0, items = 1, times = 1;  // layer in the iteration, layers of an iteration, iterations
};
struct LayerHooks {
  virtual ~LayerHooks() = default;
  /// Layers of one iteration, and whether two layers do the same.
  virtual int64_t period(Way) const { return 1; }
  virtual bool alike(Way, int64_t, int64_t) const { return false; }
  virtual void before_forward(BlockBuilder&, const LayerPlace&) {}
  virtual void after_forward(BlockBuilder&, const LayerPlace&) {}
  virtual void before_backward(BlockBuilder&, const LayerPlace&) {}
  virtual void after_backward(BlockBuilder&, const LayerPlace&) {}
};
/// Several hooks as one, called in their order.
class HookList final : public LayerHooks {
 public:
  void add(LayerHooks* h) { list_.push_back(h); }
  /// Nothing where there is none.
  LayerHooks* get() { return list_.empty() ? nullptr : list_.size() == 1 ? list_.front() : this; }
  int64_t period(Way) const override;
  bool alike(Way, int64_t, int64_t) const override;
  void before_forward(BlockBuilder&, const LayerPlace&) override;
  void after_forward(BlockBuilder&, const LayerPlace&) override;
  void before_backward(BlockBuilder&, const LayerPlace&) override;
  void after_backward(BlockBuilder&, const LayerPlace&) override;

 private:
  std::vector<LayerHooks*> list_;
};
/// core/lower/strategies/activation_offload.cpp: saved activations on the host between forward and backward.
void make_activation_twins(Context&);
class ActivationHooks final : public LayerHooks {
 public:
  ActivationHooks(const Context& c, const ChunkPart& part) : c_(c), part_(part), saved_(part.offloaded) {}
  bool any() const { return c_.strategy().offload.activation_layers > 0 && part_.layers > 0; }
  int64_t period(Way) const override;
  bool alike(Way, int64_t, int64_t) const override;
  void after_forward(BlockBuilder&, const LayerPlace&) override;
  void before_backward(BlockBuilder&, const LayerPlace&) override;

 private:
  int64_t window() const;
  bool goes(int64_t layer) const;
  int64_t partner(int64_t layer) const;
  int64_t ends_at(int64_t layer) const;
  void move(BlockBuilder&, const std::vector<BufferId>& saved, int64_t offset, bool out);
  const Context& c_;
  const ChunkPart& part_;
  std::shared_ptr<std::map<int64_t, std::vector<BufferId>>> saved_;
};
/// A layer by itself, recomputed as those of the stack are (of whole layers: with `uniform` only, as Megatron does).
void lone_layer_forward(BlockBuilder&, const Context&, int j, LayerKind, plan::BufferRef in, plan::BufferRef out);
void lone_layer_backward(BlockBuilder&, const Context&, int j, LayerKind, plan::BufferRef in, plan::BufferRef d_out,
                         plan::BufferRef d_in);
void layers_forward(BlockBuilder&, const Context&, const ChunkPart&, LayerHooks* hooks);
void layers_backward(BlockBuilder&, const Context&, const ChunkPart&, LayerHooks* hooks);

/// core/lower/strategies/recompute_modules.cpp: named parts of a layer that are run again (RecomputeSpec::modules).
bool recomputes_core_attention(const StrategySpec&);
Diagnostics check_recompute_modules(const JobSpec&);
/// After the buffers are made: what the parts do not keep, and which ops make it again.
void drop_modules(Context&);
/// In a layer's backward, before that of the MLP (stage 0) and of attention (1).
void remake(BlockBuilder&, const Context&, const LayerBuffers&, int j, LayerKind, plan::BufferRef in, int stage);

/// core/lower/strategies/pipeline.cpp: messages between stages. Blocking: compute goes on when what it sent has arrived.
/// How a rank's messages and its compute wait for each other.
enum class P2p : uint8_t {
  overlapped,  // interleaved: both are left to the streams
  blocking,    // one chunk a rank: what a compute sent has arrived before the next compute starts
  paired  // interleaved without overlap: one exchange for a forward and the backward after it, shown at the forward
};
void begin_block(BlockBuilder&, const Context&, P2p);
void receive_input(BlockBuilder&, const Context&, const ChunkPart&, P2p);
void send_output(BlockBuilder&, const Context&, const ChunkPart&);
void receive_gradient(BlockBuilder&, const Context&, const ChunkPart&, P2p);
void send_gradient(BlockBuilder&, const Context&, const ChunkPart&);
/// After the last op of a backward: what the engine kept for this micro-batch.
void release_edges(BlockBuilder&, const Context&, const ChunkPart&);

/// core/lower/strategies/data_parallel.cpp: buckets, their views, reduction and gathering.
bool shards_optimizer(const StrategySpec&);
GradientCopies gradient_copies(const StrategySpec&);
/// Hidden states that the pipeline engine keeps (StrategySpec::kept_edges).
int64_t kept_edges(const StrategySpec&);
/// Micro-batches whose logits it keeps.
int64_t kept_outputs(const Context&);
bool overlaps_reduce(const StrategySpec&);
bool overlaps_gather(const StrategySpec&);
void make_buckets(Context&, ChunkPart&);
void reduce_bucket(BlockBuilder&, const Context&, const ChunkPart& part, size_t bucket);
/// core/lower/strategies/ddp.cpp: PyTorch DDP's copies and communication hooks.
std::vector<JobFault> ddp_faults(const JobSpec&);
/// Whether the reduction of a bucket is DDP's own, with copies or a hook; else it is that of the bucket itself.
bool has_ddp_path(const StrategySpec&);
void make_used_map(Context&, ChunkPart&);
void make_ddp_buffers(Context&, ChunkPart&, ChunkPart::Bucket&, size_t index);
void reduce_ddp_bucket(BlockBuilder&, const Context&, const ChunkPart& part, size_t bucket);
/// After all buckets of a backward: what was reduced goes back to the gradients.
void finish_ddp(BlockBuilder&, const Context&, const ChunkPart& part);
bool compresses(const DdpSpec&, const std::vector<int64_t>& shape);
/// The index of the op made; nothing where no gathering is needed.
std::optional<uint32_t> gather_bucket(BlockBuilder&, const Context&, const ChunkPart& part, size_t bucket);

/// Reduces each bucket as soon as the last of its gradients is there. core/lower/strategies/data_parallel.cpp
class ReduceHooks final : public LayerHooks {
 public:
  ReduceHooks(const Context& c, const ChunkPart& part) : c_(c), part_(part) {}
  void after_backward(BlockBuilder&, const LayerPlace&) override;
  void finish(BlockBuilder&);

 private:
  bool ready(size_t bucket, int64_t layer) const;
  const Context& c_;
  const ChunkPart& part_;
  size_t next_ = 0;
};

/// core/lower/pair_blocks.cpp: a forward and the backward of another micro-batch, issued in turns.
plan::Block pair_blocks(const plan::Block& forward, const plan::Block& backward);

/// core/lower/strategies/split_backward.cpp: the backward as two blocks of each part.
/// Before any block is built: buffers that weight gradients read later are given micro-batch scope.
void hand_on_for_weights(Context&);
void backward_halves(Context&, ChunkPart&, const std::string& name, P2p);

/// core/lower/strategies/units.cpp: weights and gradients cut in units that are gathered and reduced on their own.
bool has_units(const StrategySpec&);
/// Ranks of the shard group and of the smaller one after the forward (1: none); what is left of `data` are replicas.
struct ShardSizes {
  int64_t shard = 1, near = 1;
};
/// What a unit's gradients are sent in, and the weights that the optimizer updates are kept in.
DType wire_dtype(const Context&);
DType kept_dtype(const Context&);
ShardSizes shard_sizes(const JobSpec&, int64_t data);
void make_units(Context&, ChunkPart&);
/// With no_sync a unit that is not resharded after the forward stays whole until the last micro-batch (facts FS1-8).
bool keeps_across_micro_batches(const Context&);
/// Whether blocks are freed between forward and backward.
bool reshards(const StrategySpec&);
/// Elements of the parameters of one layer on this rank.
int64_t layer_elements(const Context&);
/// core/lower/strategies/unit_passes.cpp: gathers and reductions beside the layers.
struct UnitPass {
  Way way = Way::forward;
  bool first = false;    // of the micro-batches
  bool reduces = false;  // backward: gradients, else they are added up whole
  bool last = false;     // of the micro-batches
};
class UnitHooks final : public LayerHooks {
 public:
  UnitHooks(const Context& c, const ChunkPart& part, UnitPass pass);
  ~UnitHooks() override;
  void begin(BlockBuilder&);      // in the first segment, before any op
  void head(BlockBuilder&);       // in the head's segment: before its forward, behind its backward
  void embedding(BlockBuilder&);  // in the embedding's segment: behind its forward, before its backward
  void finish(BlockBuilder&);     // in the last segment, after all ops
  int64_t period(Way) const override;
  bool alike(Way, int64_t, int64_t) const override;
  void before_forward(BlockBuilder&, const LayerPlace&) override;
  void after_forward(BlockBuilder&, const LayerPlace&) override;
  void before_backward(BlockBuilder&, const LayerPlace&) override;
  void after_backward(BlockBuilder&, const LayerPlace&) override;

 private:
  struct State;
  std::unique_ptr<State> s_;
};
/// core/lower/strategies/unit_step.cpp: setup and the end of the step.
void unit_setup_blocks(Context&, ChunkPart&);
void unit_step_blocks(Context&, ChunkPart&);

/// core/lower/strategies/offload.cpp: optimizer state and weights that lie outside the device.
inline bool updates_on_host(const StrategySpec& s) { return s.offload.optimizer != OffloadDevice::none; }
/// The norm is of sums that lie on the host (torch); else of what a device sends there (DeepSpeed, Megatron).
bool norm_on_host(const StrategySpec&);
/// Host memory as the job wants it, and where optimizer state and shards of weights lie.
plan::Space host_space(const StrategySpec&);
plan::Space state_space(const StrategySpec&);
plan::Space shard_space(const StrategySpec&);
/// What check_job asks: (key, what, hint).
std::vector<JobFault> offload_faults(const JobSpec&);
/// A copy between memories behind `waits`; a pageable one holds the host. Returns the op that it is over after.
uint32_t host_copy(BlockBuilder&, const Context&, std::string_view name, plan::Phase, plan::Stream,
                   plan::BufferRef from, plan::BufferRef to, std::span<const plan::Wait> waits);
/// A kernel on the host's cores, which issues nothing meanwhile.
uint32_t host_kernel(BlockBuilder&, std::string_view name, plan::Phase, plan::Compute,
                     std::span<const plan::BufferRef> reads, std::span<const plan::BufferRef> writes,
                     std::span<const plan::Wait> waits);
/// The norm that the host's update reads: on its way there, once a step.
void norm_to_host(BlockBuilder&, const Context&);
/// What is updated together: the gradient as the device holds it (an invalid one: it is on the host already), the state
/// on the host, and the weights that the model computes with (invalid: the host's own).
struct HostUpdate {
  plan::BufferRef gradient, weights;
  BufferId master, moment1, moment2;
  const HostSide* host = nullptr;
};
/// `beside` issues what the device does once the gradients are on their way.
void update_on_host(BlockBuilder&, const Context&, std::span<const HostUpdate>,
                    const std::function<void()>& beside = nullptr);
/// Before the first step: the host's copy of the weights, and its moments.
void master_on_host(BlockBuilder&, const Context&, plan::BufferRef weights, BufferId master, const HostSide&);
void moment_on_host(BlockBuilder&, const Context&, BufferId moment, const char* name);

/// core/lower/strategies/optimizer.cpp: everything between the last backward and the next step, for one chunk and for
/// the rank.
void optimizer_blocks(Context&, ChunkPart&);
/// fp8 products: the 8-bit weights of one layer, made once in a step; of what is gathered, once for each pass.
void narrow_layer(BlockBuilder&, const Context&, LayerKind, int offset, plan::Phase = plan::Phase::optimizer);
struct RankBlocks {
  BlockId setup, begin, norm;
};
RankBlocks rank_blocks(Context&);
/// core/lower/strategies/setup.cpp: load, model, optimizer states.
void setup_blocks(Context&, ChunkPart&);

}  // namespace wt::lower
