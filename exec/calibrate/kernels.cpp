#include "exec/calibrate/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <tuple>

#include "core/lower/lower.hpp"
#include "core/plan/kernels.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "exec/execute.hpp"

namespace wt::exec {

Status on_every(std::vector<Machine>& machines, const std::function<Status(Machine&)>& f) {
  if (machines.size() == 1) return f(machines[0]);
  std::vector<Status> results(machines.size(), ok_status());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < machines.size(); ++i) threads.emplace_back([&, i] { results[i] = f(machines[i]); });
  for (std::thread& t : threads) t.join();
  for (Status& s : results)
    if (!s) return s;
  return ok_status();
}

namespace {

using namespace plan;

// ------------------------------------------------------------------------------------------------- the jobs

struct Shape {
  int64_t hidden, heads, kv_heads, ffn, sequence, micro_batch, vocab;
};

/// GPT's choices: learned positions, layer norms, GELU, biases, a tied embedding.
ModelSpec gpt(const Shape& s) {
  ModelSpec m;
  m.name = "probe";
  m.layers = 2;
  m.hidden = s.hidden;
  m.ffn_hidden = s.ffn;
  m.heads = s.heads;
  m.kv_heads = s.kv_heads;
  m.head_dim = s.hidden / s.heads;
  m.vocab = s.vocab;
  m.max_context = s.sequence;
  m.attention_bias = m.output_bias = m.mlp_bias = true;
  return m;
}

/// Llama's: rotary positions, RMS norms, gated SiLU, fewer keys than queries, no biases.
ModelSpec llama(const Shape& s) {
  ModelSpec m = gpt(s);
  m.attention_bias = m.output_bias = m.mlp_bias = false;
  m.position = Position::rotary;
  m.norm = Norm::rms_norm;
  m.gated_mlp = true;
  m.activation = Activation::silu;
  m.tied_embeddings = false;
  return m;
}

constexpr int64_t kMicroBatches = 2;

JobSpec job_of(ModelSpec model, const Shape& s, int64_t ranks, DType precision) {
  JobSpec j;
  j.name = fmt::format("probe {}x{}", s.hidden, s.sequence * s.micro_batch);
  j.model = std::move(model);
  j.cluster.nodes = 1;
  j.cluster.node.devices = ranks;
  j.cluster.device.name = "probe";
  j.cluster.device.peak[precision] = {1e12};
  TrainingSpec& t = j.training;
  t.micro_batch = s.micro_batch;
  t.global_batch = s.micro_batch * kMicroBatches * ranks;
  t.seq_len = s.sequence;
  t.vocab_multiple = 1;
  t.compute_dtype = t.param_dtype = precision;
  t.master_weights = precision != DType::f32;
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  return j;
}

void cut_tensors(JobSpec& j, int64_t ranks) {
  j.strategy.tensor = ranks;
  j.training.global_batch = j.training.micro_batch * kMicroBatches;
}

/// Layers of experts, so many on each rank, under the even load; each expert an eighth to a half of a dense MLP.
JobSpec with_experts(const Shape& s, int64_t on_a_rank, int64_t ranks, DType precision) {
  ModelSpec m = llama(s);
  m.moe = MoeSpec{.experts = on_a_rank * ranks, .top_k = 2, .ffn_hidden = s.ffn / on_a_rank};
  JobSpec j = job_of(std::move(m), s, ranks, precision);
  j.name += " experts";
  j.strategy.expert = ranks;
  return j;
}

/// Sequences shared by all ranks.
JobSpec with_context(const Shape& s, ContextExchange exchange, int64_t ranks, DType precision) {
  JobSpec j = job_of(llama(s), s, ranks, precision);
  j.name += " context";
  j.strategy.context = ranks;
  j.strategy.context_exchange = exchange;
  j.training.global_batch = j.training.micro_batch * kMicroBatches;
  return j;
}

/// Latent attention with the proportions of DeepSeek-V2: a rope part of half the rest, values as wide as that.
JobSpec with_latent(const Shape& s, int64_t ranks, DType precision) {
  ModelSpec m = llama(s);
  const int64_t d = s.hidden / s.heads / 2 * 2;
  m.kv_heads = m.heads;
  m.mla = MlaSpec{.q_lora_rank = s.hidden / 2,
                  .kv_lora_rank = s.hidden / 4,
                  .qk_nope_head_dim = d,
                  .qk_rope_head_dim = d / 2,
                  .v_head_dim = d};
  m.head_dim = d + d / 2;
  JobSpec j = job_of(std::move(m), s, ranks, precision);
  j.name += " latent";
  return j;
}

}  // namespace

std::vector<JobSpec> probe_jobs(int64_t ranks, DType precision, Extent extent) {
  // Widths and token counts by factors of two to four over what one core trains in a second; none is a power-of-two
  // ladder in all of them at once, so that products of many proportions are met.
  static constexpr Shape gpts[] = {
      {96, 2, 2, 384, 48, 1, 320},       {128, 4, 4, 512, 64, 1, 256},     {128, 2, 2, 512, 320, 1, 1024},
      {320, 5, 5, 1280, 64, 1, 1536},    {256, 4, 4, 1024, 128, 2, 512},   {256, 8, 8, 1024, 512, 1, 2048},
      {512, 8, 8, 2048, 64, 1, 1024},    {512, 8, 8, 2048, 256, 1, 4096},  {512, 4, 4, 2048, 256, 4, 256},
      {1024, 16, 16, 4096, 128, 1, 512}, {1024, 8, 8, 4096, 512, 1, 1024},
  };
  static constexpr Shape llamas[] = {
      {128, 4, 2, 352, 128, 2, 512},
      {256, 4, 4, 704, 256, 1, 1024},
      {512, 8, 2, 1408, 256, 2, 768},
      {1024, 16, 4, 2816, 64, 2, 256},
  };
  std::vector<JobSpec> jobs;
  if (extent == Extent::quick) {
    for (const Shape& s : {gpts[0], gpts[1]}) jobs.push_back(job_of(gpt(s), s, ranks, precision));
    jobs.push_back(with_experts(gpts[1], 2, ranks, precision));
    if (ranks > 1 && gpts[1].sequence % (2 * ranks) == 0)
      jobs.push_back(with_context(gpts[1], ContextExchange::ring, ranks, precision));
    return jobs;
  }
  for (const Shape& s : gpts) jobs.push_back(job_of(gpt(s), s, ranks, precision));
  for (const Shape& s : llamas) jobs.push_back(job_of(llama(s), s, ranks, precision));
  // Kernels that only some strategies have.
  JobSpec ddp = jobs[4], unfused = jobs[1], recomputed = jobs[4];
  ddp.strategy.data_parallel = DataParallel::ddp;
  unfused.strategy.attention = AttentionKernel::unfused;
  jobs.push_back(ddp);
  jobs.push_back(unfused);
  if (ranks > 1 && gpts[4].heads % ranks == 0) {
    for (const bool sequence : {false, true}) {
      JobSpec cut = jobs[4];
      cut_tensors(cut, ranks);
      cut.strategy.sequence_parallel = sequence;
      jobs.push_back(cut);
    }
  }
  for (const int64_t on_a_rank : {2, 4})
    for (const Shape& s : {llamas[0], llamas[1], llamas[2]})
      jobs.push_back(with_experts(s, on_a_rank, ranks, precision));
  for (const Shape& s : {llamas[0], llamas[2]}) jobs.push_back(with_latent(s, ranks, precision));
  for (const Shape& s : {llamas[0], llamas[1]})
    for (const auto exchange : {ContextExchange::ring, ContextExchange::all_gather, ContextExchange::all_to_all})
      if (ranks > 1 && s.sequence % (2 * ranks) == 0 && s.kv_heads % ranks == 0)
        jobs.push_back(with_context(s, exchange, ranks, precision));
  return jobs;
}

namespace {

// ---------------------------------------------------------------------------------------------- what is timed

/// A shape of a kernel: points are kept by it.
using Key = std::tuple<Kernel, std::string, DType, std::array<int64_t, 5>>;

struct Timed {
  Compute compute;
  double seconds = 0;  // weighted sum
  double weight = 0;
};
using Times = std::map<Key, Timed>;

/// A compute op of the steady step, as spans name it.
struct Instance {
  uint32_t invocation = 0, instance = 0;
  const Op* op = nullptr;
  const Compute& compute() const { return std::get<Compute>(op->body); }
  bool names(const trace::Span& s) const { return s.invocation == invocation && s.op == instance; }
};

/// In issue order.
std::vector<Instance> computes_of(const Plan& plan, RankId rank) {
  std::vector<Instance> out;
  const auto& order = plan.programs[program_of(plan, rank).v].steps.at(0).order;
  for (uint32_t i = 0; i < order.size(); ++i)
    for_each_op(plan.block(order[i].block), [&](const Op& op, uint32_t, int64_t, uint32_t instance) {
      if (std::holds_alternative<Compute>(op.body)) out.push_back({i, instance, &op});
    });
  return out;
}

/// Mean without the tenth at each end: an interrupt is not the kernel's.
double middle(std::vector<double>& v) {
  std::sort(v.begin(), v.end());
  const size_t cut = v.size() / 10;
  double sum = 0;
  for (size_t i = cut; i < v.size() - cut; ++i) sum += v[i];
  return sum / static_cast<double>(v.size() - 2 * cut);
}

constexpr int64_t kWarmup = 1, kSteps = 4;

/// Trains `job` for a few steps; the spans of the ranks of this process.
Result<trace::Trace> train(const Plan& plan, std::vector<Machine>& machines) {
  const auto tokens = pattern_tokens(plan.seed, vocabulary_of(plan));
  trace::MemorySink sink;
  RunOptions run;
  run.warmup = kWarmup;
  run.steps = kSteps;
  run.execute.tokens = tokens.get();
  run.sink = &sink;
  const bool threads = static_cast<int64_t>(machines.size()) == plan.mesh.ranks();
  const auto done = threads ? run_ranks(plan, machines, run) : run_rank(plan, machines[0], run);
  if (!done) return done.errors();
  return sink.take({}, "");
}

/// Adds the kernels of one job, as a mean over all ranks. Every rank runs the same program.
Status add_times(const Plan& plan, std::vector<Machine>& machines, Times& all) {
  auto trace = train(plan, machines);
  if (!trace) return trace.errors();
  const auto ops = computes_of(plan, RankId{0});
  std::map<Key, std::pair<const Compute*, std::vector<double>>> seconds;
  for (const trace::RankSpans& r : trace.value().ranks) {
    size_t at = 0;
    for (const trace::Span& s : r.spans) {
      if (at == ops.size() || !ops[at].names(s)) continue;
      const Compute& c = ops[at++].compute();
      auto& of = seconds[Key{c.kernel, variant_of(c), c.dtype, c.dims}];
      of.first = &c;
      of.second.push_back(1e-12 * static_cast<double>(s.end_ps - s.begin_ps));
    }
    WT_CHECK(at == ops.size(), "{} of {} kernels in the trace", at, ops.size());
  }
  std::vector<double> means;
  for (auto& [key, of] : seconds) means.push_back(middle(of.second));
  // Threads of one process have their samples together already; processes add up theirs.
  if (static_cast<int64_t>(machines.size()) < plan.mesh.ranks()) {
    auto sums = machines[0].communicator->reduce(means, Reduction::average);
    if (!sums) return sums.errors();
    means = std::move(sums.value());
  }
  size_t i = 0;
  for (const auto& [key, of] : seconds) {
    Timed& t = all[key];
    const auto weight = static_cast<double>(of.second.size());
    t.compute = *of.first;
    t.seconds += weight * means[i++];
    t.weight += weight;
  }
  return ok_status();
}

/// What one op costs when its kernel does nothing, the host that issues it on the same core included: the time until the
/// last backward op, which nothing but ops comes before, by their number.
Result<Time> measure_overhead(const Ranks& ranks, DType precision) {
  const auto nothing = [](const Compute&, std::span<const Operand>, std::span<const Operand>, const KernelContext&,
                          Workers&) { return ok_status(); };
  auto machines = ranks.open(nothing);
  if (!machines) return machines.errors();
  JobSpec job = probe_jobs(ranks.size, precision, Extent::quick)[0];
  job.model.layers = 32;
  auto plan = lower::lower(job);
  if (!plan) return plan.errors();
  auto trace = train(plan.value(), machines.value());
  if (!trace) return trace.errors();
  const auto ops = computes_of(plan.value(), RankId{0});
  std::vector<double> each;  // of a rank and step
  for (const trace::RankSpans& r : trace.value().ranks) {
    size_t at = 0, counted = 0;
    int64_t end = 0;
    for (const trace::Span& s : r.spans) {
      if (at == ops.size() || !ops[at].names(s)) continue;
      const Phase phase = ops[at++].op->phase;
      if (phase != Phase::forward && phase != Phase::backward_input && phase != Phase::backward_weight) continue;
      end = std::max(end, s.end_ps);
      ++counted;
    }
    if (counted > 0) each.push_back(1e-12 * static_cast<double>(end) / static_cast<double>(counted));
  }
  if (each.empty()) return Time();
  const double mine[] = {middle(each)};
  if (machines.value().size() > 1 || ranks.size == 1) return Time::from_seconds(mine[0]);
  auto mean = machines.value()[0].communicator->reduce(mine, Reduction::average);
  if (!mean) return mean.errors();
  return Time::from_seconds(mean.value()[0]);
}

std::vector<KernelCurve> curves_of(const Times& times) {
  std::vector<KernelCurve> curves;
  for (const auto& [key, t] : times) {
    const auto& [kernel, variant, dtype, dims] = key;
    if (t.seconds <= 0) continue;
    if (curves.empty() || curves.back().kernel != to_text(kernel) || curves.back().variant != variant ||
        curves.back().dtype != dtype) {
      KernelCurve& c = curves.emplace_back();
      c.kernel = to_text(kernel);
      c.variant = variant;
      c.dtype = dtype;
    }
    KernelPoint p;
    p.dims.assign(dims.begin(), dims.end());
    while (p.dims.size() > 1 && p.dims.back() == 0) p.dims.pop_back();
    p.flops = t.compute.work.flops;
    p.bytes = {t.compute.work.bytes_read + t.compute.work.bytes_written};
    p.time = Time::ns(std::llround(t.seconds / t.weight * 1e9));
    if (p.time.count_ps() > 0) curves.back().points.push_back(std::move(p));
  }
  std::erase_if(curves, [](const KernelCurve& c) { return c.points.empty(); });
  return curves;
}

}  // namespace

Result<KernelMeasurement> measure_kernels(const Ranks& ranks, DType precision, Extent extent) {
  Times times;
  for (const JobSpec& job : probe_jobs(ranks.size, precision, extent)) {
    auto plan = lower::lower(job);
    if (!plan) return plan.errors();
    auto machines = ranks.open(nullptr);
    if (!machines) return machines.errors();
    if (const Status s = add_times(plan.value(), machines.value(), times); !s) return s.errors();
  }
  auto overhead = measure_overhead(ranks, precision);
  if (!overhead) return overhead.errors();
  return KernelMeasurement{curves_of(times), overhead.value()};
}

}  // namespace wt::exec
