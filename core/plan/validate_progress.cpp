// Dry run: every send meets its receive, members of a group issue the same collectives, and everything ends.
// It has no times. Each stream of a rank runs its ops in issue order; an op starts when its waits are over; a send and
// its receive, and the members of a collective, end together (rendezvous: what works so works with any buffering).
//
// Ranks that differ only on axes that no program, filter or pipeline peer looks at do the same at the same time: one
// stands for all of them, and a collective among them is an op like any other. What is left are ops between
// representatives. Per block only these are kept, each with what must be over before it as one count for each stream
// (streams are in order, so "the first n of stream s" says it all); a block is worked out once and its invocations
// only shift the counts. Cost: about 100 steps for each invocation of each representative.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "core/plan/validate_passes.hpp"

namespace wt::plan {
namespace {

constexpr size_t kHost = kStreams;  // what the host has waited for: holds for all that it issues later
constexpr size_t kQueues = kStreams + 1;

/// How many of the meeting ops of each stream must be over.
using Counts = std::array<uint32_t, kStreams>;

/// Within a block: whatever the queues in `from` had before, and the first counts[s] meeting ops of this invocation.
struct Past {
  uint32_t from = 0;  // bit q: queue q as it was on entry
  Counts counts{};
  void join(const Past& o) {
    from |= o.from;
    for (size_t s = 0; s < kStreams; ++s) counts[s] = std::max(counts[s], o.counts[s]);
  }
};

struct Meeting {
  uint32_t op = 0, instance = 0;  // of the block
  int64_t layer = -1;
  Stream stream = Stream::compute;
  uint8_t binding = 0;
  Past past;
};

struct BlockSummary {
  std::vector<Meeting> meetings;
  std::array<Past, kQueues> after;
  Counts meetings_of{};
};

constexpr uint32_t kNone = UINT32_MAX;

/// One op of one representative that meets others.
struct Event {
  uint32_t invocation = 0, meeting = 0;
  uint32_t match = kNone;
  uint32_t next = kNone;  // other events of the match
  Counts needs{};
  bool ready = false;
};

struct Match {
  uint32_t first = kNone;
  uint32_t present = 0, wanted = 0, ready = 0;
};

class Progress {
 public:
  Progress(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    if (!find_representatives()) return;
    summarise();
    const size_t before = plan_.programs[0].steps.size();
    dry_run("setup", [](const Program& p) -> const std::vector<Invocation>& { return p.setup; });
    for (size_t i = 0; i < before; ++i)
      dry_run(fmt::format("step '{}'", plan_.programs[0].steps[i].name),
              [i](const Program& p) -> const std::vector<Invocation>& { return p.steps[i].order; });
  }

 private:
  struct Representative {
    RankId rank;
    uint32_t program = 0;
    int64_t stands_for = 1;
  };
  struct Rank {  // state of one representative in a dry run
    std::vector<Event> events;
    std::array<std::vector<uint32_t>, kStreams> queue;  // events in issue order
    Counts done{};
  };

  bool find_representatives();
  void stages();
  bool meets(const Op&) const;
  void summarise();
  template <class OrderOf>
  void dry_run(const std::string& where, OrderOf order_of);
  void issue(const std::vector<Invocation>&, Rank&);
  bool match(const std::string& where);
  void advance(const std::string& where);
  uint32_t representative_of(RankId) const;
  std::string describe_event(uint32_t representative, const Event&, const std::string& where) const;
  const Invocation& invocation(uint32_t representative, const Event& e) const {
    return (*orders_[representative])[e.invocation];
  }
  const Meeting& meeting(uint32_t representative, const Event& e) const {
    return summaries_[invocation(representative, e).block.v].meetings[e.meeting];
  }
  const Op& op(uint32_t representative, const Event& e) const {
    return plan_.block(invocation(representative, e).block).ops[meeting(representative, e).op];
  }

  const Plan& plan_;
  Faults& faults_;
  std::vector<bool> looked_at_;  // by axis
  std::vector<Representative> representatives_;
  std::vector<BlockSummary> summaries_;
  std::vector<const std::vector<Invocation>*> orders_;
  std::vector<Rank> ranks_;
  std::vector<Match> matches_;
  struct Handle {
    uint32_t representative, event;
  };
  std::vector<Handle> handles_;  // what Event::next and Match::first point at
};

bool Progress::find_representatives() {
  const auto& axes = plan_.mesh.axes;
  looked_at_.assign(axes.size(), false);
  for (const Program& p : plan_.programs)
    if (p.when.axis.valid()) looked_at_[p.when.axis.v] = true;
  for (const Group& g : plan_.groups)
    if (g.filter) looked_at_[g.filter->axis.v] = true;
  for (const Block& b : plan_.blocks)
    for (const Op& o : b.ops)
      if (std::holds_alternative<Send>(o.body) || std::holds_alternative<Receive>(o.body))
        if (const auto pp = plan_.mesh.find("pp")) looked_at_[pp->v] = true;
  int64_t n = 1;
  for (size_t i = 0; i < axes.size(); ++i)
    if (looked_at_[i]) {
      if (axes[i].size > kMostRepresentatives / n) {
        faults_.add("plan", fmt::format("its programs and filters tell apart more than {} kinds of ranks",
                                        kMostRepresentatives));
        return false;
      }
      n *= axes[i].size;
    }
  const int64_t stands_for = plan_.mesh.ranks() / n;
  std::vector<int64_t> ranks{0};
  for (uint32_t i = 0; i < axes.size(); ++i) {
    if (!looked_at_[i]) continue;
    std::vector<int64_t> next;
    for (int64_t r : ranks)
      for (int64_t v = 0; v < axes[i].size; ++v) next.push_back(r + v * plan_.mesh.stride({i}));
    ranks = std::move(next);
  }
  std::vector<bool> used(plan_.programs.size());
  bool ok = true;
  for (int64_t r : ranks) {
    Representative rep{RankId{static_cast<uint32_t>(r)}, kNone, stands_for};
    for (uint32_t i = 0; i < plan_.programs.size(); ++i) {
      const AxisFilter& when = plan_.programs[i].when;
      if (when.axis.valid() &&
          !std::binary_search(when.values.begin(), when.values.end(), plan_.mesh.coordinate(rep.rank, when.axis)))
        continue;
      if (rep.program != kNone) {
        faults_.add(fmt::format("rank {}", r), fmt::format("has programs '{}' and '{}'",
                                                           plan_.programs[rep.program].name, plan_.programs[i].name));
        ok = false;
      }
      rep.program = i;
      used[i] = true;
    }
    if (rep.program == kNone) {
      faults_.add(fmt::format("rank {}", r), "has no program");
      ok = false;
    }
    representatives_.push_back(rep);
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i]) faults_.add(fmt::format("program '{}'", plan_.programs[i].name), "is of no rank");
  if (ok) stages();
  return ok;
}

/// The chunks of the global stages hold consecutive layers of the model.
void Progress::stages() {
  if (!plan_.mesh.find("pp") || !looked_at_[plan_.mesh.find("pp")->v]) return;
  for (const Representative& r : representatives_) {
    const Program& p = plan_.programs[r.program];
    for (int64_t c = 0; c < plan_.placement.chunks; ++c) {
      const auto next = peer_of(plan_, r.rank, c, Direction::next_stage);
      if (!next) continue;
      const Program& q = plan_.programs[representatives_[representative_of(next->rank)].program];
      const int64_t end =
          p.first_layer[static_cast<size_t>(c)] + plan_.parts[p.chunks[static_cast<size_t>(c)].v].layers;
      const int64_t begin = q.first_layer[static_cast<size_t>(next->chunk)];
      if (end != begin)
        faults_.add(fmt::format("program '{}', chunk {}", p.name, c),
                    fmt::format("ends before layer {}, the next stage begins at layer {}", end, begin));
    }
  }
}

/// The representative that stands for the rank: coordinates on the other axes are dropped.
uint32_t Progress::representative_of(RankId rank) const {
  uint32_t index = 0;
  for (uint32_t i = 0; i < plan_.mesh.axes.size(); ++i)
    if (looked_at_[i])
      index = index * static_cast<uint32_t>(plan_.mesh.axes[i].size) +
              static_cast<uint32_t>(plan_.mesh.coordinate(rank, {i}));
  return index;
}

bool Progress::meets(const Op& o) const {
  if (std::holds_alternative<Send>(o.body) || std::holds_alternative<Receive>(o.body)) return true;
  const auto* c = std::get_if<Collective>(&o.body);
  if (!c) return false;
  const Group& g = plan_.group(c->group);
  return std::any_of(g.axes.begin(), g.axes.end(),
                     [&](AxisId a) { return looked_at_[a.v] && plan_.mesh.axes[a.v].size > 1; });
}

void Progress::summarise() {
  summaries_.resize(plan_.blocks.size());
  for (size_t i = 0; i < plan_.blocks.size(); ++i) {
    const Block& b = plan_.blocks[i];
    BlockSummary& sum = summaries_[i];
    for (size_t q = 0; q < kQueues; ++q) sum.after[q].from = 1u << q;
    // What is over when an op is: for waits, by op, the instances of its segment.
    std::vector<std::vector<Past>> over(b.ops.size());
    for (const Segment& s : b.segments)
      for (uint32_t iteration = 0; iteration < s.iterations; ++iteration)
        for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
          const Op& o = b.ops[k];
          const auto stream = static_cast<size_t>(o.stream);
          Past past = sum.after[stream];
          past.join(sum.after[kHost]);
          for (uint32_t w = 0; w < o.waits.count; ++w) {
            const Wait& wait = b.waits[o.waits.begin + w];
            if (wait.kind == Wait::Kind::tail) {
              past.join(sum.after[wait.index]);
            } else {
              // In an earlier segment the last instance, in this one that of `iterations_back` ago.
              const auto& instances = over[wait.index];
              const bool here = wait.index >= s.first_op;
              const size_t back = here ? wait.iterations_back + (wait.index < k ? 1u : 0u) : 1u;
              if (back >= 1 && back <= instances.size()) past.join(instances[instances.size() - back]);
            }
          }
          if (meets(o)) {
            Meeting m;
            m.op = k;
            m.layer = s.first_layer < 0 ? -1 : s.first_layer + int64_t{s.layer_step} * iteration;
            m.stream = o.stream;
            m.past = past;
            const Range& payload = o.reads.count ? o.reads : o.writes;
            if (payload.count) m.binding = b.refs[payload.begin].binding;
            sum.meetings.push_back(m);
            past.counts[stream] = ++sum.meetings_of[stream];
          }
          if (std::holds_alternative<HostWait>(o.body)) sum.after[kHost] = past;
          sum.after[stream] = past;
          over[k].push_back(past);
        }
  }
}

std::string Progress::describe_event(uint32_t r, const Event& e, const std::string& where) const {
  const Meeting& m = meeting(r, e);
  return fmt::format("rank {}, {}, invocation {} ({}), op {} ({}){}", representatives_[r].rank.v, where, e.invocation,
                     describe(plan_, invocation(r, e)), m.op, op(r, e).name,
                     m.layer >= 0 ? fmt::format(" layer {}", m.layer) : "");
}

void Progress::issue(const std::vector<Invocation>& order, Rank& rank) {
  std::array<Counts, kQueues> after{};
  Counts issued{};
  for (uint32_t i = 0; i < order.size(); ++i) {
    const BlockSummary& sum = summaries_[order[i].block.v];
    auto resolve = [&](const Past& past) {
      Counts c{};
      for (size_t s = 0; s < kStreams; ++s)
        if (past.counts[s]) c[s] = issued[s] + past.counts[s];
      for (size_t q = 0; q < kQueues; ++q)
        if (past.from >> q & 1)
          for (size_t s = 0; s < kStreams; ++s) c[s] = std::max(c[s], after[q][s]);
      return c;
    };
    for (uint32_t m = 0; m < sum.meetings.size(); ++m) {
      const Meeting& meeting = sum.meetings[m];
      Event e;
      e.invocation = i;
      e.meeting = m;
      e.needs = resolve(meeting.past);
      rank.queue[static_cast<size_t>(meeting.stream)].push_back(static_cast<uint32_t>(rank.events.size()));
      rank.events.push_back(e);
    }
    std::array<Counts, kQueues> next;
    for (size_t q = 0; q < kQueues; ++q) next[q] = resolve(sum.after[q]);
    after = next;
    for (size_t s = 0; s < kStreams; ++s) issued[s] += sum.meetings_of[s];
  }
}

/// Joins the n-th send on a directed pair with its n-th receive, and the n-th collectives of a group.
bool Progress::match(const std::string& where) {
  matches_.clear();
  handles_.clear();
  // (kind or group, from or first member, to, direction) -> matches in order, and how many each side has taken.
  struct Channel {
    std::vector<uint32_t> matches;
    std::map<uint32_t, size_t> taken;  // by representative and side
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, Channel> channels;
  // Members of a group among representatives do not change from op to op.
  std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>> members;  // (group, rep) -> (first, count)
  bool ok = true;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    for (Event& e : ranks_[r].events) {
      const Invocation& v = invocation(r, e);
      const Meeting& m = meeting(r, e);
      const Op& o = op(r, e);
      Channel* channel = nullptr;
      uint32_t side = r, wanted = 2;
      if (const auto* c = std::get_if<Collective>(&o.body)) {
        const Group& g = plan_.group(c->group);
        auto [it, fresh] = members.try_emplace({c->group.v, r}, 0u, 0u);
        if (fresh) {
          Group among = g;  // restricted to the axes that tell representatives apart
          std::erase_if(among.axes, [&](AxisId a) { return !looked_at_[a.v]; });
          const auto list = group_members(plan_.mesh, among, representatives_[r].rank);
          if (!list.empty()) it->second = {list.front().v, static_cast<uint32_t>(list.size())};
        }
        if (it->second.second == 0) {
          faults_.add(describe_event(r, e, where), fmt::format("the filter of group '{}' excludes the rank", g.name));
          ok = false;
          continue;
        }
        wanted = it->second.second;
        channel = &channels[{c->group.v, it->second.first, 0, 2}];
      } else {
        const auto* send = std::get_if<Send>(&o.body);
        const Direction towards = send ? send->to : std::get<Receive>(o.body).from;
        const auto peer = v.bindings > m.binding
                              ? peer_of(plan_, representatives_[r].rank, v.binding[m.binding].chunk, towards)
                              : std::nullopt;
        if (!peer) {
          faults_.add(describe_event(r, e, where), fmt::format("there is no {}", to_text(towards)));
          ok = false;
          continue;
        }
        // A receive from the previous stage takes what that stage sends to its next one.
        const bool forward = (towards == Direction::next_stage) == (send != nullptr);
        const uint32_t other = peer->rank.v, self = representatives_[r].rank.v;
        channel = &channels[{kNone, send ? self : other, send ? other : self, forward ? 0u : 1u}];
        side = send ? 0 : 1;
      }
      const size_t position = channel->taken[side]++;
      if (position == channel->matches.size()) {
        channel->matches.push_back(static_cast<uint32_t>(matches_.size()));
        matches_.push_back({kNone, 0, wanted, 0});
      }
      e.match = channel->matches[position];
      Match& match = matches_[e.match];
      const auto handle = static_cast<uint32_t>(handles_.size());
      handles_.push_back({r, static_cast<uint32_t>(&e - ranks_[r].events.data())});
      ++match.present;
      if (match.first != kNone) {
        // Compare with the one that came first.
        const Handle& h = handles_[match.first];
        const Event& f = ranks_[h.representative].events[h.event];
        const Op& other = op(h.representative, f);
        const std::string against = describe_event(h.representative, f, where);
        if (const auto* c = std::get_if<Collective>(&o.body)) {
          const auto& d = std::get<Collective>(other.body);
          if (*c != d) {
            faults_.add(describe_event(r, e, where),
                        fmt::format("{} of {} bytes of {} meets {} of {} bytes of {} in group '{}'", to_text(c->kind),
                                    c->bytes, wt::to_text(c->dtype), to_text(d.kind), d.bytes, wt::to_text(d.dtype),
                                    plan_.group(c->group).name),
                        against);
            ok = false;
          }
        } else {
          auto bytes = [](const Op& x) {
            const auto* s = std::get_if<Send>(&x.body);
            return s ? s->bytes : std::get<Receive>(x.body).bytes;
          };
          const Binding& mine = v.binding[m.binding];
          const Meeting& their_meeting = meeting(h.representative, f);
          const Binding& theirs = invocation(h.representative, f).binding[their_meeting.binding];
          const auto* send = std::get_if<Send>(&o.body);
          const Direction towards = send ? send->to : std::get<Receive>(o.body).from;
          const auto peer = peer_of(plan_, representatives_[r].rank, mine.chunk, towards);
          if (bytes(o) != bytes(other)) {
            faults_.add(describe_event(r, e, where), fmt::format("{} bytes meet {} bytes", bytes(o), bytes(other)),
                        against);
            ok = false;
          } else if (mine.micro_batch != theirs.micro_batch || peer->chunk != theirs.chunk) {
            faults_.add(describe_event(r, e, where),
                        fmt::format("expects chunk {} micro-batch {} and meets chunk {} micro-batch {}", peer->chunk,
                                    mine.micro_batch, theirs.chunk, theirs.micro_batch),
                        against);
            ok = false;
          }
        }
      }
      e.next = match.first;
      match.first = handle;
    }
  }
  return ok;
}

void Progress::advance(const std::string& where) {
  std::vector<uint32_t> work(ranks_.size());
  std::vector<bool> listed(ranks_.size(), true);
  for (uint32_t r = 0; r < ranks_.size(); ++r) work[r] = static_cast<uint32_t>(ranks_.size()) - 1 - r;
  while (!work.empty()) {
    const uint32_t r = work.back();
    work.pop_back();
    listed[r] = false;
    Rank& rank = ranks_[r];
    for (size_t s = 0; s < kStreams; ++s) {
      // The head of the stream; ending it may open the next one, which re-lists the rank.
      if (rank.done[s] >= rank.queue[s].size()) continue;
      Event& e = rank.events[rank.queue[s][rank.done[s]]];
      if (e.ready) continue;
      bool free = true;
      for (size_t t = 0; t < kStreams && free; ++t) free = rank.done[t] >= e.needs[t];
      if (!free) continue;
      e.ready = true;
      Match& m = matches_[e.match];
      if (++m.ready < m.wanted) continue;
      for (uint32_t h = m.first; h != kNone;) {
        const Handle& handle = handles_[h];
        Rank& other = ranks_[handle.representative];
        const Event& over = other.events[handle.event];
        ++other.done[static_cast<size_t>(meeting(handle.representative, over).stream)];
        if (!listed[handle.representative]) {
          listed[handle.representative] = true;
          work.push_back(handle.representative);
        }
        h = over.next;
      }
    }
  }
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    for (size_t s = 0; s < kStreams; ++s) {
      if (rank.done[s] >= rank.queue[s].size()) continue;
      const Event& e = rank.events[rank.queue[s][rank.done[s]]];
      std::string why;
      if (e.ready) {
        const Match& m = matches_[e.match];
        if (m.present < m.wanted) {
          why = fmt::format("{} of {} ranks ever issue it", m.present, m.wanted);
        } else {
          why = "waits for";
          for (uint32_t h = m.first; h != kNone;
               h = ranks_[handles_[h].representative].events[handles_[h].event].next) {
            const Handle& handle = handles_[h];
            if (!ranks_[handle.representative].events[handle.event].ready)
              why += fmt::format(" rank {}", representatives_[handle.representative].rank.v);
          }
        }
      } else {
        why = "waits for";
        for (size_t t = 0; t < kStreams; ++t)
          if (rank.done[t] < e.needs[t]) why += fmt::format(" stream {}", to_text(static_cast<Stream>(t)));
      }
      faults_.add(
          describe_event(r, e, where), fmt::format("is stuck: {}", why),
          representatives_[r].stands_for > 1 ? fmt::format("{} ranks alike", representatives_[r].stands_for) : "");
    }
  }
}

template <class OrderOf>
void Progress::dry_run(const std::string& where, OrderOf order_of) {
  ranks_.assign(representatives_.size(), {});
  orders_.clear();
  for (const Representative& r : representatives_) orders_.push_back(&order_of(plan_.programs[r.program]));
  for (uint32_t r = 0; r < representatives_.size(); ++r) issue(*orders_[r], ranks_[r]);
  if (match(where)) advance(where);
}

}  // namespace

void check_progress(const Plan& plan, Faults& faults) { Progress(plan, faults).run(); }

}  // namespace wt::plan
