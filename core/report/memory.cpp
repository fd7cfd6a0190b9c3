// Memory of a rank by replaying where the plan reserves and releases, in issue order. Blocks are summarised first (net
// change and highest point by phase), so that the replay of a program costs one addition for each invocation.
// Not a formula of averages: what the plan does not own (context, communicators, fragmentation) is added by name.
#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <set>

#include "core/report/held.hpp"
#include "core/report/report.hpp"

namespace wt::report {

namespace {

using plan::Block;
using plan::Op;
using plan::Plan;

enum class PhaseClass : uint8_t {
  load,
  model,
  master_weights,
  optimizer_state,
  start_up,  // in any of the phases above, while a copy that start-up makes and drops is there
  forward,
  backward,
  optimizer,
  checkpoint
};
constexpr size_t kPhases = 9;
constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "load",      "model built", "master weights built", "optimizer built", "start up", "forward", "backward",
    "optimizer", "checkpoint"};
constexpr int64_t kNever = INT64_MIN / 4;

PhaseClass class_of(plan::Phase p) {
  switch (p) {
    case plan::Phase::load: return PhaseClass::load;
    case plan::Phase::model: return PhaseClass::model;
    case plan::Phase::optimizer_state: return PhaseClass::optimizer_state;
    case plan::Phase::forward: return PhaseClass::forward;
    case plan::Phase::recompute:
    case plan::Phase::backward_input:
    case plan::Phase::backward_weight:
    case plan::Phase::reduce: return PhaseClass::backward;
    case plan::Phase::optimizer: return PhaseClass::optimizer;
    case plan::Phase::checkpoint: return PhaseClass::checkpoint;
  }
  return PhaseClass::forward;
}

struct Tables {
  std::vector<int64_t> device, host;  // bytes of each buffer in that space, else 0
  std::vector<int64_t> copies;        // of device: what start-up makes and drops

  explicit Tables(const Plan& plan)
      : device(plan.buffers.size()), host(plan.buffers.size()), copies(plan.buffers.size()) {
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      const plan::Buffer& b = plan.buffers[i];
      if (b.view) continue;
      if (b.space == plan::Space::device) device[i] = b.bytes().n;
      if (b.role == plan::Role::copy && b.scope == plan::Scope::invocation) copies[i] = device[i];
      if (b.space == plan::Space::pinned || b.space == plan::Space::pageable) host[i] = b.bytes().n;
    }
  }
};

int64_t sum(const Block& block, const plan::Range& range, const std::vector<int64_t>& bytes) {
  int64_t n = 0;
  for (uint32_t i = 0; i < range.count; ++i) n += bytes[block.refs[range.begin + i].buffer.v];
  return n;
}

struct Summary {
  int64_t net = 0, host_net = 0, host_peak = kNever;
  std::array<int64_t, kPhases> peak;
  Summary() { peak.fill(kNever); }
};

/// A segment that gains `net` each time is highest in its last iteration, one that loses in its first.
Summary summarise(const Block& block, const Tables& tables) {
  Summary s;
  int64_t copies = 0;
  for (const plan::Segment& segment : block.segments) {
    int64_t now = 0, host = 0, host_peak = kNever;
    std::array<int64_t, kPhases> peak;
    peak.fill(kNever);
    for (uint32_t k = segment.first_op; k < segment.first_op + segment.op_count; ++k) {
      const Op& op = block.ops[k];
      now += sum(block, op.reserves, tables.device);
      host += sum(block, op.reserves, tables.host);
      copies += sum(block, op.reserves, tables.copies) * segment.iterations;
      // A weight gathered beside a forward is of the optimizer's phase: it must not lend the forward's height to it.
      if (op.reserves.count > 0 || op.stream == plan::Stream::compute) {
        int64_t& highest = peak[static_cast<size_t>(copies > 0 ? PhaseClass::start_up : class_of(op.phase))];
        highest = std::max(highest, now);
      }
      host_peak = std::max(host_peak, host);
      now -= sum(block, op.releases, tables.device);
      host -= sum(block, op.releases, tables.host);
      copies -= sum(block, op.releases, tables.copies) * segment.iterations;
    }
    const int64_t more = segment.iterations - 1;
    for (size_t c = 0; c < kPhases; ++c)
      if (peak[c] != kNever) s.peak[c] = std::max(s.peak[c], s.net + peak[c] + std::max<int64_t>(now, 0) * more);
    s.host_peak = std::max(s.host_peak, s.host_net + host_peak + std::max<int64_t>(host, 0) * more);
    s.net += now * (more + 1);
    s.host_net += host * (more + 1);
  }
  return s;
}

std::vector<Summary> summarise_blocks(const Plan& plan, const Tables& tables) {
  std::vector<Summary> blocks;
  blocks.reserve(plan.blocks.size());
  for (const Block& b : plan.blocks) blocks.push_back(summarise(b, tables));
  return blocks;
}

/// Where a program is highest: an invocation of the setup (variant -1) or of a step variant.
struct Place {
  int variant = -1;
  size_t invocation = 0;
  PhaseClass phase = PhaseClass::load;
};

struct Replay {
  int64_t peak = 0, host_peak = 0;
  Place place;
  std::array<int64_t, kPhases> phases;
};

Replay replay(const Plan& plan, const plan::Program& program, const std::vector<Summary>& blocks) {
  Replay r;
  r.phases.fill(kNever);
  int64_t after_setup = 0, host_after_setup = 0;
  PhaseClass reached = PhaseClass::load;
  // What has no phase of its own in the plan (gradients come later, say) stands as high as what was built by then.
  auto built = [&](PhaseClass phase, int64_t level) {
    int64_t& highest = r.phases[static_cast<size_t>(phase)];
    highest = std::max(highest, level);
  };
  auto run = [&](const std::vector<plan::Invocation>& order, int variant, int64_t& now, int64_t& host) {
    for (size_t i = 0; i < order.size(); ++i) {
      const Summary& s = blocks[order[i].block.v];
      for (size_t c = 0; c < kPhases; ++c) {
        if (s.peak[c] == kNever) continue;
        auto phase = static_cast<PhaseClass>(c);
        // Gradients that DeepSpeed makes with the first backward stand in the setup after the optimizer states.
        if (variant < 0 && phase == PhaseClass::optimizer_state &&
            plan.block(order[i].block).name.starts_with("master"))
          phase = PhaseClass::master_weights;
        if (variant < 0 && phase < reached) phase = PhaseClass::backward;
        if (variant < 0 && phase > PhaseClass::model && reached <= PhaseClass::model) built(PhaseClass::model, now);
        if (variant < 0 && phase <= PhaseClass::optimizer_state) reached = std::max(reached, phase);
        const int64_t height = now + s.peak[c];
        int64_t& highest = r.phases[static_cast<size_t>(phase)];
        highest = std::max(highest, height);
        if (height > r.peak) {
          r.peak = height;
          r.place = {variant, i, phase};
        }
      }
      if (s.host_peak != kNever) r.host_peak = std::max(r.host_peak, host + s.host_peak);
      now += s.net;
      host += s.host_net;
    }
  };
  run(program.setup, -1, after_setup, host_after_setup);
  // A checkpoint is copied to the host tensor by tensor between two steps: the device then holds what steps start from.
  built(PhaseClass::checkpoint, after_setup);
  if (reached <= PhaseClass::model) built(PhaseClass::model, after_setup);  // the optimizer has no state
  for (size_t v = 0; v < program.steps.size(); ++v) {
    int64_t now = after_setup, host = host_after_setup;
    run(program.steps[v].order, static_cast<int>(v), now, host);
  }
  return r;
}

/// Instances of each buffer that are reserved at the highest point.
std::vector<int64_t> live_at(const Plan& plan, const plan::Program& program, const Replay& r, const Tables& tables) {
  std::vector<int64_t> live(plan.buffers.size());
  std::map<uint32_t, std::vector<std::pair<uint32_t, int64_t>>> nets;  // block -> (buffer, net instances)
  auto net_of = [&](BlockId id) -> const std::vector<std::pair<uint32_t, int64_t>>& {
    auto [it, fresh] = nets.try_emplace(id.v);
    if (fresh) {
      const Block& block = plan.block(id);
      std::map<uint32_t, int64_t> net;
      for (const plan::Segment& s : block.segments)
        for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
          const Op& op = block.ops[k];
          for (uint32_t i = 0; i < op.reserves.count; ++i)
            net[block.refs[op.reserves.begin + i].buffer.v] += s.iterations;
          for (uint32_t i = 0; i < op.releases.count; ++i)
            net[block.refs[op.releases.begin + i].buffer.v] -= s.iterations;
        }
      it->second.assign(net.begin(), net.end());
    }
    return it->second;
  };
  auto whole = [&](const std::vector<plan::Invocation>& order, size_t count) {
    for (size_t i = 0; i < count; ++i)
      for (const auto& [buffer, n] : net_of(order[i].block)) live[buffer] += n;
  };
  const auto& order = r.place.variant < 0 ? program.setup : program.steps[static_cast<size_t>(r.place.variant)].order;
  if (order.empty()) return live;
  if (r.place.variant >= 0) whole(program.setup, program.setup.size());
  whole(order, r.place.invocation);
  int64_t now = 0;
  for (size_t b = 0; b < live.size(); ++b) now += live[b] * tables.device[b];
  const Block& block = plan.block(order[r.place.invocation].block);
  bool found = now == r.peak;
  plan::for_each_op(block, [&](const Op& op, uint32_t, int64_t, uint32_t) {
    if (found) return;
    for (uint32_t i = 0; i < op.reserves.count; ++i) {
      const uint32_t b = block.refs[op.reserves.begin + i].buffer.v;
      ++live[b];
      now += tables.device[b];
    }
    if (now == r.peak) {
      found = true;
      return;
    }
    for (uint32_t i = 0; i < op.releases.count; ++i) {
      const uint32_t b = block.refs[op.releases.begin + i].buffer.v;
      --live[b];
      now -= tables.device[b];
    }
  });
  WT_CHECK(found, "peak {} of program {} not met again", r.peak, program.name);
  return live;
}

std::string_view item_of(const plan::Buffer& b) {
  if (b.name.find("logits") != std::string::npos) return "logits";
  switch (b.role) {
    case plan::Role::weight: return "weights";
    case plan::Role::gradient: return "gradients";
    case plan::Role::master: return "master weights";
    case plan::Role::moment1:
    case plan::Role::moment2: return "optimizer states";
    case plan::Role::activation: return "activations";
    case plan::Role::transient: return "temporaries";
    case plan::Role::workspace: return "workspaces";
    case plan::Role::bucket: {
      if (b.name.find("grad") != std::string::npos) return "gradients";
      if (b.name.find("weight") != std::string::npos || b.name.find("param") != std::string::npos) return "weights";
      return "communication buffers";
    }
    case plan::Role::copy: return "copies";
    case plan::Role::tokens:
    case plan::Role::labels:
    case plan::Role::loss:
    case plan::Role::scalar: return "other";
  }
  return "other";
}

// --- what the plan does not own ---------------------------------------------------------------------------------------

// NCCL reserves a buffer for each protocol at each connection of a channel (src/include/device.h, comm.h): LL 8 steps x
// 8 lines x 512 threads x 16 B, LL128 8 steps x 120 x 640 x 8 B, Simple NCCL_BUFFSIZE = 4 MiB.
constexpr int64_t kConnection = 8 * 8 * 512 * 16 + 8 * 120 * 640 * 8 + (4 << 20);
// "coll channels" that NCCL prints: 24 in a node of NVSwitch machines (12 on Volta), 2 for each NIC across nodes, at
// most 16; 4 over PCIe. Messages: 2 channels to a peer in another node.
constexpr int64_t kChannelsNvlink = 24, kChannelsVolta = 12, kChannelsPcie = 4, kChannelsNetwork = 16,
                  kMessageChannels = 2;

struct Communicators {
  int64_t bytes = 0, count = 0;
};

Communicators communicators(const JobSpec& job, const Plan& plan, const plan::Program& program, RankId rank) {
  std::set<uint32_t> groups;
  int64_t peers = 0;
  bool next = false, previous = false;
  std::set<uint32_t> seen;
  for (const plan::StepOrder& step : program.steps)
    for (const plan::Invocation& i : step.order)
      if (seen.insert(i.block.v).second)
        for (const Op& op : plan.block(i.block).ops) {
          if (const auto* c = std::get_if<plan::Collective>(&op.body)) groups.insert(c->group.v);
          if (std::holds_alternative<plan::Send>(op.body) || std::holds_alternative<plan::Receive>(op.body)) {
            const auto stream = op.stream;
            next |= stream == plan::Stream::send_next || stream == plan::Stream::receive_next;
            previous |= stream == plan::Stream::send_previous || stream == plan::Stream::receive_previous;
          }
        }
  peers = next + previous;
  const NodeSpec& node = job.cluster.node;
  const int64_t devices = std::max<int64_t>(1, node.devices);
  const bool nvlink = node.scale_up.kind != ScaleUpKind::pcie && node.scale_up.kind != ScaleUpKind::none;
  const int64_t inside = !nvlink                                                 ? kChannelsPcie
                         : job.cluster.device.generation == GpuGeneration::volta ? kChannelsVolta
                                                                                 : kChannelsNvlink;
  const int64_t across = std::clamp<int64_t>(2 * job.cluster.fabric.nics_per_node, kMessageChannels, kChannelsNetwork);
  Communicators out;
  for (uint32_t g : groups) {
    const plan::Group& group = plan.groups[g];
    if (plan::group_size(plan.mesh, group) < 2) continue;
    const auto members = plan::group_members(plan.mesh, group, rank);
    if (members.size() < 2) continue;
    // Members are in order of rank: the first and the last tell whether they share a node. Trees double the connections.
    const bool one_node = members.front().v / devices == members.back().v / devices;
    out.bytes += kConnection * (one_node ? inside : 2 * across);
    ++out.count;
  }
  if (peers > 0) {
    out.bytes += kConnection * kMessageChannels * peers;
    ++out.count;
  }
  return out;
}

/// First rank that runs the program at this pipeline coordinate.
std::optional<RankId> rank_of(const Plan& plan, size_t program, std::optional<AxisId> pp, int64_t stage) {
  const plan::Program& p = plan.programs[program];
  std::vector<int64_t> at(plan.mesh.axes.size());
  if (pp) at[pp->v] = stage;
  if (p.when.axis.valid()) {
    if (pp && p.when.axis == *pp) {
      if (std::find(p.when.values.begin(), p.when.values.end(), stage) == p.when.values.end()) return std::nullopt;
    } else if (!p.when.values.empty()) {
      at[p.when.axis.v] = p.when.values.front();
    }
  }
  int64_t rank = 0;
  for (size_t a = 0; a < at.size(); ++a) rank += at[a] * plan.mesh.stride(AxisId{static_cast<uint32_t>(a)});
  return RankId{static_cast<uint32_t>(rank)};
}

/// Host memory of one process that imports PyTorch and uses CUDA, before it has data of its own: 1.96 GiB
/// (pytorch/pytorch issue 113326, version 2.2), 2.2 GiB (issue 106511). Of a device without a CUDA context: none.
constexpr int64_t kProcess = int64_t{2} << 30;

/// What a checkpoint holds: weights as they are trained, master weights and moments, of adapters alone where those are what
/// is trained (PEFT). FSDP's fp32 shards are both.
double checkpoint_bytes(const JobSpec& job) {
  const TrainingSpec& t = job.training;
  const DataParallel kind = job.strategy.data_parallel;
  const bool fsdp = kind == DataParallel::fsdp || kind == DataParallel::fsdp2;
  int64_t each = size_of(t.param_dtype);
  if (t.master_weights && t.param_dtype != DType::f32) each = fsdp ? 4 : each + 4;
  if (t.optimizer == OptimizerKind::adam) each += 2 * size_of(t.moment_dtype);
  const int64_t trained = t.lora.rank > 0 ? adapter_parameters(job.model, t.lora) : count_parameters(job.model).total();
  return static_cast<double>(each) * static_cast<double>(trained);
}

/// What the fullest program of the plan keeps in files.
int64_t bytes_in_files(const Plan& plan) {
  int64_t most = 0;
  for (const plan::Program& p : plan.programs) {
    int64_t n = 0;
    for (const PartId chunk : p.chunks) {
      const plan::Part& part = plan.parts[chunk.v];
      for (const BufferId id : part.persistent)
        if (const plan::Buffer& b = plan.buffer(id); b.space == plan::Space::nvme)
          n += b.bytes().n * (b.per_layer ? part.layers : 1);
    }
    most = std::max(most, n);
  }
  return most;
}

MemoryReport report(const JobSpec& job, const Plan& plan, bool with_items) {
  MemoryReport out;
  out.capacity = job.cluster.device.memory;
  const Tables tables(plan);
  const std::vector<Summary> blocks = summarise_blocks(plan, tables);
  std::vector<Replay> replays;
  replays.reserve(plan.programs.size());
  for (const plan::Program& p : plan.programs) replays.push_back(replay(plan, p, blocks));

  std::optional<Requests> requests;
  if (with_items) requests.emplace(job, plan, tables.device);

  const auto pp = plan.mesh.find("pp");
  const int64_t stages = pp ? plan.mesh.axes[pp->v].size : 1;
  int64_t host_peak = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    StageMemory best;
    RankId best_rank{0};
    size_t best_program = 0;
    bool any = false;
    for (size_t p = 0; p < plan.programs.size(); ++p) {
      const auto rank = rank_of(plan, p, pp, stage);
      if (!rank) continue;
      const Replay& r = replays[p];
      host_peak = std::max(host_peak, r.host_peak);
      if (any && r.peak <= best.peak.n) continue;
      any = true;
      best_rank = *rank;
      best_program = p;
      best.peak = {r.peak};
    }
    if (!any) continue;
    const Replay& r = replays[best_program];
    const plan::Program& program = plan.programs[best_program];
    best.stage = stage;
    best.peak_phase = kPhaseNames[static_cast<size_t>(r.place.phase)];
    for (size_t c = 0; c < kPhases; ++c)
      if (r.phases[c] != kNever) best.phases.push_back({std::string(kPhaseNames[c]), Bytes{r.phases[c]}});
    const Communicators comm = communicators(job, plan, program, best_rank);
    best.communicators = {comm.bytes};
    best.communicator_count = comm.count;
    best.context = job.cluster.device.context_memory;
    best.fragmentation = {static_cast<int64_t>(static_cast<double>(r.peak) * job.training.fragmentation)};
    if (with_items) {  // what fits in the device after the allocator gave back what it could, else what it asked for
      const int64_t others = best.fragmentation.n + best.context.n + best.communicators.n;
      Held held = requests->run(program, out.capacity.n - others);
      // What is in use fits, what the allocator makes of it does not: the device is full, and how the real order of
      // requests fragments it decides. That is "borderline", not a certain "out_of_memory".
      if (held.failed)
        held.reserved = best.peak.n + others <= out.capacity.n ? out.capacity.n - others
                                                               : requests->run(program, INT64_MAX).reserved;
      best.cached = {std::max<int64_t>(0, held.reserved - best.peak.n)};
    }
    best.reserved = best.peak + best.cached + best.fragmentation + best.context + best.communicators;
    if (with_items) {
      const auto live = live_at(plan, program, r, tables);
      std::map<std::string_view, int64_t> items;
      for (size_t b = 0; b < live.size(); ++b) {
        const int64_t bytes = live[b] * tables.device[b];
        if (bytes == 0) continue;
        items[item_of(plan.buffers[b])] += bytes;
        best.largest.push_back({plan.buffers[b].name, Bytes{bytes}, live[b]});
      }
      for (const auto& [name, bytes] : items) best.items.push_back({std::string(name), Bytes{bytes}});
      auto larger = [](const MemoryItem& x, const MemoryItem& y) { return x.bytes > y.bytes; };
      std::stable_sort(best.items.begin(), best.items.end(), larger);
      std::stable_sort(best.largest.begin(), best.largest.end(), larger);
      constexpr size_t kLargest = 8;
      if (best.largest.size() > kLargest) best.largest.resize(kLargest);
    }
    if (out.stages.empty() || best.reserved > out.stages[out.peak_stage].reserved) {
      out.peak_stage = out.stages.size();
      out.peak_rank = best_rank.v;
    }
    out.stages.push_back(std::move(best));
  }
  constexpr double kGib = 1073741824.0;
  const double checkpoint = checkpoint_bytes(job);
  out.checkpoint_gib = checkpoint / kGib;
  const int64_t devices = std::min<int64_t>(std::max<int64_t>(1, job.cluster.node.devices), plan.mesh.ranks());
  const double nodes = static_cast<double>(std::max<int64_t>(1, plan.mesh.ranks() / devices));
  out.host_items = {{"processes", Bytes{job.cluster.device.context_memory.n > 0 ? devices * kProcess : 0}, devices},
                    {"buffers of the plan", Bytes{devices * host_peak}, devices},
                    {"checkpoint staged", Bytes{static_cast<int64_t>(checkpoint / nodes)}}};
  std::erase_if(out.host_items, [](const MemoryItem& i) { return i.bytes.n == 0; });
  for (const MemoryItem& i : out.host_items) out.host_gib_per_node += i.bytes.gib();
  const NodeSpec& node = job.cluster.node;
  // Without a device of its own a rank's "device" memory is the host's: the stages hold it against that already.
  out.host_needed = {job.cluster.device.context_memory.n > 0 ? devices * (kProcess + host_peak) : devices * host_peak};
  out.host_capacity = node.host_memory;
  out.nvme_needed = {devices * bytes_in_files(plan)};
  out.nvme_capacity = node.nvme;
  if (!out.stages.empty()) out.fits = verdict(out.stages[out.peak_stage].reserved, out.capacity);
  if (out.host_overflows() || out.nvme_overflows()) out.fits = "out_of_memory";
  return out;
}

}  // namespace

std::string_view verdict(Bytes reserved, Bytes capacity) {
  const double free = 1 - static_cast<double>(reserved.n) / static_cast<double>(std::max<int64_t>(1, capacity.n));
  return free > 0.08 ? "fits" : free > 0.03 ? "tight" : free >= -0.03 ? "borderline" : "out_of_memory";
}

MemoryReport memory_report(const JobSpec& job, const Plan& plan) { return report(job, plan, true); }
MemoryReport memory_peaks(const JobSpec& job, const Plan& plan) { return report(job, plan, false); }

Bytes planned_peak(const Plan& plan, RankId rank) {
  return {replay(plan, plan.programs[program_of(plan, rank).v], summarise_blocks(plan, Tables(plan))).peak};
}

}  // namespace wt::report
