// Two profiles by class and phase. What a framework runs as many small kernels is one op of a plan, so nothing is joined
// one by one. Invariant: compute, communication that nothing hides and the rest add up to the step.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/base/text.hpp"
#include "core/plan/plan_io.hpp"
#include "core/trace/file.hpp"
#include "core/trace/held_ranks.hpp"
#include "core/trace/profile.hpp"
#include "study/diff.hpp"

namespace wt::study {

namespace {

using trace::Profile;
using trace::ProfilePhase;
using trace::ProfileSpan;
using trace::WorkClass;

// ------------------------------------------------------------------------------------------ a plan's trace

WorkClass class_of(plan::Kernel k) {
  using K = plan::Kernel;
  switch (k) {
    case K::gemm:
    case K::grouped_gemm: return WorkClass::gemm;
    case K::norm_forward:
    case K::norm_backward:
    case K::qk_norm_forward:
    case K::qk_norm_backward: return WorkClass::norm;
    case K::attention_forward:
    case K::attention_backward:
    case K::scores_forward:
    case K::softmax_forward:
    case K::context_forward:
    case K::context_backward:
    case K::softmax_backward:
    case K::scores_backward:
    case K::latent_attention_forward:
    case K::latent_attention_backward:
    case K::block_attention_forward:
    case K::block_attention_backward:
    case K::merge_attention: return WorkClass::attention;
    case K::embedding_forward:
    case K::embedding_backward:
    case K::position_forward:
    case K::position_backward: return WorkClass::embedding;
    case K::loss_max:
    case K::loss_sums:
    case K::loss_forward:
    case K::loss_backward: return WorkClass::loss;
    case K::square_sum:
    case K::adam:
    case K::sgd: return WorkClass::optimizer;
    case K::route_forward:
    case K::route_backward:
    case K::permute:
    case K::unpermute:
    case K::regroup: return WorkClass::routing;
    default: return WorkClass::elementwise;
  }
}

WorkClass class_of(plan::CollectiveKind k) {
  using C = plan::CollectiveKind;
  switch (k) {
    case C::all_reduce: return WorkClass::all_reduce;
    case C::all_gather: return WorkClass::all_gather;
    case C::reduce_scatter: return WorkClass::reduce_scatter;
    case C::all_to_all: return WorkClass::all_to_all;
    case C::broadcast: return WorkClass::broadcast;
    case C::shift_up:
    case C::shift_down: return WorkClass::send_receive;
  }
  return WorkClass::communication;
}

ProfilePhase phase_of(plan::Phase p) {
  switch (p) {
    case plan::Phase::forward: return ProfilePhase::forward;
    case plan::Phase::recompute:
    case plan::Phase::backward_input:
    case plan::Phase::backward_weight:
    case plan::Phase::reduce: return ProfilePhase::backward;
    case plan::Phase::optimizer: return ProfilePhase::optimizer;
    case plan::Phase::load:
    case plan::Phase::model:
    case plan::Phase::optimizer_state:
    case plan::Phase::checkpoint: break;
  }
  return ProfilePhase::outside;
}

/// What a span of the op says; nothing of ops that are no work of a device.
struct Seen {
  const plan::Plan& plan;
  ProfileSpan span;

  bool operator()(const plan::Compute& c) {
    span.work = class_of(c.kernel);
    if (span.phase == ProfilePhase::optimizer && span.work == WorkClass::elementwise) span.work = WorkClass::optimizer;
    return true;
  }
  bool operator()(const plan::Collective& c) {
    span.work = class_of(c.kind);
    span.bytes = c.bytes;
    span.group = static_cast<int32_t>(plan::group_size(plan.mesh, plan.group(c.group)));
    return true;
  }
  bool operator()(const plan::Send& s) { return message(s.bytes); }
  bool operator()(const plan::Receive& r) { return message(r.bytes); }
  bool operator()(const plan::Copy& c) {
    span.work = WorkClass::copy;
    span.bytes = c.bytes;
    return true;
  }
  template <class Other>
  bool operator()(const Other&) {
    return false;
  }
  bool message(int64_t bytes) {
    span.work = WorkClass::send_receive;
    span.bytes = bytes;
    span.group = 2;
    return true;
  }
};

void add_step(Profile& p, const plan::Plan& plan, const trace::RankSpans& run, uint32_t as_rank, int64_t step_end) {
  const plan::StepOrder* order = trace::order_of(plan, run.rank, run.spans.size());
  WT_CHECK(order, "rank {} was not checked against the plan", run.rank);
  const auto step = static_cast<uint32_t>(p.steps.size());
  p.steps.push_back({as_rank, run.step, step_end});
  size_t i = 0;
  for (const plan::Invocation& v : order->order)
    plan::for_each_op(plan.block(v.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      const trace::Span& at = run.spans[i++];
      Seen seen{plan, {}};
      seen.span.phase = phase_of(op.phase);
      if (!std::visit(seen, op.body)) return;
      ProfileSpan& s = seen.span;
      s.rank = as_rank;
      s.step = step;
      s.stream = static_cast<uint16_t>(op.stream);
      s.begin_ps = at.begin_ps;
      s.end_ps = at.end_ps;
      p.spans.push_back(s);
    });
}

// ---------------------------------------------------------------------------------------------- one profile

using Intervals = std::vector<std::pair<int64_t, int64_t>>;

/// Sorted and without overlap.
int64_t merge(Intervals& v) {
  std::sort(v.begin(), v.end());
  size_t n = 0;
  for (const auto& x : v)
    if (n > 0 && x.first <= v[n - 1].second)
      v[n - 1].second = std::max(v[n - 1].second, x.second);
    else
      v[n++] = x;
  v.resize(n);
  int64_t length = 0;
  for (const auto& [begin, end] : v) length += end - begin;
  return length;
}

/// Of two merged lists.
int64_t common(const Intervals& a, const Intervals& b) {
  int64_t length = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    length += std::max<int64_t>(0, std::min(a[i].second, b[k].second) - std::max(a[i].first, b[k].first));
    if (a[i].second < b[k].second)
      ++i;
    else
      ++k;
  }
  return length;
}

struct CommunicationKey {
  WorkClass kind = WorkClass::communication;
  int32_t group = 0;
  auto operator<=>(const CommunicationKey&) const = default;
};

struct Communication {
  double seconds = 0, calls = 0, bytes = 0;
  bool told = true;  // every call's bytes
};

/// One step of one rank; or, after median and mean, of all.
struct StepSum {
  double step = 0, compute = 0, exposed = 0, copies = 0;
  std::map<std::pair<WorkClass, ProfilePhase>, std::pair<double, double>> work;  // seconds, kernels
  std::map<CommunicationKey, Communication> communication;
};

StepSum sum_of(const std::vector<const ProfileSpan*>& spans, int64_t length_ps) {
  StepSum s;
  s.step = static_cast<double>(length_ps) * 1e-12;
  Intervals compute, communication, copies;
  for (const ProfileSpan* x : spans) {
    const double seconds = static_cast<double>(x->end_ps - x->begin_ps) * 1e-12;
    if (trace::is_communication(x->work)) {
      communication.emplace_back(x->begin_ps, x->end_ps);
      Communication& c = s.communication[{x->work, x->group}];
      c.seconds += seconds;
      c.calls += 1;
      c.bytes += static_cast<double>(std::max<int64_t>(x->bytes, 0));
      c.told = c.told && x->bytes >= 0;
    } else {
      (x->work == WorkClass::copy ? copies : compute).emplace_back(x->begin_ps, x->end_ps);
      auto& [total, kernels] = s.work[{x->work, x->phase}];
      total += seconds;
      kernels += 1;
    }
  }
  const int64_t busy = merge(compute), talk = merge(communication);
  s.compute = static_cast<double>(busy) * 1e-12;
  s.exposed = static_cast<double>(talk - common(compute, communication)) * 1e-12;
  Intervals both = compute;
  both.insert(both.end(), communication.begin(), communication.end());
  merge(both);
  const int64_t moved = merge(copies);
  s.copies = static_cast<double>(moved - common(both, copies)) * 1e-12;
  return s;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

/// Of each term its median over the steps.
StepSum median_of(const std::vector<StepSum>& steps) {
  StepSum out;
  auto of = [&](auto term) {
    std::vector<double> v;
    for (const StepSum& s : steps) v.push_back(term(s));
    return median(std::move(v));
  };
  out.step = of([](const StepSum& s) { return s.step; });
  out.compute = of([](const StepSum& s) { return s.compute; });
  out.exposed = of([](const StepSum& s) { return s.exposed; });
  out.copies = of([](const StepSum& s) { return s.copies; });
  for (const StepSum& s : steps) {
    for (const auto& [key, x] : s.work) out.work[key];
    for (const auto& [key, x] : s.communication) out.communication[key];
  }
  const auto term = [&](const auto& map, const auto& key, auto field) {
    const auto at = map.find(key);
    return at == map.end() ? 0.0 : field(at->second);
  };
  for (auto& [k, x] : out.work) {
    const auto key = k;
    x.first = of([&](const StepSum& s) { return term(s.work, key, [](const auto& w) { return w.first; }); });
    x.second = of([&](const StepSum& s) { return term(s.work, key, [](const auto& w) { return w.second; }); });
  }
  for (auto& [k, x] : out.communication) {
    const auto key = k;
    auto field = [&](double Communication::*f) {
      return of([&](const StepSum& s) { return term(s.communication, key, [&](const auto& c) { return c.*f; }); });
    };
    x.seconds = field(&Communication::seconds);
    x.calls = field(&Communication::calls);
    x.bytes = field(&Communication::bytes);
    for (const StepSum& s : steps)
      if (const auto at = s.communication.find(key); at != s.communication.end()) x.told = x.told && at->second.told;
  }
  return out;
}

StepSum mean_of(const std::vector<StepSum>& ranks) {
  StepSum out;
  const double share = 1.0 / static_cast<double>(ranks.size());
  for (const StepSum& r : ranks) {
    out.step += r.step * share;
    out.compute += r.compute * share;
    out.exposed += r.exposed * share;
    out.copies += r.copies * share;
    for (const auto& [key, x] : r.work) {
      out.work[key].first += x.first * share;
      out.work[key].second += x.second * share;
    }
    for (const auto& [key, x] : r.communication) {
      Communication& c = out.communication[key];
      c.seconds += x.seconds * share;
      c.calls += x.calls * share;
      c.bytes += x.bytes * share;
      c.told = c.told && x.told;
    }
  }
  return out;
}

struct Summary {
  StepSum mean;
  size_t steps = 0, all_steps = 0;  // of a rank: compared, in the file
  double least_step = 0, most_step = 0;
  std::vector<std::pair<std::string, double>> unknown;  // names that no rule knows, seconds of a step
};

Result<Summary> summary_of(const std::string& name, const Profile& p, int64_t warm_up) {
  Summary out;
  std::map<uint32_t, std::vector<std::vector<const ProfileSpan*>>> ranks;
  std::vector<std::vector<const ProfileSpan*>> by_step(p.steps.size());
  for (const ProfileSpan& s : p.spans)
    if (s.step != trace::kNoStep) by_step[s.step].push_back(&s);
  std::map<uint32_t, std::vector<StepSum>> sums;
  std::map<uint32_t, int64_t> seen;
  std::map<uint32_t, double> unknown;
  std::vector<double> lengths;
  for (size_t k = 0; k < p.steps.size(); ++k) {
    const trace::ProfileStep& step = p.steps[k];
    if (p.measured && p.marked && seen[step.rank]++ < warm_up) continue;
    if (by_step[k].empty()) continue;
    sums[step.rank].push_back(sum_of(by_step[k], step.length_ps));
    lengths.push_back(sums[step.rank].back().step);
    for (const ProfileSpan* s : by_step[k])
      if (s->work == WorkClass::other) unknown[s->name] += static_cast<double>(s->end_ps - s->begin_ps) * 1e-12;
  }
  if (lengths.empty())
    return Diagnostic{name, "no step with work of a device is left",
                      warm_up > 0 ? "--warm-up leaves out the first ones" : "the profile holds none"};
  std::vector<StepSum> medians;
  for (const auto& [rank, steps] : sums) medians.push_back(median_of(steps));
  out.mean = mean_of(medians);
  out.steps = lengths.size() / sums.size();
  out.all_steps = p.steps.size() / std::max<size_t>(p.ranks.size(), 1);
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  out.least_step = *least;
  out.most_step = *most;
  for (const auto& [id, seconds] : unknown)
    out.unknown.emplace_back(p.names[id], seconds / static_cast<double>(lengths.size()));
  std::sort(out.unknown.begin(), out.unknown.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  return out;
}

// ---------------------------------------------------------------------------------------------------- tables

DiffSide side_of(const std::string& name, const Profile& p, const Summary& s) {
  DiffSide d;
  d.name = name;
  d.description = p.description;
  if (s.all_steps > 1) d.description += fmt::format(", median of {} of {} steps", s.steps, s.all_steps);
  return d;
}

std::string words(WorkClass c) {
  std::string out(trace::to_text(c));
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

void add_step_tables(Diff& d, const Summary& a, const Summary& b) {
  DiffTable step{"step", "Step", DiffUnit::seconds, {}};
  DiffRow row{"step_time", "step time", a.mean.step, b.mean.step, ""};
  for (const Summary* s : {&a, &b})
    if (s->steps > 1)
      row.note += fmt::format("{}{} {} to {}", row.note.empty() ? "" : "; ", s == &a ? "A" : "B",
                              to_text(Time::from_seconds(s->least_step)), to_text(Time::from_seconds(s->most_step)));
  step.rows.push_back(row);
  d.tables.push_back(step);

  DiffTable time{"time", "Where it goes, mean of the ranks", DiffUnit::seconds, {}};
  auto rest = [](const StepSum& s) { return std::max(0.0, s.step - s.compute - s.exposed - s.copies); };
  time.rows.push_back({"compute", "", a.mean.compute, b.mean.compute, "some kernel runs that is no communication"});
  time.rows.push_back(
      {"exposed_communication", "communication that no compute hides", a.mean.exposed, b.mean.exposed, ""});
  time.rows.push_back({"exposed_copies", "copies beside nothing else", a.mean.copies, b.mean.copies, ""});
  time.rows.push_back({"device_idle", "the device waits", rest(a.mean), rest(b.mean), "bubbles, the host, gaps"});
  d.tables.push_back(time);
}

void add_classes(Diff& d, const Summary& a, const Summary& b) {
  DiffTable table{
      "classes", "Compute by class and phase (a backward holds what is recomputed in it)", DiffUnit::seconds, {}};
  auto work = a.mean.work;
  work.insert(b.mean.work.begin(), b.mean.work.end());
  for (const auto& [key, x] : work) {
    const auto& [kind, phase] = key;
    DiffRow row;
    row.key = fmt::format("{}/{}", trace::to_text(kind), trace::to_text(phase));
    row.words = fmt::format("{}, {}", words(kind), trace::to_text(phase));
    for (const Summary* s : {&a, &b}) {
      const auto at = s->mean.work.find(key);
      if (at == s->mean.work.end()) continue;
      (s == &a ? row.a : row.b) = at->second.first;
      row.note += fmt::format("{}{} {:.0f} {}", row.note.empty() ? "" : ", ", s == &a ? "A" : "B", at->second.second,
                              s == &a ? "ops" : "kernels");
    }
    table.rows.push_back(std::move(row));
  }
  d.tables.push_back(std::move(table));
}

/// By kind, and by the size of the group where both sides tell it of that kind.
std::map<CommunicationKey, Communication> communication_of(const Summary& s, const Summary& other) {
  auto tells = [](const Summary& x, WorkClass kind) {
    return std::ranges::all_of(x.mean.communication,
                               [&](const auto& c) { return c.first.kind != kind || c.first.group > 0; });
  };
  std::map<CommunicationKey, Communication> out;
  for (const auto& [key, c] : s.mean.communication) {
    const bool both = tells(s, key.kind) && tells(other, key.kind) && key.kind != WorkClass::send_receive;
    Communication& sum = out[{key.kind, both ? key.group : 0}];
    sum.seconds += c.seconds;
    sum.calls += c.calls;
    sum.bytes += c.bytes;
    sum.told = sum.told && c.told;
  }
  return out;
}

void add_communication(Diff& d, const Summary& a, const Summary& b) {
  const auto ca = communication_of(a, b), cb = communication_of(b, a);
  auto all = ca;
  all.insert(cb.begin(), cb.end());
  DiffTable time{"communication", "Communication by kind (from when a side is ready)", DiffUnit::seconds, {}};
  DiffTable calls{"communication_calls", "Calls a step", DiffUnit::count, {}};
  DiffTable bytes{"communication_bytes", "Bytes a step, as nccl-tests counts them", DiffUnit::bytes, {}};
  for (const auto& [key, unused] : all) {
    const std::string name = key.group > 0 ? fmt::format("{}/{}", trace::to_text(key.kind), key.group)
                                           : std::string(trace::to_text(key.kind));
    const std::string text =
        key.group > 0 ? fmt::format("{} of {} ranks", words(key.kind), key.group) : words(key.kind);
    DiffRow t{name, text, {}, {}, ""}, n = t, v = t;
    for (const auto* side : {&ca, &cb}) {
      const auto at = side->find(key);
      if (at == side->end()) continue;
      const bool first = side == &ca;
      (first ? t.a : t.b) = at->second.seconds;
      (first ? n.a : n.b) = at->second.calls;
      if (at->second.told) (first ? v.a : v.b) = at->second.bytes;
    }
    time.rows.push_back(std::move(t));
    calls.rows.push_back(std::move(n));
    if (v.a || v.b) bytes.rows.push_back(std::move(v));
  }
  for (DiffTable* t : {&time, &calls, &bytes}) d.tables.push_back(std::move(*t));
}

void add_unmatched(Diff& d, const std::string& name, const Summary& s) {
  constexpr size_t kNamed = 3;
  constexpr size_t kLetters = 60;
  double total = 0;
  for (const auto& [kernel, seconds] : s.unknown) total += seconds;
  if (total > 0) {
    std::string list;
    for (size_t i = 0; i < std::min(kNamed, s.unknown.size()); ++i)
      list += fmt::format("{}'{}'", i == 0 ? "" : ", ", s.unknown[i].first.substr(0, kLetters));
    d.notes.push_back(fmt::format("{}: {} a step in {} kernels whose names tell no class: {}{}", name,
                                  to_text(Time::from_seconds(total)), s.unknown.size(), list,
                                  s.unknown.size() > kNamed ? " ..." : ""));
  }
  double outside = 0;
  for (const auto& [key, x] : s.mean.work)
    if (key.second == ProfilePhase::outside) outside += x.first;
  if (outside > 0)
    d.notes.push_back(
        fmt::format("{}: {} a step are of no phase: launched by no operator of autograd, no optimizer and under "
                    "no annotation that says forward or backward",
                    name, to_text(Time::from_seconds(outside))));
}

}  // namespace

Result<Profile> profile_of(const TraceSide& side, const std::vector<uint32_t>& ranks) {
  const plan::Plan& plan = *side.plan;
  if (auto checked = trace::check_against_plan(*side.trace, plan); !checked) return checked.errors();
  Profile p;
  p.world = plan.mesh.ranks();
  p.measured = side.trace->meta.producer == trace::Producer::executed;
  p.description = fmt::format("{}{}{}, {} ranks", p.measured ? "measured" : "predicted",
                              side.trace->meta.cluster.empty() ? "" : " on ", side.trace->meta.cluster, p.world);
  std::map<uint32_t, std::vector<const trace::RankSpans*>> runs;
  std::map<uint32_t, int64_t> ends;  // of a step: its time
  for (const trace::RankSpans& r : side.trace->ranks) {
    runs[r.rank].push_back(&r);
    for (const trace::Span& s : r.spans) ends[r.step] = std::max(ends[r.step], s.end_ps);
  }
  std::vector<uint32_t> held;
  for (const auto& [rank, list] : runs) held.push_back(rank);
  int64_t stood_for = 0;
  for (const uint32_t rank : ranks.empty() ? held : ranks) {
    const auto from = int64_t{rank} < p.world ? trace::stand_in(plan, held, rank) : std::nullopt;
    if (!from) {
      p.notes.push_back(
          fmt::format("rank {} of the other side is not matched: {} has {}", rank, side.name,
                      int64_t{rank} < p.world ? "no rank of its stage" : fmt::format("{} ranks", p.world)));
      continue;
    }
    stood_for += *from != rank;
    p.ranks.push_back(rank);
    for (const trace::RankSpans* run : runs.at(*from)) add_step(p, plan, *run, rank, ends.at(run->step));
  }
  if (p.ranks.empty())
    return Diagnostic{side.name, "none of the other side's ranks is in its plan", p.notes.empty() ? "" : p.notes[0]};
  if (stood_for > 0)
    p.notes.push_back(fmt::format("{}: {} of {} ranks are read from another one of their stage that stands for them",
                                  side.name, stood_for, p.ranks.size()));
  return p;
}

Result<Diff> diff_profiles(const std::string& name_a, const Profile& a, const std::string& name_b, const Profile& b,
                           const DiffOptions& options) {
  auto sa = summary_of(name_a, a, options.warm_up), sb = summary_of(name_b, b, options.warm_up);
  Diagnostics faults;
  for (const auto* s : {&sa, &sb})
    if (!s->ok()) faults.insert(faults.end(), s->errors().begin(), s->errors().end());
  if (!faults.empty()) return faults;
  Diff d;
  d.a = side_of(name_a, a, sa.value());
  d.b = side_of(name_b, b, sb.value());
  add_step_tables(d, sa.value(), sb.value());
  add_classes(d, sa.value(), sb.value());
  add_communication(d, sa.value(), sb.value());
  if (a.world > 0 && b.world > 0 && a.world != b.world)
    d.notes.push_back(fmt::format("A is of {} ranks and B of {}: two jobs that are not alike", a.world, b.world));
  if (!a.marked || !b.marked)
    d.notes.push_back("without marks of steps times are of a whole trace: they compare only if it holds one step");
  for (const Profile* p : {&a, &b}) d.notes.insert(d.notes.end(), p->notes.begin(), p->notes.end());
  add_unmatched(d, name_a, sa.value());
  add_unmatched(d, name_b, sb.value());
  return d;
}

}  // namespace wt::study
