// Runs a plan on modelled hardware: one clock, integer time, total order of events. Ranks that are provably alike are
// simulated once. Contention-free communication for now: each op is priced once, ranks run ahead between the ops that
// synchronise them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"
#include "core/trace/trace.hpp"
#include "sim/collective/collective_cost.hpp"
#include "sim/cost/compute_cost.hpp"
#include "sim/cost/host_cost.hpp"
#include "sim/price/pricing.hpp"

namespace wt::sim {

/// Loaded once for a cluster, shared by any number of simulations and threads.
struct Models {
  ComputeCost compute;
  CollectiveCost collective;
  HostCost host;
};
Result<Models> load_models(const ClusterSpec& cluster);

struct SimulateOptions {
  bool all_ranks = false;       // no folding
  bool op_by_op = false;        // no summaries of blocks: slower, same times
  uint32_t steps = 1;           // steady steps after the warm one
  trace::Sink* sink = nullptr;  // null: no trace; the fast path may summarise blocks
};

struct RankTime {
  uint32_t rank = 0, stands_for = 1;
  Time end;  // of its last op, from the start of the last step
};

struct RunSummary {
  Time step_time;              // steady: from the end of one step to the end of the next on the slowest rank
  uint32_t critical_rank = 0;  // where the step ends
  uint64_t ops = 0;            // op instances of the simulated ranks, summarised ones included
  // Turns of ranks (each runs ahead until it needs another), collectives and messages that met, kernels that the queue
  // released: of all steps, the warm one included, as `ops`.
  uint64_t events = 0;
  uint64_t released = 0;  // of these, the kernels
  uint64_t ranks = 0, distinct_ranks = 0;
  double wall_seconds = 0;
  std::vector<RankTime> rank_times;
  std::vector<trace::FoldedRank> folded;
};

/// A warm step from time 0, then `steps` steady ones. Ranks flow from one step into the next without a barrier; a step
/// starts when the one before has ended on the slowest rank. The sink receives the steady steps (0 .. steps - 1), each
/// relative to its start: ops of ranks that are early have negative times.
/// Errors: a plan that gets stuck names every stuck rank and op. `training` gives the host profile.
Result<RunSummary> simulate(const plan::Plan&, const ClusterSpec&, const TrainingSpec& training, const Models&,
                            const SimulateOptions&);

/// The same with any prices.
Result<RunSummary> simulate(const plan::Plan&, const Pricing&, const SimulateOptions&);

/// The models as prices; all arguments must outlive it.
std::unique_ptr<Pricing> make_pricing(const ClusterSpec&, const TrainingSpec&, const Models&);

}  // namespace wt::sim
