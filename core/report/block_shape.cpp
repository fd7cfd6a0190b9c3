#include "core/report/block_shape.hpp"

#include <algorithm>
#include <string_view>

namespace wt::report {

namespace {

using plan::Op;
using plan::Plan;
using plan::Stream;

bool is_message(const Op& o) {
  return std::holds_alternative<plan::Send>(o.body) || std::holds_alternative<plan::Receive>(o.body);
}

Term term_of_collective(const Plan& plan, const Op& o, const plan::Collective& c) {
  const plan::Group& g = plan.group(c.group);
  auto only = [&](std::string_view name) {
    return !g.axes.empty() &&
           std::all_of(g.axes.begin(), g.axes.end(), [&](AxisId a) { return plan.mesh.axes[a.v].name == name; });
  };
  if (o.stream == Stream::context || only("cp")) return Term::exposed_context;
  if (o.stream == Stream::expert) return Term::exposed_expert;
  return o.stream == Stream::tensor || only("tp") ? Term::exposed_tensor : Term::exposed_data;
}

Term term_of(const Plan& plan, const Op& o) {
  if (std::holds_alternative<plan::Compute>(o.body)) switch (o.phase) {
      case plan::Phase::optimizer: return Term::optimizer;
      case plan::Phase::checkpoint:
      case plan::Phase::load:
      case plan::Phase::model:
      case plan::Phase::optimizer_state: return Term::other;
      default: return o.stream == Stream::host ? Term::offload : Term::compute;
    }
  if (std::holds_alternative<plan::Copy>(o.body)) return Term::offload;
  if (const auto* c = std::get_if<plan::Collective>(&o.body)) return term_of_collective(plan, o, *c);
  if (is_message(o)) return Term::exposed_pipeline;
  return Term::host;  // Join, HostWait: no length of their own
}

Term waiting_term(const Plan& plan, const Op& o) {
  if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
    for (AxisId a : plan.group(c->group).axes)
      if (plan.mesh.axes[a.v].name == "pp") return Term::bubble;  // another stage is not there yet
    return term_of_collective(plan, o, *c);
  }
  return is_message(o) ? Term::bubble : Term::host;
}

BlockShape::OpFacts facts_of(const Plan& plan, const Op& o) {
  BlockShape::OpFacts f{term_of(plan, o), waiting_term(plan, o), BlockShape::Transfer::none, o.stream, {}};
  if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
    f.transfer = BlockShape::Transfer::collective;
    f.group = c->group;
  } else if (is_message(o)) {
    f.transfer = BlockShape::Transfer::message;
  }
  return f;
}

}  // namespace

BlockShape::BlockShape(const Plan& plan, const plan::Block& of) : block(&of) {
  ops.reserve(of.ops.size());
  for (const Op& o : of.ops) ops.push_back(facts_of(plan, o));
  instances.reserve(static_cast<size_t>(of.op_instances()));
  auto last = [](const std::vector<uint32_t>& queue) { return queue.empty() ? kNone : queue.back(); };
  auto collectives_of = [&](GroupId group) -> std::vector<uint32_t>& {
    for (auto& [known, list] : collectives)
      if (known == group) return list;
    return collectives.emplace_back(group, std::vector<uint32_t>{}).second;
  };
  for (uint32_t s = 0; s < of.segments.size(); ++s) {
    const plan::Segment& segment = of.segments[s];
    segment_first.push_back(static_cast<uint32_t>(instances.size()));
    for (uint32_t i = 0; i < segment.iterations; ++i)
      for (uint32_t k = segment.first_op; k < segment.first_op + segment.op_count; ++k) {
        const auto me = static_cast<uint32_t>(instances.size());
        const OpFacts& facts = ops[k];
        std::vector<uint32_t>& stream = queues[static_cast<size_t>(facts.stream)];
        Instance& x = instances.emplace_back(Instance{k, s, i, last(stream), last(queues[kHostWaits]), 0});
        const bool host_wait = std::holds_alternative<plan::HostWait>(of.ops[k].body);
        if (facts.transfer == Transfer::collective) {
          std::vector<uint32_t>& list = collectives_of(facts.group);
          x.nth = static_cast<uint32_t>(list.size());
          list.push_back(me);
        } else if (facts.transfer == Transfer::message) {
          x.nth = static_cast<uint32_t>(messages.size());
          messages.push_back(me);
        }
        if (host_wait) queues[kHostWaits].push_back(me);
        if (facts.stream == Stream::compute && !host_wait && !std::holds_alternative<plan::Join>(of.ops[k].body))
          kernels.push_back(me);
        stream.push_back(me);
      }
  }
}

uint32_t BlockShape::last_before(size_t queue, uint32_t i) const {
  const std::vector<uint32_t>& list = queues[queue];
  const auto it = std::lower_bound(list.begin(), list.end(), i);
  return it == list.begin() ? kNone : *(it - 1);
}

}  // namespace wt::report
