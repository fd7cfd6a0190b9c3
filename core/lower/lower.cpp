// Job -> plan: checks the job, makes buffers, one part for each kind of model chunk with its blocks, and one program for
// each pipeline rank whose order the schedule gives. The passes are in strategies/ and transformer.cpp.
#include "core/lower/lower.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/file.hpp"
#include "core/lower/context.hpp"
#include "core/lower/schedule.hpp"
#include "core/spec/names.hpp"

namespace wt::lower {

using plan::Invocation;
using plan::Stream;
using plan::Wait;

namespace {

/// The first micro-batch under overlapped gathering: gathers each bucket of weights just before the first layer that reads
/// it, with the next bucket under way meanwhile, and casts the weights for fp8 products.
class GatherHooks final : public LayerHooks {
 public:
  GatherHooks(const Context& c, const ChunkPart& part) : c_(c), part_(part), next_(part.buckets.size()) {}

  /// Before the embedding: its tables lie in the last buckets.
  void begin(BlockBuilder& b) {
    dispatch(b);
    const ParameterIds& id = c_.id;
    if (part_.embedding)
      need_all(b, [&](const auto& m) {
        return m.parameter == id.embedding || m.parameter == id.position || m.parameter == id.embedding_gamma ||
               m.parameter == id.embedding_beta;
      });
  }
  void before_forward(BlockBuilder& b, const LayerPlace& at) override {
    if (part_.split_buckets) need_all(b, [&](const auto& m) { return m.layer == at.layer; });
    if (c_.narrow()) narrow_layer(b, c_, part_.kinds[static_cast<size_t>(at.layer)], at.offset);
  }
  void finish(BlockBuilder& b) { need(b, 0); }  // the head reads bucket 0

 private:
  /// Down to the lowest bucket that holds a wanted parameter.
  template <class Wanted>
  void need_all(BlockBuilder& b, Wanted wanted) {
    for (size_t i = 0; i < part_.buckets.size(); ++i) {
      const auto& members = part_.buckets[i].members;
      if (std::any_of(members.begin(), members.end(), wanted)) return need(b, i);
    }
  }
  void dispatch(BlockBuilder& b) {
    if (next_ == 0) return;
    --next_;
    in_flight_ = gather_bucket(b, c_, part_, next_);
  }
  void need(BlockBuilder& b, size_t bucket) {
    while (waited_ > bucket) {
      --waited_;
      if (waited_ < next_) dispatch(b);
      if (in_flight_) b.before_next_compute({Wait::Kind::op, *in_flight_});
      dispatch(b);
    }
  }
  const Context& c_;
  const ChunkPart& part_;
  size_t next_;                           // buckets >= next_ are under way
  size_t waited_ = part_.buckets.size();  // buckets >= waited_ are waited for
  std::optional<uint32_t> in_flight_;
};

plan::Block unit_forward_block(Context& c, const ChunkPart& part, const std::string& name, P2p p2p, bool first) {
  BlockBuilder b(c.plan, name, part.id, BlockBuilder::Lifetimes::forward);
  UnitHooks hooks(c, part, {Way::forward, first});
  begin_block(b, c, p2p);
  b.segment(0);
  hooks.begin(b);
  part.embedding ? embedding_forward(b, c) : receive_input(b, c, part, p2p);
  hooks.embedding(b);
  ActivationHooks activations(c, part);
  HookList all;
  all.add(&hooks);
  if (activations.any()) all.add(&activations);
  layers_forward(b, c, part, all.get());
  if (part.head) {
    b.segment(part.stack());
    hooks.head(b);
    head_forward(b, c, part);
  } else {
    send_output(b, c, part);
  }
  hooks.finish(b);
  return b.finish();
}

plan::Block unit_backward_block(Context& c, const ChunkPart& part, const std::string& name, P2p p2p, UnitPass pass) {
  BlockBuilder b(c.plan, name, part.id, BlockBuilder::Lifetimes::backward);
  UnitHooks hooks(c, part, pass);
  begin_block(b, c, p2p);
  b.segment(part.stack());
  hooks.begin(b);
  if (part.head) {
    head_backward(b, c, part);
  } else {
    receive_gradient(b, c, part, p2p);
  }
  hooks.head(b);
  ActivationHooks activations(c, part);
  HookList all;
  if (activations.any()) all.add(&activations);
  all.add(&hooks);
  layers_backward(b, c, part, all.get());
  b.segment(0);
  hooks.embedding(b);
  if (part.embedding) {
    embedding_backward(b, c);
  } else {
    send_gradient(b, c, part);
  }
  release_edges(b, c, part);
  hooks.finish(b);
  return b.finish();
}

/// The first micro-batch makes the gradients that the others add to; with no_sync the last alone reduces them.
void unit_blocks(Context& c, ChunkPart& part, const std::string& name, P2p p2p) {
  const int64_t m = c.n.micro_batches;
  const FsdpSpec& s = c.strategy().fsdp;
  const bool torch =
      c.strategy().data_parallel == DataParallel::fsdp || c.strategy().data_parallel == DataParallel::fsdp2;
  const bool no_sync = torch && s.no_sync && m > 1;
  unit_setup_blocks(c, part);
  part.forward_first = c.add_block(unit_forward_block(c, part, "forward " + name, p2p, true));
  if (m > 1) {
    if (keeps_across_micro_batches(c)) {
      part.forward = c.add_block(unit_forward_block(c, part, "forward again " + name, p2p, false));
    } else {
      part.forward = part.forward_first;
    }
  }
  // What the host updates it gets in the last one.
  const bool last_differs = m > 1 && (no_sync || (updates_on_host(c.strategy()) && !torch));
  auto backward = [&](const char* what, bool first, bool reduces, bool last) {
    return c.add_block(unit_backward_block(c, part, what + name, p2p, {Way::backward, first, reduces, last}));
  };
  part.backward_first = backward("backward ", true, !no_sync, m == 1);
  if (last_differs) part.backward_last = backward("backward reduce ", false, true, true);
  if (m > (last_differs ? 2 : 1)) part.backward = backward("backward add ", false, !no_sync, false);
  unit_step_blocks(c, part);
}

plan::Block forward_block(Context& c, const ChunkPart& part, const std::string& name, P2p p2p, bool first) {
  BlockBuilder b(c.plan, name, part.id, BlockBuilder::Lifetimes::forward);
  b.hand_on(c.handed);
  begin_block(b, c, p2p);
  if (first && !part.split_buckets) b.before_next_compute({Wait::Kind::tail, static_cast<uint32_t>(Stream::data)});
  GatherHooks gather(c, part);
  const bool split = first && part.split_buckets;
  if (part.embedding) {
    b.segment(0);
    if (split) gather.begin(b);
    embedding_forward(b, c);
  } else {
    receive_input(b, c, part, p2p);
    if (split) gather.begin(b);
  }
  ActivationHooks activations(c, part);
  HookList hooks;
  if (split || (first && c.narrow())) hooks.add(&gather);
  if (activations.any()) hooks.add(&activations);
  layers_forward(b, c, part, hooks.get());
  if (part.head) {
    b.segment(part.stack());
    if (split) gather.finish(b);
    if (first)
      for (int64_t k = 0; k < part.mtp; ++k) gather.before_forward(b, {part.stack() + k, static_cast<int>(k)});
    head_forward(b, c, part);
  } else {
    send_output(b, c, part);
  }
  return b.finish();
}

plan::Block backward_block(Context& c, const ChunkPart& part, const std::string& name, P2p p2p, bool last) {
  BlockBuilder b(c.plan, name, part.id, BlockBuilder::Lifetimes::backward);
  b.hand_on(c.handed);
  begin_block(b, c, p2p);
  ReduceHooks reduce(c, part);
  const bool hooked = last && part.split_buckets;
  if (part.head) {
    b.segment(part.stack());
    head_backward(b, c, part);
    if (hooked && part.mtp > 0) reduce.after_backward(b, {part.stack()});
  } else {
    receive_gradient(b, c, part, p2p);
  }
  ActivationHooks activations(c, part);
  HookList hooks;
  if (activations.any()) hooks.add(&activations);
  if (hooked) hooks.add(&reduce);
  layers_backward(b, c, part, hooks.get());
  if (part.embedding) {
    b.segment(0);
    embedding_backward(b, c);
  } else {
    send_gradient(b, c, part);
  }
  release_edges(b, c, part);
  if (part.accumulated.valid()) {  // hp_grad.add_(lp.grad.to(fp32)), tensor by tensor
    b.segment(-1);
    b.op("widen gradients", plan::Phase::backward_weight, Stream::compute, plan::Join{}, {}, {});
    b.reserve_here(ref(part.accumulated));
    b.release_here(ref(part.accumulated));
  }
  if (last) {
    b.segment(-1);
    reduce.finish(b);
  }
  return b.finish();
}

std::string part_name(const ChunkPart& p) {
  const std::string name = p.embedding && p.head ? "whole" : p.embedding ? "first" : p.head ? "last" : "middle";
  return p.back ? name + " back" : name;
}

/// Which blocks of a backward the order calls.
struct Passes {
  bool whole = false, split = false;
};

void make_part(Context& c, ChunkPart& part, P2p p2p, Passes passes) {
  plan::Part out;
  out.name = part_name(part);
  const std::string kind = out.name;
  auto taken = [&] {
    return std::any_of(c.plan.parts.begin(), c.plan.parts.end(), [&](const auto& p) { return p.name == out.name; });
  };
  if (taken()) out.name = fmt::format("{}{}", kind, part.layers);  // uneven splits: two middles of different size
  for (char more = 'b'; taken(); ++more)
    out.name = fmt::format("{}{}{}", kind, part.layers, more);  // or of other layers
  out.embedding = part.embedding;
  out.head = part.head;
  out.layers = part.layers;
  part.id = {static_cast<uint32_t>(c.plan.parts.size())};
  c.plan.parts.push_back(std::move(out));
  const std::string name = c.plan.parts[part.id.v].name;
  place_loss_pieces(c, part);
  place_labels_ahead(c, part);
  if (has_units(c.strategy())) {
    make_units(c, part);
    return unit_blocks(c, part, name, p2p);
  }
  make_buckets(c, part);

  const bool replicas = c.replicated();
  setup_blocks(c, part);
  part.forward = c.add_block(forward_block(c, part, "forward " + name, p2p, false));
  if (replicas && overlaps_gather(c.strategy()))
    part.forward_first = c.add_block(forward_block(c, part, "forward gather " + name, p2p, true));
  if (passes.split) backward_halves(c, part, name, p2p);
  const bool every = replicas && c.strategy().data_parallel == DataParallel::ddp && !c.strategy().ddp.no_sync;
  if (passes.whole) part.backward = c.add_block(backward_block(c, part, "backward " + name, p2p, every));
  if (passes.whole && replicas && overlaps_reduce(c.strategy()) && !every)
    part.backward_last = c.add_block(backward_block(c, part, "backward reduce " + name, p2p, true));
  optimizer_blocks(c, part);
}

Invocation of_chunk(BlockId block, int64_t chunk, int64_t micro_batch) {
  Invocation i;
  i.block = block;
  i.binding[0] = {static_cast<uint16_t>(chunk), static_cast<uint16_t>(micro_batch)};
  return i;
}
/// Pairs of blocks, made when the order first asks for them.
class Pairs {
 public:
  explicit Pairs(Context& c) : c_(c) {}
  /// `forward` and `backward`, as the order would call them one after the other.
  Invocation of(const Invocation& forward, const Invocation& backward) {
    const auto [it, fresh] = blocks_.try_emplace({forward.block.v, backward.block.v});
    if (fresh) it->second = c_.add_block(pair_blocks(c_.plan.block(forward.block), c_.plan.block(backward.block)));
    Invocation i;
    i.block = it->second;
    i.bindings = 2;
    i.binding = {forward.binding[0], backward.binding[0]};
    return i;
  }

 private:
  Context& c_;
  std::map<std::pair<uint32_t, uint32_t>, BlockId> blocks_;
};

Invocation of_rank(BlockId block) {
  Invocation i;
  i.block = block;
  i.bindings = 0;
  return i;
}

plan::Program make_program(const Context& c, int64_t pp, const std::vector<size_t>& parts,
                           const std::vector<Slot>& slots, const RankBlocks& rank, Pairs& pairs) {
  plan::Program g;
  g.name = fmt::format("stage {}", pp);
  g.when = {AxisId{0}, {pp}};
  const auto chunks = static_cast<int64_t>(parts.size());
  auto part = [&](int64_t chunk) -> const ChunkPart& { return c.parts[parts[static_cast<size_t>(chunk)]]; };
  for (int64_t k = 0; k < chunks; ++k) g.chunks.push_back(part(k).id);

  auto each = [&](std::vector<Invocation>& out, BlockId ChunkPart::*block, bool backwards = false) {
    for (int64_t k = 0; k < chunks; ++k) {
      const int64_t chunk = backwards ? chunks - 1 - k : k;
      if (const BlockId id = part(chunk).*block; id.valid()) out.push_back(of_chunk(id, chunk, 0));
    }
  };
  g.setup.push_back(of_rank(rank.setup));
  each(g.setup, &ChunkPart::load);
  const bool late_gradients = c.strategy().data_parallel == DataParallel::zero1;
  if (!late_gradients) each(g.setup, &ChunkPart::build);
  each(g.setup, &ChunkPart::master);
  each(g.setup, &ChunkPart::moments);
  if (late_gradients) each(g.setup, &ChunkPart::build);
  each(g.setup, &ChunkPart::outputs);

  plan::StepOrder steady{"steady", {}};
  auto& order = steady.order;
  order.reserve(slots.size() + 32);
  order.push_back(of_rank(rank.begin));
  each(order, &ChunkPart::zero);
  const bool gathers = overlaps_gather(c.strategy());
  if (gathers && part(0).gather.valid()) order.push_back(of_chunk(part(0).gather, 0, 0));
  each(order, &ChunkPart::narrow_weights);
  // The pass that begins the gradients of a chunk, and the one that completes them.
  std::vector<const Slot*> begins(static_cast<size_t>(chunks), nullptr), completes = begins;
  for (const Slot& s : slots)
    if (s.pass == Pass::backward || s.pass == Pass::backward_weight) {
      const auto chunk = static_cast<size_t>(s.chunk);
      if (!begins[chunk]) begins[chunk] = &s;
      completes[chunk] = &s;
    }
  std::optional<Invocation> half;  // of a pair: the forward
  for (const Slot& s : slots) {
    const ChunkPart& p = part(s.chunk);
    const bool last = completes[static_cast<size_t>(s.chunk)] == &s;
    if (s.pass == Pass::backward_input) {
      order.push_back(of_chunk(p.backward_input, s.chunk, s.micro_batch));
    } else if (s.pass == Pass::backward_weight) {
      const bool reduces = last && p.backward_weight_last.valid();
      order.push_back(of_chunk(reduces ? p.backward_weight_last : p.backward_weight, s.chunk, s.micro_batch));
    } else if (s.pass == Pass::forward) {
      const bool first = s.micro_batch == 0 && p.forward_first.valid();
      const Invocation forward = of_chunk(first ? p.forward_first : p.forward, s.chunk, s.micro_batch);
      if (s.paired) {
        half = forward;
        continue;
      }
      order.push_back(forward);
      if (gathers && s.micro_batch == 0 && s.chunk + 1 < chunks && part(s.chunk + 1).gather.valid())
        order.push_back(of_chunk(part(s.chunk + 1).gather, s.chunk + 1, 0));
    } else {
      const bool first = begins[static_cast<size_t>(s.chunk)] == &s && p.backward_first.valid();
      const bool reduces = last && p.backward_last.valid();
      const Invocation backward = of_chunk(first     ? p.backward_first
                                           : reduces ? p.backward_last
                                                     : p.backward,
                                           s.chunk, s.micro_batch);
      order.push_back(half ? pairs.of(*std::exchange(half, std::nullopt), backward) : backward);
    }
  }
  each(order, &ChunkPart::reduce, true);
  each(order, &ChunkPart::tail, true);
  each(order, &ChunkPart::sum_squares);
  if (rank.norm.valid()) order.push_back(of_rank(rank.norm));
  each(order, &ChunkPart::update);
  if (!gathers) each(order, &ChunkPart::gather);
  g.steps.push_back(std::move(steady));
  return g;
}

/// What the plan leaves out of the job, in words a report can print.
void note_assumptions(const JobSpec& job, std::vector<std::string>& out) {
  const auto& m = job.model;
  if (job.strategy.context > 1 && m.sliding_window > 0 && m.sliding_window < job.training.seq_len &&
      (m.sliding_period != 1 || m.full_period != 0))
    out.push_back(
        fmt::format("attention windows of {} tokens on some layers are planned as full attention", m.sliding_window));
  if (job.strategy.tensor > m.kv_heads)
    out.push_back(fmt::format("{} key/value heads are kept in {} copies over the tensor group", m.kv_heads,
                              job.strategy.tensor / m.kv_heads));
}

/// What a plan of experts takes for granted.
void note_experts(const JobSpec& job, std::vector<std::string>& out) {
  const ExpertSpec& e = job.strategy.experts;
  if (e.routing == RoutingKind::even)
    out.push_back(e.imbalance == 1
                      ? "every expert gets as many tokens as any other (even load)"
                      : fmt::format("the experts of every rank get {:g} times the mean of tokens", e.imbalance));
  if (job.model.moe->router_bias) out.push_back("the router's bias, a number for each expert, is not planned");
}

/// Keys of the strategy that ask for something which the other keys leave without effect.
void note_unused_keys(const StrategySpec& s, std::vector<std::string>& out) {
  const StrategySpec plain;
  const bool ddp = s.data_parallel == DataParallel::ddp;
  const auto unused = [&](bool asked, std::string_view key, std::string_view beside) {
    if (asked) out.push_back(fmt::format("{} has no effect {}", key, beside));
  };
  unused(s.sequence_parallel && s.tensor == 1, "sequence_parallel", "with tensor = 1");
  unused(s.tensor_overlap && s.tensor == 1, "tensor_overlap", "with tensor = 1");
  unused(s.context_exchange != plain.context_exchange && s.context == 1, "context_exchange", "with context = 1");
  const std::string other_schedule = fmt::format("with schedule {}", s.schedule);
  const Schedule& schedule = *find_schedule(s.schedule);
  unused(!s.overlap_p2p && schedule.splits_backward, "overlap_p2p", other_schedule);
  unused(s.max_in_flight != 0 && s.schedule != "zb-h2", "max_in_flight", other_schedule);
  unused(!s.schedule_file.empty() && !schedule.reads_file, "schedule_file", other_schedule);
  unused(s.group_size != 0 && s.schedule != "interleaved", "group_size", other_schedule);
  const std::string other_replicas = fmt::format("with data_parallel {}", to_text(s.data_parallel));
  unused(!ddp && s.ddp_bucket != plain.ddp_bucket, "ddp_bucket", other_replicas);
  unused(!ddp && s.ddp_first_bucket != plain.ddp_first_bucket, "ddp_first_bucket", other_replicas);
  unused(ddp && s.bucket_elements != 0, "bucket_elements", other_replicas);
  const bool full = s.recompute.kind == RecomputeKind::full;
  const std::string other_kind = fmt::format("with recompute.kind {}", to_text(s.recompute.kind));
  unused(!full && s.recompute.layers != plain.recompute.layers, "recompute.layers", other_kind);
  unused(!full && s.recompute.method != plain.recompute.method, "recompute.method", other_kind);
  unused(s.recompute.kind != RecomputeKind::selective && !s.recompute.modules.empty(), "recompute.modules", other_kind);
  unused(!full && s.recompute.early_stop, "recompute.early_stop", other_kind);
  unused(!full && s.recompute.every != 1, "recompute.every", other_kind);
  unused(s.offload.ratio != 1 && s.offload.optimizer == OffloadDevice::none, "offload.ratio",
         "without offload.optimizer");
}

}  // namespace

Result<plan::Plan> lower(const JobSpec& asked) {
  if (Diagnostics faults = check_job(asked); !faults.empty()) return faults;
  JobSpec job = asked;
  StrategySpec& s = job.strategy;
  if (s.data == 0) s.data = job.cluster.ranks() / (s.tensor * s.pipeline * s.context);

  plan::Plan out;
  out.name = job.name;
  Context c{job, out};
  make_buffers(c);

  const Schedule& schedule = *find_schedule(s.schedule);
  std::string file;
  if (schedule.reads_file) {
    auto text = read_file(s.schedule_file);
    if (!text) return text.errors();
    file = std::move(text.value());
  }
  const auto orders = schedule.order({s.pipeline, s.virtual_stages, c.n.micro_batches, s.group_size, s.schedule_weights,
                                      s.max_in_flight, s.experts.overlap_passes, file});
  if (!orders.ok()) return orders.errors();
  Passes passes;
  for (const std::vector<Slot>& slots : orders.value())
    for (const Slot& slot : slots) {
      passes.whole |= slot.pass == Pass::backward;
      passes.split |= slot.pass == Pass::backward_input;
    }
  if (passes.split) hand_on_for_weights(c);
  out.placement = {schedule.placement, s.pipeline, s.virtual_stages};

  // One part for each kind of chunk; first_layer follows from the order of the global stages.
  const std::vector<int64_t> layers = layers_of_stages(job, out.placement);
  // A weight gradient between two messages is what such a schedule is for.
  const bool overlaps = schedule.overlaps_p2p && (s.overlap_p2p || schedule.splits_backward);
  const P2p p2p = overlaps ? P2p::overlapped : s.virtual_stages > 1 ? P2p::paired : P2p::blocking;
  std::vector<std::vector<size_t>> part_of(static_cast<size_t>(s.pipeline),
                                           std::vector<size_t>(static_cast<size_t>(s.virtual_stages)));
  std::vector<std::vector<int64_t>> first_layer(static_cast<size_t>(s.pipeline),
                                                std::vector<int64_t>(static_cast<size_t>(s.virtual_stages)));
  int64_t next_layer = 0;
  const bool megatron_buckets =
      s.data_parallel == DataParallel::megatron || s.data_parallel == DataParallel::distributed_optimizer;
  for (int64_t g = 0; g < out.placement.stages(); ++g) {
    const auto slot = out.placement.slot(g);
    ChunkPart want;
    want.embedding = g == 0;
    want.head = g == out.placement.stages() - 1;
    want.mtp = want.head ? job.model.mtp_layers : 0;
    want.layers = layers[static_cast<size_t>(g)] + want.mtp;
    for (int64_t l = next_layer; l < next_layer + want.layers; ++l) {
      const int64_t like = std::min(l, job.model.layers - 1);  // a layer of multi-token prediction is like the last
      const LayerKind kind = kind_of(job.model, like);
      want.kinds.push_back(has_window(job, like) ? with_window(kind) : kind);
    }
    want.back = schedule.placement == plan::PlacementKind::zigzag && slot.chunk % 2 == 1;
    want.split_buckets =
        c.replicated() && (s.data_parallel == DataParallel::ddp ||
                           (megatron_buckets && s.overlap_grad_reduce && slot.pp == 0 && slot.chunk == 0));
    auto same = std::find_if(c.parts.begin(), c.parts.end(), [&](const ChunkPart& p) {
      return p.embedding == want.embedding && p.head == want.head && p.kinds == want.kinds &&
             p.split_buckets == want.split_buckets && p.back == want.back;
    });
    if (same == c.parts.end()) {
      make_part(c, want, p2p, passes);
      c.parts.push_back(std::move(want));
      same = c.parts.end() - 1;
    }
    part_of[static_cast<size_t>(slot.pp)][static_cast<size_t>(slot.chunk)] =
        static_cast<size_t>(same - c.parts.begin());
    first_layer[static_cast<size_t>(slot.pp)][static_cast<size_t>(slot.chunk)] = next_layer;
    next_layer += want.layers;
  }
  WT_CHECK(next_layer == job.model.layers + job.model.mtp_layers, "{} layers placed of {}", next_layer,
           job.model.layers + job.model.mtp_layers);

  note_assumptions(job, out.assumptions);
  if (job.model.moe) note_experts(job, out.assumptions);
  note_packing(job, out.assumptions);
  note_adapters(c, out.assumptions);
  note_unused_keys(job.strategy, out.assumptions);
  const RankBlocks rank = rank_blocks(c);
  Pairs pairs(c);
  for (int64_t pp = 0; pp < s.pipeline; ++pp) {
    out.programs.push_back(
        make_program(c, pp, part_of[static_cast<size_t>(pp)], orders.value()[static_cast<size_t>(pp)], rank, pairs));
    out.programs.back().first_layer = first_layer[static_cast<size_t>(pp)];
  }
  return out;
}

}  // namespace wt::lower
