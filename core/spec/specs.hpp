// What the user asks for: model, cluster, strategy, training, and the job that names all four.
// Plain values, already validated one by one by the readers (core/spec/read.cpp); no behaviour, no defaults of a
// framework. Whether they fit together (30 layers on 4 stages) is decided by lowering.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/units.hpp"
#include "core/spec/measured.hpp"

namespace wt {

// ---------------------------------------------------------------------------------------------------- model

enum class Activation : uint8_t { gelu, silu, relu };
enum class Norm : uint8_t { layer_norm, rms_norm };
enum class Position : uint8_t { none, learned, rotary, alibi };

/// Mixture of experts; widths are per expert.
struct MoeSpec {
  int64_t experts = 0, top_k = 0, ffn_hidden = 0;
  int64_t shared_ffn_hidden = 0;   // 0: no shared expert
  int64_t first_dense_layers = 0;  // these layers keep the dense MLP
  int64_t layer_period = 1;        // every n-th layer is MoE
  bool router_bias = false;        // one term per expert (DeepSeek-V3, gpt-oss)
  bool shared_gate = false;        // the shared expert is weighted by a linear gate of width 1 (Qwen2-MoE)
  bool of_layer(int64_t layer) const { return layer >= first_dense_layers && (layer + 1) % layer_period == 0; }
  bool operator==(const MoeSpec&) const = default;
};

/// Multi-head latent attention (DeepSeek): low-rank queries and keys/values.
struct MlaSpec {
  int64_t q_lora_rank = 0;  // 0: full-rank queries
  int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool operator==(const MlaSpec&) const = default;
};

/// One stack of transformer blocks with a language-model head. Invariant after reading: every size > 0 and kv_heads divides heads.
struct ModelSpec {
  std::string name, source;
  int64_t layers = 0, hidden = 0, ffn_hidden = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // heads * head_dim need not equal hidden; MLA: nope + rope
  int64_t vocab = 0, max_context = 0;
  bool gated_mlp = false;  // two input projections (SwiGLU, GeGLU)
  Activation activation = Activation::gelu;
  Norm norm = Norm::layer_norm;
  Position position = Position::learned;
  bool tied_embeddings = true;
  bool attention_bias = false;  // on q, k, v
  bool output_bias = false;     // on the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;         // RMS norm of each query and key head
  bool parallel_block = false;  // attention and MLP read the same norm (GPT-J, NeoX, Falcon)
  int64_t norms_per_layer = 2;  // 1 for some parallel blocks
  bool final_norm = true;
  bool embedding_norm = false;  // BLOOM
  int64_t embedding_dim = 0;    // 0: hidden; OPT-350M projects from 512 to 1024 and back
  int64_t extra_positions = 0;  // rows beyond max_context in a learned position table (OPT: 2)
  int64_t sliding_window = 0;   // 0: none
  int64_t sliding_period = 1;   // every n-th layer is windowed (1: all, 2: alternating) when sliding_window > 0
  int64_t full_period = 0;      // > 0: every n-th layer sees everything, the others are windowed (Gemma 3: 6)
  bool attention_sinks = false;
  bool expert_bias = false;
  int64_t mtp_layers = 0;       // multi-token prediction modules
  bool head_bias = false;       // on the vocabulary projection (Phi, BERT)
  bool causal = true;           // false: every token sees every token (BERT): attention work is not halved
  bool head_transform = false;  // BERT: dense layer and norm before the vocabulary projection
  int64_t segment_types = 0;    // BERT: rows of the segment embedding
  std::optional<MoeSpec> moe;
  std::optional<MlaSpec> mla;
  bool operator==(const ModelSpec&) const = default;
};

/// Parameters of the whole model by kind; the formulas: core/spec/parameters.cpp.
struct ParameterCount {
  int64_t embedding = 0, position = 0, attention = 0, mlp = 0, experts = 0, router = 0, norms = 0, head = 0, mtp = 0;
  int64_t total() const { return embedding + position + attention + mlp + experts + router + norms + head + mtp; }
};
ParameterCount count_parameters(const ModelSpec&);
/// Parameters that one token passes through: all, less the experts that its router does not choose.
int64_t active_parameters(const ModelSpec&);

// -------------------------------------------------------------------------------------------------- cluster

enum class GpuGeneration : uint8_t { volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4, other };

/// One accelerator. Peaks are dense (no 2:4 sparsity).
struct DeviceSpec {
  std::string name, vendor, source;
  GpuGeneration generation = GpuGeneration::other;
  Bytes memory;  // what the driver offers, before the context
  BytesPerSecond memory_bandwidth;
  Bytes l2_cache;
  int64_t multiprocessors = 0;  // SM or CU
  double clock_hz = 0;  // boost clock, for the record: `peak` has it in it; nothing computes with it; 0: not given
  double power_watts = 0;
  std::map<DType, FlopsPerSecond> peak;
  std::string kernels;                     // name of a file in data/kernels: measured curves; "" = roofline only
  std::optional<MeasuredDevice> measured;  // curves of this very machine; go before `kernels`
  Bytes context_memory;                    // CUDA context and library workspaces before the first tensor
  bool operator==(const DeviceSpec&) const = default;
};

enum class ScaleUpKind : uint8_t { none, nvswitch, nvlink_mesh, nvlink_pairs, xgmi_mesh, pcie };

/// What joins the devices of a node (or of an NVLink domain that spans nodes).
struct ScaleUpSpec {
  ScaleUpKind kind = ScaleUpKind::pcie;
  BytesPerSecond bandwidth;  // per device, one direction, nominal
  Time latency;              // one hop
  int64_t domain = 0;        // devices that reach each other over it; 0: those of one node
  bool sharp = false;        // the switch reduces (NVLS)
  bool operator==(const ScaleUpSpec&) const = default;
};

enum class FabricKind : uint8_t { none, infiniband, roce, ethernet, efa, slingshot, omnipath, tcpx };

/// What joins the nodes.
struct FabricSpec {
  FabricKind kind = FabricKind::none;
  int64_t nics_per_node = 0;
  BytesPerSecond nic_bandwidth;    // one NIC, one direction, nominal
  double nic_efficiency = 0;       // share that a large NCCL message reaches; 0: by kind (data/fabrics.csv)
  double alltoall_efficiency = 0;  // share of the NICs that NCCL's all-to-all reaches; 0: data/nccl/generation.csv
  Time latency;                    // extra one-way latency over NCCL's NET constant
  bool rail_optimised = true;
  double oversubscription = 1;  // leaf uplinks: nominal bandwidth below / above
  int64_t nodes_per_leaf = 0;   // 0: unknown; nodes under one leaf group see no oversubscription
  bool gpu_direct = true;
  bool operator==(const FabricSpec&) const = default;
};

struct NodeSpec {
  int64_t devices = 0;
  ScaleUpSpec scale_up;
  BytesPerSecond pcie_bandwidth;       // one device, one direction, host <-> device, nominal
  BytesPerSecond host_copy_bandwidth;  // measured pinned copy
  Bytes host_memory;
  BytesPerSecond host_memory_bandwidth;
  int64_t cpu_cores = 0;   // physical, of the whole node; 0: not given
  std::string cpu_vendor;  // "intel", "amd", "nvidia": NCCL's network overhead differs
  Bytes nvme;
  BytesPerSecond nvme_read, nvme_write;
  bool operator==(const NodeSpec&) const = default;
};

struct ClusterSpec {
  std::string name, source;
  DeviceSpec device;
  NodeSpec node;
  FabricSpec fabric;
  int64_t nodes = 0;
  int64_t ranks() const { return nodes * node.devices; }
  std::vector<TransferCurve> transfers;  // measured; in place of NCCL's model where there are any
  std::vector<std::string> notes;
  bool operator==(const ClusterSpec&) const = default;
};

// ------------------------------------------------------------------------------------------------- strategy

/// How replicas agree on gradients (docs/strategies.md; facts of each framework).
enum class DataParallel : uint8_t {
  ddp,                    // PyTorch DistributedDataParallel: all-reduce of byte-sized buckets beside the backward
  megatron,               // Megatron without distributed optimizer: all-reduce of one buffer after the backward
  distributed_optimizer,  // Megatron: reduce-scatter of element-sized buckets, sharded Adam, all-gather of weights
  zero1,                  // DeepSpeed stage 1: all-reduce at the boundary, sharded Adam, all-gather of weights
  zero2,  // DeepSpeed stage 2: all-reduce in every micro-batch, each rank keeps its part of the gradients; else as zero1
  zero3,  // DeepSpeed stage 3: weights gathered module by module, gradients reduce-scattered
  fsdp,   // PyTorch FullyShardedDataParallel: units of one flat parameter
  fsdp2   // PyTorch fully_shard
};
/// What PyTorch DDP's communication hook does in the place of the plain all-reduce of a bucket (facts DDP-9).
enum class CommHook : uint8_t { none, fp16_compress, bf16_compress, powersgd };

/// PyTorch's DistributedDataParallel beyond its buckets.
struct DdpSpec {
  bool bucket_view = true;   // gradient_as_bucket_view; else gradients are copied to the bucket and back
  bool no_sync = true;       // micro-batches before the last add up gradients and reduce nothing
  bool find_unused = false;  // find_unused_parameters: the used ones are agreed on; buckets in order of registration
  CommHook hook = CommHook::none;
  int64_t powersgd_rank = 1;  // matrix_approximation_rank
  bool powersgd_error_feedback = true;
  bool operator==(const DdpSpec&) const = default;
};
/// PyTorch's ShardingStrategy (facts FS1-3).
enum class ShardingKind : uint8_t { full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2 };
enum class BackwardPrefetch : uint8_t { pre, post, none };
/// What is one unit: each transformer block, and what is left in one more (the root), or in one for the embedding and one
/// for the head (torchtitan); or the whole model (no wrap policy).
enum class WrapKind : uint8_t { block, block_and_ends, model };

/// PyTorch's sharded data parallelism, 1 and 2.
struct FsdpSpec {
  ShardingKind sharding = ShardingKind::full_shard;
  int64_t shard_size = 0;             // hybrid: ranks that share one copy; 0: those of a node
  int64_t reshard_after_forward = 1;  // fsdp2: 0 no, 1 yes, n: only to groups of n
  WrapKind wrap = WrapKind::block;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = false;  // the next unit is asked for before the kernels of this one are issued
  bool limit_all_gathers = true;  // fsdp: the host waits until all but two units are free again
  bool no_sync = false;           // micro-batches before the last add up whole gradients and reduce nothing
  int64_t keep_last = 0;          // last blocks that stay gathered from forward to backward (torchtitan: 1)
  bool operator==(const FsdpSpec&) const = default;
};

/// DeepSpeed's limits of stage 3, in elements. The reduction's is StrategySpec::bucket_elements.
struct ZeroSpec {
  int64_t prefetch_elements = 50'000'000;
  int64_t persistence_threshold = 100'000;  // parameters up to this size are never released
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  // Gathers and reductions take a list with a tensor for each rank, as DeepSpeed did until 0.5: torch copies each of them
  // by a kernel of its own, and the device is waited for before each gather.
  bool list_collectives = false;
  // ZeRO++: ranks that keep a second shard of what the forward gathered, among which the backward gathers (hpZ; 1: none);
  // weights gathered in 8 bits (qwZ).
  int64_t secondary_shard = 1;
  bool quantized_weights = false;
  bool operator==(const ZeroSpec&) const = default;
};
/// Where training state lies that the device has no room for.
enum class OffloadDevice : uint8_t { none, cpu, nvme };

/// What leaves the device between its uses (ZeRO-Offload, ZeRO-Infinity, FSDP's CPU offload, Megatron's CPU optimizer).
struct OffloadSpec {
  OffloadDevice optimizer = OffloadDevice::none;   // master weights and moments, which the host's cores update
  OffloadDevice parameters = OffloadDevice::none;  // zero3, fsdp, fsdp2: the shards of the weights
  double ratio = 1;  // of the elements of the optimizer's state: what is on the host; the rest is updated on the device
  int64_t activation_layers =
      0;                 // of each model chunk, layers whose saved activations wait for the backward on the host
  bool pinned = true;    // host memory that copies need not stage
  bool overlap = false;  // the update goes bucket by bucket (unit by unit), copies beside the host's work
  bool operator==(const OffloadSpec&) const = default;
};
/// How tokens reach their experts (facts MG-23, MG-24).
enum class Dispatcher : uint8_t {
  all_to_all,  // a copy for each choice, sorted by expert before and after the exchange
  flex         // DeepEP: a copy for each rank of a choice, sorted on arrival; across nodes, then inside
};
enum class RoutingKind : uint8_t {
  even,  // the load the job names: every expert as many tokens as any other (Megatron: moe_router_force_load_balancing)
  top_k  // what the router chooses; more than `imbalance` allows is dropped
};

/// Layers of experts. The degree is StrategySpec::expert.
struct ExpertSpec {
  int64_t tensor = 0;    // ranks that cut one expert; 0: `tensor`
  double imbalance = 1;  // tokens of the fullest expert over the mean: what buffers hold and the slowest rank computes
  bool dropless = true;  // false: token counts are fixed, the host need not read them
  RoutingKind routing = RoutingKind::even;
  Dispatcher dispatcher = Dispatcher::all_to_all;
  bool shared_overlap = false;  // the shared expert is computed beside the exchange
  // Megatron's --overlap-moe-expert-parallel-comm: a forward and the backward of another micro-batch are issued in turns, so
  // that the exchange of each is beside the compute of the other.
  bool overlap_passes = false;
  bool operator==(const ExpertSpec&) const = default;
};

/// Copies that gradients pass through between the backward and the update.
enum class GradientCopies : uint8_t {
  automatic,  // with zero1 narrow for fp32 gradients, else flat; without zero1 none
  none,
  flat,       // DeepSpeed: buckets and the owned part are flattened, 16-bit norms are taken of 64-bit copies
  flat_wide,  // buckets are flattened and reduced in fp32; no other copies
  narrow,     // DeepSpeed's bf16 optimizer: the fp32 gradients are reduced through one copy in the dtype of the weights
  flat_step   // DeepSpeed without ZeRO: for the update an fp32 copy of each 16-bit gradient, then all of them flattened
};
enum class RecomputeKind : uint8_t { none, selective, full };
enum class RecomputeMethod : uint8_t { uniform, block };
enum class AttentionKernel : uint8_t { flash, unfused };

struct RecomputeSpec {
  RecomputeKind kind = RecomputeKind::none;
  RecomputeMethod method = RecomputeMethod::uniform;
  int64_t layers = 1;  // uniform: layers per checkpoint; block: layers of each chunk that are recomputed
  // A checkpoint is recomputed up to the last tensor that its backward reads: not its last product (torch 2.1 and later,
  // use_reentrant=False).
  bool early_stop = false;
  int64_t every = 1;      // uniform, of single layers: only every n-th of each chunk, the others keep what they need
  std::string modules{};  // selective: parts of a layer, by Megatron's words; none: core_attn
  bool operator==(const RecomputeSpec&) const = default;
};

/// How the ranks that share a sequence bring queries and keys together.
enum class ContextExchange : uint8_t {
  ring,        // Transformer Engine's p2p: keys and values pass round, each step beside the attention of the one before
  all_gather,  // all keys and values on every rank
  all_to_all   // Ulysses: every rank has whole sequences of its share of the heads
};
/// Relative lengths from which schedules with a split backward choose their order, in any unit.
struct ScheduleWeights {
  int64_t forward = 1, input_gradient = 1, weight_gradient = 1, message = 0;
  bool operator==(const ScheduleWeights&) const = default;
};

/// How the work is cut. Degrees are counts of ranks; `data` is what is left of the world.
struct StrategySpec {
  int64_t tensor = 1, pipeline = 1, context = 1, expert = 1;
  int64_t data = 0;  // 0: world / (tensor * pipeline * context)
  ContextExchange context_exchange = ContextExchange::ring;
  int64_t context_all_to_all = 1;  // hierarchical: a ring of groups of so many ranks, between which heads are exchanged
  int64_t virtual_stages = 1;      // model chunks per pipeline rank
  bool sequence_parallel = false;
  // With sequence parallelism: products keep the gathered input that they read (autograd of plain layers); else they keep
  // the rank's rows and gather again in backward (Megatron).
  bool keep_gathered = false;
  std::string schedule = "1f1b";  // a file name of core/lower/schedules
  int64_t group_size = 0;         // interleaved: micro-batches per round of chunks; 0: pipeline
  ScheduleWeights schedule_weights;
  int64_t max_in_flight = 0;  // zero-bubble: most micro-batches that a stage holds; 0: as many as help
  std::string schedule_file;  // schedule csv: a table in PyTorch's notation
  int64_t first_stage_layers = 0, last_stage_layers = 0;  // 0: even split
  // Megatron's --pipeline-model-parallel-layout: t for each layer, E, L, | between stages, x*n; empty: split evenly.
  std::string pipeline_layout;
  bool account_for_embedding = false, account_for_loss = false;  // each counts as one layer in the split
  bool overlap_p2p = true;  // interleaved only; the others are always blocking in Megatron
  // Without sequence parallelism every tensor rank holds the whole boundary tensor: each sends its piece of the rows and the
  // receivers gather them (Megatron's scatter-gather optimisation, DeepSpeed's pipe_partitioned).
  bool shard_messages = false;
  // Blocking schedules: gradient and activation cross a boundary one after the other (DeepSpeed's engine; here the gradient
  // first), not both at once (Megatron's batched exchange).
  bool serial_messages = false;
  DataParallel data_parallel = DataParallel::ddp;
  Bytes ddp_bucket{25 << 20};  // PyTorch DDP: bytes; the first is 1 MiB
  Bytes ddp_first_bucket{1 << 20};
  int64_t bucket_elements = 0;        // Megatron: 0: max(40e6, 1e6 * dp); DeepSpeed: 0: 5e8
  DType gradient_dtype = DType::f32;  // on the wire and in the accumulation buffer
  bool overlap_grad_reduce = false, overlap_param_gather = false;
  GradientCopies gradient_copies = GradientCopies::automatic;
  DdpSpec ddp;
  FsdpSpec fsdp;
  ZeroSpec zero;
  OffloadSpec offload;
  ExpertSpec experts;
  // Hidden states beyond what the backward reads that the pipeline engine keeps of each micro-batch in flight: 1 what the
  // stage sent, 2 also what it received (its layers read a clone); -1: 2 with zero1 (DeepSpeed's engine), else 0. The last
  // stage of such an engine keeps the logits of two micro-batches.
  int64_t kept_edges = -1;
  RecomputeSpec recompute;
  AttentionKernel attention = AttentionKernel::flash;
  bool tensor_async_backward = true;  // the reduction of an input gradient runs beside the weight-gradient product
  bool tensor_overlap = false;        // Transformer Engine user buffers: collectives cut and hidden behind products
  bool operator==(const StrategySpec&) const = default;
};

// ------------------------------------------------------------------------------------------------- training

enum class OptimizerKind : uint8_t { adam, sgd };
enum class LossKind : uint8_t {
  vocabulary_parallel,  // every tensor rank has its columns of the logits; maxima and sums are reduced
  full_vocabulary       // logits are gathered over the tensor ranks; the plain cross entropy of torch on all columns
};
/// What an RMS norm leaves for its backward beside its input. Layer norm is one kernel everywhere.
enum class NormKernel : uint8_t {
  fused,      // a value for each row
  eager,      // plain ops in the dtype of the weights: also the normalised rows
  eager_fp32  // plain ops in fp32: also the normalised rows and the input in fp32
};

/// How the scale of an 8-bit tensor is found.
enum class Fp8Recipe : uint8_t {
  delayed,  // from the maxima of earlier steps, which the cast records: one pass
  current,  // from the maximum of this tensor (or of each of its rows): a pass of its own before the cast
  block     // of each block of elements (mxfp8, 128 x 128), found in the pass that casts
};

/// How the frozen weights of a layer's products are kept.
enum class BaseWeights : uint8_t {
  plain,  // in param_dtype
  nf4     // bitsandbytes' 4-bit blocks of 64 with doubly quantised scales (QLoRA); made whole before each product
};

/// Low-rank adapters beside frozen weights (LoRA): y = x W^T + alpha / rank (x A^T) B^T, A [rank, in], B [out, rank].
struct LoraSpec {
  int64_t rank = 0;      // 0: no adapters, all weights are trained
  double alpha = 0;      // 0: twice the rank
  bool dropout = false;  // of the adapter's input: a copy and a mask of it are kept
  std::vector<std::string> targets = {"qkv", "proj", "fc1", "fc2"};  // or q, k, v, gate, up; all: each its own
  BaseWeights base = BaseWeights::plain;
  bool operator==(const LoraSpec&) const = default;
};

/// Sequences of several documents, between which attention does not look (cu_seqlens). Lengths are drawn by `seed` of the
/// training from a log-normal distribution, cut at seq_len; documents fill a sequence one after the other.
struct PackingSpec {
  double mean_length = 0;  // tokens; 0: a sequence is one document
  double deviation = 0;    // of the length, in tokens
  bool operator==(const PackingSpec&) const = default;
};

/// What a run does beside its steps. Nothing of it is in a plan: it counts in the time of the whole run.
struct LoopSpec {
  double loader = 0;  // sequences a second that the data loaders of one node deliver; 0: as many as a step takes
  int64_t evaluate_every = 0;      // steps between two evaluations; 0: none
  int64_t evaluation_batches = 0;  // global batches of one evaluation, forward alone
  bool operator==(const LoopSpec&) const = default;
};

struct TrainingSpec {
  int64_t micro_batch = 1, global_batch = 1;  // sequences
  int64_t seq_len = 0;
  DType compute_dtype = DType::bf16;  // of matrix products and of all kernels beside them (fp8: only of products)
  DType param_dtype = DType::bf16;    // of the weights as they are kept between their uses
  bool master_weights = true;         // fp32 copy in the optimizer
  Fp8Recipe fp8_recipe = Fp8Recipe::delayed;
  bool fp8_params = false;  // weights of fp8 products are kept, and gathered, in 8 bits alone (--fp8-param-gather)
  OptimizerKind optimizer = OptimizerKind::adam;
  bool fused_optimizer =
      true;  // Adam in one kernel; else every operation of it is a pass of its own (torch, not fused)
  DType moment_dtype = DType::f32;
  double gradient_clipping = 1.0;  // 0: none
  bool dropout = false;
  // Bias + activation, bias + dropout + add, masked softmax, rope: one kernel each. Else plain ops, whose results autograd
  // keeps: the activated gate of a gated MLP, and q and k both before and after rope where qkv is one tensor.
  bool fused_kernels = true;
  bool packed_qkv = true;  // q, k and v are columns of one tensor, which lives as long as any of them is needed
  // Attention's backward writes the gradients of packed q, k and v where they belong (Transformer Engine); else the
  // backward of torch's split joins them: a pass over the three.
  bool packed_qkv_gradient = true;
  NormKernel norm_kernel = NormKernel::fused;
  LossKind loss = LossKind::vocabulary_parallel;
  bool blocking_launch = false;  // CUDA_LAUNCH_BLOCKING=1: the host issues an op when the one before is over
  bool gradient_fusion = true;   // weight-gradient products add into the gradient buffer; else a kernel of its own does
  bool fused_loss = false;       // no fp32 copy of the logits
  int64_t loss_chunk =
      0;  // tokens whose logits are there at a time: head and loss in one (Liger); 0: those of all tokens
  int64_t loss_metrics = 0;  // cross entropies of each micro-batch that only a log reads: plain torch, forward alone
  int64_t vocab_multiple = 128;  // vocabulary padded to a multiple of this times tensor
  LoraSpec lora;
  PackingSpec packing;
  LoopSpec loop;
  double total_tokens = 0;  // of the whole run; 0: unknown
  uint64_t seed = 1234;
  // Host side: how long the host needs to issue one kernel; a step is host-bound when this exceeds the kernels.
  Time host_issue;                       // 0: by `framework` data (data/hosts.csv)
  std::string host_profile = "default";  // row of data/hosts.csv
  double fragmentation = 0.0;            // share of the peak that the allocator cannot use
  bool operator==(const TrainingSpec&) const = default;
};

/// Of activations, and of weights as kernels read them: that of the products, or what is beside fp8 products.
constexpr DType working_dtype(const TrainingSpec& t) {
  return t.compute_dtype == DType::f8 ? t.param_dtype : t.compute_dtype;
}

struct JobSpec {
  std::string name;
  ModelSpec model;
  ClusterSpec cluster;
  StrategySpec strategy;
  TrainingSpec training;
  std::vector<std::string> warnings;     // of the readers: what a file says that has no effect here
  std::vector<std::string> assumptions;  // of the readers: what `framework` filled in
  bool operator==(const JobSpec&) const = default;
};

}  // namespace wt
