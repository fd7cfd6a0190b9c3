// Cost of the memory report and of lowering for the main job, 70B on 1,024 ranks, and of all that is between its YAML and
// its report (CPU time; models of the cluster are loaded anew each time, as by the command line).
#include <benchmark/benchmark.h>

#include "core/lower/lower.hpp"
#include "core/report/report.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::report {
namespace {

const JobSpec& job() {
  static const JobSpec j = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml").value();
  return j;
}
const plan::Plan& plan() {
  static const plan::Plan p = lower::lower(job()).value();
  return p;
}

void lower_main_job(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(lower::lower(job()).ok());
}
BENCHMARK(lower_main_job);

void memory_peaks_main_job(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(memory_peaks(job(), plan()).peak_stage);
}
BENCHMARK(memory_peaks_main_job);

void memory_report_main_job(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(memory_report(job(), plan()).peak_stage);
}
BENCHMARK(memory_report_main_job);

void yaml_to_report_main_job(benchmark::State& state) {
  for (auto _ : state) {
    const auto read = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml");
    benchmark::DoNotOptimize(study::run_job(read.value()).value().report.memory.peak_stage);
  }
}
BENCHMARK(yaml_to_report_main_job)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace wt::report
