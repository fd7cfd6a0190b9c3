// Fold, price, run: the simulation behind any prices. Not a model; the prices come through Pricing.
#include <algorithm>
#include <chrono>

#include "sim/engine/rank_engine.hpp"
#include "sim/fold/fold.hpp"
#include "sim/price/priced_program.hpp"
#include "sim/simulate.hpp"

namespace wt::sim {

Result<RunSummary> simulate(const plan::Plan& plan, const Pricing& pricing, const SimulateOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Fold fold = fold_ranks(plan, pricing, options.all_ranks);
  const Result<PricedPlan> priced = price_plan(plan, pricing, fold, !options.op_by_op);
  if (!priced) return priced.errors();
  RankEngine engine(plan, pricing, fold, priced.value());

  auto last_end = [&] { return *std::max_element(engine.ends().begin(), engine.ends().end()); };
  if (Status s = engine.run_step(0, nullptr, 0); !s) return s.errors();
  int64_t origin = last_end(), before = origin;
  for (uint32_t step = 0; step < std::max(options.steps, 1u); ++step) {
    before = last_end();
    if (step == 0) origin = before;
    if (Status s = engine.run_step(step, options.sink, before); !s) return s.errors();
  }

  RunSummary out;
  const auto slowest = std::max_element(engine.ends().begin(), engine.ends().end());
  out.step_time = Time::ps(*slowest - before);
  out.critical_rank = fold.rank_of[static_cast<size_t>(slowest - engine.ends().begin())];
  out.ops = engine.ops();
  out.events = engine.events();
  out.released = engine.released();
  out.ranks = static_cast<uint64_t>(plan.mesh.ranks());
  out.distinct_ranks = fold.units();
  out.rank_times.reserve(fold.units());
  out.folded.reserve(fold.units());
  for (uint32_t u = 0; u < fold.units(); ++u) {
    out.rank_times.push_back({fold.rank_of[u], fold.stands_for, Time::ps(engine.ends()[u] - before)});
    out.folded.push_back({fold.rank_of[u], fold.stands_for});
  }
  out.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace wt::sim
