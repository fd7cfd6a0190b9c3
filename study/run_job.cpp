#include "study/run_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "study/run_loop.hpp"

namespace wt::study {

namespace {

/// Spans go to memory (of chosen ranks, or all) and on to another sink.
class Tee final : public trace::Sink {
 public:
  Tee(trace::MemorySink* memory, trace::Sink* other, std::set<uint32_t> only)
      : memory_(memory), other_(other), only_(std::move(only)) {}
  void spans(uint32_t rank, uint32_t step, std::span<const trace::Span> s) override {
    if (memory_ && (only_.empty() || only_.contains(rank))) memory_->spans(rank, step, s);
    if (other_) other_->spans(rank, step, s);
  }
  void sample(const trace::Sample& s) override {
    if (memory_) memory_->sample(s);
    if (other_) other_->sample(s);
  }

 private:
  trace::MemorySink* memory_;
  trace::Sink* other_;
  std::set<uint32_t> only_;
};

/// The slowest rank of each pipeline stage: those that the report looks at.
std::set<uint32_t> ranks_to_keep(const plan::Plan& plan, const sim::RunSummary& run) {
  const auto pp = plan.mesh.find("pp");
  std::map<int64_t, const sim::RankTime*> slowest;
  for (const sim::RankTime& t : run.rank_times) {
    const sim::RankTime*& s = slowest[pp ? plan.mesh.coordinate(RankId{t.rank}, *pp) : 0];
    if (!s || t.end > s->end) s = &t;
  }
  std::set<uint32_t> keep;
  for (const auto& [stage, t] : slowest) keep.insert(t->rank);
  return keep;
}

/// Ops of the longest steady step of a rank.
size_t spans_of_a_step(const plan::Plan& plan) {
  int64_t most = 0;
  for (const plan::Program& program : plan.programs) {
    int64_t ops = 0;
    if (!program.steps.empty())
      for (const plan::Invocation& i : program.steps[0].order) ops += plan.block(i.block).op_instances();
    most = std::max(most, ops);
  }
  return static_cast<size_t>(most);
}

/// A learned position beyond the last is an error (lower/check.cpp); any other computes, on what the model never saw.
bool beyond_context(const JobSpec& job) {
  return job.model.max_context > 0 && job.training.seq_len > job.model.max_context;
}

/// Ops too long to simulate, of a job longer than its model's context: one fault at the key that made them so.
Diagnostics named_by_key(const JobSpec& job, const Diagnostics& of_ops) {
  if (!beyond_context(job) || of_ops.empty()) return of_ops;
  const Diagnostic& first = of_ops.front();
  return {
      {"training.seq_len",
       fmt::format("{} tokens, {:.0f} times the model's max_context of {}: {} {}", with_commas(job.training.seq_len),
                   static_cast<double>(job.training.seq_len) / static_cast<double>(job.model.max_context),
                   with_commas(job.model.max_context), first.where, first.what),
       first.hint}};
}

/// The first phase of start-up whose peak the device does not hold; nothing where the job gets to its first step.
const report::PhasePeak* fails_at_start(const report::StageMemory& stage, Bytes capacity) {
  for (const report::PhasePeak& p : stage.phases) {
    if (p.phase == "forward") return nullptr;  // in their order: a step begins
    if (p.peak.n + stage.context.n + stage.communicators.n > capacity.n) return &p;
  }
  return nullptr;
}

/// The layers of which stage to change, and by which key.
std::string_view layers_key(int64_t stage, int64_t stages) {
  if (stage == 0) return "strategy.first_stage_layers";
  return stage == stages - 1 ? "strategy.last_stage_layers" : "strategy.pipeline_layout";
}

/// What the stages wait for: the slowest of them, and for the rest the pipeline's filling and draining.
void warn_of_pipeline(const JobResult& r, std::vector<std::string>& out) {
  const StrategySpec& s = r.job.strategy;
  const auto& stages = r.report.by_stage;
  const double step = r.report.step_time.seconds();
  if (s.pipeline <= 1 || stages.empty() || step <= 0) return;
  double sum = 0, most = 0;
  int64_t slowest = 0;
  for (const report::StageTime& x : stages) {
    const double busy = x.time.total() - x.time.bubble - x.time.exposed_pipeline - x.time.exposed_data;
    sum += busy;
    if (busy <= most) continue;
    most = busy;
    slowest = x.stage;
  }
  const double mean = sum / static_cast<double>(stages.size());
  const double uneven = (most - mean) / step;
  if (uneven > 0.05)
    out.push_back(
        fmt::format("the stages are uneven: stage {} works {} of a step, their mean is {}, so that {:.0f} % "
                    "of the step is waiting for it; fewer layers there ({}) balance them",
                    slowest, to_text(Time::from_seconds(most)), to_text(Time::from_seconds(mean)), uneven * 100,
                    layers_key(slowest, s.pipeline)));
  const double bubble = r.report.bubble_fraction - std::max(uneven, 0.0);
  if (bubble > 0.15)
    out.push_back(
        fmt::format("pipeline bubble {:.0f} %{}: {} micro-batches for {} stages; a global batch of {} or more "
                    "virtual stages make it smaller",
                    bubble * 100, uneven > 0.05 ? " beside it" : "", r.plan.micro_batches, s.pipeline,
                    2 * r.job.training.global_batch));
}

std::vector<std::string> warnings_of(const JobResult& r) {
  std::vector<std::string> out = r.job.warnings;
  if (beyond_context(r.job))
    out.push_back(
        fmt::format("training.seq_len {} exceeds the model's max_context {}: positions that it was not made for",
                    with_commas(r.job.training.seq_len), with_commas(r.job.model.max_context)));
  const StrategySpec& s = r.job.strategy;
  const ClusterSpec& c = r.job.cluster;
  const auto& m = r.report.memory;
  if (!m.stages.empty()) {
    const auto& stage = m.stages[m.peak_stage];
    if (const report::PhasePeak* p = fails_at_start(stage, m.capacity))
      out.push_back(
          fmt::format("out of memory before the first step: '{}' holds {:.1f} GiB, the device {:.1f}, its "
                      "context and communicators {:.1f}",
                      p->phase, p->peak.gib(), m.capacity.gib(), Bytes{stage.context.n + stage.communicators.n}.gib()));
    const double share = static_cast<double>(stage.reserved.n) / static_cast<double>(m.capacity.n);
    if (share > 1 && share <= 1.03)
      out.push_back(fmt::format(
          "{:.0f} % of the device memory would be in use: it fits only where less of it fragments", share * 100));
    else if (share > 0.92 && share <= 1)
      out.push_back(fmt::format("{:.0f} % of the device memory is in use: runs above 92 % fail at times", share * 100));
  }
  if (c.node.host_memory.n > 0 && m.host_gib_per_node > c.node.host_memory.gib())
    out.push_back(
        fmt::format("host memory: {:.0f} GiB needed on a node of {:.0f} GiB when a checkpoint is staged there",
                    m.host_gib_per_node, c.node.host_memory.gib()));
  if (s.offload.optimizer != OffloadDevice::none && c.node.host_memory_bandwidth.n <= 0)
    out.push_back("node.host_memory_bandwidth is not given: the update on the host costs no time here");
  const bool files = s.offload.optimizer == OffloadDevice::nvme || s.offload.parameters == OffloadDevice::nvme;
  if (files && (c.node.nvme_read.n <= 0 || c.node.nvme_write.n <= 0))
    out.push_back("node.nvme_read and node.nvme_write are not given: files cost no time here");
  const int64_t domain = c.node.scale_up.domain > 0 ? c.node.scale_up.domain : c.node.devices;
  if (s.tensor > domain)
    out.push_back(fmt::format("tensor = {} crosses the {} devices that NVLink joins: its collectives use the network",
                              s.tensor, domain));
  warn_of_pipeline(r, out);
  if (const double step = r.report.step_time.seconds(); step > 0) {
    const LoopShares loop = loop_shares(r.job, step);
    if (loop.stall > 0)
      out.push_back(fmt::format(
          "every step waits {:.3g} s for its data: a node loads {:g} sequences a second, the step "
          "takes {:.3g}; a run is {:.0f} % longer",
          loop.stall * step, r.job.training.loop.loader,
          static_cast<double>(r.job.training.global_batch) / static_cast<double>(c.nodes) / step, loop.stall * 100));
    if (loop.evaluation > 0)
      out.push_back(fmt::format("evaluations between steps make a run {:.2g} % longer", loop.evaluation * 100));
  }
  if (r.report.mfu > 0.85)
    out.push_back(
        fmt::format("MFU {:.0f} % is above anything published: check the cluster's numbers", r.report.mfu * 100));
  return out;
}

std::vector<std::string> assumptions_of(const JobResult& r) {
  std::vector<std::string> out = r.job.assumptions;
  out.insert(out.end(), r.plan.assumptions.begin(), r.plan.assumptions.end());
  const DeviceSpec& d = r.job.cluster.device;
  if (d.measured)
    out.push_back(fmt::format("kernel times: curves of {} itself; roofline for kernels without one", d.name));
  else if (d.kernels.empty())
    out.push_back(fmt::format("kernel times: roofline of {}; no measured curves for it", d.name));
  const double lost = r.job.training.fragmentation;
  out.push_back(
      fmt::format("memory: what PyTorch's caching allocator holds follows a model of it; {} (training.fragmentation)",
                  lost == 0 ? "nothing more is lost" : fmt::format("{:.3g} % of the peak more is lost", lost * 100)));
  if (!r.report.memory.stages.empty()) {
    const auto& s = r.report.memory.stages[r.report.memory.peak_stage];
    out.push_back(fmt::format("memory: {} for the CUDA context, {} for {} communicator{} (NCCL's default buffers)",
                              to_text(s.context), to_text(s.communicators), s.communicator_count,
                              s.communicator_count == 1 ? "" : "s"));
  }
  out.push_back("network: transfers of different groups do not slow each other down");
  return out;
}

}  // namespace

Result<JobResult> run_job(const JobSpec& job, const RunOptions& options) {
  auto plan = lower::lower(job);
  if (!plan) return plan.errors();
  return run_job(job, std::move(plan.value()), options);
}

Result<JobResult> run_job(const JobSpec& job, plan::Plan plan, const RunOptions& options) {
  std::optional<sim::Models> own;
  if (!options.models) {
    auto loaded = sim::load_models(job.cluster);
    if (!loaded) return loaded.errors();
    own = std::move(loaded.value());
  }
  const sim::Models& models = options.models ? *options.models : *own;
  if (const Status known = models.compute.check(job.training); !known) return known.errors();

  JobResult r;
  r.job = job;
  r.plan = std::move(plan);
  if (r.job.strategy.data == 0) r.job.strategy.data = r.plan.mesh.data_ranks();
  r.plan_digest = plan::digest(r.plan);

  sim::SimulateOptions simulate;
  simulate.all_ranks = options.all_ranks;
  const bool in_memory = options.breakdown || options.keep_trace;
  std::set<uint32_t> only;
  constexpr int64_t kManyRanks = 256;
  if (options.all_ranks && !options.keep_trace && in_memory && r.plan.mesh.ranks() > kManyRanks) {
    // All spans would not fit in memory: a first run without a trace tells which ranks matter.
    auto first = sim::simulate(r.plan, job.cluster, job.training, models, simulate);
    if (!first) return first.errors();
    only = ranks_to_keep(r.plan, first.value());
  }
  trace::MemorySink memory(spans_of_a_step(r.plan));
  Tee tee(in_memory ? &memory : nullptr, options.sink, std::move(only));
  if (in_memory || options.sink) simulate.sink = &tee;
  auto run = sim::simulate(r.plan, job.cluster, job.training, models, simulate);
  if (!run) return named_by_key(job, run.errors());
  r.run = std::move(run.value());

  if (in_memory) {
    trace::Trace trace = memory.take(trace_meta(r, "", ""), "");
    if (options.breakdown) {
      auto report = report::step_report(r.job, r.plan, trace, options.formula);
      if (!report) return report.errors();
      r.report = std::move(report.value());
    }
    if (options.keep_trace) r.trace = std::move(trace);
  }
  if (!options.breakdown) {
    r.report = report::step_rates(r.job, r.plan, r.run.step_time, options.formula);
    r.report.critical_rank = r.run.critical_rank;
  }
  r.warnings = warnings_of(r);
  r.assumptions = assumptions_of(r);
  return r;
}

trace::Meta trace_meta(const JobResult& r, std::string code_version, std::string command) {
  trace::Meta meta;
  meta.producer = trace::Producer::simulated;
  meta.plan_digest = r.plan_digest;
  meta.cluster = r.job.cluster.name;
  meta.code_version = std::move(code_version);
  meta.command = std::move(command);
  meta.seed = r.job.training.seed;
  meta.ranks = r.run.folded;
  return meta;
}

}  // namespace wt::study
