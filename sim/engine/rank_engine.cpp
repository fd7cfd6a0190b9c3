#include "sim/engine/rank_engine.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.hpp"

namespace wt::sim {
namespace {

// Progress of slowed compute is counted in 1/kRate ps. Beyond kLongestFine that needs more than 63 bits.
constexpr int64_t kRate = 1 << 16;
constexpr int64_t kLongestFine = INT64_MAX / kRate - 1;  // 140 s
constexpr size_t kFlushSpans = 512;

int64_t max4(const int64_t* v, const std::array<uint16_t, 4>& w) {
  return std::max(std::max(v[w[0]], v[w[1]]), std::max(v[w[2]], v[w[3]]));
}

int64_t first_piece(const Pieces& p, int64_t begin, int64_t end) {
  return begin + one_piece(end - begin, p.out_pieces);
}

}  // namespace

RankEngine::RankEngine(const plan::Plan& plan, const Pricing& pricing, const Fold& fold, const PricedPlan& priced)
    : plan_(plan), pricing_(pricing), fold_(fold), priced_(priced) {
  const uint32_t n = fold.units();
  units_.resize(n);
  for (uint32_t u = 0; u < n; ++u) units_[u].cls = priced.class_of[u];
  times_.assign(size_t{n} * priced.row, 0);
  posted_.resize(size_t{n} * plan::kStreams);
  in_flight_.resize(n);
  ends_.assign(n, 0);
  spans_.resize(n);
  scenarios_.resize(priced.summaries);
  scenarios_found_.assign(priced.summaries, 0);
  rates_.assign(priced.computes.size() * priced.channels.size(), 0);

  const size_t comms = priced.comms.size();
  comm_of_.assign(n * comms, kNone);
  comms_.resize(n * comms);
  for (size_t c = 0; c < comms; ++c)
    for (uint32_t u = 0; u < n; ++u) {
      const uint32_t base = fold.groups[priced.comms[c].group.v].base[u];
      if (base != UnitGroup::kNone) comm_of_[u * comms + c] = static_cast<uint32_t>(base * comms + c);
    }
  make_channels();
}

uint32_t RankEngine::rate(uint32_t row, uint32_t channels) {
  uint32_t& r = rates_[row * priced_.channels.size() + channels - 1];
  if (!r) {
    const double slow = pricing_.slowdown(*priced_.computes[row], priced_.channels[channels - 1]);
    WT_CHECK(slow >= 1 && slow <= kRate, "slowdown {}", slow);
    r = static_cast<uint32_t>(std::llround(kRate / slow));
  }
  return r;
}

/// End of a kernel that starts at `ready`, exact over the stretches during which known collectives run beside it.
int64_t RankEngine::beside_collectives(std::vector<Interval>& intervals, const FlatOp& op, int64_t ready) {
  // Kernels of the compute stream start in order: what ended before this one concerns no later one.
  std::erase_if(intervals, [&](const Interval& i) { return i.end <= ready; });
  const int64_t end = ready + op.duration;
  if (intervals.empty()) return end;
  return op.duration <= kLongestFine ? slowed_end<int64_t>(intervals, op, ready)
                                     : slowed_end<__int128>(intervals, op, ready);
}

template <class Progress>
int64_t RankEngine::slowed_end(const std::vector<Interval>& intervals, const FlatOp& op, int64_t ready) {
  Progress left = static_cast<Progress>(op.duration) * kRate;
  int64_t at = ready;
  while (true) {
    int64_t speed = kRate, until = kUnknown;
    for (const Interval& i : intervals) {
      if (i.begin > at) {
        until = std::min(until, i.begin);
      } else if (i.end > at) {
        until = std::min(until, i.end);
        speed = std::min<int64_t>(speed, rate(op.aux, i.channels));
      }
    }
    const Progress end = at + (left + speed - 1) / speed;
    if (end <= until) return static_cast<int64_t>(end);
    left -= static_cast<Progress>(until - at) * speed;
    at = until;
  }
}

/// The same; a token if a collective that has not begun may still slow the kernel.
int64_t RankEngine::compute_end(uint32_t u, const FlatOp& op, int64_t ready) {
  Unit& unit = units_[u];
  if (unit.released_end) return std::exchange(unit.released_end, 0);
  const int64_t end = beside_collectives(in_flight_[u], op, ready);
  if (unit.open_exposed)
    for (uint8_t s = 0; s < plan::kStreams; ++s)
      if (unit.open_exposed >> s & 1 && posted_[size_t{u} * plan::kStreams + s].ready < end)
        return posted_[size_t{u} * plan::kStreams + s].token;
  return end;
}

void RankEngine::stall(uint32_t u, int64_t token) { units_[u].stalled_on = token; }

void RankEngine::post(uint32_t u, const FlatOp& op, const Pieces* pieces, int64_t ready, uint32_t span) {
  Unit& unit = units_[u];
  int64_t* const v = &times_[size_t{u} * priced_.row];
  const int64_t token = kUnknown + op.stream;
  v[op.stream] = v[op.out] = token;
  if (pieces) v[pieces->first_out] = token;
  posted_[size_t{u} * plan::kStreams + op.stream] = {&op, pieces, ready, token, span};
  ++unit.open;
  if (op.channels) unit.open_exposed |= 1u << op.stream;
}

void RankEngine::resolve(uint32_t u, uint8_t stream, int64_t begin, int64_t end) {
  Unit& unit = units_[u];
  int64_t* const v = &times_[size_t{u} * priced_.row];
  const Posted& p = posted_[size_t{u} * plan::kStreams + stream];
  const int64_t token = p.token;
  if (v[stream] == token) v[stream] = end;
  if (v[p.op->out] == token) v[p.op->out] = end;
  if (p.pieces && v[p.pieces->first_out] == token) v[p.pieces->first_out] = first_piece(*p.pieces, begin, end);
  --unit.open;
  if (p.op->channels) {
    unit.open_exposed &= ~(1u << stream);
    in_flight_[u].push_back({begin, end, p.op->channels});
  }
  if (p.span != kNone) spans_[u][p.span].end_ps = end - origin_;
  if (p.behind != kNone) {
    queued_[p.behind].ready = std::max(queued_[p.behind].ready, end);
    next_messages_.push_back(u * plan::kStreams + stream);
  }
  if (unit.stalled_on != token) return;
  unit.stalled_on = 0;
  if (unit.waits_for_overlap) {
    unit.waits_for_overlap = false;
    queue_.cancel(unit.release);
  }
  runnable_.push_back(u);
}

uint32_t RankEngine::channel_of(uint32_t u, const OrderEntry& entry, const FlatOp& op) const {
  const uint32_t chunk = entry.chunk[MessageAux::binding(op.aux)];
  const uint32_t at = port_[(size_t{u} * chunks_ + chunk) * 4 + MessageAux::port(op.aux)];
  WT_CHECK(at != kNone, "rank {} has no peer for chunk {} in '{}'", fold_.rank_of[u], chunk,
           plan_.block(priced_.blocks[entry.block].block).name);
  return at;
}

/// When the message travels; nothing if its partner is not there yet. The partner, if there, is resolved.
std::optional<RankEngine::Interval> RankEngine::meet(uint32_t at, const FlatOp& op, int64_t ready) {
  Channel& channel = channels_[at];
  const bool receives = op.kind == OpKind::receive;
  const uint32_t size = MessageAux::size(op.aux);
  if (channel.count == 0 || channel.receives_wait == receives) {
    WT_CHECK(channel.count < channel.waiting.size());
    channel.receives_wait = receives;
    channel.waiting[channel.count++] = {ready, size, op.stream};
    return std::nullopt;
  }
  const Channel::Waiting other = channel.waiting[0];
  if (--channel.count)
    std::copy(channel.waiting.begin() + 1, channel.waiting.begin() + channel.count + 1, channel.waiting.begin());
  ++events_;
  const int64_t begin = std::max(ready, other.ready);
  const int64_t end = begin + message_time_[at * fold_.message_bytes.size() + (receives ? other.size : size)];
  resolve(receives ? channel.from : channel.to, other.stream, begin, end);
  return Interval{begin, end, 0};
}

void RankEngine::flush(uint32_t u) {
  if (spans_[u].empty()) return;
  sink_->spans(fold_.rank_of[u], step_, spans_[u]);
  spans_[u].clear();
}

/// Applies the map unless a time that it reads is not known or a collective may run beside its kernels.
bool RankEngine::apply(uint32_t u, const FlatBlock& block, const Summary& s) {
  Unit& unit = units_[u];
  int64_t* const v = &times_[size_t{u} * priced_.row];
  if (unit.open_exposed || unit.released_end) return false;
  if (s.weights.empty()) return apply_scenario(u, block, s);
  if (!in_flight_[u].empty()) {
    // No kernel starts before the host is here and its stream is free.
    const int64_t start = std::max(v[kHost], v[static_cast<size_t>(plan::Stream::compute)]);
    std::erase_if(in_flight_[u], [&](const Interval& i) { return i.end <= start; });
    if (!in_flight_[u].empty()) return false;
  }
  const size_t n = s.inputs.size();
  std::array<int64_t, 8> in;
  int64_t latest = 0;
  for (size_t i = 0; i < n; ++i) latest = std::max(latest, in[i] = v[s.inputs[i]]);
  if (latest >= kUnknown) return false;
  const int64_t* w = s.weights.data();
  for (uint16_t out : s.outputs) {
    int64_t t = 0;
    for (size_t i = 0; i < n; ++i) t = std::max(t, in[i] + w[i]);
    v[out] = t;
    w += n;
  }
  return true;
}

bool RankEngine::apply_scenario(uint32_t u, const FlatBlock& block, const Summary& s) {
  if (!scenarios_found_[s.id]) {
    scenarios_found_[s.id] = 1;
    for (uint16_t input : s.inputs)
      if (Scenario found; find_scenario(block, s, input, found)) scenarios_[s.id].push_back(std::move(found));
  }
  int64_t* const v = &times_[size_t{u} * priced_.row];
  for (const Scenario& c : scenarios_[s.id]) {
    const int64_t base = v[c.base];
    if (base >= kUnknown) continue;
    bool holds = true;
    for (const Scenario::Time& limit : c.limits) holds &= v[limit.at] <= base + limit.value;
    if (!holds) continue;
    if (!in_flight_[u].empty()) {
      if (c.first_kernel != kUnknown)
        std::erase_if(in_flight_[u], [&](const Interval& i) { return i.end <= base + c.first_kernel; });
      if (!in_flight_[u].empty()) return false;
    }
    v[kHost] += c.issue;
    for (const Scenario::Time& out : c.outputs) v[out.at] = base + out.value;
    for (const Interval& i : c.in_flight) in_flight_[u].push_back({base + i.begin, base + i.end, i.channels});
    return true;
  }
  return false;
}

/// Runs the ops with the base at 0 and every other input far in the past; each op that reads one of those directly bounds
/// how late it may be. False: some op does not follow from the base.
bool RankEngine::find_scenario(const FlatBlock& block, const Summary& s, uint16_t base, Scenario& out) {
  constexpr int64_t kPast = -kUnknown, kEver = kPast / 2;
  scratch_.assign(priced_.row, kPast);
  scratch_written_.assign(priced_.row, 0);
  std::vector<int64_t> limit(priced_.row, kUnknown);
  int64_t* const v = scratch_.data();
  v[base] = 0;
  scratch_written_[base] = 1;
  out.base = base;
  out.first_kernel = kUnknown;
  for (uint32_t i = s.begin; i < s.end; ++i) {
    const FlatOp& o = block.ops[i];
    const Pieces* const pieces = o.in_pieces ? &block.pieces[i] : nullptr;
    if (scratch_written_[kHost])
      v[kHost] += o.issue;
    else
      out.issue += o.issue;
    const int64_t ready = std::max(std::max(v[kHost], v[o.stream]), max4(v, o.waits));
    if (ready < kEver) return false;
    if (!scratch_written_[kHost]) limit[kHost] = std::min(limit[kHost], ready - out.issue);
    auto bound = [&](uint16_t t) {
      if (t != kZero && !scratch_written_[t]) limit[t] = std::min(limit[t], ready);
    };
    bound(o.stream);
    for (uint16_t w : o.waits) bound(w);
    int64_t end = ready + o.duration;
    if (o.kind == OpKind::compute) {
      if (out.first_kernel == kUnknown) out.first_kernel = ready;
      end = beside_collectives(out.in_flight, o, ready);
    }
    if (pieces && pieces->floor != kZero) {
      if (!scratch_written_[pieces->floor]) return false;
      end = std::max(end, v[pieces->floor] + one_piece(o.duration, pieces->floor_pieces));
    }
    if (o.kind == OpKind::host_wait) end = ready;
    if (o.kind == OpKind::local_collective && o.channels) out.in_flight.push_back({ready, end, o.channels});
    auto write = [&](uint16_t t, int64_t time) {
      v[t] = time;
      scratch_written_[t] = 1;
    };
    write(o.stream, end);
    write(o.out, end);
    if (o.kind == OpKind::host_wait) write(kHost, end);
    if (pieces) write(pieces->first_out, first_piece(*pieces, ready, end));
  }
  if (scratch_written_[kHost]) out.issue = 0;
  for (uint16_t t : s.outputs)
    if (t != kHost || scratch_written_[kHost]) out.outputs.push_back({t, v[t]});
  for (uint16_t t : s.inputs)
    if (t != base && limit[t] != kUnknown) out.limits.push_back({t, limit[t]});
  return true;
}

template <bool kTrace, bool kSummaries>
void RankEngine::run(uint32_t u) {
  Unit& unit = units_[u];
  int64_t* const v = &times_[size_t{u} * priced_.row];
  const UnitClass& cls = priced_.classes[unit.cls];
  const size_t comms = priced_.comms.size();

  for (; unit.invocation < cls.order.size(); ++unit.invocation, unit.op = 0) {
    const OrderEntry entry = cls.order[unit.invocation];
    const FlatBlock& block = priced_.blocks[entry.block];
    const FlatOp* const first = block.ops.data();
    const FlatOp* const last = first + block.ops.size();
    const Summary* summary = nullptr;
    const FlatOp* summary_at = nullptr;
    if constexpr (kSummaries) {
      summary = block.summaries.data();
      const Summary* const none = summary + block.summaries.size();
      while (summary != none && summary->begin < unit.op) ++summary;
      summary_at = summary == none ? nullptr : first + summary->begin;
    }
    for (const FlatOp* o = first + unit.op; o != last; ++o) {
      if constexpr (kSummaries)
        if (o == summary_at) {
          if (apply(u, block, *summary)) o = first + summary->end;
          ++summary;
          summary_at = summary == block.summaries.data() + block.summaries.size() ? nullptr : first + summary->begin;
          if (o == last) break;
        }
      const int64_t host = v[kHost] + o->issue;
      const int64_t ready = std::max(std::max(host, v[o->stream]), max4(v, o->waits));
      if (ready >= kUnknown) [[unlikely]] {
        if (o->kind == OpKind::send || o->kind == OpKind::receive) {
          const int64_t without_stream = std::max(host, max4(v, o->waits));
          if (without_stream < kUnknown) {
            queue(u, entry, *o, without_stream, kTrace);
            v[kHost] = host;
            continue;
          }
        }
        unit.op = static_cast<uint32_t>(o - first);
        return stall(u, ready);
      }
      // `begin`: of the work, once every member is there; a span begins when this side is ready.
      int64_t begin = ready, end = 0;
      const Pieces* const pieces = o->in_pieces ? &block.pieces[static_cast<size_t>(o - first)] : nullptr;
      const int64_t floor = pieces ? v[pieces->floor] + one_piece(o->duration, pieces->floor_pieces) : 0;
      switch (o->kind) {
        case OpKind::plain:
        case OpKind::merge: end = std::max(ready + o->duration, floor); break;
        case OpKind::compute:
          if (in_flight_[u].empty() && !unit.open_exposed && !unit.released_end) [[likely]] {
            end = ready + o->duration;
          } else {
            end = compute_end(u, *o, ready);
            if (end >= kUnknown) {
              unit.op = static_cast<uint32_t>(o - first);
              unit.waits_for_overlap = true;
              // An op behind a stalled one may be ready before kernels released since: it comes up next then.
              unit.release = queue_.schedule(std::max(Time::ps(ready), queue_.now()), 0, {u, ready});
              return stall(u, end);
            }
          }
          end = std::max(end, floor);
          break;
        case OpKind::local_collective:
          end = std::max(ready + o->duration, floor);
          if (o->channels) in_flight_[u].push_back({ready, end, o->channels});
          break;
        case OpKind::host_wait: end = ready; break;
        case OpKind::collective: {
          Comm& comm = comms_[comm_of_[u * comms + o->aux]];
          comm.latest = std::max(comm.latest, ready);
          comm.duration = std::max<int64_t>(comm.duration, o->duration);
          comm.floor = std::max(comm.floor, floor);
          const UnitGroup& group = fold_.groups[priced_.comms[o->aux].group.v];
          if (++comm.arrived < group.size) {
            begin = kUnknown;
            break;
          }
          ++events_;
          begin = comm.latest;
          end = std::max(begin + comm.duration, comm.floor);
          const uint32_t base = group.base[u];
          for (uint32_t offset : group.offsets)
            if (base + offset != u) resolve(base + offset, o->stream, begin, end);
          comm = {};
          if (o->channels) in_flight_[u].push_back({begin, end, o->channels});
          break;
        }
        case OpKind::send:
        case OpKind::receive: {
          const auto met = meet(channel_of(u, entry, *o), *o, ready);
          begin = met ? met->begin : kUnknown;
          end = met ? met->end : 0;
          if (met && o->channels) in_flight_[u].push_back({begin, end, o->channels});
          break;
        }
      }
      v[kHost] = host;
      if (begin == kUnknown) [[unlikely]] {
        uint32_t span = kNone;
        if constexpr (kTrace) {
          span = static_cast<uint32_t>(spans_[u].size());
          spans_[u].push_back({unit.invocation, o->instance, ready - origin_, 0});
        }
        post(u, *o, pieces, ready, span);
        continue;
      }
      if (o->kind == OpKind::host_wait) v[kHost] = end;
      v[o->stream] = end;
      v[o->out] = end;
      if (pieces) v[pieces->first_out] = first_piece(*pieces, begin, end);
      if constexpr (kTrace)
        if (o->kind != OpKind::merge)
          spans_[u].push_back({unit.invocation, o->instance, ready - origin_, end - origin_});
    }
    if constexpr (kTrace)
      if (unit.open == 0 && spans_[u].size() >= kFlushSpans) flush(u);
  }
  // The step ends when its last op is known. No unit needs another's next step for that, so this cannot block.
  const int64_t end = *std::max_element(v, v + plan::kStreams);
  if (end >= kUnknown) return stall(u, end);
  ends_[u] = std::max(end, v[kHost]);
  if constexpr (kTrace) flush(u);
  ++done_;
}

bool RankEngine::release_earliest() {
  const auto first = queue_.next();
  if (!first) return false;
  while (queue_.next() == first) {
    const auto [u, ready] = queue_.pop()->payload;
    Unit& unit = units_[u];
    const OrderEntry entry = priced_.classes[unit.cls].order[unit.invocation];
    // Now, not when the unit runs: what the others of this batch resolve must not matter.
    unit.released_end = beside_collectives(in_flight_[u], priced_.blocks[entry.block].ops[unit.op], ready);
    unit.waits_for_overlap = false;
    unit.stalled_on = 0;
    runnable_.push_back(u);
  }
  return true;
}

Status RankEngine::run_step(uint32_t step, trace::Sink* sink, int64_t origin) {
  step_ = step;
  sink_ = sink;
  origin_ = origin;
  done_ = 0;
  queue_ = {};
  for (uint32_t u = fold_.units(); u-- > 0;) {
    units_[u].invocation = units_[u].op = 0;
    runnable_.push_back(u);
  }
  while (done_ < fold_.units()) {
    while (true) {
      post_next_messages();
      if (runnable_.empty()) break;
      const uint32_t u = runnable_.back();
      runnable_.pop_back();
      ++events_;
      if (sink)
        run<true, false>(u);
      else
        run<false, true>(u);
    }
    if (done_ < fold_.units() && !release_earliest()) return describe_stuck();
  }
  for (const Unit& unit : units_) ops_ += priced_.classes[unit.cls].instances;
  released_ += queue_.popped();
  events_ += queue_.popped();
  return ok_status();
}

}  // namespace wt::sim
