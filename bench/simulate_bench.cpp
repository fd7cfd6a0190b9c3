// Simulation of the Llama-3-70B example on 1,024 ranks: folded, and with every rank and every op. Most use constant
// prices, so that folding, pricing of blocks and the engine are measured and not the models; `_models` use those.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <filesystem>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"
#include "core/trace/file.hpp"
#include "sim/fold/fold.hpp"
#include "sim/price/priced_program.hpp"
#include "sim/simulate.hpp"

namespace wt::sim {
namespace {

class ConstantPricing final : public Pricing {
 public:
  Time compute(const plan::Compute& op) const override {
    return Time::ps(static_cast<int64_t>(op.work.flops / 500 + static_cast<double>(op.work.bytes_read) / 2) + 2000000);
  }
  Time copy(const plan::Copy& op) const override { return Time::ps(op.bytes * 20); }
  CollectivePrice collective(const plan::Collective& op, const GroupShape& shape) const override {
    return {Time::ps(10000000 + op.bytes * (shape.nodes > 1 ? 20 : 3)), 16};
  }
  Time message(int64_t bytes, RankId, RankId, int64_t) const override { return Time::ps(5000000 + bytes * 20); }
  GroupShape shape_of(std::span<const RankId> members) const override {
    GroupShape s;
    s.ranks = static_cast<int64_t>(members.size());
    s.nodes = members.back().v / 8 - members.front().v / 8 + 1;
    return s;
  }
  double slowdown(const plan::Compute&, int64_t) const override { return 1.15; }
  Time device_gap() const override { return Time::us(1); }
  Time kernel_issue() const override { return Time::us(3); }
  Time transfer_issue() const override { return Time::us(3); }
  MachineCells cells() const override { return {8, 8, 0}; }
};

const JobSpec& job() {
  static const JobSpec job = [] {
    auto read = read_job(std::string(WT_SOURCE_DIR) + "/examples/llama3-70b-1024-h100.yaml");
    WT_CHECK(read.ok(), "{}", to_text(read.errors()));
    return read.value();
  }();
  return job;
}

const plan::Plan& example() {
  static const plan::Plan plan = [] {
    auto lowered = lower::lower(job());
    WT_CHECK(lowered.ok(), "{}", to_text(lowered.errors()));
    return lowered.value();
  }();
  return plan;
}

class NullSink final : public trace::Sink {
 public:
  uint64_t count = 0;
  void spans(uint32_t, uint32_t, std::span<const trace::Span> s) override { count += s.size(); }
  void sample(const trace::Sample&) override {}
};

void run(benchmark::State& state, const SimulateOptions& options) {
  const plan::Plan& plan = example();
  const ConstantPricing pricing;
  uint64_t ops = 0, events = 0;
  for (auto _ : state) {
    auto result = simulate(plan, pricing, options);
    WT_CHECK(result.ok(), "{}", to_text(result.errors()));
    ops = result.value().ops;
    events = result.value().events;
    benchmark::DoNotOptimize(result.value().step_time);
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["events"] = static_cast<double>(events);
  state.counters["per_op"] = benchmark::Counter(
      static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_lower(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(lower::lower(job()));
}
BENCHMARK(BM_lower)->Unit(benchmark::kMicrosecond);

void BM_fold_and_price(benchmark::State& state) {
  const ConstantPricing pricing;
  for (auto _ : state) {
    const Fold fold = fold_ranks(example(), pricing, false);
    benchmark::DoNotOptimize(price_plan(example(), pricing, fold, true));
  }
}
BENCHMARK(BM_fold_and_price)->Unit(benchmark::kMicrosecond);

const Models& models() {
  static const Models models = [] {
    auto loaded = load_models(job().cluster);
    WT_CHECK(loaded.ok(), "{}", to_text(loaded.errors()));
    return loaded.value();
  }();
  return models;
}

void BM_lower_and_simulate_models(benchmark::State& state) {
  models();
  for (auto _ : state) {
    const auto plan = lower::lower(job());
    auto result = simulate(plan.value(), job().cluster, job().training, models(), {});
    WT_CHECK(result.ok());
    benchmark::DoNotOptimize(result.value().step_time);
  }
}
BENCHMARK(BM_lower_and_simulate_models)->Unit(benchmark::kMicrosecond);

void BM_simulate_models(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(simulate(example(), job().cluster, job().training, models(), {}).value().step_time);
}
BENCHMARK(BM_simulate_models)->Unit(benchmark::kMicrosecond);

void BM_fold_and_price_models(benchmark::State& state) {
  const auto pricing = make_pricing(job().cluster, job().training, models());
  for (auto _ : state) {
    const Fold fold = fold_ranks(example(), *pricing, false);
    benchmark::DoNotOptimize(price_plan(example(), *pricing, fold, true));
  }
}
BENCHMARK(BM_fold_and_price_models)->Unit(benchmark::kMicrosecond);

void BM_simulate_folded(benchmark::State& state) { run(state, {}); }
BENCHMARK(BM_simulate_folded)->Unit(benchmark::kMicrosecond);

void BM_simulate_folded_op_by_op(benchmark::State& state) {
  SimulateOptions options;
  options.op_by_op = true;
  run(state, options);
}
BENCHMARK(BM_simulate_folded_op_by_op)->Unit(benchmark::kMicrosecond);

void BM_simulate_all_ranks(benchmark::State& state) {
  SimulateOptions options;
  options.all_ranks = options.op_by_op = true;
  run(state, options);
}
BENCHMARK(BM_simulate_all_ranks)->Unit(benchmark::kMillisecond);

void BM_simulate_all_ranks_traced(benchmark::State& state) {
  NullSink sink;
  SimulateOptions options;
  options.all_ranks = true;
  options.sink = &sink;
  run(state, options);
}
BENCHMARK(BM_simulate_all_ranks_traced)->Unit(benchmark::kMillisecond);

void BM_simulate_all_ranks_native_trace(benchmark::State& state) {
  const plan::Plan& plan = example();
  const ConstantPricing pricing;
  const std::string text = plan::print(plan);
  const std::string path = (std::filesystem::temp_directory_path() / "simulate_bench.wt").string();
  uint64_t ops = 0;
  for (auto _ : state) {
    auto sink = trace::FileSink::create(path, text);
    WT_CHECK(sink.ok(), "{}", to_text(sink.errors()));
    SimulateOptions options;
    options.all_ranks = true;
    options.sink = sink.value().get();
    auto result = simulate(plan, pricing, options);
    WT_CHECK(result.ok());
    WT_CHECK(sink.value()->finish({}).ok());
    ops = result.value().ops;
  }
  state.counters["bytes"] = static_cast<double>(std::filesystem::file_size(path));
  std::filesystem::remove(path);
  state.counters["per_op"] = benchmark::Counter(
      static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_simulate_all_ranks_native_trace)->Unit(benchmark::kMillisecond);

/// Building and simulating other strategies on 1,024 ranks, folded, with the models.
struct Variant {
  const char* name;
  const char* job;
  std::vector<std::string> overrides;
};
const char* const kDense = "/examples/llama3-70b-1024-h100.yaml";
const char* const kExperts = "/examples/mixtral-8x22b-256-h100-overlap.yaml";
const char* const kShards = "/examples/llama3-405b-512-h100-fsdp2-pp.yaml";
std::vector<std::string> on_a_v(const char* schedule) {
  return {std::string("strategy.schedule=") + schedule, "strategy.virtual_stages=2", "strategy.pipeline=8",
          "strategy.data=16"};
}
const Variant kVariants[] = {
    {"looped-bfs", kDense, {"strategy.schedule=looped-bfs"}},
    {"zb-h2", kDense, {"strategy.schedule=zb-h2", "strategy.virtual_stages=1"}},
    {"zb-v", kDense, on_a_v("zb-v")},
    {"v-half", kDense, on_a_v("v-half")},
    {"v-min", kDense, on_a_v("v-min")},
    {"dualpipe-v", kDense, on_a_v("dualpipe-v")},
    {"layout",
     kDense,
     {"strategy.virtual_stages=1", "strategy.schedule=1f1b", "strategy.pipeline_layout=Et*20|(t*20|)*2t*20L"}},
    {"recomputed_parts", kDense, {"strategy.recompute.kind=selective", "strategy.recompute.modules=layernorm mlp"}},
    {"overlapped_passes", kExperts, {"cluster.nodes=128", "training.global_batch=1024"}},
    {"fsdp2_on_stages", kShards, {"cluster.nodes=128", "training.global_batch=128"}},
    {"fsdp2_on_stages_and_context",
     kShards,
     {"cluster.nodes=128", "training.global_batch=64", "strategy.context=2", "training.seq_len=65536"}},
};

void BM_lower_and_simulate(benchmark::State& state) {
  const Variant& v = kVariants[static_cast<size_t>(state.range(0))];
  const auto read = read_job(std::string(WT_SOURCE_DIR) + v.job, v.overrides);
  WT_CHECK(read.ok(), "{}: {}", v.name, to_text(read.errors()));
  const JobSpec& j = read.value();
  const auto loaded = load_models(j.cluster);
  WT_CHECK(loaded.ok() && j.cluster.ranks() == 1024);
  for (auto _ : state) {
    const auto plan = lower::lower(j);
    WT_CHECK(plan.ok(), "{}: {}", v.name, to_text(plan.errors()));
    auto result = simulate(plan.value(), j.cluster, j.training, loaded.value(), {});
    WT_CHECK(result.ok(), "{}: {}", v.name, to_text(result.errors()));
    benchmark::DoNotOptimize(result.value().step_time);
  }
  state.SetLabel(v.name);
}
BENCHMARK(BM_lower_and_simulate)->DenseRange(0, std::size(kVariants) - 1)->Unit(benchmark::kMicrosecond);

/// 16,384 ranks, none folded.
void BM_simulate_16384_ranks(benchmark::State& state) {
  JobSpec big = job();
  big.cluster.nodes = 2048;
  big.strategy.data = 0;
  big.training.global_batch = 4096;
  const auto plan = lower::lower(big);
  WT_CHECK(plan.ok(), "{}", to_text(plan.errors()));
  const ConstantPricing pricing;
  SimulateOptions options;
  options.all_ranks = options.op_by_op = true;
  uint64_t ops = 0;
  for (auto _ : state) {
    auto result = simulate(plan.value(), pricing, options);
    WT_CHECK(result.ok());
    ops = result.value().ops;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["per_op"] = benchmark::Counter(
      static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_simulate_16384_ranks)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace wt::sim
