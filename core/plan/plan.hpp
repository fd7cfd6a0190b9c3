// The plan (strategy IR): what every rank does, in which order, on which stream, with which buffers.
// It holds no time and no hardware; the simulator and the executor consume it unchanged.
// Not a graph of one step unrolled: a few *programs* (chosen by mesh coordinate), each an *order* of invocations
// of shared *blocks*; a block is a list of *segments*, and a segment repeats its ops for a run of layers.
// Invariant (checked by validate, core/plan/plan_io.hpp): ids dense, waits point backwards, every buffer is
// reserved before use and released once, sends pair with receives in order, a dry run makes progress.
//
// An op that happens is named (rank, step, invocation, op): `invocation` indexes the order of the rank's program,
// `op` counts the ops of the block with its segments unrolled (see for_each_op).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/ids.hpp"
#include "core/base/units.hpp"

namespace wt::plan {

// ------------------------------------------------------------------------------------------ mesh and groups

struct Axis {
  std::string name;  // "pp", "dp", "cp", "tp"
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

/// Atomic axes, outermost first: the last varies fastest over ranks (Megatron's "tp-cp-dp-pp" order is
/// axes {pp, dp, cp, tp}).
struct Mesh {
  std::vector<Axis> axes;

  int64_t ranks() const;
  int64_t stride(AxisId) const;  // ranks between neighbours on the axis
  int64_t coordinate(RankId, AxisId) const;
  std::optional<AxisId> find(std::string_view name) const;
  int64_t size(std::string_view name) const;  // 1 for an axis that the mesh does not have
  /// Data parallelism may have levels (replicas of a shard group, smaller groups in it): every axis whose name begins
  /// with "dp". Which part of the batch a rank has, and of how many, is their product.
  int64_t data_ranks() const;
  int64_t data_coordinate(RankId) const;
  /// The same of context parallelism, axes "cp...": which pieces of a sequence a rank has (sequence_position).
  int64_t context_ranks() const;
  int64_t context_coordinate(RankId) const;
  bool operator==(const Mesh&) const = default;
};

/// Context parallelism: a sequence is cut in 2 `ranks` pieces and rank `index` has pieces `index` and 2 `ranks` - 1 -
/// `index`, so that the causal work of all is alike. The place in the sequence of what stands at `local` of the `length`
/// tokens of a rank; length is even where there are several ranks.
constexpr int64_t sequence_position(int64_t local, int64_t length, int64_t index, int64_t ranks) {
  if (ranks == 1) return local;
  const int64_t half = length / 2;
  return local < half ? index * half + local : (2 * ranks - 1 - index) * half + (local - half);
}

/// The ranks whose coordinate on `axis` is one of `values` (sorted).
struct AxisFilter {
  AxisId axis;
  std::vector<int64_t> values;
  bool operator==(const AxisFilter&) const = default;
};

/// A group of rank r: the ranks that agree with r on every axis not in `axes`, less those the filter excludes.
/// Members are ordered by rank. A rank that the filter excludes is in no group of this kind.
struct Group {
  std::string name;  // "tp", "dp", "dp_cp", "embedding"
  std::vector<AxisId> axes;
  std::optional<AxisFilter> filter;
  bool operator==(const Group&) const = default;
};

int64_t group_size(const Mesh&, const Group&);
/// The members of the group that `rank` belongs to; empty if the filter excludes `rank`.
std::vector<RankId> group_members(const Mesh&, const Group&, RankId rank);
/// Position of `rank` among group_members.
int64_t group_index(const Mesh&, const Group&, RankId rank);

/// Where the global pipeline stage g = 0 .. ranks * chunks - 1 lives.
enum class PlacementKind : uint8_t {
  loop,   // pp coordinate g % p, chunk g / p           (Megatron's interleaving)
  zigzag  // chunk 0 runs 0..p-1, chunk 1 back p-1..0    (V schedules)
};
struct Placement {
  PlacementKind kind = PlacementKind::loop;
  int64_t pipeline = 1, chunks = 1;
  struct Slot {
    int64_t pp = 0, chunk = 0;
    bool operator==(const Slot&) const = default;
  };
  Slot slot(int64_t stage) const;
  int64_t stage(Slot) const;
  int64_t stages() const { return pipeline * chunks; }
  bool operator==(const Placement&) const = default;
};

// ------------------------------------------------------------------------------------------------- buffers

enum class Role : uint8_t {
  weight,
  gradient,
  master,
  moment1,
  moment2,     // persistent training state
  activation,  // saved by a forward for its backward
  transient,   // lives within one invocation
  bucket,      // flat communication buffer
  tokens,
  labels,
  loss,
  scalar,
  workspace,
  copy  // copy: start-up copies, staging
};

enum class Scope : uint8_t {
  rank,         // one instance for the rank, of no chunk: loss, gradient norm
  persistent,   // one instance for each chunk (and layer)
  micro_batch,  // one instance for each (chunk, micro-batch) (and layer); lives across invocations
  invocation    // one instance for each invocation (and layer)
};

enum class Space : uint8_t { device, pinned, pageable, nvme };

/// dim of the global shape is split evenly over the group, after being cut in `blocks` equal blocks
/// (gate and up rows of a gated MLP: 2; otherwise 1): a rank holds its share of each block.
struct Shard {
  uint8_t dim = 0;
  GroupId group;
  int64_t blocks = 1;
  bool operator==(const Shard&) const = default;
};

enum class Init : uint8_t { none, zeros, ones, normal };

/// A named tensor. `shape` is local: what one rank holds. With per_layer there is one for each layer of the chunk,
/// index 0 .. layers - 1 (hidden states and their gradients: 0 .. layers).
struct Buffer {
  std::string name;
  Role role = Role::transient;
  DType dtype = DType::bf16;
  Space space = Space::device;
  Scope scope = Scope::invocation;
  bool per_layer = false;
  bool view = false;  // storage belongs to another buffer: see Part::views
  std::vector<int64_t> shape;
  std::vector<Shard> shards;
  // Weights: the value of each *global* element depends on (seed, name up to "_copy", layer of the model, index).
  Init init = Init::none;
  double init_scale = 0;  // normal: standard deviation
  int64_t elements() const;
  Bytes bytes() const { return {elements() * size_of(dtype)}; }
  bool operator==(const Buffer&) const = default;
};

/// Names one instance: the buffer, the layer relative to the op's layer (per_layer buffers), and for an
/// invocation that binds two (chunk, micro-batch) pairs, which of them.
struct BufferRef {
  BufferId buffer;
  int16_t layer_offset = 0;
  uint8_t binding = 0;
  bool operator==(const BufferRef&) const = default;
};

/// Layers first_layer .. first_layer + layers - 1 of `buffer` (or the buffer itself: layers = 0) lie in `base`
/// at element `offset` + layer_stride * (layer - first_layer); in a base that is per_layer itself, layer by layer, at
/// `offset`. With a shard group, the rank's piece follows at group_index * elements() more: the shard of a bucket that
/// the rank reduces and updates.
/// A buffer with storage of its own (Buffer::view false) is placed to say what it holds: a copy of that range, in its own
/// dtype. So the shards of weights that are gathered only while they are used know what to load, and what was trained.
struct View {
  BufferId buffer, base;
  int64_t first_layer = 0, layers = 0;
  int64_t offset = 0, layer_stride = 0;
  GroupId shard_group;
  bool operator==(const View&) const = default;
};

/// What a model chunk is made of; chunks of equal composition share one part, hence their blocks.
struct Part {
  std::string name;  // "first", "middle", "last", "whole"
  bool embedding = false, head = false;
  int64_t layers = 0;
  std::vector<BufferId> persistent;  // owned storage (views excluded), reserved in the setup blocks
  std::vector<View> views;
  int64_t parameters = 0;  // elements on one rank, before data-parallel sharding, padding excluded
  bool operator==(const Part&) const = default;
};

// ----------------------------------------------------------------------------------------------------- ops

enum class Phase : uint8_t {
  load,
  model,
  optimizer_state,  // setup: load, model built, optimizer built
  forward,
  recompute,
  backward_input,
  backward_weight,
  reduce,
  optimizer,
  checkpoint
};

/// Compute kernels. Operands are positional; [..] optional. T = rows of a token matrix (sequence x batch,
/// sequence-major), h hidden, V vocabulary shard. Outputs that accumulate say so below (gemm: with
/// Compute::accumulate); core/plan/kernels.hpp has the operand counts as a table.
enum class Kernel : uint8_t {
  // reads -> writes
  gemm,                // A, B, [bias] -> C        C[m,n] (+)= op(A)[m,k] op(B)[k,n] + bias[n]
  bias_gradient,       // dY -> db                 column sums, accumulates
  norm_forward,        // x, gamma, [beta] -> y, stats
  norm_backward,       // dy, x, gamma, stats -> dx, [dgamma, [dbeta]]  dgamma, dbeta accumulate; frozen gains: dx alone
  rope_forward,        // qkv -> qkv               q and k of position p: pairs (i, i + d/2) by p 10000^(-2i/d)
  rope_backward,       // dqkv -> dqkv
  qk_norm_forward,     // qkv, gq, gk -> normed qkv, stats    RMS of each q and k head; v is copied
  qk_norm_backward,    // dqkv, qkv, gq, gk, stats -> dqkv, [dgq, dgk]    qkv: what the forward read; gains accumulate
  attention_forward,   // qkv -> out, lse          flash: scores never stored
  attention_backward,  // dout, qkv, out, lse -> dqkv
  scores_forward,      // qkv -> scores            unfused attention, batched products: Q K^T, not scaled
  softmax_forward,     // scores -> probs          scale, causal mask, softmax
  context_forward,     // probs, qkv -> out        P V
  context_backward,    // dout, probs, qkv -> dprobs, dqkv    (writes the v part of dqkv)
  softmax_backward,    // dprobs, probs -> dscores
  scores_backward,     // dscores, qkv -> dqkv     (writes the q and k parts)
  activation_forward,  // x, [bias] -> y           gated: x = [T, 2f] gate then up
  activation_backward,  // dy, x -> dx
  residual_forward,     // x, residual, [bias] -> y [, mask]   with dropout where the job has it
  residual_backward,    // dy, [mask] -> dx         the dropout of the branch; without dropout no op is made
  add,                  // a, b -> c                gradients that meet
  dropout_forward,      // x -> y, mask
  dropout_backward,     // dy, mask -> dx
  embedding_forward,    // tokens, table -> x       rows outside the vocabulary shard give 0
  embedding_backward,   // dx, tokens -> dtable     accumulates
  position_forward,     // x, table -> y            adds the row of each position
  position_backward,    // dy -> dtable             accumulates
  loss_max,             // logits -> max            of the vocabulary shard, for each token; padding columns left out
  loss_sums,            // logits, max, labels -> sums [2, T]      sum of exponentials, target logit
  loss_forward,         // sums, max -> loss        mean over tokens and micro-batches, accumulates
  loss_backward,        // logits, max, sums, labels -> dlogits
  scale,                // x -> x                   gradients by 1 / data-parallel size
  square_sum,  // x, [duplicates...] -> scalar    accumulates the squares of x, less those of `duplicates` (which
               // share storage with x) on ranks whose index in Compute::group is not 0; the last
               // Compute::function duplicates are left out on every rank
  adam,        // grad, [norm], master, m, v -> param, master, m, v    without master weights: param for master;
               // norm: the sum of squares over all ranks, clipped at Compute::scalar
  sgd,         // grad, [norm], master -> param, master
  fill_zero,   // -> x
  cast,        // x -> y
  copy,        // x... -> y...             one by one; with Compute::group: y = this rank's rows of x
  transpose,
  concat_columns,  // x -> y    Compute::group of g: x [g, rows, columns], y [rows, g columns]
  slice_columns,   // x -> y    the reverse for one rank: y = its columns of x
  // Mixture of experts. E experts, k of them for each row, C slots for the rows that one rank gives to one expert; slot
  // (e, c) is row e C + c. Slots are filled in the order of (row, choice); what finds no slot is dropped, empty slots are 0.
  route_forward,   // logits -> weights [T, k], experts [T, k], counts [E]    softmax over the k chosen logits
  route_backward,  // dweights, weights, experts -> dlogits
  permute,         // x, experts, [weights [T, k]] -> slots [E C, h], [slot weights [E C]]
  unpermute,       // slots [E C, h], experts, [slot weights [E C]] -> y, [weights [T, k]]    y: sum over the choices
  regroup,         // x [a, b, rows, columns], [w [a, b, rows]] -> y [b, a, rows, columns], [w [b, a, rows]]
  grouped_gemm,    // A, B -> C                 one gemm for each group: C_g (+)= op(A_g) op(B_g)
  expert_activation_forward,   // x, w -> y     activation of each row times its weight
  expert_activation_backward,  // dy, x, w -> dx, dw
  // Multi-head latent attention. qkv rows: for each head q, then k (nope, then rope each), then v.
  latent_attention_forward,   // qkv -> out, lse
  latent_attention_backward,  // dout, qkv, out, lse -> dqkv
  latent_assemble,            // q [T, a(dn+dr)], kv [T, a(dn+dv)], k_rope [T, dr] -> qkv    rotates the rope parts
  latent_scatter,             // dqkv -> dq, dkv, dk_rope    its backward: one rope key serves all heads
  split_latent,               // x [T, a + b] -> y [T, a], z [T, b]
  join_latent,                // y, z -> x
  // Context parallelism. L tokens of each sequence on a rank, of a group of g = Compute::group (sequence_position).
  split_qkv,                // qkv -> q, kv              q: heads side by side; kv: for each kv head k, then v
  join_qkv,                 // q, kv -> qkv
  block_attention_forward,  // q, kv -> out, lse         flash; the rank's queries on the keys of one member, or of all,
  //                           see Compute::function; a row that sees none: out 0, lse -infinity
  block_attention_backward,  // dout, q, kv, out, lse -> dq, dkv    dq is added to with Compute::accumulate
  merge_attention,           // part, part_lse, out, lse -> out, lse    softmax over both sets of keys
  split_columns,             // x -> y    x [rows, g columns], y [g, rows, columns]: the reverse of concat_columns
  gather_sequence,           // x -> y    x [g, rows, columns] of each member's tokens, y in order of position
  deal_sequence,             // x -> y    the reverse
  orthogonalize  // x -> x    columns of x [rows, columns] made orthonormal one after the other (Gram-Schmidt)
};

/// Work of one op: floating-point operations (multiply-add = 2) and the bytes it must move to and from memory.
struct Work {
  double flops = 0;
  int64_t bytes_read = 0, bytes_written = 0;
  bool operator==(const Work&) const = default;
};

/// dims by kernel: gemm {m, n, k}; attention and its parts {batch, seq, heads, kv_heads, head_dim};
/// token-wise kernels {rows, columns}; embedding {rows, columns, vocabulary shard}; position {rows, columns, batch};
/// loss {rows, vocabulary of the model, columns of the logits}: columns from the vocabulary on are padding;
/// concat_columns, slice_columns and split_columns {rows, columns of one rank}; optimizer {elements}; route {rows, E, k,
/// sequences of the micro-batch}; permute and unpermute {rows, columns, E, k, C}; regroup {a, b, rows, columns};
/// grouped_gemm {m, n, k, groups}; latent attention {batch, seq, heads, dn + dr, dv}; latent assemble and scatter {batch,
/// seq, heads, dn, dr} with dv as scalar; split and join {rows, a, b}; block attention, merge, split_qkv, join_qkv as
/// attention with seq = L; gather_sequence, deal_sequence {rows, columns of one rank, batch}.
/// qkv rows: for each key/value head its queries, then k, then v. Scores and probabilities: [batch, heads, seq, seq].
inline constexpr uint8_t kAllBlocks = 255;
struct Compute {
  Kernel kernel = Kernel::gemm;
  DType dtype = DType::bf16;  // of the arithmetic
  std::array<int64_t, 5> dims{};
  bool transpose_a = false, transpose_b = false, accumulate = false, causal = false, gated = false;
  uint8_t function = 0;  // activation: wt::Activation; norm: wt::Norm; route: wt::RoutingKind; block attention: the
                         // keys are those of the member so many places before the rank in the group, kAllBlocks: of all
  uint16_t launches = 1;  // kernels that the host issues for it
  int64_t document = 0;  // attention: a sequence is documents of so many tokens, each sees only itself; 0: one document
  uint16_t pieces = 1;   // gemm: run as this many products of dims[0] / pieces rows (pipelined waits)
  GroupId group;         // vocabulary shard, slice: whose coordinate decides
  double scalar = 0;     // scale: the factor; dropout: the probability; norm: epsilon; attention: window
                         // (0: none); adam: the norm to clip at (0: none); loss: the share of a micro-batch's tokens
                         // that its rows are (0: all)
  Work work;
  bool operator==(const Compute&) const = default;
};

/// shift_up: what a member reads goes to the next member, of the last to the first; shift_down: the other way round.
enum class CollectiveKind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  shift_up,
  shift_down
};
enum class Reduction : uint8_t { sum, max, average };

/// reads[i] -> writes[i], coalesced into one call. `bytes`: the full buffers on one rank, as nccl-tests counts them
/// (all_gather: the gathered size; reduce_scatter: the size before). Pieces are contiguous, ordered by group_index.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  Reduction reduction = Reduction::sum;
  DType dtype = DType::bf16;
  GroupId group;
  int64_t bytes = 0;
  // Of an all-to-all: so many of its rows are copies of one, for members drawn evenly (experts of a token). A transport
  // that knows sends such a row once to each node and there once to each member (DeepEP); one that does not sends all of
  // them. 0: rows have nothing in common.
  int64_t copies = 0;
  bool operator==(const Collective&) const = default;
};

/// To the owner of the next (forward) or previous (backward) global stage, same coordinates otherwise.
enum class Direction : uint8_t { next_stage, previous_stage };
struct Send {
  Direction to = Direction::next_stage;
  int64_t bytes = 0;
  bool operator==(const Send&) const = default;
};
struct Receive {
  Direction from = Direction::previous_stage;
  int64_t bytes = 0;
  bool operator==(const Receive&) const = default;
};

/// Between memory spaces, or to and from storage: reads[i] -> writes[i], one by one.
struct Copy {
  Space from = Space::device, to = Space::pinned;
  int64_t bytes = 0;
  bool operator==(const Copy&) const = default;
};

/// The host stops issuing until the waits of the op are over (loss read-out, gradient-norm check).
struct HostWait {
  bool operator==(const HostWait&) const = default;
};

/// No work: its stream goes on when the waits are over. In the setup it stands for loading: what it writes gets its
/// initial values (Buffer::init of every view in it).
struct Join {
  bool operator==(const Join&) const = default;
};

/// Closed set: a new kind must be taught to every visitor before anything builds.
using Body = std::variant<Compute, Collective, Send, Receive, Copy, HostWait, Join>;

/// In-order queues of a rank.
enum class Stream : uint8_t {
  compute,
  tensor,
  data,
  send_next,
  receive_previous,
  send_previous,
  receive_next,
  copy_in,
  copy_out,
  replica,  // what becomes of a gradient's shard beside other gathers: reduction over replicas, casts, accumulation
  expert,   // tokens on their way to experts and back
  context,  // keys and values of other members of the sequence
  // Messages of chunks on a V's way back: their neighbours are the other way round, and wait for nothing of the way there.
  back_send_next,
  back_receive_previous,
  back_send_previous,
  back_receive_next,
  host  // the processor's own cores: updates and sums of what lies in host memory, reads and writes of files
};
inline constexpr int kStreams = 17;

/// What must be over before an op may start, besides its predecessor on its own stream.
struct Wait {
  enum class Kind : uint8_t {
    op,    // op `index` of this block (an index into Block::ops): in the same segment the instance `iterations_back`
           // iterations ago (none: no wait), in an earlier segment its last instance
    tail,  // everything issued before on stream `index`, in this invocation or an earlier one
    piece  // pipelined with op `index` of the same segment iteration, both cut along their rows in `pieces`: may start
    // when that op has done its first piece (of equal times), and ends no earlier than one piece of its own after
    // that op's end. An engine that cannot cut ops may treat it as `op`.
  };
  Kind kind = Kind::op;
  uint32_t index = 0, iterations_back = 0, pieces = 0;
  bool operator==(const Wait&) const = default;
};

struct Range {
  uint32_t begin = 0, count = 0;
  bool operator==(const Range&) const = default;
};

/// One op; its lists lie in the pools of its block.
struct Op {
  std::string name;  // "qkv", "attention", "reduce bucket 3"; short, stable: reports group by it
  Phase phase = Phase::forward;
  Stream stream = Stream::compute;
  Body body;
  Range waits;               // Block::waits
  Range reads, writes;       // Block::refs, positional
  Range reserves, releases;  // Block::refs: storage that begins at issue of this op, ends after it
};

/// ops[first_op .. first_op + op_count) repeated `iterations` times; iteration i works on layer
/// first_layer + i * layer_step of the chunk; layer offsets of its refs count from there. What stands before the layers
/// has first_layer 0, what stands after them has first_layer = layers of the part; -1: no per-layer buffers.
struct Segment {
  uint32_t first_op = 0, op_count = 0;
  uint32_t iterations = 1;
  int32_t first_layer = -1, layer_step = 0;
  bool operator==(const Segment&) const = default;
};

struct Block {
  std::string name;  // "forward middle", "backward last reduce"
  PartId part;       // invalid: not of a chunk (optimizer of the whole rank)
  std::vector<Segment> segments;
  std::vector<Op> ops;
  std::vector<Wait> waits;
  std::vector<BufferRef> refs;
  int64_t op_instances() const;         // with segments unrolled
  bool operator==(const Block&) const;  // of what the lists hold, wherever they lie in the pools
};

// ------------------------------------------------------------------------------------------------ programs

struct Binding {
  uint16_t chunk = 0;
  uint16_t micro_batch = 0;
  bool operator==(const Binding&) const = default;
};

struct Invocation {
  BlockId block;
  uint8_t bindings = 1;  // 0: of no chunk; 2: a forward paired with a backward
  std::array<Binding, 2> binding{};
  bool operator==(const Invocation&) const = default;
};

/// One way a step can go: "steady", "first" (PyTorch DDP's single bucket), "checkpoint" ...
struct StepOrder {
  std::string name;
  std::vector<Invocation> order;
  bool operator==(const StepOrder&) const = default;
};

/// The ranks that satisfy `when` run this.
struct Program {
  std::string name;
  AxisFilter when;                   // an invalid axis: every rank
  std::vector<PartId> chunks;        // part of each chunk
  std::vector<int64_t> first_layer;  // model layer at which each chunk starts
  std::vector<Invocation> setup;     // load, model, optimizer state: once
  std::vector<StepOrder> steps;      // steps[0] is the steady one
  bool operator==(const Program&) const = default;
};

struct Plan {
  int64_t version = 1;
  std::string name;
  uint64_t seed = 0;
  Mesh mesh;
  Placement placement;
  int64_t micro_batches = 1;
  int64_t micro_batch_size = 1, sequence = 1;  // sequences of one micro-batch, tokens of a sequence
  std::vector<Group> groups;
  std::vector<Buffer> buffers;
  std::vector<Part> parts;
  std::vector<Block> blocks;
  std::vector<Program> programs;
  std::vector<std::string> assumptions;  // what lowering decided where the job was silent
  bool operator==(const Plan&) const = default;

  const Block& block(BlockId id) const { return blocks[id.v]; }
  const Buffer& buffer(BufferId id) const { return buffers[id.v]; }
  const Group& group(GroupId id) const { return groups[id.v]; }
};

/// The program that `rank` runs; every rank has exactly one in a valid plan.
ProgramId program_of(const Plan&, RankId rank);

/// The peer of `rank` for a send or receive of `chunk` in this direction; nothing at the ends of the pipeline.
struct Peer {
  RankId rank;
  int64_t chunk = 0;
};
std::optional<Peer> peer_of(const Plan&, RankId rank, int64_t chunk, Direction);

/// Calls f(op, op_index, layer, op_instance) for every op instance of the block in issue order; layer is -1 outside layers.
template <class F>
void for_each_op(const Block& block, F&& f) {
  uint32_t instance = 0;
  for (const Segment& s : block.segments)
    for (uint32_t i = 0; i < s.iterations; ++i) {
      const int64_t layer = s.first_layer < 0 ? -1 : s.first_layer + int64_t{s.layer_step} * i;
      for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k, ++instance) f(block.ops[k], k, layer, instance);
    }
}

std::string_view to_text(Kernel);
std::string_view to_text(CollectiveKind);
std::string_view to_text(Reduction);
std::string_view to_text(Phase);
std::string_view to_text(Stream);
std::string_view to_text(Role);
std::string_view to_text(Scope);
std::string_view to_text(Space);
std::string_view to_text(Direction);
std::string_view to_text(Init);
std::string_view to_text(PlacementKind);

}  // namespace wt::plan
