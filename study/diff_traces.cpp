// Two traces of one plan, joined by (rank, invocation, op). A rank that one trace lacks because it was folded is read from
// a rank at the same pipeline stage. Invariant: what is compared ran the same ops in the same order.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "core/plan/plan_io.hpp"
#include "core/report/report.hpp"
#include "core/trace/file.hpp"
#include "core/trace/held_ranks.hpp"
#include "study/diff.hpp"

namespace wt::study {

namespace {

using plan::Plan;
using trace::RankSpans;
using trace::Trace;

double median(std::vector<double>& v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>((v.size() - 1) / 2);
  std::nth_element(v.begin(), middle, v.end());
  const double low = *middle;
  if (v.size() % 2 == 1) return low;
  return (low + *std::min_element(middle + 1, v.end())) / 2;
}

std::string percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

/// One side: its steps after the warm-up, and of each rank the spans in those.
struct Side {
  const TraceSide* given = nullptr;
  std::vector<uint32_t> steps;
  std::map<uint32_t, std::vector<const RankSpans*>> ranks;
  std::vector<double> step_seconds;  // of steps
  uint32_t median_step = 0;          // the step whose time is the (lower) median: its terms add up to a step that was
  size_t all_steps = 0;
  double clock_uncertainty_s = 0;

  bool measured() const { return given->trace->meta.producer == trace::Producer::executed; }
};

Side side_of(const TraceSide& given, int64_t warm_up) {
  Side s;
  s.given = &given;
  std::map<uint32_t, int64_t> ends;
  for (const RankSpans& r : given.trace->ranks) {
    int64_t& end = ends.try_emplace(r.step, 0).first->second;
    for (const trace::Span& span : r.spans) end = std::max(end, span.end_ps);
  }
  s.all_steps = ends.size();
  // A run of fewer steps than its warm-up still has a last one.
  size_t skip = s.measured() && warm_up > 0 ? std::min<size_t>(static_cast<size_t>(warm_up), ends.size() - 1) : 0;
  std::vector<std::pair<int64_t, uint32_t>> by_time;
  for (const auto& [step, end] : ends) {
    if (skip > 0) {
      --skip;
      continue;
    }
    s.steps.push_back(step);
    s.step_seconds.push_back(static_cast<double>(end) * 1e-12);
    by_time.emplace_back(end, step);
  }
  std::sort(by_time.begin(), by_time.end());
  s.median_step = by_time[(by_time.size() - 1) / 2].second;
  const std::set<uint32_t> kept(s.steps.begin(), s.steps.end());
  for (const RankSpans& r : given.trace->ranks)
    if (kept.contains(r.step)) s.ranks[r.rank].push_back(&r);
  s.clock_uncertainty_s = given.trace->meta.clock_uncertainty.seconds();
  return s;
}

DiffSide described(const Side& s, uint64_t digest) {
  DiffSide d;
  d.name = s.given->name;
  d.plan_digest = digest;
  const trace::Meta& m = s.given->trace->meta;
  d.description =
      fmt::format("{}{}{}", s.measured() ? "measured" : "predicted", m.cluster.empty() ? "" : " on ", m.cluster);
  if (s.all_steps > 1)
    d.description += fmt::format(", median of {} of {} steps", s.steps.size(), s.all_steps);
  else if (s.measured())
    d.description += ", one step";
  return d;
}

/// An op of the plan on the ranks of one stage: all its instances of a step.
struct OpSum {
  double a = 0, b = 0;  // seconds of a step, summed over the joined ranks
  int64_t instances = 0;
  double worst_a = 0, worst_b = 0;
  uint32_t worst_rank = 0, worst_invocation = 0;
  int64_t worst_layer = -1;
};

class Join {
 public:
  Join(const Plan& plan, const Side& a, const Side& b) : plan_(plan), a_(a), b_(b), pp_(plan.mesh.find("pp")) {}

  Status run() {
    const Side& wide = a_.ranks.size() >= b_.ranks.size() ? a_ : b_;
    std::vector<uint32_t> held_a, held_b;
    for (const auto& [rank, spans] : a_.ranks) held_a.push_back(rank);
    for (const auto& [rank, spans] : b_.ranks) held_b.push_back(rank);
    for (const auto& [rank, spans] : wide.ranks) {
      const auto ra = trace::stand_in(plan_, held_a, rank), rb = trace::stand_in(plan_, held_b, rank);
      if (!ra || !rb) {
        notes_.insert(fmt::format("rank {} is in one trace only and no other rank of its stage stands for it", rank));
        continue;
      }
      join(rank, *ra, *rb);
    }
    if (joined_ == 0)
      return Diagnostic{fmt::format("{} and {}", a_.given->name, b_.given->name), "no rank ran the same step in both",
                        notes_.empty() ? "" : *notes_.begin()};
    return ok_status();
  }

  void add_tables(Diff& diff) const {
    DiffTable classes{"op_classes",
                      "Ops by class, mean of the ranks (a transfer counts from when its side is ready)",
                      DiffUnit::seconds,
                      {}};
    struct Sum {
      double a = 0, b = 0;
      int64_t instances = 0;
    };
    std::map<std::pair<std::string, plan::Stream>, Sum> sums;
    DiffTable ops{"ops", "Ops of the plan", DiffUnit::seconds, {}};
    const double ranks = static_cast<double>(joined_);
    for (const auto& [key, o] : ops_) {
      const auto& [stage, block, index] = key;
      const plan::Block& b = plan_.blocks[block];
      const plan::Op& op = b.ops[index];
      Sum& sum = sums[{report::class_of(op), op.stream}];
      sum.a += o.a;
      sum.b += o.b;
      sum.instances += o.instances;
      const double of_stage = static_cast<double>(ranks_of_stage_.at(stage));
      DiffRow row;
      row.key = fmt::format("stage {}/{}/{}", stage, b.name, op.name);
      row.words = fmt::format("stage {}, {}: {}", stage, b.name, op.name);
      row.a = o.a / of_stage;
      row.b = o.b / of_stage;
      row.note = fmt::format("{} a step; most apart on {}: {} and {}",
                             o.instances / static_cast<int64_t>(ranks_of_stage_.at(stage)), place(o),
                             to_text(Time::from_seconds(o.worst_a)), to_text(Time::from_seconds(o.worst_b)));
      ops.rows.push_back(std::move(row));
    }
    // One op may stand in several segments of a block under one name.
    std::map<std::string, int> times;
    for (DiffRow& r : ops.rows)
      if (const int n = ++times[r.key]; n > 1) r.key += fmt::format("#{}", n);
    for (const auto& [key, sum] : sums) {
      if (sum.a == 0 && sum.b == 0) continue;
      classes.rows.push_back({fmt::format("{}/{}", key.first, plan::to_text(key.second)),
                              fmt::format("{} ({})", key.first, plan::to_text(key.second)), sum.a / ranks,
                              sum.b / ranks, fmt::format("{:.0f} a step", static_cast<double>(sum.instances) / ranks)});
    }
    diff.tables.push_back(std::move(classes));
    diff.tables.push_back(std::move(ops));
    diff.notes.insert(diff.notes.end(), notes_.begin(), notes_.end());
    if (folded_ > 0)
      diff.notes.push_back(fmt::format("{} of {} ranks are read from another rank of their stage that stands for them",
                                       folded_, joined_));
  }

 private:
  int64_t stage(uint32_t rank) const { return pp_ ? plan_.mesh.coordinate(RankId{rank}, *pp_) : 0; }

  /// The steps of the rank that ran the variant of its last step.
  static std::vector<const RankSpans*> steady(const std::vector<const RankSpans*>& runs) {
    std::vector<const RankSpans*> out;
    for (const RankSpans* r : runs)
      if (r->spans.size() == runs.back()->spans.size()) out.push_back(r);
    return out;
  }

  void join(uint32_t rank, uint32_t rank_a, uint32_t rank_b) {
    const auto runs_a = steady(a_.ranks.at(rank_a)), runs_b = steady(b_.ranks.at(rank_b));
    const size_t n = runs_a.back()->spans.size();
    if (n != runs_b.back()->spans.size()) {
      const auto *va = trace::order_of(plan_, rank, n), *vb = trace::order_of(plan_, rank, runs_b.back()->spans.size());
      notes_.insert(fmt::format("rank {} ran step '{}' in A and '{}' in B: not joined", rank, va ? va->name : "?",
                                vb ? vb->name : "?"));
      return;
    }
    const plan::StepOrder* order = trace::order_of(plan_, rank, n);
    WT_CHECK(order, "rank {} was not checked against the plan", rank);
    ++joined_;
    if (rank_a != rank || rank_b != rank) ++folded_;
    const int64_t at = stage(rank);
    ++ranks_of_stage_[at];
    std::vector<double> lengths;
    auto length = [&](const std::vector<const RankSpans*>& runs, size_t i) {
      lengths.clear();
      for (const RankSpans* r : runs)
        lengths.push_back(static_cast<double>(r->spans[i].end_ps - r->spans[i].begin_ps) * 1e-12);
      return median(lengths);
    };
    size_t i = 0;
    for (uint32_t v = 0; v < order->order.size(); ++v) {
      const BlockId block = order->order[v].block;
      plan::for_each_op(plan_.block(block), [&](const plan::Op& op, uint32_t index, int64_t layer, uint32_t) {
        const size_t here = i++;
        // The host waits for ops that are counted themselves: a measured wait spans them, a predicted one has no length.
        if (std::holds_alternative<plan::HostWait>(op.body)) return;
        const double x = length(runs_a, here), y = length(runs_b, here);
        OpSum& o = ops_[{at, block.v, index}];
        o.a += x;
        o.b += y;
        if (o.instances++ == 0 || std::abs(x - y) > std::abs(o.worst_a - o.worst_b))
          std::tie(o.worst_a, o.worst_b, o.worst_rank, o.worst_invocation, o.worst_layer) =
              std::tuple(x, y, rank, v, layer);
      });
    }
  }

  std::string place(const OpSum& o) const {
    std::string out = fmt::format("rank {}", o.worst_rank);
    const plan::Program& program = plan_.programs[program_of(plan_, RankId{o.worst_rank}).v];
    for (const plan::StepOrder& s : program.steps) {
      if (o.worst_invocation >= s.order.size()) continue;
      const plan::Invocation& v = s.order[o.worst_invocation];
      if (v.bindings > 0) {
        if (o.worst_layer >= 0 && v.binding[0].chunk < program.first_layer.size())
          out += fmt::format(", layer {}", program.first_layer[v.binding[0].chunk] + o.worst_layer);
        out += fmt::format(", micro-batch {}", v.binding[0].micro_batch);
      }
      break;
    }
    return out;
  }

  const Plan& plan_;
  const Side &a_, &b_;
  std::optional<AxisId> pp_;
  std::map<std::tuple<int64_t, uint32_t, uint32_t>, OpSum> ops_;  // (stage, block, op)
  std::map<int64_t, int64_t> ranks_of_stage_;
  int64_t joined_ = 0, folded_ = 0;
  std::set<std::string> notes_;
};

void add_times(Diff& diff, const Side& a, const Side& b, const report::StepTimes& ta, const report::StepTimes& tb) {
  std::vector<double> sa = a.step_seconds, sb = b.step_seconds;
  DiffTable step{"step", "Step", DiffUnit::seconds, {}};
  DiffRow whole{"step_time", "step time", median(sa), median(sb), ""};
  for (const Side* s : {&a, &b})
    if (s->steps.size() > 1) {
      const auto [least, most] = std::minmax_element(s->step_seconds.begin(), s->step_seconds.end());
      whole.note += fmt::format("{}{} {} to {}", whole.note.empty() ? "" : "; ", s == &a ? "A" : "B",
                                to_text(Time::from_seconds(*least)), to_text(Time::from_seconds(*most)));
    }
  step.rows.push_back(whole);
  diff.tables.push_back(step);

  DiffTable time{"time",
                 fmt::format("Time of the median step where it ends (rank {} in A, rank {} in B)", ta.critical_rank,
                             tb.critical_rank),
                 DiffUnit::seconds,
                 {}};
  for (const report::TimeTerm& t : report::time_terms())
    if (ta.time.*t.seconds != 0 || tb.time.*t.seconds != 0)
      time.rows.push_back({std::string(t.key), "", ta.time.*t.seconds, tb.time.*t.seconds, std::string(t.meaning)});
  diff.tables.push_back(std::move(time));

  DiffTable stages{"stages", "By pipeline stage, its slowest rank", DiffUnit::seconds, {}};
  for (const report::StageTime& x : ta.by_stage)
    for (const report::StageTime& y : tb.by_stage)
      if (x.stage == y.stage)
        for (const report::TimeTerm& t : report::time_terms())
          if (x.time.*t.seconds != 0 || y.time.*t.seconds != 0)
            stages.rows.push_back({fmt::format("stage {}/{}", x.stage, t.key),
                                   fmt::format("stage {} {}", x.stage, t.key), x.time.*t.seconds, y.time.*t.seconds,
                                   x.rank == y.rank ? "" : fmt::format("rank {} in A, rank {} in B", x.rank, y.rank)});
  if (ta.by_stage.size() > 1) diff.tables.push_back(std::move(stages));
}

/// Highest sample of each rank, beside what the plan owns.
void add_memory(Diff& diff, const Plan& plan, const Side& a, const Side& b) {
  auto peaks = [](const Side& s) {
    std::map<uint32_t, double> out;
    for (const trace::Sample& x : s.given->trace->samples)
      if (x.kind == trace::CounterKind::memory_bytes) {
        double& peak = out.try_emplace(x.rank, 0).first->second;
        peak = std::max(peak, x.value);
      }
    return out;
  };
  const auto pa = peaks(a), pb = peaks(b);
  std::set<uint32_t> ranks;
  for (const Side* s : {&a, &b})
    for (const auto& [rank, spans] : s->ranks) ranks.insert(rank);
  DiffTable memory{"memory",
                   "Highest device memory of a rank (where a trace has no samples: what the plan owns)",
                   DiffUnit::bytes,
                   {}};
  for (const uint32_t rank : ranks) {
    const auto planned = static_cast<double>(report::planned_peak(plan, RankId{rank}).n);
    const auto in_a = pa.find(rank), in_b = pb.find(rank);
    const bool sampled_a = in_a != pa.end(), sampled_b = in_b != pb.end();
    memory.rows.push_back({fmt::format("rank {}", rank), "", sampled_a ? in_a->second : planned,
                           sampled_b ? in_b->second : planned,
                           sampled_a && sampled_b ? "both sampled"
                           : sampled_a            ? "A sampled"
                           : sampled_b            ? "B sampled"
                                                  : "planned: neither is sampled"});
  }
  diff.tables.push_back(std::move(memory));
}

}  // namespace

Result<Diff> diff_traces(const TraceSide& a, const TraceSide& b, const DiffOptions& options) {
  const uint64_t da = plan::digest(*a.plan), db = plan::digest(*b.plan);
  if (da != db) {
    Diagnostics faults = {{fmt::format("{} and {}", a.name, b.name),
                           fmt::format("are of two plans, {:016x} and {:016x}", da, db),
                           "op by op only traces of one plan can be compared; two jobs can be by their predictions"}};
    for (std::string& what : plan_differences(*a.plan, *b.plan)) faults.push_back({"the plans", std::move(what), ""});
    return faults;
  }
  Diagnostics faults;
  for (const TraceSide* s : {&a, &b}) {
    if (s->trace->meta.plan_digest != 0 && !plan::is_digest_of(s->trace->meta.plan_digest, *s->plan))
      faults.push_back(
          {s->name,
           fmt::format("says it is of plan {:016x} and holds the plan {:016x}", s->trace->meta.plan_digest, da),
           "the file was put together from two runs"});
    else if (s->trace->ranks.empty() ||
             std::ranges::all_of(s->trace->ranks, [](const RankSpans& r) { return r.spans.empty(); }))
      faults.push_back({s->name, "holds no spans", "simulate or run with --trace"});
    else if (auto checked = trace::check_against_plan(*s->trace, *s->plan); !checked)
      for (const Diagnostic& d : checked.errors()) faults.push_back({s->name + ": " + d.where, d.what, d.hint});
  }
  if (!faults.empty()) return faults;

  const Plan& plan = *a.plan;
  const Side sa = side_of(a, options.warm_up), sb = side_of(b, options.warm_up);
  auto ta = report::step_times(plan, *a.trace, sa.median_step);
  if (!ta) return ta.errors();
  auto tb = report::step_times(plan, *b.trace, sb.median_step);
  if (!tb) return tb.errors();
  Diff diff;
  diff.a = described(sa, da);
  diff.b = described(sb, da);
  add_times(diff, sa, sb, ta.value(), tb.value());
  Join join(plan, sa, sb);
  if (auto joined = join.run(); !joined) return joined.errors();
  join.add_tables(diff);
  add_memory(diff, plan, sa, sb);
  for (const Side* s : {&sa, &sb})
    if (s->clock_uncertainty_s > 0)
      diff.notes.push_back(fmt::format("{}: the clocks of its ranks agree within {}", s->given->name,
                                       to_text(Time::from_seconds(s->clock_uncertainty_s))));
  for (const Side* s : {&sa, &sb})
    if (s->measured() && s->steps.size() > 1) {
      const auto [least, most] = std::minmax_element(s->step_seconds.begin(), s->step_seconds.end());
      if (*most > 1.2 * *least)
        diff.notes.push_back(fmt::format("{}: its steps differ by {}: the machine was not quiet", s->given->name,
                                         percent(*most / *least - 1)));
    }
  return diff;
}

}  // namespace wt::study
