// Where the time of a step went. The walk goes backwards through what an op waited for, inside one rank: a critical path
// of every idle gap. Linear in the spans of the ranks it looks at (one for each pipeline stage).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/report/report.hpp"
#include "core/trace/file.hpp"

namespace wt::report {

namespace {

using plan::Op;
using plan::Plan;
using plan::Stream;
using trace::Span;

constexpr std::array<TimeTerm, 11> kTerms = {{
    {"compute", &TimeBreakdown::compute, "kernels of forward, backward and recompute"},
    {"exposed_tensor", &TimeBreakdown::exposed_tensor, "waiting for a tensor-parallel collective"},
    {"exposed_data", &TimeBreakdown::exposed_data, "waiting for a data-parallel collective (gradients, weights, norm)"},
    {"exposed_pipeline", &TimeBreakdown::exposed_pipeline, "waiting for a message between stages while it travels"},
    {"exposed_context", &TimeBreakdown::exposed_context, "waiting for a context-parallel collective"},
    {"exposed_expert", &TimeBreakdown::exposed_expert, "waiting for an expert-parallel collective"},
    {"bubble", &TimeBreakdown::bubble, "waiting for another stage that has not finished computing"},
    {"offload", &TimeBreakdown::offload, "waiting for a copy to or from the host or storage"},
    {"optimizer", &TimeBreakdown::optimizer, "kernels of the optimizer and the gradient norm"},
    {"host", &TimeBreakdown::host, "gaps between kernels: launch latency, or the host is late"},
    {"other", &TimeBreakdown::other, "checkpoint and setup work"},
}};

using Sums = std::array<int64_t, kTerms.size()>;  // ps by term
enum Term : size_t { compute, tensor, data, pipeline, context, expert, bubble, offload, optimizer, host, other };

/// Instance -> op, for every block that a program uses.
struct BlockIndex {
  struct Instance {
    uint32_t op, segment, iteration;
  };
  std::vector<Instance> instances;
  std::vector<uint32_t> segment_first;  // first instance of each segment
};

BlockIndex index_of(const plan::Block& block) {
  BlockIndex x;
  for (uint32_t s = 0; s < block.segments.size(); ++s) {
    const plan::Segment& segment = block.segments[s];
    x.segment_first.push_back(static_cast<uint32_t>(x.instances.size()));
    for (uint32_t i = 0; i < segment.iterations; ++i)
      for (uint32_t k = 0; k < segment.op_count; ++k) x.instances.push_back({segment.first_op + k, s, i});
  }
  return x;
}

/// When one rank was ready for its transfers: what the other side waits for.
struct Readiness {
  std::unordered_map<uint64_t, int64_t> sends, receives;           // by message
  std::unordered_map<uint32_t, std::vector<int64_t>> collectives;  // by group, in order
};

/// Names a message on both sides: the receiving stage and chunk, the micro-batch, the way it goes, the how-manieth.
uint64_t message_key(int64_t stage, int64_t chunk, int64_t micro_batch, bool forward, uint64_t nth) {
  return static_cast<uint64_t>(stage) << 48 ^ static_cast<uint64_t>(chunk) << 36 ^
         static_cast<uint64_t>(micro_batch) << 12 ^ (nth << 1 | forward);
}

/// Runs of the step and, for those that are asked, when they were ready.
class Runs {
 public:
  Runs(const Plan& plan, std::vector<BlockIndex>& blocks) : plan_(plan), blocks_(blocks), pp_(plan.mesh.find("pp")) {}
  void add(const trace::RankSpans& run) {
    by_rank_.emplace(run.rank, &run);
    by_stage_.emplace(stage(run.rank), &run);
  }
  int64_t stage(uint32_t rank) const { return pp_ ? plan_.mesh.coordinate(RankId{rank}, *pp_) : 0; }
  bool has(uint32_t rank) const { return by_rank_.contains(rank); }
  /// Of that rank, else of one at the same stage; null: the trace has neither.
  const Readiness* readiness(uint32_t rank);

 private:
  const Plan& plan_;
  std::vector<BlockIndex>& blocks_;
  std::optional<AxisId> pp_;
  std::unordered_map<uint32_t, const trace::RankSpans*> by_rank_;
  std::unordered_map<int64_t, const trace::RankSpans*> by_stage_;
  std::unordered_map<uint32_t, Readiness> ready_;
};

class RankWalk {
 public:
  RankWalk(const Plan& plan, std::vector<BlockIndex>& blocks, Runs& runs, const trace::RankSpans& run)
      : plan_(plan), blocks_(blocks), runs_(runs), spans_(run.spans), rank_{run.rank} {
    const plan::Program& program = plan.programs[program_of(plan, rank_).v];
    for (const plan::StepOrder& variant : program.steps) {
      size_t n = 0;
      for (const plan::Invocation& i : variant.order) n += static_cast<size_t>(plan.block(i.block).op_instances());
      if (n == spans_.size()) {
        order_ = &variant.order;
        break;
      }
    }
    WT_CHECK(order_, "rank {} was not checked against the plan", run.rank);
    for (const plan::Invocation& i : *order_) {
      BlockIndex& x = blocks_[i.block.v];
      if (x.instances.empty()) x = index_of(plan.block(i.block));
      first_.push_back(first_.empty() ? 0 : first_.back() + last_count_);
      last_count_ = static_cast<uint32_t>(x.instances.size());
    }
    std::unordered_map<uint64_t, uint64_t> messages;
    std::unordered_map<uint32_t, uint64_t> collectives;
    for (uint32_t i = 0; i < spans_.size(); ++i) {
      const Op& o = op(i);
      on_stream_[static_cast<size_t>(o.stream)].push_back(i);
      if (std::holds_alternative<plan::HostWait>(o.body)) host_waits_.push_back(i);
      if (const auto* c = std::get_if<plan::Collective>(&o.body))
        names_.emplace(i, Name{{}, collectives[c->group.v]++});
      if (const auto peer = peer_of_span(i)) {
        const auto* send = std::get_if<plan::Send>(&o.body);
        const bool next = send ? send->to == plan::Direction::next_stage
                               : std::get<plan::Receive>(o.body).from == plan::Direction::next_stage;
        const bool forward = next == (send != nullptr);
        const plan::Binding b = binding(i);
        const int64_t stage = runs_.stage(send ? peer->rank.v : rank_.v), chunk = send ? peer->chunk : b.chunk;
        const uint64_t nth = messages[message_key(stage, chunk, b.micro_batch, forward, 0)]++;
        names_.emplace(i, Name{peer->rank, message_key(stage, chunk, b.micro_batch, forward, nth)});
      }
    }
  }

  Readiness readiness() const {
    Readiness r;
    for (const auto& [i, name] : names_) {
      const Op& o = op(i);
      if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
        auto& list = r.collectives[c->group.v];
        if (list.size() <= name.key) list.resize(name.key + 1);
        list[name.key] = spans_[i].begin_ps;
      } else {
        (std::holds_alternative<plan::Send>(o.body) ? r.sends : r.receives)[name.key] = spans_[i].begin_ps;
      }
    }
    return r;
  }

  int64_t end() const {
    int64_t e = std::numeric_limits<int64_t>::min();
    for (const Span& s : spans_) e = std::max(e, s.end_ps);
    return e;
  }

  /// Every instant of [begin, end) under one term.
  Sums breakdown(int64_t begin, int64_t end) {
    sums_ = {};
    from_ = begin;
    for (uint32_t i : on_stream_[static_cast<size_t>(Stream::compute)]) {
      const Span& s = spans_[i];
      if (!is_work(op(i))) continue;
      const int64_t b = std::clamp(s.begin_ps, from_, end), e = std::clamp(s.end_ps, b, end);
      if (b > from_) explain_gap(i, b);
      from_ = b;
      attribute(i, e);
      from_ = e;
    }
    if (from_ < end) {
      // Behind the last kernel: back from whatever ends last.
      std::optional<uint32_t> last;
      for (const auto& list : on_stream_)
        if (!list.empty() && (!last || spans_[list.back()].end_ps > spans_[*last].end_ps)) last = list.back();
      int64_t now = end;
      if (last) {
        const int64_t last_end = std::clamp(spans_[*last].end_ps, from_, end);
        add(bubble, end - last_end);  // the rank is done and the step is not
        now = last_end;
        if (now > from_) now = back_through(*last, now);
      }
      add(host, std::max<int64_t>(0, now - from_));
      from_ = end;
    }
    return sums_;
  }

  std::vector<OpClass> classes() const {
    std::map<std::pair<std::string, Stream>, OpClass> all;
    // By block and op first: names are built once for each op of the plan, not for each span.
    std::map<std::pair<uint32_t, uint32_t>, OpClass*> by_op;
    for (uint32_t i = 0; i < spans_.size(); ++i) {
      const BlockId block = (*order_)[spans_[i].invocation].block;
      const uint32_t k = blocks_[block.v].instances[spans_[i].op].op;
      const Op& o = plan_.block(block).ops[k];
      auto [it, fresh] = by_op.try_emplace({block.v, k});
      if (fresh) {
        const std::string name = class_of(o);
        it->second = &all[{name, o.stream}];
        it->second->name = name;
        it->second->stream = o.stream;
      }
      OpClass& c = *it->second;
      c.seconds += static_cast<double>(spans_[i].end_ps - spans_[i].begin_ps) * 1e-12;
      ++c.count;
      if (const auto* w = std::get_if<plan::Compute>(&o.body)) {
        c.flops += w->work.flops;
        c.bytes += static_cast<double>(w->work.bytes_read + w->work.bytes_written);
      } else if (const auto* x = std::get_if<plan::Collective>(&o.body)) {
        c.bytes += static_cast<double>(x->bytes);
      } else if (const auto* s = std::get_if<plan::Send>(&o.body)) {
        c.bytes += static_cast<double>(s->bytes);
      } else if (const auto* r = std::get_if<plan::Receive>(&o.body)) {
        c.bytes += static_cast<double>(r->bytes);
      } else if (const auto* m = std::get_if<plan::Copy>(&o.body)) {
        c.bytes += static_cast<double>(m->bytes);
      }
    }
    std::vector<OpClass> out;
    for (auto& [key, c] : all)
      if (c.seconds > 0) out.push_back(std::move(c));
    std::stable_sort(out.begin(), out.end(), [](const OpClass& a, const OpClass& b) { return a.seconds > b.seconds; });
    return out;
  }

 private:
  struct Name {
    RankId peer;       // of a message
    uint64_t key = 0;  // message_key, or the how-manieth of its group
  };

  plan::Binding binding(uint32_t i) const {
    const plan::Invocation& v = (*order_)[spans_[i].invocation];
    const Op& o = op(i);
    size_t which = 0;
    if (v.bindings > 1 && o.reads.count + o.writes.count > 0)
      which = block(i).refs[o.reads.count ? o.reads.begin : o.writes.begin].binding;
    return v.binding[which];
  }

  std::optional<plan::Peer> peer_of_span(uint32_t i) const {
    const Op& o = op(i);
    const auto* send = std::get_if<plan::Send>(&o.body);
    const auto* receive = std::get_if<plan::Receive>(&o.body);
    if (!send && !receive) return std::nullopt;
    return plan::peer_of(plan_, rank_, binding(i).chunk, send ? send->to : receive->from);
  }

  /// When the last of the other sides of a transfer was ready; its own begin if the trace does not hold them.
  int64_t others_ready(uint32_t i) const {
    const auto it = names_.find(i);
    int64_t at = spans_[i].begin_ps;
    if (it == names_.end()) return at;
    const Op& o = op(i);
    if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
      auto [cached, fresh] = members_.try_emplace(c->group.v);
      if (fresh)
        for (RankId m : plan::group_members(plan_.mesh, plan_.group(c->group), rank_))
          if (m != rank_ && runs_.has(m.v)) cached->second.push_back(m);
      for (RankId m : cached->second) {
        const Readiness* r = runs_.readiness(m.v);
        const auto list = r->collectives.find(c->group.v);
        if (list != r->collectives.end() && it->second.key < list->second.size())
          at = std::max(at, list->second[it->second.key]);
      }
      return at;
    }
    if (const Readiness* r = runs_.readiness(it->second.peer.v)) {
      const auto& other = std::holds_alternative<plan::Send>(o.body) ? r->receives : r->sends;
      if (const auto found = other.find(it->second.key); found != other.end()) at = std::max(at, found->second);
    }
    return at;
  }

  /// The part of op i before `now`: waiting for the others, then its own work. Returns its begin.
  int64_t attribute(uint32_t i, int64_t now) {
    const int64_t begin = std::clamp(spans_[i].begin_ps, from_, now);
    const int64_t start = std::clamp(others_ready(i), begin, now);
    add(waiting_term(op(i)), start - begin);
    add(term_of(op(i)), now - start);
    return begin;
  }

  const BlockIndex::Instance& instance(uint32_t i) const {
    return blocks_[(*order_)[spans_[i].invocation].block.v].instances[spans_[i].op];
  }
  const plan::Block& block(uint32_t i) const { return plan_.block((*order_)[spans_[i].invocation].block); }
  const Op& op(uint32_t i) const { return block(i).ops[instance(i).op]; }

  static bool is_work(const Op& o) {
    return !std::holds_alternative<plan::Join>(o.body) && !std::holds_alternative<plan::HostWait>(o.body);
  }

  Term term_of(const Op& o) const {
    if (std::holds_alternative<plan::Compute>(o.body))
      return o.phase == plan::Phase::optimizer ? optimizer
             : o.phase == plan::Phase::checkpoint || o.phase == plan::Phase::load || o.phase == plan::Phase::model ||
                     o.phase == plan::Phase::optimizer_state
                 ? other
                 : compute;
    if (std::holds_alternative<plan::Copy>(o.body)) return offload;
    if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
      const plan::Group& g = plan_.group(c->group);
      auto only = [&](std::string_view name) {
        return !g.axes.empty() &&
               std::all_of(g.axes.begin(), g.axes.end(), [&](AxisId a) { return plan_.mesh.axes[a.v].name == name; });
      };
      if (only("cp")) return context;
      if (only("ep")) return expert;
      return o.stream == Stream::tensor || only("tp") ? tensor : data;
    }
    if (std::holds_alternative<plan::Send>(o.body) || std::holds_alternative<plan::Receive>(o.body)) return pipeline;
    return host;  // Join, HostWait: no length of their own
  }

  /// Under which term it waits for the others of its transfer.
  Term waiting_term(const Op& o) const {
    if (const auto* c = std::get_if<plan::Collective>(&o.body)) {
      for (AxisId a : plan_.group(c->group).axes)
        if (plan_.mesh.axes[a.v].name == "pp") return bubble;  // another stage is not there yet
      return term_of(o);
    }
    if (std::holds_alternative<plan::Send>(o.body) || std::holds_alternative<plan::Receive>(o.body)) return bubble;
    return host;
  }

  void add(Term t, int64_t ps) { sums_[t] += ps; }

  std::optional<uint32_t> before_on(Stream s, uint32_t i) const {
    const auto& list = on_stream_[static_cast<size_t>(s)];
    const auto it = std::lower_bound(list.begin(), list.end(), i);
    if (it == list.begin()) return std::nullopt;
    return *(it - 1);
  }

  struct Cause {
    uint32_t span;
    int64_t at;
  };

  /// What let op i start last, among what it waits for on this rank.
  std::optional<Cause> latest_cause(uint32_t i, int64_t limit) const {
    std::optional<Cause> best;
    auto consider = [&](uint32_t j, int64_t at) {
      if (at <= limit && (!best || at > best->at)) best = Cause{j, at};
    };
    const Op& o = op(i);
    const plan::Block& b = block(i);
    const BlockIndex::Instance& me = instance(i);
    const BlockIndex& x = blocks_[(*order_)[spans_[i].invocation].block.v];
    for (uint32_t k = 0; k < o.waits.count; ++k) {
      const plan::Wait& w = b.waits[o.waits.begin + k];
      if (w.kind == plan::Wait::Kind::tail) {
        if (const auto j = before_on(static_cast<Stream>(w.index), i)) consider(*j, spans_[*j].end_ps);
        continue;
      }
      // The segment of the op waited for: mine, or the last before mine that holds it.
      uint32_t s = me.segment;
      while (!(b.segments[s].first_op <= w.index && w.index < b.segments[s].first_op + b.segments[s].op_count) && s > 0)
        --s;
      const plan::Segment& segment = b.segments[s];
      if (w.index < segment.first_op || w.index >= segment.first_op + segment.op_count) continue;
      int64_t iteration = s == me.segment ? int64_t{me.iteration} - w.iterations_back : int64_t{segment.iterations} - 1;
      if (iteration < 0) continue;
      const uint32_t there = first_[spans_[i].invocation] + x.segment_first[s] +
                             static_cast<uint32_t>(iteration) * segment.op_count + (w.index - segment.first_op);
      const Span& t = spans_[there];
      consider(there, w.kind == plan::Wait::Kind::piece && w.pieces > 1
                          ? t.begin_ps + (t.end_ps - t.begin_ps) / w.pieces
                          : t.end_ps);
    }
    if (const auto j = before_on(o.stream, i)) consider(*j, spans_[*j].end_ps);
    const auto hw = std::lower_bound(host_waits_.begin(), host_waits_.end(), i);
    if (hw != host_waits_.begin()) consider(*(hw - 1), spans_[*(hw - 1)].end_ps);
    return best;
  }

  /// The idle time [from_, now) before kernel i.
  void explain_gap(uint32_t i, int64_t now) {
    now = before(i, now);
    add(host, now - from_);
  }

  /// Attributes what lies between the causes of op i and `now`, then follows them; returns what could not be explained.
  int64_t before(uint32_t i, int64_t now) {
    while (now > from_) {
      const auto cause = latest_cause(i, now);
      const int64_t at = cause ? std::max(cause->at, from_) : from_;
      add(waiting_term(op(i)), now - at);
      now = at;
      if (!cause || now == from_) return now;
      i = cause->span;
      now = attribute(i, now);
    }
    return now;
  }
  int64_t back_through(uint32_t i, int64_t now) { return before(i, attribute(i, now)); }

  const Plan& plan_;
  std::vector<BlockIndex>& blocks_;
  Runs& runs_;
  const std::vector<Span>& spans_;
  RankId rank_;
  const std::vector<plan::Invocation>* order_ = nullptr;
  std::vector<uint32_t> first_;  // first span of each invocation
  uint32_t last_count_ = 0;
  std::array<std::vector<uint32_t>, plan::kStreams> on_stream_;
  std::vector<uint32_t> host_waits_;
  std::unordered_map<uint32_t, Name> names_;                           // of spans that are transfers
  mutable std::unordered_map<uint32_t, std::vector<RankId>> members_;  // other members of a group in the trace
  int64_t from_ = 0;
  Sums sums_{};
};

const Readiness* Runs::readiness(uint32_t rank) {
  auto run = by_rank_.find(rank);
  const trace::RankSpans* spans = run != by_rank_.end() ? run->second : nullptr;
  if (!spans) {
    const auto like = by_stage_.find(stage(rank));
    if (like == by_stage_.end()) return nullptr;
    spans = like->second;
  }
  const auto known = ready_.find(spans->rank);
  if (known != ready_.end()) return &known->second;
  return &ready_.emplace(spans->rank, RankWalk(plan_, blocks_, *this, *spans).readiness()).first->second;
}

TimeBreakdown to_seconds(const Sums& sums) {
  TimeBreakdown t;
  for (size_t k = 0; k < kTerms.size(); ++k) t.*kTerms[k].seconds = static_cast<double>(sums[k]) * 1e-12;
  return t;
}

void fill_rates(StepReport& r, const JobSpec& job, const Plan& plan, FlopFormula formula) {
  const double seconds = r.step_time.seconds(), ranks = static_cast<double>(plan.mesh.ranks());
  r.formula = formula;
  if (seconds <= 0) return;
  r.tokens_per_second = static_cast<double>(job.training.global_batch * job.training.seq_len) / seconds;
  r.tokens_per_second_per_gpu = r.tokens_per_second / ranks;
  r.model_tflops_per_gpu = step_flops(job.model, job.training, formula, job.strategy.tensor) / seconds / ranks / 1e12;
  r.hardware_tflops_per_gpu = hardware_flops(plan) / seconds / ranks / 1e12;
  const auto peak = job.cluster.device.peak.find(job.training.compute_dtype);
  if (peak == job.cluster.device.peak.end() || peak->second.n <= 0) return;
  r.peak_tflops = peak->second.n / 1e12;
  r.mfu = r.model_tflops_per_gpu / r.peak_tflops;
  r.hfu = r.hardware_tflops_per_gpu / r.peak_tflops;
}

bool counts_for_hardware(plan::Kernel k) {
  switch (k) {
    case plan::Kernel::gemm:
    case plan::Kernel::attention_forward:
    case plan::Kernel::attention_backward:
    case plan::Kernel::scores_forward:
    case plan::Kernel::context_forward:
    case plan::Kernel::context_backward:
    case plan::Kernel::scores_backward: return true;
    default: return false;
  }
}

}  // namespace

double TimeBreakdown::total() const {
  double t = 0;
  for (const TimeTerm& term : kTerms) t += this->*term.seconds;
  return t;
}

std::span<const TimeTerm> time_terms() { return kTerms; }

std::string class_of(const Op& o) {
  std::string name = o.name;
  while (!name.empty() && (std::isdigit(static_cast<unsigned char>(name.back())) || name.back() == ' ')) {
    if (name.back() != ' ' && name.find(' ') == std::string::npos) break;  // "norm1" keeps its digit
    name.pop_back();
  }
  if (o.phase == plan::Phase::recompute) name += " again";
  return name;
}

double hardware_flops(const Plan& plan) {
  std::vector<double> blocks;
  blocks.reserve(plan.blocks.size());
  for (const plan::Block& b : plan.blocks) {
    double flops = 0;
    for (const plan::Segment& s : b.segments)
      for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k)
        if (const auto* c = std::get_if<plan::Compute>(&b.ops[k].body); c && counts_for_hardware(c->kernel))
          flops += c->work.flops * s.iterations;
    blocks.push_back(flops);
  }
  double total = 0;
  for (const plan::Program& p : plan.programs) {
    double one = 0;
    if (!p.steps.empty())
      for (const plan::Invocation& i : p.steps[0].order) one += blocks[i.block.v];
    double ranks = static_cast<double>(plan.mesh.ranks());
    if (p.when.axis.valid())
      ranks *= static_cast<double>(p.when.values.size()) / static_cast<double>(plan.mesh.axes[p.when.axis.v].size);
    total += one * ranks;
  }
  return total;
}

StepReport step_rates(const JobSpec& job, const Plan& plan, Time step_time, FlopFormula formula) {
  StepReport r;
  r.step_time = step_time;
  fill_rates(r, job, plan, formula);
  r.memory = memory_peaks(job, plan);
  return r;
}

Result<StepTimes> step_times(const Plan& plan, const trace::Trace& trace, uint32_t step) {
  if (auto checked = trace::check_against_plan(trace, plan); !checked) return checked.errors();
  StepTimes r;
  struct Slowest {
    const trace::RankSpans* run = nullptr;
    int64_t end = 0;
  };
  std::vector<BlockIndex> blocks(plan.blocks.size());
  Runs runs(plan, blocks);
  std::map<int64_t, Slowest> stages;
  Slowest critical;
  for (const trace::RankSpans& run : trace.ranks) {
    if (run.step != step || run.spans.empty()) continue;
    runs.add(run);
    int64_t end = run.spans[0].end_ps;
    for (const Span& s : run.spans) end = std::max(end, s.end_ps);
    const int64_t stage = runs.stage(run.rank);
    Slowest& slowest = stages[stage];
    if (!slowest.run || end > slowest.end) slowest = {&run, end};
    if (!critical.run || end > critical.end) critical = {&run, end};
  }
  if (!critical.run || critical.end <= 0) return Diagnostic{"trace", fmt::format("step {} is empty", step), ""};
  // Instants count from the end of the step before on the slowest rank: the critical rank's step is [0, end).
  r.step_time = Time::ps(critical.end);
  r.critical_rank = critical.run->rank;
  for (const auto& [stage, slowest] : stages) {
    RankWalk walk(plan, blocks, runs, *slowest.run);
    // A rank that is early began early: its own step is as long.
    const Sums sums = walk.breakdown(slowest.end - critical.end, slowest.end);
    r.by_stage.push_back({stage, slowest.run->rank, to_seconds(sums)});
    if (slowest.run == critical.run) {
      r.time = r.by_stage.back().time;
      r.op_classes = walk.classes();
      r.bubble_fraction = r.time.bubble / r.step_time.seconds();
      int64_t total = 0;
      for (int64_t ps : sums) total += ps;
      WT_CHECK(total == critical.end, "terms {} ps, step {} ps", total, critical.end);
    }
  }
  return r;
}

Result<StepReport> step_report(const JobSpec& job, const Plan& plan, const trace::Trace& trace, FlopFormula formula) {
  if (trace.ranks.empty()) return Diagnostic{"trace", "holds no spans", "simulate or run with a trace"};
  auto times = step_times(plan, trace, trace.ranks.back().step);
  if (!times) return times.errors();
  StepReport r;
  static_cast<StepTimes&>(r) = std::move(times.value());
  fill_rates(r, job, plan, formula);
  r.memory = memory_report(job, plan);
  return r;
}

}  // namespace wt::report
