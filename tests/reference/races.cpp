#include "tests/reference/races.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace wt::reference {

using namespace plan;

std::vector<Issued> issue(const Plan& plan, const std::vector<Invocation>& order) {
  std::vector<Issued> all;
  std::array<std::vector<uint32_t>, kStreams> queue;
  std::vector<uint32_t> host;
  for (uint32_t i = 0; i < order.size(); ++i) {
    const Block& b = plan.block(order[i].block);
    std::vector<std::vector<uint32_t>> instances(b.ops.size());
    for (const Segment& s : b.segments)
      for (uint32_t n = 0; n < s.iterations; ++n)
        for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
          const Op& o = b.ops[k];
          Issued t{&b, k, s.first_layer < 0 ? -1 : s.first_layer + int64_t{s.layer_step} * n, i, host};
          auto& mine = queue[static_cast<size_t>(o.stream)];
          if (!mine.empty()) t.after.push_back(mine.back());
          for (uint32_t w = 0; w < o.waits.count; ++w) {
            const Wait& wait = b.waits[o.waits.begin + w];
            if (wait.kind == Wait::Kind::tail) {
              const auto& tail = queue[wait.index];
              if (!tail.empty()) t.after.push_back(tail.back());
              continue;
            }
            const bool here = wait.index >= s.first_op;
            const auto& ran = instances[wait.index];
            const size_t back = here ? wait.iterations_back + (wait.index < k ? 1u : 0u) : 1u;
            if (back >= 1 && back <= ran.size()) t.after.push_back(ran[ran.size() - back]);
          }
          const auto id = static_cast<uint32_t>(all.size());
          if (std::holds_alternative<HostWait>(o.body)) host = {id};
          mine.push_back(id);
          instances[k].push_back(id);
          all.push_back(std::move(t));
        }
  }
  return all;
}

namespace {

/// How many ops of each stream are over when an op starts.
using Clock = std::array<uint32_t, kStreams>;

struct Access {
  uint32_t task = UINT32_MAX;
  bool known() const { return task != UINT32_MAX; }
};

/// Who touched an element last: one writer, and the readers of each stream since.
struct Shadow {
  Access write;
  std::array<Access, kStreams> reads;
};

class Races {
 public:
  Races(const Plan& plan, const Program& program, RankId rank) : plan_(plan), program_(program), rank_(rank) {
    order_ = program.steps[0].order;
    const size_t n = order_.size();
    for (size_t i = 0; i < n; ++i) order_.push_back(order_[i]);
    step_ = static_cast<uint32_t>(n);
    tasks_ = issue(plan, order_);
  }

  void run(std::set<std::string>& found) {
    clocks_.resize(tasks_.size());
    number_.resize(tasks_.size());
    Clock issued{};
    for (uint32_t id = 0; id < tasks_.size(); ++id) {
      const Op& o = op(id);
      for (uint32_t a : tasks_[id].after) {
        for (size_t s = 0; s < kStreams; ++s) clocks_[id][s] = std::max(clocks_[id][s], clocks_[a][s]);
        auto& own = clocks_[id][static_cast<size_t>(op(a).stream)];
        own = std::max(own, number_[a] + 1);
      }
      number_[id] = issued[static_cast<size_t>(o.stream)]++;
      each(id, o.reserves, [&](Shadow& s, BufferId b) { write(s, id, b, "reserves", found); });
      each(id, o.reads, [&](Shadow& s, BufferId b) { read(s, id, b, found); });
      each(id, o.writes, [&](Shadow& s, BufferId b) { write(s, id, b, "writes", found); });
      each(id, o.releases, [&](Shadow& s, BufferId b) { write(s, id, b, "releases", found); });
    }
  }

 private:
  const Op& op(uint32_t id) const { return tasks_[id].block->ops[tasks_[id].op]; }

  void check(const Access& before, uint32_t id, BufferId b, const char* how, const char* earlier,
             std::set<std::string>& found) {
    if (!before.known() || before.task == id) return;
    const auto stream = static_cast<size_t>(op(before.task).stream);
    if (clocks_[id][stream] > number_[before.task]) return;
    found.insert(fmt::format("{} op {} ({}) {} '{}' that {} op {} ({}) {}", tasks_[id].block->name, tasks_[id].op,
                             op(id).name, how, plan_.buffer(b).name, tasks_[before.task].block->name,
                             tasks_[before.task].op, op(before.task).name, earlier));
  }
  void read(Shadow& s, uint32_t id, BufferId b, std::set<std::string>& found) {
    check(s.write, id, b, "reads", "may still write", found);
    s.reads[static_cast<size_t>(op(id).stream)].task = id;
  }
  void write(Shadow& s, uint32_t id, BufferId b, const char* how, std::set<std::string>& found) {
    check(s.write, id, b, how, "may still write", found);
    for (const Access& r : s.reads) check(r, id, b, how, "may still read", found);
    s.write.task = id;
    s.reads = {};
  }

  template <class F>
  void each(uint32_t id, Range range, F&& f) {
    const Issued& t = tasks_[id];
    for (uint32_t i = 0; i < range.count; ++i) {
      const BufferRef& r = t.block->refs[range.begin + i];
      const Buffer& b = plan_.buffer(r.buffer);
      const int64_t layer = b.per_layer ? t.layer + r.layer_offset : -1;
      const auto [shadow, begin] = place(t, r, r.buffer, layer);
      for (int64_t k = 0; k < b.elements(); ++k) f((*shadow)[static_cast<size_t>(begin + k)], r.buffer);
    }
  }

  std::pair<std::vector<Shadow>*, int64_t> place(const Issued& t, const BufferRef& r, BufferId id, int64_t layer) {
    const Buffer& b = plan_.buffer(id);
    const Invocation& v = order_[t.invocation];
    const Binding& bound = v.binding[r.binding];
    if (b.view) {
      for (const View& view : plan_.parts[program_.chunks[bound.chunk].v].views) {
        if (view.buffer != id || (view.layers && (layer < view.first_layer || layer >= view.first_layer + view.layers)))
          continue;
        auto [shadow, begin] = place(t, r, view.base, plan_.buffer(view.base).per_layer ? layer : -1);
        begin += view.offset + (view.layers ? view.layer_stride * (layer - view.first_layer) : 0);
        if (view.shard_group.valid())
          begin += group_index(plan_.mesh, plan_.group(view.shard_group), rank_) * b.elements();
        return {shadow, begin};
      }
    }
    const bool per_batch = b.scope == Scope::micro_batch;
    const std::tuple key{id.v, layer, b.scope == Scope::rank ? -1 : int64_t{bound.chunk},
                         per_batch ? int64_t{bound.micro_batch} : -1,
                         b.scope == Scope::invocation ? int64_t{t.invocation}
                         : per_batch                  ? int64_t{t.invocation >= step_}
                                                      : -1};
    auto& shadow = storage_[key];
    if (shadow.empty()) shadow.resize(static_cast<size_t>(b.elements()));
    return {&shadow, 0};
  }

  const Plan& plan_;
  const Program& program_;
  RankId rank_;
  std::vector<Invocation> order_;
  uint32_t step_ = 0;  // invocations of one step
  std::vector<Issued> tasks_;
  std::vector<Clock> clocks_;
  std::vector<uint32_t> number_;  // on its stream
  std::map<std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>, std::vector<Shadow>> storage_;
};

}  // namespace

std::vector<std::string> races(const Plan& plan) {
  std::set<std::string> found;
  std::vector<bool> seen(plan.programs.size());
  for (uint32_t r = 0; r < plan.mesh.ranks(); ++r) {
    const ProgramId p = program_of(plan, {r});
    if (seen[p.v]) continue;
    seen[p.v] = true;
    Races(plan, plan.programs[p.v], {r}).run(found);
  }
  return {found.begin(), found.end()};
}

}  // namespace wt::reference
