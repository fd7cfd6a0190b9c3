// A whole configuration, from YAML to the printed report, and the configurations that docs/performance.md sets beside
// other simulators. The peers' figures are not made here: they are quoted there.
#include <benchmark/benchmark.h>

#include "core/lower/lower.hpp"
#include "core/report/print.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::study {
namespace {

const std::string kExample = std::string(WT_SOURCE_DIR) + "/examples/llama3-70b-1024-h100.yaml";

JobSpec read(const std::string& path, std::vector<std::string> set = {}) {
  auto job = read_job(path, set);
  WT_CHECK(job.ok(), "{}", to_text(job.errors()));
  return std::move(job.value());
}

size_t screen_of(const JobSpec& job, const sim::Models& models) {
  RunOptions options;
  options.models = &models;
  auto result = run_job(job, options);
  WT_CHECK(result.ok(), "{}", to_text(result.errors()));
  const JobResult& r = result.value();
  return report::print_screen({r.job, r.plan, r.report, r.plan_digest, r.assumptions, r.warnings, {}, {}}).size();
}

sim::Models models_for(const JobSpec& job) {
  auto models = sim::load_models(job.cluster);
  WT_CHECK(models.ok(), "{}", to_text(models.errors()));
  return std::move(models.value());
}

/// Files read, curves loaded, planned, simulated, reported, printed: all that `windtunnel simulate` does.
void yaml_to_report(benchmark::State& state) {
  for (auto _ : state) {
    const JobSpec job = read(kExample);
    benchmark::DoNotOptimize(screen_of(job, models_for(job)));
  }
}
BENCHMARK(yaml_to_report)->Unit(benchmark::kMicrosecond);

void read_the_job(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(read(kExample));
}
BENCHMARK(read_the_job)->Unit(benchmark::kMicrosecond);

void load_the_models(benchmark::State& state) {
  const JobSpec job = read(kExample);
  for (auto _ : state) benchmark::DoNotOptimize(models_for(job));
}
BENCHMARK(load_the_models)->Unit(benchmark::kMicrosecond);

/// The second configuration of a search on the same cluster: curves stay loaded, the report is the whole one.
void job_to_report(benchmark::State& state) {
  const JobSpec job = read(kExample);
  const sim::Models models = models_for(job);
  for (auto _ : state) benchmark::DoNotOptimize(screen_of(job, models));
}
BENCHMARK(job_to_report)->Unit(benchmark::kMicrosecond);

/// The same without breakdown: step time, rates and memory peaks, which is what a search asks.
void job_to_step_time(benchmark::State& state) {
  const JobSpec job = read(kExample);
  const sim::Models models = models_for(job);
  RunOptions options;
  options.models = &models;
  options.breakdown = false;
  for (auto _ : state) benchmark::DoNotOptimize(run_job(job, options).value().report.mfu);
}
BENCHMARK(job_to_step_time)->Unit(benchmark::kMicrosecond);

/// The next point of a search: one number of the strategy changed (4 and 8 stages in turn), planned anew, simulated,
/// memory checked. `allocator`: with what the caching allocator holds beyond the peak, as the report has it.
void next_point(benchmark::State& state, bool allocator) {
  const JobSpec job = read(kExample);
  const sim::Models models = models_for(job);
  RunOptions options;
  options.models = &models;
  options.breakdown = false;
  JobSpec point = job;
  for (auto _ : state) {
    point.strategy.pipeline = point.strategy.pipeline == 4 ? 8 : 4;
    auto result = run_job(point, options);
    WT_CHECK(result.ok(), "{}", to_text(result.errors()));
    benchmark::DoNotOptimize(result.value().report.memory.fits);
    if (allocator) benchmark::DoNotOptimize(report::memory_report(point, result.value().plan).fits);
  }
}
void search_next_point(benchmark::State& state) { next_point(state, false); }
void search_next_point_with_allocator(benchmark::State& state) { next_point(state, true); }
BENCHMARK(search_next_point)->Unit(benchmark::kMicrosecond);
BENCHMARK(search_next_point_with_allocator)->Unit(benchmark::kMicrosecond);

// ------------------------------------------------------------------------------------------ beside the peers

const char kGpt[] =
    "model: {layers: 8, hidden: 12288, ffn_hidden: 49152, heads: 96, vocab: 51200, max_context: 2048, gated_mlp: "
    "false, "
    "activation: gelu, norm: layer_norm, position: learned, tied_embeddings: true}\n"
    "cluster: {from: dgx-a100-80, nodes: 128}\n"
    "strategy: {tensor: 8, pipeline: 4, schedule: 1f1b, sequence_parallel: true, data_parallel: "
    "distributed_optimizer}\n"
    "training: {micro_batch: 1, global_batch: 128, seq_len: 2048, precision: bf16}\n";

JobSpec gpt(std::vector<std::string> set) {
  auto job = parse_job(kGpt, "bench", set);
  WT_CHECK(job.ok(), "{}", to_text(job.errors()));
  return std::move(job.value());
}

/// Planned and simulated; `all_ranks`: every op of every rank on its own, as a simulator without folding does.
void simulate_as(benchmark::State& state, const JobSpec& job, bool all_ranks) {
  const sim::Models models = models_for(job);
  sim::SimulateOptions options;
  options.all_ranks = options.op_by_op = all_ranks;
  uint64_t ops = 0;
  for (auto _ : state) {
    const auto plan = lower::lower(job);
    WT_CHECK(plan.ok(), "{}", to_text(plan.errors()));
    const auto result = sim::simulate(plan.value(), job.cluster, job.training, models, options);
    WT_CHECK(result.ok(), "{}", to_text(result.errors()));
    ops = result.value().ops;
  }
  state.counters["ops"] = static_cast<double>(ops);
}

// ASTRA-sim with STG's traces: 8 layers on 1,024 GPUs and 80 layers on 128, four micro-batches each.
void astra_1024_gpus_8_layers_all_ranks(benchmark::State& s) { simulate_as(s, gpt({}), true); }
void astra_1024_gpus_8_layers_folded(benchmark::State& s) { simulate_as(s, gpt({}), false); }
JobSpec deep() { return gpt({"model.layers=80", "cluster.nodes=16", "training.global_batch=16"}); }
void astra_128_gpus_80_layers_all_ranks(benchmark::State& s) { simulate_as(s, deep(), true); }
void astra_128_gpus_80_layers_folded(benchmark::State& s) { simulate_as(s, deep(), false); }
BENCHMARK(astra_1024_gpus_8_layers_all_ranks)->Unit(benchmark::kMillisecond);
BENCHMARK(astra_1024_gpus_8_layers_folded)->Unit(benchmark::kMillisecond);
BENCHMARK(astra_128_gpus_80_layers_all_ranks)->Unit(benchmark::kMillisecond);
BENCHMARK(astra_128_gpus_80_layers_folded)->Unit(benchmark::kMillisecond);

// GPT-3 175B, tensor 8, pipeline 8: Calculon on 1,024 A100 with a batch of 1,536; SimuMax on 1,024 with 24 micro-batches.
JobSpec gpt3(const char* batch) {
  return gpt({"model.layers=96", "strategy.pipeline=8", std::string("training.global_batch=") + batch});
}
void calculon_gpt3_175b(benchmark::State& s) { simulate_as(s, gpt3("1536"), false); }
void simumax_gpt3_175b_folded(benchmark::State& s) { simulate_as(s, gpt3("384"), false); }
void simumax_gpt3_175b_all_ranks(benchmark::State& s) { simulate_as(s, gpt3("384"), true); }
BENCHMARK(calculon_gpt3_175b)->Unit(benchmark::kMillisecond);
BENCHMARK(simumax_gpt3_175b_folded)->Unit(benchmark::kMillisecond);
BENCHMARK(simumax_gpt3_175b_all_ranks)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace wt::study
