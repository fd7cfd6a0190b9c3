#include "tests/reference/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/plan/kernels.hpp"
#include "core/plan/values.hpp"

namespace wt::reference {

using namespace plan;

Reference::Reference(const Plan& plan, Options options) : plan_(plan), options_(options), random_(options.order_seed) {
  vocabulary_ = vocabulary_of(plan);
  for (uint32_t r = 0; r < plan.mesh.ranks(); ++r) {
    Rank rank;
    rank.id = {r};
    rank.program = &plan.programs[program_of(plan, {r}).v];
    ranks_.push_back(std::move(rank));
  }
  run(0, true);
}

double Reference::step() {
  run(0, false);
  ++step_;
  // The loss is on the ranks of the last stage; tensor ranks hold copies, data-parallel ranks parts of the batch.
  double sum = 0;
  int64_t holders = 0;
  for (Rank& r : ranks_) {
    bool head = false;
    for (PartId p : r.program->chunks) head |= plan_.parts[p.v].head;
    if (!head) continue;
    for (uint32_t b = 0; b < plan_.buffers.size(); ++b)
      if (plan_.buffers[b].role == Role::loss) {
        sum += r.storage.at({b, -1, -1, -1, -1})->at(0);
        ++holders;
      }
  }
  return sum / static_cast<double>(holders);
}

// ------------------------------------------------------------------------------------------------- issue

void Reference::run(size_t step_order, bool setup) {
  for (Rank& r : ranks_) {
    r.order = setup ? &r.program->setup : &r.program->steps[step_order].order;
    issue(r);
  }
  match();
  // Passes over all streams in a random order. Each stream of each rank has a pace of its own, from always to one pass in
  // 64, so that some are far ahead of others: a wait that is missing is then crossed. A pass in which nothing would move
  // moves the first of the fastest: until one of them does, nothing else happens.
  using Head = std::pair<size_t, size_t>;  // rank, stream
  const auto ended = [&](const Head& head) {
    const Rank& rank = ranks_[head.first];
    return rank.next[head.second] >= rank.queue[head.second].size();
  };
  std::vector<Head> heads;
  for (size_t r = 0; r < ranks_.size(); ++r)
    for (size_t s = 0; s < kStreams; ++s) heads.emplace_back(r, s);
  std::vector<std::array<uint64_t, kStreams>> pace(ranks_.size());
  for (auto& rank : pace)
    for (uint64_t& p : rank) p = uint64_t{1} << random_() % 7;
  for (;;) {
    std::shuffle(heads.begin(), heads.end(), random_);
    bool moved = false;
    const Head* fastest = nullptr;
    for (const Head& head : heads) {
      const auto [r, s] = head;
      Rank& rank = ranks_[r];
      if (ended(head)) continue;
      const uint32_t task = rank.queue[s][rank.next[s]];
      if (rank.tasks[task].arrived || !ready(rank, rank.tasks[task])) continue;
      if (random_() % pace[r][s] == 0) {
        start(r, task);
        moved = true;
      } else if (!fastest || pace[r][s] < pace[fastest->first][fastest->second]) {
        fastest = &head;
      }
    }
    if (!moved && fastest) {
      const Rank& rank = ranks_[fastest->first];
      start(fastest->first, rank.queue[fastest->second][rank.next[fastest->second]]);
      moved = true;
    }
    std::erase_if(heads, ended);
    if (heads.empty()) break;
    if (!moved) stuck();
  }
  for (const Rank& r : ranks_)
    for (const auto& [k, data] : r.storage) {
      const Buffer& b = plan_.buffers[std::get<0>(k)];
      if (b.scope != Scope::rank && b.scope != Scope::persistent)
        throw Fault(fmt::format("rank {}: '{}' outlives the step", r.id.v, b.name));
    }
}

void Reference::issue(Rank& r) {
  r.tasks.clear();
  for (auto& q : r.queue) q.clear();
  r.next = {};
  for (Issued& t : reference::issue(plan_, *r.order)) {
    r.queue[static_cast<size_t>(t.block->ops[t.op].stream)].push_back(static_cast<uint32_t>(r.tasks.size()));
    Task task;
    static_cast<Issued&>(task) = std::move(t);
    r.tasks.push_back(std::move(task));
  }
}

/// Pairs communication by issue order: the n-th send with the n-th receive, the n-th collectives of a group.
void Reference::match() {
  meetings_.clear();
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, int>, std::vector<uint64_t>> channels;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, int, size_t>, size_t> taken;
  for (size_t r = 0; r < ranks_.size(); ++r)
    for (uint32_t id = 0; id < ranks_[r].tasks.size(); ++id) {
      Task& t = ranks_[r].tasks[id];
      const Op& o = t.block->ops[t.op];
      std::tuple<uint32_t, uint32_t, uint32_t, int> channel;
      size_t wanted = 2, side = r;
      if (const auto* c = std::get_if<Collective>(&o.body)) {
        const auto members = group_members(plan_.mesh, plan_.group(c->group), ranks_[r].id);
        if (members.empty()) throw Fault(where(ranks_[r], t) + ": is not in the group");
        wanted = members.size();
        channel = {c->group.v, members[0].v, 0, 2};
      } else if (std::holds_alternative<Send>(o.body) || std::holds_alternative<Receive>(o.body)) {
        const auto* send = std::get_if<Send>(&o.body);
        const Direction towards = send ? send->to : std::get<Receive>(o.body).from;
        const plan::Range& operands = o.reads.count ? o.reads : o.writes;
        const uint8_t which = operands.count ? t.block->refs[operands.begin].binding : 0;
        const auto peer = peer_of(plan_, ranks_[r].id, (*ranks_[r].order)[t.invocation].binding[which].chunk, towards);
        if (!peer) throw Fault(where(ranks_[r], t) + ": has no peer");
        const uint32_t self = ranks_[r].id.v, other = peer->rank.v;
        channel = {UINT32_MAX, send ? self : other, send ? other : self,
                   (towards == Direction::next_stage) == (send != nullptr) ? 0 : 1};
        side = send ? 0 : 1;
      } else {
        continue;
      }
      auto& meetings = channels[channel];
      const size_t n = taken[std::tuple_cat(channel, std::tuple{side})]++;
      if (n == meetings.size()) {
        meetings.push_back(meetings_.size());
        meetings_.push_back({{}, wanted, 0});
      }
      t.match = meetings[n];
      meetings_[t.match].members.emplace_back(r, id);
    }
}

bool Reference::ready(const Rank& r, const Task& t) const {
  return std::all_of(t.after.begin(), t.after.end(), [&](uint32_t a) { return r.tasks[a].done; });
}

void Reference::stuck() const {
  std::string all = "nothing can go on:";
  for (const Rank& r : ranks_)
    for (size_t s = 0; s < kStreams; ++s)
      if (r.next[s] < r.queue[s].size()) all += "\n  " + where(r, r.tasks[r.queue[s][r.next[s]]]);
  throw Fault(all);
}

std::string Reference::where(const Rank& r, const Task& t) const {
  const Invocation& v = (*r.order)[t.invocation];
  return fmt::format(
      "rank {} step {} invocation {} ({}{}), op {} ({}){}", r.id.v, step_, t.invocation, t.block->name,
      v.bindings ? fmt::format(" chunk {} micro-batch {}", v.binding[0].chunk, v.binding[0].micro_batch) : "", t.op,
      t.block->ops[t.op].name, t.layer >= 0 ? fmt::format(" layer {}", t.layer) : "");
}

// ----------------------------------------------------------------------------------------------- storage

Operand Reference::resolve(Rank& r, const Task& t, const BufferRef& ref, BufferId id, int64_t layer) {
  const Buffer& b = plan_.buffer(id);
  const Invocation& v = (*r.order)[t.invocation];
  if (b.view) {
    const View* view = v.bindings > ref.binding
                           ? view_of(plan_.parts[r.program->chunks[v.binding[ref.binding].chunk].v], id, layer)
                           : nullptr;
    if (!view) throw Fault(where(r, t) + ": '" + b.name + "' is placed nowhere");
    Operand x = resolve(r, t, ref, view->base, plan_.buffer(view->base).per_layer ? layer : -1);
    const int64_t offset = view_offset(plan_, r.id, *view, layer);
    if (offset < 0 || offset + b.elements() > x.size) throw Fault(where(r, t) + ": '" + b.name + "' leaves its base");
    return {x.storage, x.begin + offset, b.elements()};
  }
  BufferRef whole = ref;
  whole.buffer = id;
  const Key k = key(r, t, whole, id);
  const auto it = r.storage.find(k);
  if (it == r.storage.end()) throw Fault(where(r, t) + ": '" + b.name + "' is not reserved");
  return {it->second.get(), 0, b.elements()};
}

Reference::Key Reference::key(const Rank& r, const Task& t, const BufferRef& ref, BufferId id) const {
  const Buffer& b = plan_.buffer(id);
  const Binding& bound = (*r.order)[t.invocation].binding[ref.binding];
  const int64_t layer = b.per_layer ? t.layer + ref.layer_offset : -1;
  switch (b.scope) {
    case Scope::rank: return {id.v, layer, -1, -1, -1};
    case Scope::persistent: return {id.v, layer, bound.chunk, -1, -1};
    case Scope::micro_batch: return {id.v, layer, bound.chunk, bound.micro_batch, -1};
    case Scope::invocation: return {id.v, layer, ref.binding, -1, t.invocation};
  }
  return {};
}

Operand Reference::operand(Rank& r, const Task& t, const BufferRef& ref) {
  return resolve(r, t, ref, ref.buffer, plan_.buffer(ref.buffer).per_layer ? t.layer + ref.layer_offset : -1);
}

void Reference::check_written(const Rank& r, const Task& t, const Operand& x, const BufferRef& ref) const {
  for (int64_t i = 0; i < x.size; ++i)
    if (std::isnan(x[i]))
      throw Fault(fmt::format("{}: reads element {} of '{}', which nobody wrote", where(r, t), i,
                              plan_.buffer(ref.buffer).name));
}

std::vector<Operand> Reference::operands(Rank& r, const Task& t, Range range, bool read) {
  std::vector<Operand> list;
  for (uint32_t i = 0; i < range.count; ++i) {
    const BufferRef& ref = t.block->refs[range.begin + i];
    list.push_back(operand(r, t, ref));
    if (read) check_written(r, t, list.back(), ref);
  }
  return list;
}

void Reference::reserve(Rank& r, const Task& t) {
  const Op& o = t.block->ops[t.op];
  for (uint32_t i = 0; i < o.reserves.count; ++i) {
    const BufferRef& ref = t.block->refs[o.reserves.begin + i];
    const Buffer& b = plan_.buffer(ref.buffer);
    auto data = std::make_unique<std::vector<double>>(static_cast<size_t>(b.elements()),
                                                      std::numeric_limits<double>::quiet_NaN());
    if (b.view || !r.storage.emplace(key(r, t, ref, ref.buffer), std::move(data)).second)
      throw Fault(where(r, t) + ": cannot reserve '" + b.name + "'");
  }
}

void Reference::release(Rank& r, const Task& t) {
  const Op& o = t.block->ops[t.op];
  for (uint32_t i = 0; i < o.releases.count; ++i) {
    const BufferRef& ref = t.block->refs[o.releases.begin + i];
    if (r.storage.erase(key(r, t, ref, ref.buffer)) == 0)
      throw Fault(where(r, t) + ": cannot release '" + plan_.buffer(ref.buffer).name + "'");
  }
}

/// What a load writes.
void Reference::load(Rank& r, const Task& t, const BufferRef& ref) {
  const Operand whole = operand(r, t, ref);
  std::vector<double> values(static_cast<size_t>(whole.size));
  const int64_t layer = plan_.buffer(ref.buffer).per_layer ? t.layer + ref.layer_offset : -1;
  load_initial(plan_, r.id, (*r.order)[t.invocation].binding[0].chunk, ref.buffer, layer, values);
  for (int64_t i = 0; i < whole.size; ++i) whole[i] = values[static_cast<size_t>(i)];
}

/// Labels are the tokens of the next position. Rows are sequence-major.
void Reference::fill_tokens(Rank& r, const Task& t, const BufferRef& ref, const Operand& x) {
  const int64_t micro_batch = (*r.order)[t.invocation].binding[ref.binding].micro_batch;
  const bool labels = plan_.buffer(ref.buffer).role == Role::labels;
  for (int64_t row = 0; row < x.size; ++row) {
    const int64_t position = sequence_position(row / plan_.micro_batch_size, x.size / plan_.micro_batch_size,
                                               plan_.mesh.context_coordinate(r.id), plan_.mesh.context_ranks()) +
                             (labels ? 1 : 0);
    x[row] = static_cast<double>(random_token(plan_.seed, options_.same_tokens ? 0 : step_,
                                              sample_of(plan_, r.id, micro_batch, row), position, vocabulary_));
  }
}

// ------------------------------------------------------------------------------------------------ execute

void Reference::start(size_t rank, uint32_t task) {
  Rank& r = ranks_[rank];
  Task& t = r.tasks[task];
  if (t.match == UINT64_MAX) {
    execute(r, t);
    finish(r, t);
    return;
  }
  reserve(r, t);
  t.arrived = true;
  Meeting& m = meetings_[t.match];
  if (++m.arrived < m.wanted) return;
  meet(m);
  for (const auto& [other, id] : m.members) finish(ranks_[other], ranks_[other].tasks[id]);
}

void Reference::finish(Rank& r, Task& t) {
  release(r, t);
  t.done = true;
  ++r.next[static_cast<size_t>(t.block->ops[t.op].stream)];
}

void Reference::execute(Rank& r, const Task& t) {
  const Op& o = t.block->ops[t.op];
  reserve(r, t);
  if (std::holds_alternative<HostWait>(o.body)) return;
  if (std::holds_alternative<Join>(o.body)) {
    for (uint32_t i = 0; i < o.writes.count; ++i) load(r, t, t.block->refs[o.writes.begin + i]);
    return;
  }
  const auto reads = operands(r, t, o.reads, true);
  const auto writes = operands(r, t, o.writes, false);
  if (std::holds_alternative<Copy>(o.body)) {
    for (uint32_t i = 0; i < o.writes.count; ++i) {
      const BufferRef& ref = t.block->refs[o.writes.begin + i];
      const Role role = plan_.buffer(ref.buffer).role;
      if (role == Role::tokens || role == Role::labels) {
        fill_tokens(r, t, ref, writes[i]);
        continue;
      }
      if (i >= reads.size() || reads[i].size != writes[i].size) throw Fault(where(r, t) + ": copies another size");
      for (int64_t k = 0; k < reads[i].size; ++k) writes[i][k] = reads[i][k];
    }
    return;
  }
  const auto& c = std::get<Compute>(o.body);
  for (uint32_t i = 0; i < o.writes.count; ++i)
    if (accumulates(c, i)) check_written(r, t, writes[i], t.block->refs[o.writes.begin + i]);
  KernelContext k;
  if (c.group.valid()) {
    k.group_index = group_index(plan_.mesh, plan_.group(c.group), r.id);
    k.group_size = group_size(plan_.mesh, plan_.group(c.group));
  }
  k.micro_batches = plan_.micro_batches;
  k.step = step_;
  k.learning_rate = options_.learning_rate;
  try {
    run_kernel(c, reads, writes, k);
  } catch (const Fault& f) { throw Fault(where(r, t) + ": " + f.what()); }
}

void Reference::meet(const Meeting& m) {
  struct Member {
    std::vector<Operand> reads, writes;
  };
  std::vector<Member> members;
  for (const auto& [rank, id] : m.members) {
    Rank& r = ranks_[rank];
    const Task& t = r.tasks[id];
    const Op& o = t.block->ops[t.op];
    members.push_back({operands(r, t, o.reads, true), operands(r, t, o.writes, false)});
  }
  const Rank& r0 = ranks_[m.members[0].first];
  const Task& t0 = r0.tasks[m.members[0].second];
  const Op& o0 = t0.block->ops[t0.op];
  auto fail = [&](const char* what) { throw Fault(where(r0, t0) + ": " + what); };
  const auto* c = std::get_if<Collective>(&o0.body);
  if (!c) {
    const size_t from = members[0].reads.empty() ? 1 : 0;
    const auto &sent = members[from].reads, &received = members[1 - from].writes;
    if (sent.size() != received.size()) fail("sends another number of buffers than are received");
    for (size_t i = 0; i < sent.size(); ++i) {
      if (sent[i].size != received[i].size) fail("sends another size than is received");
      for (int64_t k = 0; k < sent[i].size; ++k) received[i][k] = sent[i][k];
    }
    return;
  }
  const size_t n = members.size();
  for (size_t buffer = 0; buffer < members[0].reads.size(); ++buffer) {
    // Inputs first, all of them: outputs may be the same storage.
    std::vector<std::vector<double>> in(n);
    for (size_t i = 0; i < n; ++i) {
      const Operand& x = members[i].reads[buffer];
      for (int64_t k = 0; k < x.size; ++k) in[i].push_back(x[k]);
      if (in[i].size() != in[0].size()) fail("members bring different sizes");
    }
    std::vector<double> reduced(in[0].size(), 0);
    if (c->kind == CollectiveKind::all_reduce || c->kind == CollectiveKind::reduce_scatter)
      for (size_t k = 0; k < reduced.size(); ++k) {
        reduced[k] = in[0][k];
        for (size_t i = 1; i < n; ++i)
          reduced[k] = c->reduction == Reduction::max ? std::max(reduced[k], in[i][k]) : reduced[k] + in[i][k];
        if (c->reduction == Reduction::average) reduced[k] /= static_cast<double>(n);
      }
    for (size_t i = 0; i < n; ++i) {
      const Operand& out = members[i].writes[buffer];
      const auto size = static_cast<size_t>(out.size);
      const size_t piece = in[0].size() / n;
      for (size_t k = 0; k < size; ++k) {
        double v = 0;
        switch (c->kind) {
          case CollectiveKind::all_reduce: v = reduced.at(k); break;
          case CollectiveKind::all_gather: v = in.at(k / in[0].size())[k % in[0].size()]; break;
          case CollectiveKind::reduce_scatter: v = reduced.at(i * size + k); break;
          case CollectiveKind::all_to_all: v = in.at(k / piece)[i * piece + k % piece]; break;
          case CollectiveKind::broadcast: v = in[0].at(k); break;
          case CollectiveKind::shift_up: v = in[(i + n - 1) % n].at(k); break;
          case CollectiveKind::shift_down: v = in[(i + 1) % n].at(k); break;
        }
        out[static_cast<int64_t>(k)] = v;
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------ weights

/// For weights whose storage comes and goes: the elements in the rank's copy of a piece. False: it is always there.
template <class F>
bool Reference::each_owned_element(Rank& r, size_t chunk, const View& v, int64_t layer, F&& f) {
  const Part& part = plan_.parts[r.program->chunks[chunk].v];
  if (std::find(part.persistent.begin(), part.persistent.end(), v.base) != part.persistent.end()) return false;
  const Buffer& b = plan_.buffer(v.buffer);
  for (const View& piece : part.views) {
    const Buffer& copy = plan_.buffer(piece.buffer);
    if (piece.base != v.base || copy.view || (copy.role != Role::weight && copy.role != Role::master)) continue;
    const auto& data = r.storage.at({piece.buffer.v, copy.per_layer ? layer : -1, static_cast<int64_t>(chunk), -1, -1});
    const int64_t from = view_offset(plan_, r.id, piece, layer), begin = view_offset(plan_, r.id, v, layer);
    const int64_t end = std::min(begin + b.elements(), from + copy.elements());
    for (int64_t k = std::max(begin, from); k < end; ++k)
      f((*data)[static_cast<size_t>(k - from)], global_index(plan_, r.id, b, k - begin), true);
    return true;
  }
  throw Fault("nobody keeps '" + b.name + "'");
}

template <class F>
void Reference::each_element(Rank& r, const std::string& name, int64_t layer, F&& f) {
  for (size_t chunk = 0; chunk < r.program->chunks.size(); ++chunk) {
    const int64_t first = r.program->first_layer[chunk];
    for (const View& v : plan_.parts[r.program->chunks[chunk].v].views) {
      const Buffer& b = plan_.buffer(v.buffer);
      if (b.role != Role::weight || weight_name(b) != name || v.shard_group.valid()) continue;
      if (v.layers > 0 && (layer < first + v.first_layer || layer >= first + v.first_layer + v.layers)) continue;
      if (each_owned_element(r, chunk, v, layer - first, f)) continue;
      const auto& data = r.storage.at(
          {v.base.v, plan_.buffer(v.base).per_layer ? layer - first : -1, static_cast<int64_t>(chunk), -1, -1});
      const int64_t at = view_offset(plan_, r.id, v, layer - first);
      int64_t from = 0, to = std::numeric_limits<int64_t>::max();  // the rank's piece of the bucket
      for (const View& piece : plan_.parts[r.program->chunks[chunk].v].views)
        if (piece.base == v.base && piece.shard_group.valid() && plan_.buffer(piece.buffer).view) {
          const int64_t size = plan_.buffer(piece.buffer).elements();
          from = piece.offset + group_index(plan_.mesh, plan_.group(piece.shard_group), r.id) * size;
          to = from + size;
        }
      for (int64_t i = 0; i < b.elements(); ++i)
        f((*data)[static_cast<size_t>(at + i)], global_index(plan_, r.id, b, i), at + i >= from && at + i < to);
    }
  }
}

std::vector<double> Reference::weight(const std::string& name, int64_t layer, bool owned) {
  std::map<int64_t, double> found;
  for (Rank& r : ranks_)
    each_element(r, name, layer, [&](double& x, int64_t index, bool mine) {
      if (owned && !mine) return;
      const auto [it, fresh] = found.emplace(index, x);
      if (!fresh && it->second != x)
        throw Fault(fmt::format("copies of '{}' layer {} element {} differ: {} and {} (rank {})", name, layer, index,
                                it->second, x, r.id.v));
    });
  std::vector<double> all;
  for (const auto& [index, x] : found) {
    if (index != static_cast<int64_t>(all.size()))
      throw Fault(fmt::format("nobody holds '{}' element {}", name, all.size()));
    all.push_back(x);
  }
  return all;
}

void Reference::nudge(const std::string& name, int64_t layer, int64_t index, double delta) {
  bool hit = false;
  for (Rank& r : ranks_)
    each_element(r, name, layer, [&](double& x, int64_t i, bool) {
      if (i != index) return;
      x += delta;
      hit = true;
    });
  if (!hit) throw Fault(fmt::format("nobody holds '{}' layer {} element {}", name, layer, index));
}

std::vector<std::pair<std::string, int64_t>> Reference::weights() const {
  std::set<std::pair<std::string, int64_t>> all;
  for (const Rank& r : ranks_)
    for (size_t chunk = 0; chunk < r.program->chunks.size(); ++chunk)
      for (const View& v : plan_.parts[r.program->chunks[chunk].v].views) {
        const Buffer& b = plan_.buffer(v.buffer);
        if (b.role != Role::weight || v.shard_group.valid()) continue;
        if (v.layers == 0) all.emplace(weight_name(b), -1);
        for (int64_t i = 0; i < v.layers; ++i)
          all.emplace(weight_name(b), r.program->first_layer[chunk] + v.first_layer + i);
      }
  return {all.begin(), all.end()};
}

}  // namespace wt::reference
