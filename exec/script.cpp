#include "exec/script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/plan/values.hpp"
#include "exec/arena.hpp"

namespace wt::exec {

using namespace plan;

DType stored_type(const Buffer& b, const ScriptOptions& options) {
  const bool whole_numbers = b.dtype == DType::i32 || b.dtype == DType::u8;
  return options.floats && !whole_numbers ? *options.floats : b.dtype;
}

namespace {

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

using ChannelKey = std::pair<uint32_t, Stream>;  // group, stream

/// Every (group, stream) on which some rank of the plan has a collective, in one order for all ranks.
std::set<ChannelKey> channel_keys(const Plan& plan) {
  std::set<ChannelKey> keys;
  for (const Block& b : plan.blocks)
    for (const Op& o : b.ops)
      if (const auto* c = std::get_if<Collective>(&o.body)) keys.emplace(c->group.v, o.stream);
  return keys;
}

/// Names an instance of a buffer: buffer, layer, chunk, micro-batch, invocation.
using Instance = std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>;

/// What the replay has reached: where storage is and how it was left.
struct Memory {
  std::map<Instance, Place> live;
  std::array<Arena, kSpaces> arenas;
  std::array<int64_t, kSpaces> reserved{}, peak{};
};

class Writer {
 public:
  Writer(const Plan& plan, RankId rank, const ScriptOptions& options)
      : plan_(plan), program_(plan.programs[program_of(plan, rank).v]), rank_(rank), options_(options) {}

  Result<Script> run() {
    script_.rank = rank_;
    uint32_t next = 0;
    for (const ChannelKey& key : channel_keys(plan_)) {
      const Group& group = plan_.groups[key.first];
      Channel channel{key.second, group_members(plan_.mesh, group, rank_), 0};
      if (channel.members.empty()) continue;
      channel.index = plan::group_index(plan_.mesh, group, rank_);
      script_.channels.push_back(std::move(channel));
      channel_of_[key] = next++;
    }
    replay("setup", program_.setup, script_.setup);
    for (const auto& [instance, place] : memory_.live) {
      const Buffer& b = plan_.buffers[std::get<0>(instance)];
      script_.persistent.push_back({{std::get<0>(instance)},
                                    std::get<2>(instance),
                                    std::get<1>(instance),
                                    place,
                                    stored_type(b, options_),
                                    b.elements()});
    }
    const Memory after_setup = memory_;
    measure();
    for (const StepOrder& step : program_.steps) {
      memory_ = after_setup;
      replay(step.name, step.order, script_.steps.emplace_back());
      for (const auto& [instance, place] : memory_.live)
        if (!after_setup.live.contains(instance))
          fail(fmt::format("step '{}'", step.name),
               fmt::format("'{}' outlives the step", plan_.buffers[std::get<0>(instance)].name));
      measure();
    }
    if (!faults_.empty()) return std::move(faults_);
    return std::move(script_);
  }

 private:
  void fail(const std::string& where, std::string what) {
    if (!told_.insert(what).second) return;
    faults_.push_back({fmt::format("rank {}, {}", rank_.v, where), std::move(what), ""});
  }

  void measure() {
    for (size_t s = 0; s < kSpaces; ++s) {
      script_.arenas[s].bytes = std::max(script_.arenas[s].bytes, memory_.arenas[s].bytes());
      script_.arenas[s].peak = std::max(script_.arenas[s].peak, memory_.peak[s]);
    }
  }

  void replay(const std::string& name, const std::vector<Invocation>& order, Tasks& out) {
    out.name = name;
    clocks_.clear();
    number_.clear();
    for (auto& q : queue_) q.clear();
    host_ = {};
    for (Arena& a : memory_.arenas) a.settle();
    for (uint32_t i = 0; i < order.size(); ++i) {
      const Block& block = plan_.block(order[i].block);
      instances_.assign(block.ops.size(), {});
      uint32_t instance = 0;
      for (const Segment& segment : block.segments)
        for (uint32_t n = 0; n < segment.iterations; ++n)
          for (uint32_t k = segment.first_op; k < segment.first_op + segment.op_count; ++k) {
            ScriptTask t;
            t.block = &block;
            t.op = k;
            t.invocation = i;
            t.instance = instance++;
            t.layer = segment.first_layer < 0 ? -1 : segment.first_layer + segment.layer_step * static_cast<int32_t>(n);
            if (order[i].bindings > 0) {  // of a pair: that of the first operand
              const Range& operands = t.body().reads.count ? t.body().reads : t.body().writes;
              const Binding& bound = order[i].binding[operands.count ? block.refs[operands.begin].binding : 0];
              t.chunk = bound.chunk;
              t.micro_batch = bound.micro_batch;
            }
            add(order[i], segment, t, out);
          }
    }
  }

  void add(const Invocation& invocation, const Segment& segment, ScriptTask& t, Tasks& out) {
    const Op& op = t.body();
    const auto id = static_cast<Ticket>(out.tasks.size());
    auto& mine = queue_[static_cast<size_t>(op.stream)];
    Clock now = host_;
    if (!mine.empty()) now.merge(past(mine.back(), out));
    wait(segment, t, now, out);
    number_.push_back(static_cast<uint32_t>(mine.size()));
    clocks_.push_back(now);
    mine.push_back(id);
    instances_[t.op].push_back(id);

    for (uint32_t i = 0; i < op.reserves.count; ++i) reserve(invocation, t, op.reserves.begin + i, now);
    t.reads = resolve_all(invocation, t, op.reads, out);
    t.writes = resolve_all(invocation, t, op.writes, out);
    out.tasks.push_back(t);
    const Clock after = past(id, out);
    for (uint32_t i = 0; i < op.releases.count; ++i) release(invocation, t, op.releases.begin + i, after);
    if (std::holds_alternative<HostWait>(op.body)) host_.merge(after);

    ScriptTask& task = out.tasks.back();
    auto placed_in = [&](GroupId group) {
      task.group_index = plan::group_index(plan_.mesh, plan_.group(group), rank_);
      task.group_size = group_size(plan_.mesh, plan_.group(group));
    };
    if (const auto* compute = std::get_if<Compute>(&op.body); compute && compute->group.valid())
      placed_in(compute->group);
    if (const auto* collective = std::get_if<Collective>(&op.body)) {
      placed_in(collective->group);
      task.channel = channel_of_.at({collective->group.v, op.stream});
    }
    const auto* send = std::get_if<Send>(&op.body);
    if (const auto* receive = std::get_if<Receive>(&op.body); send || receive) {
      const Direction towards = send ? send->to : receive->from;
      const auto peer = peer_of(plan_, rank_, task.chunk, towards);
      WT_CHECK(peer, "'{}' has no peer", op.name);
      task.peer = peer->rank;
      // What goes to the next stage and what comes back are two sequences between the same two ranks.
      task.lane = (towards == Direction::next_stage) == (send != nullptr) ? 0 : 1;
    }
  }

  /// The clock of an op that starts when `task` is over.
  Clock past(Ticket task, const Tasks& out) const {
    Clock c = clocks_[task];
    c.over[static_cast<size_t>(out.tasks[task].body().stream)] = number_[task] + 1;
    return c;
  }

  void wait(const Segment& segment, ScriptTask& t, Clock& now, Tasks& out) {
    const Op& op = t.body();
    t.waits.begin = static_cast<uint32_t>(out.waits.size());
    for (uint32_t w = 0; w < op.waits.count; ++w) {
      const Wait& wait = t.block->waits[op.waits.begin + w];
      std::optional<Ticket> on;
      if (wait.kind == Wait::Kind::tail) {
        if (const auto& tail = queue_[wait.index]; !tail.empty()) on = tail.back();
      } else {  // a piece is waited for whole: ops are not cut
        const auto& ran = instances_[wait.index];
        const bool here = wait.index >= segment.first_op;
        const size_t back = here ? wait.iterations_back + (wait.index < t.op ? 1u : 0u) : 1u;
        if (back >= 1 && back <= ran.size()) on = ran[ran.size() - back];
      }
      if (!on) continue;
      const Clock needed = past(*on, out);
      if (now.over[static_cast<size_t>(out.tasks[*on].body().stream)] > number_[*on]) continue;  // implied
      now.merge(needed);
      out.waits.push_back(*on);
    }
    t.waits.count = static_cast<uint32_t>(out.waits.size()) - t.waits.begin;
  }

  Instance instance_of(const Invocation& v, const ScriptTask& t, const BufferRef& ref, BufferId id) const {
    const Buffer& b = plan_.buffer(id);
    const Binding& bound = v.binding[ref.binding];
    const int64_t layer = b.per_layer ? t.layer + ref.layer_offset : -1;
    switch (b.scope) {
      case Scope::rank: return {id.v, layer, -1, -1, -1};
      case Scope::persistent: return {id.v, layer, bound.chunk, -1, -1};
      case Scope::micro_batch: return {id.v, layer, bound.chunk, bound.micro_batch, -1};
      case Scope::invocation: return {id.v, layer, ref.binding, -1, t.invocation};
    }
    return {};
  }

  int64_t bytes_of(const Buffer& b) const { return b.elements() * size_of(stored_type(b, options_)); }

  void reserve(const Invocation& v, const ScriptTask& t, uint32_t index, const Clock& now) {
    const BufferRef& ref = t.block->refs[index];
    const Buffer& b = plan_.buffer(ref.buffer);
    const auto space = static_cast<size_t>(b.space);
    if (b.space == Space::nvme) fail(where(t), fmt::format("'{}' lies on NVMe, which runs do not use", b.name));
    const Place place{b.space, memory_.arenas[space].reserve(aligned(bytes_of(b)), now)};
    const bool fresh = memory_.live.emplace(instance_of(v, t, ref, ref.buffer), place).second;
    WT_CHECK(fresh && !b.view, "{} reserves '{}' again", where(t), b.name);
    memory_.reserved[space] += bytes_of(b);
    memory_.peak[space] = std::max(memory_.peak[space], memory_.reserved[space]);
  }

  void release(const Invocation& v, const ScriptTask& t, uint32_t index, const Clock& after) {
    const BufferRef& ref = t.block->refs[index];
    const Buffer& b = plan_.buffer(ref.buffer);
    const auto it = memory_.live.find(instance_of(v, t, ref, ref.buffer));
    WT_CHECK(it != memory_.live.end(), "{} releases '{}', which is not reserved", where(t), b.name);
    // Other streams that used it are over too: the plan orders a release after every use (tests/reference/races.hpp).
    Clock only;
    const auto stream = static_cast<size_t>(t.body().stream);
    only.over[stream] = after.over[stream];
    memory_.arenas[static_cast<size_t>(b.space)].release(it->second.offset, aligned(bytes_of(b)), only);
    memory_.reserved[static_cast<size_t>(b.space)] -= bytes_of(b);
    memory_.live.erase(it);
  }

  Range resolve_all(const Invocation& v, const ScriptTask& t, Range range, Tasks& out) {
    const Range resolved{static_cast<uint32_t>(out.operands.size()), range.count};
    for (uint32_t i = 0; i < range.count; ++i) {
      const BufferRef& ref = t.block->refs[range.begin + i];
      const Buffer& b = plan_.buffer(ref.buffer);
      int64_t layer = b.per_layer ? t.layer + ref.layer_offset : -1, offset = 0;
      BufferId base = ref.buffer;
      while (plan_.buffer(base).view) {
        const Part& part = plan_.parts[program_.chunks[v.binding[ref.binding].chunk].v];
        const View* view = view_of(part, base, layer);
        WT_CHECK(view, "{}: '{}' is placed nowhere", where(t), plan_.buffer(base).name);
        offset += view_offset(plan_, rank_, *view, layer);
        base = view->base;
        if (!plan_.buffer(base).per_layer) layer = -1;
      }
      const auto it = memory_.live.find(instance_of(v, t, ref, base));
      WT_CHECK(it != memory_.live.end(), "{}: '{}' is not reserved", where(t), plan_.buffer(base).name);
      const DType type = stored_type(b, options_);
      WT_CHECK(offset == 0 || type == stored_type(plan_.buffer(base), options_),
               "{}: '{}' views storage of another type", where(t), b.name);
      Place place = it->second;
      place.offset += offset * size_of(type);
      out.operands.push_back({nullptr, type, b.elements(), b.shape});
      out.places.push_back(place);
    }
    return resolved;
  }

  static std::string where(const ScriptTask& t) {
    return fmt::format("block '{}', op {} ({})", t.block->name, t.op, t.body().name);
  }

  const Plan& plan_;
  const Program& program_;
  RankId rank_;
  ScriptOptions options_;
  Script script_;
  std::map<ChannelKey, uint32_t> channel_of_;
  Memory memory_;
  Diagnostics faults_;
  std::set<std::string> told_;

  // Of the order that is replayed.
  std::vector<Clock> clocks_;     // when a task starts
  std::vector<uint32_t> number_;  // on its stream
  std::array<std::vector<Ticket>, kStreams> queue_;
  std::vector<std::vector<Ticket>> instances_;  // of the block's ops, in this invocation
  Clock host_;                                  // what the host has waited for
};

}  // namespace

Result<Script> Script::make(const Plan& plan, RankId rank, const ScriptOptions& options) {
  return Writer(plan, rank, options).run();
}

void Script::bind(const std::array<std::byte*, kSpaces>& bases) {
  auto point = [&](Tasks& t) {
    for (size_t i = 0; i < t.operands.size(); ++i)
      t.operands[i].data = bases[static_cast<size_t>(t.places[i].space)] + t.places[i].offset;
  };
  point(setup);
  for (Tasks& t : steps) point(t);
}

}  // namespace wt::exec
