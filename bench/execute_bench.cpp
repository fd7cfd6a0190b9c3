// What the interpreter costs beside the kernels: steps of a real plan with kernels that do nothing, by op and as a share of
// the step that examples/small-gpt-2-cpu.yaml takes with them. Not the kernels' own speed (kernels_bench.cpp).
#include <benchmark/benchmark.h>

#include "core/lower/lower.hpp"
#include "core/plan/values.hpp"
#include "core/spec/read.hpp"
#include "exec/comm/inproc.hpp"
#include "exec/execute.hpp"

namespace wt::exec {
namespace {

JobSpec job_of(const std::vector<std::string>& set) {
  auto job = read_job(WT_SOURCE_DIR "/examples/small-gpt-2-cpu.yaml", set);
  WT_CHECK(job.ok(), "{}", to_text(job.errors()));
  return std::move(job.value());
}

const std::vector<std::string> kOneRank = {"cluster.node.devices=1", "strategy.data_parallel=ddp"};

RunSummary run(const plan::Plan& p, int64_t steps, const CpuKernel& kernel) {
  const auto tokens = pattern_tokens(p.seed, plan::vocabulary_of(p));
  RunOptions options;
  options.warmup = 2;
  options.steps = steps;
  options.execute.tokens = tokens.get();
  InprocOptions inproc;
  inproc.kernel = kernel;
  auto machines = open_inproc(p.mesh.ranks(), inproc);
  auto summary = run_ranks(p, machines, options);
  WT_CHECK(summary.ok(), "{}", to_text(summary.errors()));
  return std::move(summary.value());
}

Status nothing(const plan::Compute&, std::span<const Operand>, std::span<const Operand>, const KernelContext&,
               Workers&) {
  return ok_status();
}

void overhead(benchmark::State& state, const std::vector<std::string>& set) {
  const auto p = lower::lower(job_of(set));
  WT_CHECK(p.ok(), "{}", to_text(p.errors()));
  int64_t ops = 0;
  for (const plan::Invocation& i : p.value().programs[0].steps[0].order) ops += p.value().block(i.block).op_instances();
  const double real = run(p.value(), 5, {}).median.seconds();
  double empty = 0;
  for (auto _ : state) {
    empty = run(p.value(), 50, nothing).median.seconds();
    state.SetIterationTime(empty);
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["us_per_op"] = empty / static_cast<double>(ops) * 1e6;
  state.counters["step_ms"] = real * 1e3;
  state.counters["percent_of_step"] = 100 * empty / real;
}

BENCHMARK_CAPTURE(overhead, one_rank, kOneRank)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(overhead, data_2, {})->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(overhead, tensor_2, {"strategy.tensor=2"})
    ->UseManualTime()
    ->Iterations(3)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(overhead, pipeline_2, {"strategy.pipeline=2"})
    ->UseManualTime()
    ->Iterations(3)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace wt::exec
