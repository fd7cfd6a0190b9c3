#include "core/report/step_walk.hpp"

#include <algorithm>

#include "core/base/check.hpp"

namespace wt::report {

namespace {

using plan::Op;
using plan::Plan;
using plan::Stream;
using trace::Span;

/// Names a message on both sides: the receiving stage and chunk, the micro-batch, the way it goes, the how-manieth.
uint64_t message_key(int64_t stage, int64_t chunk, int64_t micro_batch, bool forward, uint64_t nth) {
  return static_cast<uint64_t>(stage) << 48 ^ static_cast<uint64_t>(chunk) << 36 ^
         static_cast<uint64_t>(micro_batch) << 12 ^ (nth << 1 | forward);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ ranks of a step

StepWalks::StepWalks(const Plan& plan) : plan_(plan), pp_(plan.mesh.find("pp")), shapes_(plan.blocks.size()) {}
StepWalks::~StepWalks() = default;

void StepWalks::add(const trace::RankSpans& run) {
  by_rank_.emplace(run.rank, &run);
  by_stage_.emplace(stage(run.rank), &run);
}

RankWalk& StepWalks::walk(const trace::RankSpans& run) {
  std::unique_ptr<RankWalk>& walk = walks_[run.rank];
  if (!walk) walk = std::make_unique<RankWalk>(plan_, *this, run);
  return *walk;
}

RankWalk* StepWalks::walk_like(uint32_t rank) {
  if (const auto run = by_rank_.find(rank); run != by_rank_.end()) return &walk(*run->second);
  const auto like = by_stage_.find(stage(rank));
  return like == by_stage_.end() ? nullptr : &walk(*like->second);
}

const BlockShape& StepWalks::shape(BlockId id) {
  BlockShape& shape = shapes_[id.v];
  if (!shape.block) shape = BlockShape(plan_, plan_.block(id));
  return shape;
}

// ---------------------------------------------------------------------------------------------------- one rank

RankWalk::RankWalk(const Plan& plan, StepWalks& walks, const trace::RankSpans& run)
    : plan_(plan), walks_(walks), spans_(run.spans), rank_{run.rank}, groups_(plan.groups.size()) {
  find_order();
  index_invocations();
  name_messages();
}

/// Which variant of the step ran is not stored: the one whose length fits.
void RankWalk::find_order() {
  for (const plan::StepOrder& variant : plan_.programs[program_of(plan_, rank_).v].steps) {
    size_t n = 0;
    for (const plan::Invocation& i : variant.order) n += static_cast<size_t>(plan_.block(i.block).op_instances());
    if (n != spans_.size()) continue;
    order_ = &variant.order;
    return;
  }
  WT_CHECK(false, "rank {} was not checked against the plan", rank_.v);
}

void RankWalk::index_invocations() {
  const size_t groups = plan_.groups.size();
  std::array<uint32_t, BlockShape::kQueues> last;
  last.fill(kNone);
  std::vector<uint32_t> counts(groups);
  entries_.reserve(order_->size());
  tails_.reserve((order_->size() + 1) * last.size());
  collectives_.reserve(order_->size() * groups);
  uint32_t span = 0, message = 0;
  for (const plan::Invocation& i : *order_) {
    const BlockShape& shape = walks_.shape(i.block);
    entries_.push_back({&shape, span, message});
    tails_.insert(tails_.end(), last.begin(), last.end());
    collectives_.insert(collectives_.end(), counts.begin(), counts.end());
    for (size_t q = 0; q < last.size(); ++q)
      if (!shape.queues[q].empty()) last[q] = span + shape.queues[q].back();
    for (const auto& [group, list] : shape.collectives) counts[group.v] += static_cast<uint32_t>(list.size());
    span += static_cast<uint32_t>(shape.instances.size());
    message += static_cast<uint32_t>(shape.messages.size());
  }
  tails_.insert(tails_.end(), last.begin(), last.end());
}

plan::Binding RankWalk::binding(const plan::Invocation& v, const plan::Block& block, const Op& o) const {
  size_t which = 0;
  if (v.bindings > 1 && o.reads.count + o.writes.count > 0)
    which = block.refs[o.reads.count ? o.reads.begin : o.writes.begin].binding;
  return v.binding[which];
}

void RankWalk::name_messages() {
  std::unordered_map<uint64_t, uint64_t> seen;
  for (size_t v = 0; v < order_->size(); ++v) {
    const BlockShape& shape = *entries_[v].shape;
    for (const uint32_t k : shape.messages) {
      const Op& o = shape.block->ops[shape.instances[k].op];
      const auto* send = std::get_if<plan::Send>(&o.body);
      const plan::Direction way = send ? send->to : std::get<plan::Receive>(o.body).from;
      const plan::Binding b = binding((*order_)[v], *shape.block, o);
      Message& message = messages_.emplace_back();
      const auto peer = plan::peer_of(plan_, rank_, b.chunk, way);
      if (!peer) continue;
      const bool forward = (way == plan::Direction::next_stage) == (send != nullptr);
      const int64_t stage = walks_.stage(send ? peer->rank.v : rank_.v), chunk = send ? peer->chunk : b.chunk;
      const uint64_t nth = seen[message_key(stage, chunk, b.micro_batch, forward, 0)]++;
      message = {peer->rank.v, send != nullptr, message_key(stage, chunk, b.micro_batch, forward, nth)};
    }
  }
}

uint32_t RankWalk::before_on(size_t queue, uint32_t i) const {
  const Span& s = spans_[i];
  const Entry& e = entries_[s.invocation];
  const uint32_t inside = e.shape->last_before(queue, s.op);
  return inside == kNone ? tail(s.invocation, queue) : e.first_span + inside;
}

const std::vector<int64_t>& RankWalk::collective_times(GroupId group) {
  OfGroup& of = groups_[group.v];
  if (of.timed) return of.times;
  of.timed = true;
  for (const Entry& e : entries_)
    for (const auto& [known, list] : e.shape->collectives)
      if (known == group)
        for (const uint32_t k : list) of.times.push_back(spans_[e.first_span + k].begin_ps);
  return of.times;
}

int64_t RankWalk::message_time(bool sends, uint64_t key, int64_t otherwise) {
  if (!messages_timed_) {
    messages_timed_ = true;
    for (const Entry& e : entries_)
      for (size_t k = 0; k < e.shape->messages.size(); ++k) {
        const Message& m = messages_[e.first_message + k];
        if (m.peer != kNone)
          (m.sends ? sends_ : receives_)[m.key] = spans_[e.first_span + e.shape->messages[k]].begin_ps;
      }
  }
  const auto& times = sends ? sends_ : receives_;
  const auto found = times.find(key);
  return found == times.end() ? otherwise : found->second;
}

/// When the last of the other sides of a transfer was ready; its own begin if the trace does not hold them.
int64_t RankWalk::others_ready(uint32_t i, const BlockShape& shape, const BlockShape::OpFacts& facts) {
  const Span& s = spans_[i];
  if (facts.transfer == BlockShape::Transfer::none) return s.begin_ps;
  const uint32_t nth = shape.instances[s.op].nth;
  if (facts.transfer == BlockShape::Transfer::message) {
    const Message& m = messages_[entries_[s.invocation].first_message + nth];
    RankWalk* const other = m.peer == kNone ? nullptr : walks_.walk_like(m.peer);
    return other ? std::max(s.begin_ps, other->message_time(!m.sends, m.key, s.begin_ps)) : s.begin_ps;
  }
  OfGroup& of = groups_[facts.group.v];
  if (!of.known) {
    of.known = true;
    for (RankId m : plan::group_members(plan_.mesh, plan_.group(facts.group), rank_))
      if (m != rank_ && walks_.has(m.v)) of.others.push_back(walks_.walk_like(m.v));
  }
  int64_t at = s.begin_ps;
  const size_t which = collectives_[s.invocation * groups_.size() + facts.group.v] + nth;
  for (RankWalk* other : of.others) {
    const std::vector<int64_t>& times = other->collective_times(facts.group);
    if (which < times.size()) at = std::max(at, times[which]);
  }
  return at;
}

// ------------------------------------------------------------------------------------------------------ the walk

TermSums RankWalk::breakdown(int64_t begin, int64_t end) {
  sums_ = {};
  from_ = begin;
  for (const Entry& e : entries_)
    for (const uint32_t k : e.shape->kernels) {
      const uint32_t i = e.first_span + k;
      const Span& s = spans_[i];
      const int64_t b = std::clamp(s.begin_ps, from_, end), stop = std::clamp(s.end_ps, b, end);
      if (b > from_) explain_gap(i, b);
      from_ = b;
      attribute(i, stop);
      from_ = stop;
    }
  if (from_ < end) {
    const int64_t now = behind_the_last_kernel(end);
    add(Term::host, std::max<int64_t>(0, now - from_));
    from_ = end;
  }
  return sums_;
}

/// Back from whatever ends last; returns what could not be explained.
int64_t RankWalk::behind_the_last_kernel(int64_t end) {
  uint32_t last = kNone;
  for (size_t q = 0; q < plan::kStreams; ++q)
    if (const uint32_t i = tail(entries_.size(), q);
        i != kNone && (last == kNone || spans_[i].end_ps > spans_[last].end_ps))
      last = i;
  if (last == kNone) return end;
  const int64_t last_end = std::clamp(spans_[last].end_ps, from_, end);
  add(Term::bubble, end - last_end);  // the rank is done and the step is not
  return last_end > from_ ? before(last, attribute(last, last_end)) : last_end;
}

/// The part of op i before `now`: waiting for the others, then its own work. Returns its begin.
int64_t RankWalk::attribute(uint32_t i, int64_t now) {
  const Span& s = spans_[i];
  const BlockShape& shape = *entries_[s.invocation].shape;
  const BlockShape::OpFacts& facts = shape.ops[shape.instances[s.op].op];
  const int64_t begin = std::clamp(s.begin_ps, from_, now);
  const int64_t start = std::clamp(others_ready(i, shape, facts), begin, now);
  add(facts.waiting, start - begin);
  add(facts.term, now - start);
  return begin;
}

/// What let op i start last, among what it waits for on this rank.
std::optional<RankWalk::Cause> RankWalk::latest_cause(uint32_t i, int64_t limit) const {
  std::optional<Cause> best;
  auto consider = [&](uint32_t j, int64_t at) {
    if (at <= limit && (!best || at > best->at)) best = Cause{j, at};
  };
  const Span& s = spans_[i];
  const Entry& e = entries_[s.invocation];
  const BlockShape& shape = *e.shape;
  const plan::Block& b = *shape.block;
  const BlockShape::Instance& me = shape.instances[s.op];
  const Op& o = b.ops[me.op];
  for (uint32_t k = 0; k < o.waits.count; ++k) {
    const plan::Wait& w = b.waits[o.waits.begin + k];
    if (w.kind == plan::Wait::Kind::tail) {
      if (const uint32_t j = before_on(w.index, i); j != kNone) consider(j, spans_[j].end_ps);
      continue;
    }
    // The segment of the op waited for: mine, or the last before mine that holds it.
    uint32_t at = me.segment;
    while (!(b.segments[at].first_op <= w.index && w.index < b.segments[at].first_op + b.segments[at].op_count) &&
           at > 0)
      --at;
    const plan::Segment& segment = b.segments[at];
    if (w.index < segment.first_op || w.index >= segment.first_op + segment.op_count) continue;
    const int64_t iteration =
        at == me.segment ? int64_t{me.iteration} - w.iterations_back : int64_t{segment.iterations} - 1;
    if (iteration < 0) continue;
    const uint32_t there = e.first_span + shape.segment_first[at] +
                           static_cast<uint32_t>(iteration) * segment.op_count + (w.index - segment.first_op);
    const Span& t = spans_[there];
    consider(there, w.kind == plan::Wait::Kind::piece && w.pieces > 1 ? t.begin_ps + (t.end_ps - t.begin_ps) / w.pieces
                                                                      : t.end_ps);
  }
  auto consider_queue = [&](uint32_t inside, size_t queue) {
    const uint32_t j = inside == kNone ? tail(s.invocation, queue) : e.first_span + inside;
    if (j != kNone) consider(j, spans_[j].end_ps);
  };
  consider_queue(me.before, static_cast<size_t>(o.stream));
  consider_queue(me.host_wait, BlockShape::kHostWaits);
  return best;
}

/// The idle time [from_, now) before kernel i.
void RankWalk::explain_gap(uint32_t i, int64_t now) {
  now = before(i, now);
  add(Term::host, now - from_);
}

/// Attributes what lies between the causes of op i and `now`, then follows them; returns what could not be explained.
int64_t RankWalk::before(uint32_t i, int64_t now) {
  while (now > from_) {
    const auto cause = latest_cause(i, now);
    const int64_t at = cause ? std::max(cause->at, from_) : from_;
    const BlockShape& shape = *entries_[spans_[i].invocation].shape;
    add(shape.ops[shape.instances[spans_[i].op].op].waiting, now - at);
    now = at;
    if (!cause || now == from_) return now;
    i = cause->span;
    now = attribute(i, now);
  }
  return now;
}

}  // namespace wt::report
