// How fast collectives are priced: loading the tables, the first question about a group, every later one.
#include <benchmark/benchmark.h>

#include "core/spec/read.hpp"
#include "sim/collective/collective_cost.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;
using plan::Reduction;

void load(benchmark::State& state) {
  const ClusterSpec cluster = read_cluster("dgx-h100").value();
  for (auto _ : state) benchmark::DoNotOptimize(CollectiveCost::load(cluster));
}
BENCHMARK(load)->Name("collective/load")->Unit(benchmark::kMicrosecond);

void first(benchmark::State& state) {
  const CollectiveCost cost = CollectiveCost::load(read_cluster("dgx-h100").value()).value();
  GroupShape shape{.ranks = 1024, .nodes = 128, .ranks_per_node = 8, .domains = 128};
  for (auto _ : state) {
    shape.nic_share *= 0.9999;  // a group that was not seen before
    benchmark::DoNotOptimize(cost.estimate(CollectiveKind::all_reduce, Reduction::sum, DType::bf16, 1 << 20, shape));
  }
}
BENCHMARK(first)->Name("collective/first")->Unit(benchmark::kMicrosecond)->Iterations(2000);

void later(benchmark::State& state) {
  const CollectiveCost cost = CollectiveCost::load(read_cluster("dgx-h100").value()).value();
  const GroupShape shape{.ranks = 1024, .nodes = 128, .ranks_per_node = 8, .domains = 128};
  int64_t bytes = 1;
  for (auto _ : state) {
    bytes = bytes * 7 % 1000003;
    benchmark::DoNotOptimize(
        cost.estimate(CollectiveKind::all_reduce, Reduction::sum, DType::bf16, bytes * 4096, shape));
  }
}
BENCHMARK(later)->Name("collective/later");

void message(benchmark::State& state) {
  const CollectiveCost cost = CollectiveCost::load(read_cluster("dgx-h100").value()).value();
  for (auto _ : state) benchmark::DoNotOptimize(cost.estimate_message(64 << 20, RankId{0}, RankId{8}, 8));
}
BENCHMARK(message)->Name("collective/message");

}  // namespace
}  // namespace wt::sim
