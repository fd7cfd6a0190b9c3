// Simulation of the Llama-3-70B example on 1,024 ranks: folded, and with every rank and every op.
// Prices are constants here: what is measured is folding, pricing of blocks and the engine, not the models.
#include <benchmark/benchmark.h>

#include "core/lower/lower.hpp"
#include "core/spec/read.hpp"
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

}  // namespace
}  // namespace wt::sim
