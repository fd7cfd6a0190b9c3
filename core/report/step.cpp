// Step time and rates, and where the time went (core/report/step_walk.hpp). Linear in the spans of the ranks it looks
// at, one for each pipeline stage.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/report/report.hpp"
#include "core/report/step_walk.hpp"
#include "core/trace/file.hpp"

namespace wt::report {

namespace {

using plan::Op;
using plan::Plan;

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

static_assert(kTerms.size() == kTermCount);

int64_t bytes_of_transfer(const Op& o) {
  if (const auto* c = std::get_if<plan::Collective>(&o.body)) return c->bytes;
  if (const auto* s = std::get_if<plan::Send>(&o.body)) return s->bytes;
  if (const auto* r = std::get_if<plan::Receive>(&o.body)) return r->bytes;
  if (const auto* m = std::get_if<plan::Copy>(&o.body)) return m->bytes;
  return 0;
}

/// Names are built once for each op of the plan, not for each span.
std::vector<OpClass> classes_of(const Plan& plan, const RankWalk& walk) {
  struct Costs {
    OpClass* of = nullptr;
    double flops = 0, bytes = 0;
  };
  std::map<std::pair<std::string, plan::Stream>, OpClass> all;
  std::vector<std::vector<Costs>> by_op(plan.blocks.size());  // [block][op]
  walk.for_each_span([&](BlockId block, uint32_t k, const trace::Span& span) {
    std::vector<Costs>& of_block = by_op[block.v];
    if (of_block.empty()) of_block.resize(plan.block(block).ops.size());
    Costs& costs = of_block[k];
    if (!costs.of) {
      const Op& o = plan.block(block).ops[k];
      const std::string name = class_of(o);
      costs.of = &all[{name, o.stream}];
      costs.of->name = name;
      costs.of->stream = o.stream;
      if (const auto* w = std::get_if<plan::Compute>(&o.body)) {
        costs.flops = w->work.flops;
        costs.bytes = static_cast<double>(w->work.bytes_read + w->work.bytes_written);
      } else {
        costs.bytes = static_cast<double>(bytes_of_transfer(o));
      }
    }
    OpClass& c = *costs.of;
    c.seconds += static_cast<double>(span.end_ps - span.begin_ps) * 1e-12;
    ++c.count;
    c.flops += costs.flops;
    c.bytes += costs.bytes;
  });
  std::vector<OpClass> out;
  for (auto& [key, c] : all)
    if (c.seconds > 0) out.push_back(std::move(c));
  std::stable_sort(out.begin(), out.end(), [](const OpClass& a, const OpClass& b) { return a.seconds > b.seconds; });
  return out;
}

TimeBreakdown to_seconds(const TermSums& sums) {
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
    case plan::Kernel::grouped_gemm:
    case plan::Kernel::attention_forward:
    case plan::Kernel::attention_backward:
    case plan::Kernel::latent_attention_forward:
    case plan::Kernel::latent_attention_backward:
    case plan::Kernel::block_attention_forward:
    case plan::Kernel::block_attention_backward:
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

StepReport step_rates(const JobSpec& job, const Plan& plan, Time step_time, MemoryReport memory, FlopFormula formula) {
  StepReport r;
  r.step_time = step_time;
  fill_rates(r, job, plan, formula);
  r.memory = std::move(memory);
  return r;
}

StepReport step_rates(const JobSpec& job, const Plan& plan, Time step_time, FlopFormula formula) {
  return step_rates(job, plan, step_time, memory_peaks(job, plan), formula);
}

Result<StepTimes> step_times(const Plan& plan, const trace::Trace& trace, uint32_t step) {
  if (auto checked = trace::check_against_plan(trace, plan); !checked) return checked.errors();
  StepTimes r;
  struct Slowest {
    const trace::RankSpans* run = nullptr;
    int64_t end = 0;
  };
  StepWalks walks(plan);
  std::map<int64_t, Slowest> stages;
  Slowest critical;
  for (const trace::RankSpans& run : trace.ranks) {
    if (run.step != step || run.spans.empty()) continue;
    walks.add(run);
    int64_t end = run.spans[0].end_ps;
    for (const trace::Span& s : run.spans) end = std::max(end, s.end_ps);
    const int64_t stage = walks.stage(run.rank);
    Slowest& slowest = stages[stage];
    if (!slowest.run || end > slowest.end) slowest = {&run, end};
    if (!critical.run || end > critical.end) critical = {&run, end};
  }
  if (!critical.run || critical.end <= 0) return Diagnostic{"trace", fmt::format("step {} is empty", step), ""};
  // Instants count from the end of the step before on the slowest rank: the critical rank's step is [0, end).
  r.step_time = Time::ps(critical.end);
  r.critical_rank = critical.run->rank;
  for (const auto& [stage, slowest] : stages) {
    RankWalk& walk = walks.walk(*slowest.run);
    // A rank that is early began early: its own step is as long.
    const TermSums sums = walk.breakdown(slowest.end - critical.end, slowest.end);
    r.by_stage.push_back({stage, slowest.run->rank, to_seconds(sums)});
    if (slowest.run == critical.run) {
      r.time = r.by_stage.back().time;
      r.op_classes = classes_of(plan, walk);
      int64_t total = 0;
      for (int64_t ps : sums) total += ps;
      WT_CHECK(total == critical.end, "terms {} ps, step {} ps", total, critical.end);
    }
  }
  for (const StageTime& s : r.by_stage) r.bubble_fraction += s.time.bubble;
  r.bubble_fraction /= static_cast<double>(r.by_stage.size()) * r.step_time.seconds();
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
