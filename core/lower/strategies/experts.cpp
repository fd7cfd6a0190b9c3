// Layers of experts and expert parallelism: a router gives each row k of E experts; rows go to the ranks that hold those,
// through their MLPs and back.
//
//   x -> router -> weights, experts          dense grid:  pp | dp ............ | tp
//   x -> permute -> all-to-all (ep)          expert grid: pp | edp |    ep     | etp
//     -> all-gather (etp) -> regroup -> fc1 -> activation x weight -> fc2
//     -> regroup -> reduce-scatter (etp) -> all-to-all (ep) -> unpermute -> + shared expert
//
// The weight of a choice is applied inside its expert (TE's weighted SwiGLU), so no expert's output is kept. How many rows an
// expert gets is the load that the job names: StrategySpec::experts. After facts MG-1, MG-22 to MG-27.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/lower/layer_ops.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Collective;
using plan::CollectiveKind;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Reduction;
using plan::Role;
using plan::Scope;
using plan::Stream;

LayerKind kind_of(const ModelSpec& m, int64_t layer) {
  return m.moe && m.moe->layer_period > 0 && m.moe->of_layer(layer) ? LayerKind::experts : LayerKind::dense;
}

bool has_layers(const ModelSpec& m, LayerKind kind) {
  for (int64_t l = 0; l < m.layers; ++l)
    if (kind_of(m, l) == kind) return true;
  return false;
}

namespace {

int64_t expert_tensor(const StrategySpec& s) { return s.experts.tensor > 0 ? s.experts.tensor : s.tensor; }

}  // namespace

std::vector<JobFault> expert_faults(const JobSpec& j) {
  std::vector<JobFault> faults;
  const StrategySpec& s = j.strategy;
  auto add = [&](const char* key, std::string what, const char* hint = "") {
    faults.push_back({key, std::move(what), hint});
  };
  if (!j.model.moe) {
    if (s.expert != 1) add("strategy.expert", "the model has no experts", "legal: 1");
    if (s.experts != ExpertSpec{}) add("strategy.experts", "has no effect: the model has no experts", "remove it");
    return faults;
  }
  const MoeSpec& m = *j.model.moe;
  const int64_t etp = expert_tensor(s), ep = s.expert;
  if (m.top_k > m.experts) add("model.moe.top_k", fmt::format("{} of {} experts", m.top_k, m.experts));
  if (m.experts % ep != 0)
    add("strategy.expert", fmt::format("{} experts do not divide over expert = {}", m.experts, ep));
  if (m.ffn_hidden % etp != 0)
    add("strategy.experts.tensor", fmt::format("experts of width {} do not divide over {} ranks", m.ffn_hidden, etp));
  if (m.shared_ffn_hidden % s.tensor != 0)
    add("strategy.tensor",
        fmt::format("the shared expert of width {} does not divide over tensor = {}", m.shared_ffn_hidden, s.tensor));
  if (j.model.parallel_block || j.model.norms_per_layer != 2)
    add("model.moe", "experts in parallel blocks, or with other than two norms, cannot be planned yet");
  if (j.model.expert_bias)
    add("model.expert_bias", "biases of experts cannot be planned yet",
        "legal: false, which plans the model without them");
  if (m.shared_gate) add("model.moe.shared_gate", "the gate of a shared expert cannot be planned yet");
  if (s.tensor > 1 && !s.sequence_parallel)
    add("strategy.sequence_parallel", "experts with tensor > 1 need it (Megatron refuses the rest)", "legal: true");
  if (s.keep_gathered) add("strategy.keep_gathered", "with experts cannot be planned yet", "legal: false");
  if (s.experts.dispatcher == Dispatcher::flex) {
    if (etp > 1)
      add("strategy.experts.tensor", "experts cut over ranks with dispatcher: flex cannot be planned yet", "legal: 1");
    if (s.experts.shared_overlap)
      add("strategy.experts.shared_overlap", "with dispatcher: flex (Megatron refuses it)", "legal: false");
  }
  const bool mixed = has_layers(j.model, LayerKind::dense);
  if (mixed && (has_units(s) || s.data_parallel == DataParallel::zero1))
    add("strategy.data_parallel", "dense layers beside layers of experts cannot be planned with it yet",
        "legal: ddp, megatron, distributed_optimizer");
  // The two grids lie over the same ranks: each boundary of one divides, or is divided by, each of the other.
  if (ep == 1 && etp == s.tensor) return faults;
  if (has_units(s) || s.data_parallel == DataParallel::zero1)
    add("strategy.expert", "experts of their own data-parallel group cannot be planned with it yet",
        "legal: data_parallel: ddp, megatron, distributed_optimizer");
  const int64_t cut = s.tensor * s.pipeline * s.context;
  const int64_t data = s.data != 0 ? s.data : std::max<int64_t>(1, j.cluster.ranks() / std::max<int64_t>(1, cut));
  const int64_t stage = s.tensor * s.context * data;
  // Where ranks follow from the cluster, check.cpp says how many they must be.
  if (stage % (ep * etp) != 0 && s.data != 0)
    add("strategy.expert",
        fmt::format("expert {} x tensor {} of experts does not divide the {} ranks of a stage", ep, etp, stage));
  for (const int64_t dense : {s.tensor, s.tensor * s.context})
    for (const int64_t expert : {etp, ep * etp})
      if (dense % expert != 0 && expert % dense != 0)
        add("strategy.expert",
            fmt::format("groups of {} ranks (experts) and of {} (the rest) have no common refinement", expert, dense));
  return faults;
}

void make_expert_sizes(Context& c) {
  const MoeSpec& m = *c.job.model.moe;
  const StrategySpec& s = c.strategy();
  Sizes& n = c.n;
  n.experts = m.experts;
  n.top_k = m.top_k;
  n.ep = s.expert;
  n.etp = expert_tensor(s);
  n.edp = n.t * n.dp / (n.ep * n.etp);
  n.local_experts = n.experts / n.ep;
  n.separate_experts = n.ep > 1 || n.etp != n.t;
  n.expert_ffn = m.ffn_hidden / n.etp;
  n.expert_fc1 = c.job.model.gated_mlp ? 2 * n.expert_ffn : n.expert_ffn;
  n.shared_ffn = m.shared_ffn_hidden / n.t;
  n.shared_fc1 = c.job.model.gated_mlp ? 2 * n.shared_ffn : n.shared_ffn;
  // No expert can be given more than every row once.
  const double mean = static_cast<double>(n.rows * n.top_k) / static_cast<double>(n.experts);
  n.capacity = std::min(n.rows, static_cast<int64_t>(std::ceil(mean * s.experts.imbalance - 1e-9)));
  n.slots = n.experts * n.capacity;
  n.expert_rows = n.slots * n.etp;
}

namespace {

/// Cuts the axis that has a boundary of `inner` ranks inside it in two: the common refinement of two grids.
void refine(plan::Plan& p, int64_t inner) {
  int64_t below = 1;
  for (size_t a = p.mesh.axes.size(); a-- > 1 && below < inner;) {
    plan::Axis& axis = p.mesh.axes[a];
    if (below * axis.size <= inner) {
      below *= axis.size;
      continue;
    }
    const int64_t part = inner / below;
    WT_CHECK(inner % below == 0 && axis.size % part == 0, "axis '{}' of {} has no boundary at {}", axis.name, axis.size,
             inner);
    axis.size /= part;
    p.mesh.axes.insert(p.mesh.axes.begin() + static_cast<std::ptrdiff_t>(a) + 1, {axis.name + "_ep", part});
    for (plan::Group& g : p.groups) {
      std::vector<AxisId> axes;
      for (const AxisId id : g.axes) {
        axes.push_back(id.v > a ? AxisId{id.v + 1} : id);
        if (id.v == a) axes.push_back(AxisId{id.v + 1});
      }
      g.axes = std::move(axes);
      if (g.filter && g.filter->axis.v > a) ++g.filter->axis.v;
    }
    return;
  }
}

}  // namespace

void make_expert_groups(Context& c) {
  Sizes& n = c.n;
  auto& p = c.plan;
  if (!n.separate_experts) {
    if (n.etp > 1) c.etp = c.expert_peers = c.tp;
    return;
  }
  refine(p, n.etp);
  refine(p, n.etp * n.ep);
  std::vector<AxisId> ep, etp, edp;
  int64_t below = 1;
  for (size_t a = p.mesh.axes.size(); a-- > 1; below *= p.mesh.axes[a].size) {
    if (p.mesh.axes[a].size == 1) continue;
    (below < n.etp ? etp : below < n.etp * n.ep ? ep : edp).push_back(AxisId{static_cast<uint32_t>(a)});
  }
  auto add = [&](const char* name, std::vector<AxisId> axes) {
    if (axes.empty()) return GroupId{};
    std::sort(axes.begin(), axes.end());
    p.groups.push_back({name, std::move(axes), {}});
    return GroupId{static_cast<uint32_t>(p.groups.size() - 1)};
  };
  auto together = [](std::vector<AxisId> a, const std::vector<AxisId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  c.ep = add("ep", ep);
  c.etp = add("etp", etp);
  c.edp = add("edp", edp);
  c.expert_peers = !c.ep.valid() ? c.etp : !c.etp.valid() ? c.ep : add("ep_etp", together(ep, etp));
  c.expert_norm =
      shards_optimizer(c.strategy()) ? c.world : add("expert_model", together({AxisId{0}}, together(ep, etp)));
}

void make_expert_parameters(Context& c) {
  const Sizes& n = c.n;
  const bool gated = c.model_spec().gated_mlp;
  ParameterIds& id = c.id;
  auto add = [&](const char* name, std::vector<int64_t> shape, std::vector<plan::Shard> shards, bool expert,
                 double sigma) {
    const int k = add_parameter(c, name, std::move(shape), std::move(shards), true, plan::Init::normal, sigma);
    Parameter& q = c.parameters[static_cast<size_t>(k)];
    q.of = LayerKind::experts;
    q.expert = expert && n.separate_experts;
    if (q.expert) q.tensor_duplicate = false;
    return k;
  };
  auto cut = [&](uint8_t dim, int64_t blocks) {
    std::vector<plan::Shard> shards;
    if (c.ep.valid()) shards.push_back({0, c.ep, 1});
    if (c.etp.valid()) shards.push_back({dim, c.etp, blocks});
    return shards;
  };
  auto dense = [&](uint8_t dim, int64_t blocks) {
    return n.t > 1 ? std::vector<plan::Shard>{{dim, c.tp, blocks}} : std::vector<plan::Shard>{};
  };
  const double out = output_sigma(c.model_spec());
  id.router = add("router", {n.experts, n.h}, {}, false, kSigma);
  if (n.sequence_parallel) c.parameters[static_cast<size_t>(id.router)].partial_over_tensor = true;
  id.expert_fc1 = add("expert_fc1", {n.local_experts, n.expert_fc1, n.h}, cut(1, gated ? 2 : 1), true, kSigma);
  id.expert_fc2 = add("expert_fc2", {n.local_experts, n.h, n.expert_ffn}, cut(2, 1), true, out);
  if (n.shared_ffn == 0) return;
  id.shared_fc1 = add("shared_fc1", {n.shared_fc1, n.h}, dense(0, gated ? 2 : 1), false, kSigma);
  id.shared_fc2 = add("shared_fc2", {n.h, n.shared_ffn}, dense(1, 1), false, out);
}

void make_expert_layer(Context& c, LayerBuffers& l, const std::string& suffix, Scope scope) {
  const Sizes& n = c.n;
  auto kept = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
    return c.add_layer_buffer(name + suffix, Role::activation, scope, dtype, std::move(shape));
  };
  ExpertBuffers& m = l.moe;
  // With fp8 products the 8-bit inputs are kept; the 16-bit ones go as soon as they are cast.
  const bool f8 = c.narrow();
  auto wide = [&](const char* name, std::vector<int64_t> shape) {
    return c.add_layer_buffer(name + suffix, Role::activation, f8 ? Scope::invocation : scope, c.act, std::move(shape));
  };
  if (f8) {
    m.rows_f8 = kept("expert_in_f8", DType::f8, {n.expert_rows, n.h});
    m.activation_f8 = kept("expert_activation_f8", DType::f8, {n.expert_rows, n.expert_ffn});
  }
  m.in = f8 ? kept("experts_in", c.act, {n.rows, n.h}) : l.norm2;
  // Megatron's router keeps the probabilities and the map of all experts (topk_routing_with_score_function).
  m.router_probs = kept("router_probs", DType::f32, {n.rows, n.experts});
  m.router_map = kept("router_map", DType::u8, {n.rows, n.experts});
  m.weights = kept("route_weights", DType::f32, {n.rows, n.top_k});
  m.experts = kept("route_experts", DType::i32, {n.rows, n.top_k});
  m.rows = wide("expert_in", {n.expert_rows, n.h});
  m.row_weights = kept("expert_weights", DType::f32, {n.expert_rows});
  m.fc1 = kept("expert_fc1_out", c.act, {n.expert_rows, n.expert_fc1});
  m.activation = wide("expert_activation_out", {n.expert_rows, n.expert_ffn});
  if (n.shared_ffn == 0) return;
  if (f8) {
    m.shared_in_f8 = kept("shared_in_f8", DType::f8, {n.rows, n.h});
    m.shared_activation_f8 = kept("shared_activation_f8", DType::f8, {n.tokens, n.shared_ffn});
  }
  m.shared_fc1 = kept("shared_fc1_out", c.act, {n.tokens, n.shared_fc1});
  m.shared_activation = wide("shared_activation_out", {n.tokens, n.shared_ffn});
}

void make_expert_transients(Context& c) {
  const Sizes& n = c.n;
  auto tmp = [&](std::string name, DType dtype, std::vector<int64_t> shape) {
    return c.add_layer_buffer(std::move(name), Role::transient, Scope::invocation, dtype, std::move(shape));
  };
  auto rows = [&](std::string name, int64_t count, int64_t columns) {
    return tmp(std::move(name), c.act, {count, columns});
  };
  ExpertTransients& x = c.expert;
  auto route = [&](RouteBuffers& r, const std::string& prefix) {
    const std::pair<const char*, std::pair<BufferId RouteBuffers::*, BufferId RouteBuffers::*>> small[] = {
        {"permuted", {&RouteBuffers::permuted, &RouteBuffers::permuted_weights}},
        {"exchanged", {&RouteBuffers::exchanged, &RouteBuffers::exchanged_weights}},
        {"reduced", {&RouteBuffers::reduced, &RouteBuffers::reduced_weights}},
        {"returned", {&RouteBuffers::returned, &RouteBuffers::returned_weights}}};
    for (const auto& [name, members] : small) {
      r.*members.first = rows(prefix + name, n.slots, n.h);
      r.*members.second = tmp(prefix + name + "_weights", DType::f32, {n.slots});
    }
    r.gathered = rows(prefix + "gathered", n.expert_rows, n.h);
    r.gathered_weights = tmp(prefix + "gathered_weights", DType::f32, {n.expert_rows});
    r.sorted = rows(prefix + "sorted", n.expert_rows, n.h);
    r.sorted_weights = tmp(prefix + "sorted_weights", DType::f32, {n.expert_rows});
  };
  route(x.forward, "rows_");
  route(x.backward, "d_rows_");
  x.logits = tmp("router_logits", DType::f32, {n.rows, n.experts});
  x.counts = tmp("expert_counts", DType::i32, {n.experts});
  x.all_counts = tmp("all_expert_counts", DType::i32, {n.experts * n.ep * n.etp});
  const bool f8 = c.narrow();
  auto narrow = [&](const char* name, int64_t count, int64_t columns) {
    return tmp(name, DType::f8, {count, columns});
  };
  if (f8) {
    x.d_out_f8 = narrow("d_expert_out_f8", n.expert_rows, n.h);
    x.d_fc1_f8 = narrow("d_expert_fc1_f8", n.expert_rows, n.expert_fc1);
  }
  x.out = rows("expert_out", n.expert_rows, n.h);
  x.mixed = rows("experts_mixed", n.rows, n.h);
  x.d_out = rows("d_expert_out", n.expert_rows, n.h);
  x.d_activation = rows("d_expert_activation", n.expert_rows, n.expert_ffn);
  x.d_fc1 = rows("d_expert_fc1", n.expert_rows, n.expert_fc1);
  x.d_rows = rows("d_expert_in", n.expert_rows, n.h);
  x.d_row_weights = tmp("d_expert_weights", DType::f32, {n.expert_rows});
  x.d_weights = tmp("d_route_weights", DType::f32, {n.rows, n.top_k});
  x.d_logits = tmp("d_router_logits", DType::f32, {n.rows, n.experts});
  x.d_routed = rows("d_routed", n.rows, n.h);
  x.d_router = rows("d_router", n.rows, n.h);
  x.d_x = rows("d_experts_in", n.rows, n.h);
  if (n.shared_ffn == 0) return;
  if (f8) {
    x.shared_full_f8 = narrow("shared_full_f8", n.tokens, n.h);
    x.d_shared_f8 = narrow("d_shared_f8", n.rows, n.h);
    x.d_shared_full_f8 = narrow("d_shared_full_f8", n.tokens, n.h);
    x.d_shared_fc1_f8 = narrow("d_shared_fc1_f8", n.tokens, n.shared_fc1);
  }
  x.sum = rows("experts_sum", n.rows, n.h);
  x.shared_full = rows("shared_full", n.tokens, n.h);
  x.shared_out = rows("shared_out", n.tokens, n.h);
  x.shared_sum = rows("shared_sum", n.rows, n.h);
  x.d_shared_full = rows("d_shared_full", n.tokens, n.h);
  x.d_shared_activation = rows("d_shared_activation", n.tokens, n.shared_ffn);
  x.d_shared_fc1 = rows("d_shared_fc1", n.tokens, n.shared_fc1);
  x.d_shared_in_full = rows("d_shared_in_full", n.tokens, n.h);
  x.d_shared_in = rows("d_shared_in", n.rows, n.h);
  x.d_sum = rows("d_experts_sum", n.rows, n.h);
}

namespace {

/// Rows, and where it is valid what goes with each row.
struct Rows {
  BufferRef rows, weights;
  bool weighted() const { return weights.buffer.valid(); }
  Refs both() const { return weighted() ? Refs{rows, weights} : Refs{rows}; }
};

Rows rows_of(BufferId rows, BufferId weights, bool weighted, int j) {
  return {ref(rows, j), weighted ? ref(weights, j) : BufferRef{}};
}

/// Rows go once to each node and each rank, and are put in order on the way: nothing to do where there is one rank.
bool flexes(const Context& c) { return c.strategy().experts.dispatcher == Dispatcher::flex && c.n.ep > 1; }

/// Rows and weights are of two types: a collective for each.
void move(BlockBuilder& b, const Context& c, const char* name, Phase phase, CollectiveKind kind, GroupId group,
          const Rows& from, const Rows& to) {
  const int64_t copies = kind == CollectiveKind::all_to_all && flexes(c) ? c.n.top_k : 0;
  auto one = [&](BufferRef x, BufferRef y, const std::string& what) {
    const int64_t full = std::max(bytes(c, x), bytes(c, y));
    b.op(what, phase, Stream::expert, Collective{kind, Reduction::sum, dtype(c, x), group, full, copies}, {x}, {y});
  };
  one(from.rows, to.rows, name);
  if (from.weighted()) one(from.weights, to.weights, std::string(name) + " weights");
}

/// Between the order of arrival, by rank and then by expert, and that of the experts, by expert and then by rank.
void regroup(BlockBuilder& b, const Context& c, Phase phase, const Rows& from, const Rows& to, bool by_expert) {
  const Sizes& n = c.n;
  const int64_t size = bytes(c, from.rows), ranks = n.ep * n.etp;
  // flex: of the ranks' side there is one row for each rank, not for each choice: m (1 - (1 - 1/m)^k) of k are others.
  int64_t side = size;
  if (flexes(c)) {
    const auto m = static_cast<double>(ranks), k = static_cast<double>(n.top_k);
    side = std::llround(static_cast<double>(size) * std::min(1.0, m * (1 - std::pow(1 - 1 / m, k)) / k));
  }
  Compute op = streaming(Kernel::regroup, c.act, n.expert_rows, n.h, by_expert ? side : size, by_expert ? size : side,
                         0, from.weighted() ? 2 : 1);
  op.dims = by_expert ? std::array<int64_t, 5>{ranks, n.local_experts, n.capacity, n.h}
                      : std::array<int64_t, 5>{n.local_experts, ranks, n.capacity, n.h};
  b.op("regroup", phase, Stream::compute, op, from.both(), to.both());
}

bool sorts(const Sizes& n) { return n.local_experts > 1 && n.ep * n.etp > 1; }

/// flex: the transport reads rows where they are and writes their sums; what is left is the map of who gets what.
Compute slots_kernel(const Context& c, Kernel kernel, int64_t read, int64_t written) {
  const Sizes& n = c.n;
  // The map from rows to slots, and the copy.
  const int64_t moved = flexes(c) ? 0 : 1;
  Compute op = streaming(kernel, c.act, n.rows, n.h, moved * read, moved * written,
                         kernel == Kernel::unpermute && moved ? 1 : 0, flexes(c) ? 1 : 2);
  op.dims = {n.rows, n.h, n.experts, n.top_k, n.capacity};
  return op;
}

/// From the rows of this rank to those of its experts.
void dispatch(BlockBuilder& b, const Context& c, Phase phase, int j, const RouteBuffers& r, const Rows& from,
              BufferRef experts, const Rows& to) {
  const Sizes& n = c.n;
  const bool weighted = from.weighted();
  Rows at = n.ep > 1 || n.etp > 1 ? rows_of(r.permuted, r.permuted_weights, weighted, j) : to;
  const int64_t tile = n.rows * n.h * size_of(c.act);
  Refs reads{from.rows, experts};
  if (weighted) reads.push_back(from.weights);
  b.op("permute", phase, Stream::compute, slots_kernel(c, Kernel::permute, tile, bytes(c, at.rows)), reads, at.both());
  auto next = [&](bool last, BufferId rows, BufferId weights) {
    return last ? to : rows_of(rows, weights, weighted, j);
  };
  if (n.ep > 1) {
    const Rows out = next(n.etp == 1 && !sorts(n), r.exchanged, r.exchanged_weights);
    move(b, c, "ep all-to-all dispatch", phase, CollectiveKind::all_to_all, c.ep, at, out);
    at = out;
  }
  if (n.etp > 1) {
    const Rows out = next(!sorts(n), r.gathered, r.gathered_weights);
    move(b, c, "etp all-gather", phase, CollectiveKind::all_gather, c.etp, at, out);
    at = out;
  }
  if (sorts(n)) regroup(b, c, phase, at, to, true);
}

/// The way back: each row is the sum of its choices.
void combine(BlockBuilder& b, const Context& c, Phase phase, int j, const RouteBuffers& r, const Rows& from,
             BufferRef experts, const Rows& to) {
  const Sizes& n = c.n;
  const bool weighted = from.weighted();
  Rows at = from;
  if (sorts(n)) {
    const Rows out = rows_of(r.sorted, r.sorted_weights, weighted, j);
    regroup(b, c, phase, at, out, false);
    at = out;
  }
  if (n.etp > 1) {
    const Rows out = rows_of(r.reduced, r.reduced_weights, weighted, j);
    move(b, c, "etp reduce-scatter", phase, CollectiveKind::reduce_scatter, c.etp, at, out);
    at = out;
  }
  if (n.ep > 1) {
    const Rows out = rows_of(r.returned, r.returned_weights, weighted, j);
    move(b, c, "ep all-to-all combine", phase, CollectiveKind::all_to_all, c.ep, at, out);
    at = out;
  }
  const int64_t tile = n.rows * n.h * size_of(c.act);
  Refs reads{at.rows, experts};
  if (weighted) reads.push_back(at.weights);
  b.op("unpermute", phase, Stream::compute, slots_kernel(c, Kernel::unpermute, bytes(c, at.rows), tile), reads,
       to.both());
}

/// Router and softmax; without fixed counts the host reads how many rows each expert gets, before it can issue the rest.
void route(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef x) {
  const Sizes& n = c.n;
  const ExpertTransients& t = c.expert;
  b.compute("router", phase, gemm(n.rows, n.experts, n.h, c.act, DType::f32, false, true, false),
            {x, c.weight(c.id.router, j)}, {ref(t.logits, j)});
  const int64_t logits = n.rows * n.experts * 4, choices = n.rows * n.top_k * 8;
  // Top k, softmax, the dense probabilities and map, and the counts.
  Compute op =
      streaming(Kernel::route_forward, DType::f32, n.rows, n.experts, 2 * logits, logits + logits / 4 + choices, 8, 5);
  op.dims = {n.rows, n.experts, n.top_k, n.b};
  op.function = static_cast<uint8_t>(c.strategy().experts.routing);
  if (n.sequence_parallel) op.group = c.tp;
  b.compute("top-k", phase, op, {ref(t.logits, j)}, {ref(l.moe.weights, j), ref(l.moe.experts, j), ref(t.counts, j)});
  hold(b, c, l.moe.router_probs, j, phase);
  hold(b, c, l.moe.router_map, j, phase);
  if (!c.strategy().experts.dropless) return b.discard(ref(t.counts, j));
  if (c.expert_peers.valid()) {
    b.op(
        "expert counts all-gather", phase, Stream::expert,
        Collective{CollectiveKind::all_gather, Reduction::sum, DType::i32, c.expert_peers, bytes(c, ref(t.all_counts))},
        {ref(t.counts, j)}, {ref(t.all_counts, j)});
    b.discard(ref(t.all_counts, j));
  } else {
    b.discard(ref(t.counts, j));
  }
  b.op("expert counts to host", phase, Stream::compute, plan::HostWait{}, {}, {},
       {tail(Stream::compute), tail(Stream::expert)});
}

Compute activation(const Context& c, Kernel kernel, int64_t rows, int64_t wide, int64_t narrow) {
  const int64_t e = size_of(c.act), in = rows * wide * e, out = rows * narrow * e;
  const bool backward = kernel == Kernel::activation_backward || kernel == Kernel::expert_activation_backward;
  Compute op = streaming(kernel, c.act, rows, narrow, backward ? in + out : in, backward ? in : out, backward ? 12 : 8);
  op.gated = c.model_spec().gated_mlp;
  op.function = static_cast<uint8_t>(c.model_spec().activation);
  return op;
}

/// The products of all experts of the rank. The library is called once for each (TE's multi-stream cuBLAS).
Compute products(const Context& c, DType in, int64_t m, int64_t n, int64_t k, DType out, bool transpose_a,
                 bool transpose_b, bool accumulate) {
  Compute op = grouped_gemm(c.n.local_experts, m, n, k, in, out, transpose_a, transpose_b, accumulate);
  op.launches = static_cast<uint16_t>(c.n.local_experts);
  return op;
}

BufferRef shared_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef x,
                         bool to_last_kept) {
  const Sizes& n = c.n;
  const ExpertTransients& t = c.expert;
  const BufferRef read = narrowed(b, c, phase, x, ref(l.moe.shared_in_f8, j));
  const BufferRef full = enter_region(b, c, read, ref(c.narrow() ? t.shared_full_f8 : t.shared_full, j), phase);
  linear(b, c, "shared fc1", phase, full, c.id.shared_fc1, -1, j, ref(l.moe.shared_fc1, j), n.shared_fc1, n.h);
  b.compute("shared activation", phase, activation(c, Kernel::activation_forward, n.tokens, n.shared_fc1, n.shared_ffn),
            {ref(l.moe.shared_fc1, j)}, {ref(l.moe.shared_activation, j)});
  const BufferRef activated =
      narrowed(b, c, phase, ref(l.moe.shared_activation, j), ref(l.moe.shared_activation_f8, j));
  if (to_last_kept) return {};
  linear(b, c, "shared fc2", phase, activated, c.id.shared_fc2, -1, j, ref(t.shared_out, j), n.h, n.shared_ffn);
  return leave_region(b, c, ref(t.shared_out, j), ref(t.shared_sum, j), phase);
}

BufferRef shared_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef x, BufferRef d) {
  const Sizes& n = c.n;
  const ExpertTransients& t = c.expert;
  const Phase input = Phase::backward_input;
  const bool f8 = c.narrow();
  const BufferRef d_read = narrowed(b, c, input, d, ref(t.d_shared_f8, j));
  const BufferRef d_full = enter_region(b, c, d_read, ref(f8 ? t.d_shared_full_f8 : t.d_shared_full, j), input);
  linear_input(b, c, "shared fc2 dgrad", d_full, c.id.shared_fc2, j, ref(t.d_shared_activation, j), n.h, n.shared_ffn);
  linear_weight(b, c, "shared fc2 wgrad", d_full, ref(f8 ? l.moe.shared_activation_f8 : l.moe.shared_activation, j),
                c.id.shared_fc2, -1, j, n.h, n.shared_ffn, 0);
  b.compute("shared activation backward", input,
            activation(c, Kernel::activation_backward, n.tokens, n.shared_fc1, n.shared_ffn),
            {ref(t.d_shared_activation, j), ref(l.moe.shared_fc1, j)}, {ref(t.d_shared_fc1, j)});
  const BufferRef full =
      enter_region(b, c, f8 ? ref(l.moe.shared_in_f8, j) : x, ref(f8 ? t.shared_full_f8 : t.shared_full, j), input);
  const BufferRef d_fc1 = narrowed(b, c, input, ref(t.d_shared_fc1, j), ref(t.d_shared_fc1_f8, j));
  linear_input(b, c, "shared fc1 dgrad", d_fc1, c.id.shared_fc1, j, ref(t.d_shared_in_full, j), n.shared_fc1, n.h);
  const BufferRef out = leave_region(b, c, ref(t.d_shared_in_full, j), ref(t.d_shared_in, j), input);
  linear_weight(b, c, "shared fc1 wgrad", d_fc1, full, c.id.shared_fc1, -1, j, n.shared_fc1, n.h, 0);
  return out;
}

}  // namespace

BufferRef experts_forward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, Phase phase, BufferRef x,
                          bool to_last_kept) {
  const Sizes& n = c.n;
  const ExpertTransients& t = c.expert;
  const ExpertBuffers& m = l.moe;
  const bool shared = n.shared_ffn > 0, beside = c.strategy().experts.shared_overlap;
  route(b, c, l, j, phase, x);
  BufferRef also;
  if (shared && (!beside || to_last_kept)) also = shared_forward(b, c, l, j, phase, x, to_last_kept);
  dispatch(b, c, phase, j, t.forward, {x, ref(m.weights, j)}, ref(m.experts, j),
           {ref(m.rows, j), ref(m.row_weights, j)});
  const int64_t rows = n.expert_rows / n.local_experts;
  const DType in = c.narrow() ? DType::f8 : c.act;
  const BufferRef read = narrowed(b, c, phase, ref(m.rows, j), ref(m.rows_f8, j));
  b.compute("expert fc1", phase, products(c, in, rows, n.expert_fc1, n.h, c.act, false, true, false),
            {read, c.operand(c.id.expert_fc1, j)}, {ref(m.fc1, j)});
  b.compute("expert activation", phase,
            activation(c, Kernel::expert_activation_forward, n.expert_rows, n.expert_fc1, n.expert_ffn),
            {ref(m.fc1, j), ref(m.row_weights, j)}, {ref(m.activation, j)});
  const BufferRef activated = narrowed(b, c, phase, ref(m.activation, j), ref(m.activation_f8, j));
  if (to_last_kept) return {};
  b.compute("expert fc2", phase, products(c, in, rows, n.h, n.expert_ffn, c.act, false, true, false),
            {activated, c.operand(c.id.expert_fc2, j)}, {ref(t.out, j)});
  combine(b, c, phase, j, t.forward, {ref(t.out, j), {}}, ref(m.experts, j), {ref(t.mixed, j), {}});
  if (!shared) return ref(t.mixed, j);
  if (beside) also = shared_forward(b, c, l, j, phase, x, to_last_kept);
  b.compute("add shared expert", phase, add(c, n.rows), {ref(t.mixed, j), also}, {ref(t.sum, j)});
  return ref(t.sum, j);
}

BufferRef experts_backward(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, BufferRef x, BufferRef d) {
  const Sizes& n = c.n;
  const ExpertTransients& t = c.expert;
  const ExpertBuffers& m = l.moe;
  const Phase input = Phase::backward_input;
  const bool fresh = c.fresh_gradients;
  const int64_t rows = n.expert_rows / n.local_experts;
  dispatch(b, c, input, j, t.backward, {d, {}}, ref(m.experts, j), {ref(t.d_out, j), {}});
  const bool f8 = c.narrow();
  const DType in = f8 ? DType::f8 : c.act;
  const BufferRef d_out = narrowed(b, c, input, ref(t.d_out, j), ref(t.d_out_f8, j));
  b.compute("expert fc2 dgrad", input, products(c, in, rows, n.expert_ffn, n.h, c.act, false, false, false),
            {d_out, c.operand(c.id.expert_fc2, j)}, {ref(t.d_activation, j)});
  b.compute("expert fc2 wgrad", Phase::backward_weight,
            products(c, in, n.h, n.expert_ffn, rows, c.grad, true, false, !fresh),
            {d_out, ref(f8 ? m.activation_f8 : m.activation, j)}, {c.gradient(c.id.expert_fc2, j)});
  b.compute("expert activation backward", input,
            activation(c, Kernel::expert_activation_backward, n.expert_rows, n.expert_fc1, n.expert_ffn),
            {ref(t.d_activation, j), ref(m.fc1, j), ref(m.row_weights, j)}, {ref(t.d_fc1, j), ref(t.d_row_weights, j)});
  const BufferRef d_fc1 = narrowed(b, c, input, ref(t.d_fc1, j), ref(t.d_fc1_f8, j));
  b.compute("expert fc1 dgrad", input, products(c, in, rows, n.h, n.expert_fc1, c.act, false, false, false),
            {d_fc1, c.operand(c.id.expert_fc1, j)}, {ref(t.d_rows, j)});
  b.compute("expert fc1 wgrad", Phase::backward_weight,
            products(c, in, n.expert_fc1, n.h, rows, c.grad, true, false, !fresh),
            {d_fc1, ref(f8 ? m.rows_f8 : m.rows, j)}, {c.gradient(c.id.expert_fc1, j)});
  combine(b, c, input, j, t.backward, {ref(t.d_rows, j), ref(t.d_row_weights, j)}, ref(m.experts, j),
          {ref(t.d_routed, j), ref(t.d_weights, j)});
  const int64_t logits = n.rows * n.experts * 4;
  Compute op = streaming(Kernel::route_backward, DType::f32, n.rows, n.experts, 2 * logits, 2 * logits, 4, 3);
  op.dims = {n.rows, n.experts, n.top_k, n.b};
  b.compute("top-k backward", input, op, {ref(t.d_weights, j), ref(m.weights, j), ref(m.experts, j)},
            {ref(t.d_logits, j)});
  let_go(b, m.router_probs, j);
  let_go(b, m.router_map, j);
  b.compute("router dgrad", input, gemm(n.rows, n.h, n.experts, c.act, c.act, false, false, false),
            {ref(t.d_logits, j), c.weight(c.id.router, j)}, {ref(t.d_router, j)});
  b.compute("router wgrad", Phase::backward_weight, gemm(n.experts, n.h, n.rows, c.act, c.grad, true, false, !fresh),
            {ref(t.d_logits, j), x}, {c.gradient(c.id.router, j)});
  b.compute("add router", input, add(c, n.rows), {ref(t.d_routed, j), ref(t.d_router, j)}, {ref(t.d_x, j)});
  if (n.shared_ffn == 0) return ref(t.d_x, j);
  const BufferRef also = shared_backward(b, c, l, j, x, d);
  b.compute("add shared expert", input, add(c, n.rows), {ref(t.d_x, j), also}, {ref(t.d_sum, j)});
  return ref(t.d_sum, j);
}

}  // namespace wt::lower
