// Price of a price: reading the curves of a chip, and one estimate of each kind (a plan has some two hundred).
#include <benchmark/benchmark.h>

#include "sim/cost/compute_cost.hpp"

namespace wt::sim {
namespace {

DeviceSpec device(const char* kernels) {
  DeviceSpec d;
  d.kernels = kernels;
  d.peak = {{DType::bf16, {989e12}}};
  d.memory_bandwidth = {3350e9};
  d.l2_cache = {50 << 20};
  d.multiprocessors = 132;
  d.power_watts = 700;
  return d;
}

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(ComputeCost::load(device("h100")));
}
BENCHMARK(load);

void estimate(benchmark::State& state, plan::Kernel kernel, std::array<int64_t, 5> dims) {
  const auto cost = ComputeCost::load(device("h100"));
  plan::Compute op;
  op.kernel = kernel;
  op.dims = dims;
  op.causal = true;
  op.work = {1e12, 1 << 28, 1 << 27};
  int64_t i = 0;
  for (auto _ : state) {
    op.dims[0] = dims[0] + (++i & 1023);
    benchmark::DoNotOptimize(cost.value().estimate(op));
  }
}
BENCHMARK_CAPTURE(estimate, gemm, plan::Kernel::gemm, {8192, 8192, 8192, 0, 0});
BENCHMARK_CAPTURE(estimate, gemm_small, plan::Kernel::gemm, {256, 1024, 8192, 0, 0});
BENCHMARK_CAPTURE(estimate, attention, plan::Kernel::attention_forward, {1, 8192, 32, 8, 128});
BENCHMARK_CAPTURE(estimate, norm, plan::Kernel::norm_forward, {8192, 8192, 0, 0, 0});

}  // namespace
}  // namespace wt::sim
