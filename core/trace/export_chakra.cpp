#include "core/trace/export_chakra.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/base/atomic_file.hpp"
#include "core/base/text.hpp"
#include "core/plan/plan_io.hpp"
#include "core/trace/file.hpp"
#include "core/trace/held_ranks.hpp"
#include "core/trace/protobuf.hpp"

namespace wt::trace {

namespace {

using plan::Plan;

// Field numbers and enumerations as published in schema/protobuf/et_def.proto of mlcommons/chakra.
namespace metadata {
constexpr uint32_t kVersion = 1, kAttribute = 2;
}
namespace node {
constexpr uint32_t kId = 1, kName = 2, kType = 3, kControl = 4, kData = 5, kStart = 6, kDuration = 7, kAttribute = 10;
}
namespace attribute {
constexpr uint32_t kName = 1, kInt32 = 7, kInt64 = 9, kUint64 = 13, kBool = 27, kString = 29;
}
enum class NodeType : uint8_t { load = 2, store = 3, compute = 4, send = 5, receive = 6, collective = 7 };
enum class CollectiveType : uint8_t {
  all_reduce = 0,
  all_gather = 2,
  broadcast = 5,
  all_to_all = 6,
  reduce_scatter = 7
};

/// A field that proto3 leaves out where it is 0.
void put(Message& m, uint32_t field, uint64_t value) {
  if (value != 0) m.number(field, value);
}

/// "repeated uint64": packed, as proto3 writes it.
void put_packed(Message& m, uint32_t field, std::vector<uint64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (values.empty()) return;
  Message list;
  for (const uint64_t v : values) list.bare(v);
  m.message(field, list);
}

template <class Put>
void add_attribute(Message& m, uint32_t field, std::string_view name, Put&& value) {
  Message a;
  a.text(attribute::kName, name);
  value(a);
  m.message(field, a);
}

/// One rank's file.
class RankWriter {
 public:
  RankWriter(const Plan& plan, uint32_t rank, const RankSpans& spans, std::map<int64_t, std::vector<RankId>>& groups)
      : plan_(plan), rank_(rank), spans_(spans), groups_(groups) {}

  Result<int64_t> write(const std::string& path) {
    auto file = AtomicFile::create(path);
    if (!file) return file.errors();
    file_ = &file.value();
    Message head;
    head.text(metadata::kVersion, "0.0.4");
    const auto attribute = [&](std::string_view name, const auto& value) {
      add_attribute(head, metadata::kAttribute, name, value);
    };
    attribute("rank", [&](Message& a) { a.number(attribute::kInt64, rank_); });
    attribute("world_size",
              [&](Message& a) { a.number(attribute::kInt64, static_cast<uint64_t>(plan_.mesh.ranks())); });
    attribute("plan_digest",
              [&](Message& a) { a.text(attribute::kString, fmt::format("{:016x}", plan::digest(plan_))); });
    emit(head);
    const plan::StepOrder* order = order_of(plan_, spans_.rank, spans_.spans.size());
    WT_CHECK(order, "rank {} was not checked against the plan", spans_.rank);
    for (const plan::Invocation& v : order->order) invocation(v);
    if (auto done = file_->commit(); !done) return done.errors();
    return static_cast<int64_t>(next_);
  }

 private:
  void emit(const Message& m) {
    Message framed;
    framed.bare(m.bytes().size());
    file_->write(framed.bytes());
    file_->write(m.bytes());
  }

  void invocation(const plan::Invocation& v) {
    const plan::Block& b = plan_.block(v.block);
    instances_.assign(b.ops.size(), {});
    for (const plan::Segment& s : b.segments)
      for (uint32_t i = 0; i < s.iterations; ++i)
        for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k)
          op(v, b, s, k, s.first_layer < 0 ? -1 : s.first_layer + int64_t{s.layer_step} * i);
  }

  /// Node of the instance that the wait names; none where it is of an iteration that was not.
  std::optional<uint64_t> waited(const plan::Wait& w, const plan::Segment& s, uint32_t op) const {
    if (w.kind == plan::Wait::Kind::tail) return tails_[w.index];
    const auto& ran = instances_[w.index];
    const bool here = w.index >= s.first_op;
    const size_t back = here ? w.iterations_back + (w.index < op ? 1u : 0u) : 1u;
    if (back < 1 || back > ran.size()) return std::nullopt;
    return ran[ran.size() - back];
  }

  void op(const plan::Invocation& v, const plan::Block& b, const plan::Segment& s, uint32_t index, int64_t layer) {
    const plan::Op& op = b.ops[index];
    const Span& span = spans_.spans[at_++];
    std::vector<uint64_t> control, data;
    std::optional<uint64_t>& tail = tails_[static_cast<size_t>(op.stream)];
    if (tail) control.push_back(*tail);
    if (host_ && (!tail || *host_ > *tail)) control.push_back(*host_);
    for (uint32_t w = 0; w < op.waits.count; ++w)
      if (const auto on = waited(b.waits[op.waits.begin + w], s, index)) data.push_back(*on);
    std::optional<plan::Binding> bound;
    if (v.bindings > 0) {
      const plan::Range& refs = op.reads.count ? op.reads : op.writes;
      bound = v.binding[v.bindings > 1 && refs.count ? b.refs[refs.begin].binding : 0];
    }
    name_ = fmt::format("{}/{}", b.name, op.name);
    if (bound) name_ += fmt::format(" mb {}", bound->micro_batch);
    if (layer >= 0) name_ += fmt::format(" layer {}", layer);
    const uint64_t first = next_;
    std::visit([&](const auto& body) { node(body, op, span, bound, control, data); }, op.body);
    tail = next_ - 1;
    instances_[index].push_back(next_ - 1);
    if (std::holds_alternative<plan::HostWait>(op.body)) host_ = next_ - 1;
    WT_CHECK(next_ > first);
  }

  /// Whole microseconds of the span; what rounding leaves goes to the next of the stream.
  uint64_t micros(const plan::Op& op, const Span& span) {
    constexpr int64_t kMicro = 1'000'000;
    int64_t& left = rest_[static_cast<size_t>(op.stream)];
    const int64_t length = std::max<int64_t>(0, span.end_ps - span.begin_ps) + left;
    const int64_t whole = std::max<int64_t>(0, (length + kMicro / 2) / kMicro);
    left = length - whole * kMicro;
    return static_cast<uint64_t>(whole);
  }

  Message begun(NodeType type, const plan::Op& op, const Span& span, std::vector<uint64_t>& control,
                std::vector<uint64_t>& data, bool host = false) {
    Message m;
    put(m, node::kId, next_++);
    m.text(node::kName, name_);
    m.number(node::kType, static_cast<uint64_t>(type));
    put_packed(m, node::kControl, control);
    put_packed(m, node::kData, data);
    put(m, node::kStart, static_cast<uint64_t>(std::max<int64_t>(0, span.begin_ps) / 1'000'000));
    put(m, node::kDuration, host ? 0 : micros(op, span));
    add_attribute(m, node::kAttribute, "is_cpu_op", [&](Message& a) { a.number(attribute::kBool, host); });
    return m;
  }
  void number(Message& m, std::string_view name, uint32_t kind, int64_t value) {
    add_attribute(m, node::kAttribute, name, [&](Message& a) { a.number(kind, static_cast<uint64_t>(value)); });
  }

  using Deps = std::vector<uint64_t>&;
  using Bound = const std::optional<plan::Binding>&;

  void node(const plan::Compute& c, const plan::Op& op, const Span& span, Bound, Deps control, Deps data) {
    Message m = begun(NodeType::compute, op, span, control, data);
    number(m, "num_ops", attribute::kInt64, static_cast<int64_t>(c.work.flops));
    number(m, "tensor_size", attribute::kUint64, c.work.bytes_read + c.work.bytes_written);
    emit(m);
  }
  void node(const plan::HostWait&, const plan::Op& op, const Span& span, Bound, Deps control, Deps data) {
    emit(begun(NodeType::compute, op, span, control, data, true));
  }
  void node(const plan::Join&, const plan::Op& op, const Span& span, Bound, Deps control, Deps data) {
    emit(begun(NodeType::compute, op, span, control, data));
  }
  void node(const plan::Copy& c, const plan::Op& op, const Span& span, Bound, Deps control, Deps data) {
    Message m = begun(c.to == plan::Space::device ? NodeType::load : NodeType::store, op, span, control, data);
    number(m, "tensor_size", attribute::kUint64, c.bytes);
    emit(m);
  }
  void node(const plan::Collective& c, const plan::Op& op, const Span& span, Bound, Deps control, Deps data) {
    using K = plan::CollectiveKind;
    const std::vector<RankId> members = plan::group_members(plan_.mesh, plan_.group(c.group), RankId{rank_});
    if (c.kind == K::shift_up || c.kind == K::shift_down) return shift(c, members, op, span, control, data);
    const auto size = static_cast<int64_t>(members.size());
    Message m = begun(NodeType::collective, op, span, control, data);
    const CollectiveType type = c.kind == K::all_reduce       ? CollectiveType::all_reduce
                                : c.kind == K::all_gather     ? CollectiveType::all_gather
                                : c.kind == K::reduce_scatter ? CollectiveType::reduce_scatter
                                : c.kind == K::all_to_all     ? CollectiveType::all_to_all
                                                              : CollectiveType::broadcast;
    number(m, "comm_type", attribute::kInt64, static_cast<int64_t>(type));
    number(m, "comm_size", attribute::kInt64, c.kind == K::all_gather ? c.bytes / std::max<int64_t>(size, 1) : c.bytes);
    // One number for each instance of a group: its place in the plan and its first member.
    const int64_t id = int64_t{c.group.v} * plan_.mesh.ranks() + members.at(0).v + 1;
    groups_.try_emplace(id, members);
    add_attribute(m, node::kAttribute, "pg_name", [&](Message& a) { a.text(attribute::kString, std::to_string(id)); });
    emit(m);
  }
  void node(const plan::Send& s, const plan::Op& op, const Span& span, Bound bound, Deps control, Deps data) {
    const auto peer = peer_of(plan_, RankId{rank_}, bound->chunk, s.to);
    WT_CHECK(peer, "'{}' has no peer", op.name);
    message(NodeType::send, peer->rank.v, s.to == plan::Direction::next_stage ? 0 : 1, s.bytes, op, span, control,
            data);
  }
  void node(const plan::Receive& r, const plan::Op& op, const Span& span, Bound bound, Deps control, Deps data) {
    const auto peer = peer_of(plan_, RankId{rank_}, bound->chunk, r.from);
    WT_CHECK(peer, "'{}' has no peer", op.name);
    message(NodeType::receive, peer->rank.v, r.from == plan::Direction::next_stage ? 1 : 0, r.bytes, op, span, control,
            data);
  }

  /// Every member sends to the next and receives from the one before (shift_down: the other way round).
  void shift(const plan::Collective& c, const std::vector<RankId>& members, const plan::Op& op, const Span& span,
             Deps control, Deps data) {
    const size_t n = members.size();
    const auto me = static_cast<size_t>(plan::group_index(plan_.mesh, plan_.group(c.group), RankId{rank_}));
    const size_t step = c.kind == plan::CollectiveKind::shift_up ? 1 : n - 1;
    const int lane = 2 + static_cast<int>(op.stream) * 2 + (step == 1 ? 0 : 1);
    const uint64_t sent = next_;
    message(NodeType::send, members[(me + step) % n].v, lane, c.bytes, op, span, control, data);
    rest_[static_cast<size_t>(op.stream)] = 0;  // both sides take the same time, not one what the other left over
    message(NodeType::receive, members[(me + n - step) % n].v, lane, c.bytes, op, span, control, data);
    // Neither waits for the other (a ring would stand still): who follows waits for both by way of a node without work.
    std::vector<uint64_t> none, both = {sent, sent + 1};
    const Span over{span.invocation, span.op, span.end_ps, span.end_ps};
    emit(begun(NodeType::compute, op, over, none, both));
  }

  /// Messages of a lane between two ranks pair in order: their place in it is the tag.
  void message(NodeType type, uint32_t peer, int lane, int64_t bytes, const plan::Op& op, const Span& span,
               Deps control, Deps data) {
    const bool send = type == NodeType::send;
    Message m = begun(type, op, span, control, data);
    uint32_t& place = taken_[{peer, lane, send}];
    constexpr int64_t kLanes = 64;
    number(m, "comm_src", attribute::kInt32, send ? rank_ : peer);
    number(m, "comm_dst", attribute::kInt32, send ? peer : rank_);
    number(m, "comm_tag", attribute::kInt32, int64_t{place++} * kLanes + lane);
    number(m, "comm_size", attribute::kInt64, bytes);
    emit(m);
  }

  const Plan& plan_;
  const uint32_t rank_;
  const RankSpans& spans_;
  std::map<int64_t, std::vector<RankId>>& groups_;
  AtomicFile* file_ = nullptr;
  std::string name_;
  size_t at_ = 0;
  uint64_t next_ = 0;
  std::vector<std::vector<uint64_t>> instances_;  // of this invocation, by op
  std::array<std::optional<uint64_t>, plan::kStreams> tails_{};
  std::optional<uint64_t> host_;
  std::array<int64_t, plan::kStreams> rest_{};
  std::map<std::tuple<uint32_t, int, bool>, uint32_t> taken_;  // messages with (peer, lane, sent)
};

Status write_groups(const std::string& path, const std::map<int64_t, std::vector<RankId>>& groups) {
  auto file = AtomicFile::create(path);
  if (!file) return file.errors();
  std::string text = "{";
  for (const auto& [id, members] : groups) {
    text += fmt::format("{}\n  \"{}\": [", text.size() > 1 ? "," : "", id);
    for (size_t i = 0; i < members.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", members[i].v);
    text += "]";
  }
  file.value().write(text + "\n}\n");
  return file.value().commit();
}

}  // namespace

Result<ChakraWritten> write_chakra(const std::string& prefix, const Trace& trace, const Plan& plan,
                                   std::vector<uint32_t> ranks, int64_t most_nodes) {
  if (auto checked = check_against_plan(trace, plan); !checked) return checked.errors();
  if (ranks.empty())
    for (uint32_t r = 0; int64_t{r} < plan.mesh.ranks(); ++r) ranks.push_back(r);
  std::map<uint32_t, const RankSpans*> last;  // step of each rank
  for (const RankSpans& r : trace.ranks) last[r.rank] = &r;
  std::vector<uint32_t> held;
  for (const auto& [rank, spans] : last) held.push_back(rank);
  Diagnostics faults;
  std::vector<std::pair<uint32_t, const RankSpans*>> todo;
  int64_t nodes = 0;
  for (const uint32_t rank : ranks) {
    const auto from = int64_t{rank} < plan.mesh.ranks() ? stand_in(plan, held, rank) : std::nullopt;
    if (!from) {
      faults.push_back({fmt::format("rank {}", rank), "is not in the trace",
                        fmt::format("the plan has ranks 0 to {}", plan.mesh.ranks() - 1)});
      continue;
    }
    todo.emplace_back(rank, last.at(*from));
    nodes += static_cast<int64_t>(todo.back().second->spans.size());
  }
  if (faults.empty() && nodes > most_nodes)
    faults.push_back(
        {prefix,
         fmt::format("{} ranks have {} nodes, more than {}", ranks.size(), with_commas(nodes), with_commas(most_nodes)),
         "write some of them: --ranks"});
  if (!faults.empty()) return faults;
  ChakraWritten out;
  std::map<int64_t, std::vector<RankId>> groups;
  for (const auto& [rank, spans] : todo) {
    auto wrote = RankWriter(plan, rank, *spans, groups).write(fmt::format("{}.{}.et", prefix, rank));
    if (!wrote) return wrote.errors();
    out.nodes += wrote.value();
    ++out.files;
  }
  if (auto wrote = write_groups(prefix + ".comm_group.json", groups); !wrote) return wrote.errors();
  return out;
}

}  // namespace wt::trace
