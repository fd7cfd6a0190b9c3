#include "study/run_loop.hpp"

#include <algorithm>

#include "core/base/check.hpp"

namespace wt::study {

namespace {

/// Of a step, a forward: of forward, backward (twice as long) and what is run again.
double forward_share(const RecomputeSpec& r) {
  const double again = r.kind == RecomputeKind::full ? 1 / static_cast<double>(r.every) : 0;
  return 1 / (3 + again);
}

}  // namespace

LoopShares loop_shares(const JobSpec& job, double step_seconds) {
  WT_CHECK(step_seconds > 0, "a step of {} s", step_seconds);
  const LoopSpec& l = job.training.loop;
  LoopShares out;
  if (l.loader > 0) {
    const double batch = static_cast<double>(job.training.global_batch) / static_cast<double>(job.cluster.nodes);
    out.stall = std::max(0.0, batch / l.loader / step_seconds - 1);
  }
  if (l.evaluate_every > 0)
    out.evaluation = static_cast<double>(l.evaluation_batches) * forward_share(job.strategy.recompute) /
                     static_cast<double>(l.evaluate_every);
  return out;
}

}  // namespace wt::study
