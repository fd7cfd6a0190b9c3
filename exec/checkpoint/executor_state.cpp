#include "exec/checkpoint/executor_state.hpp"

#include <algorithm>

#include "exec/checkpoint/plan_state.hpp"

namespace wt::exec {

std::vector<Holding> holdings_of(const Executor& e) {
  return holdings_of(e.plan(), e.script().rank, [&](BufferId buffer, int64_t chunk, int64_t layer) {
    const auto& all = e.script().persistent;
    const auto it = std::find_if(all.begin(), all.end(), [&](const Persistent& p) {
      return p.buffer == buffer && p.chunk == chunk && p.layer == layer;
    });
    WT_CHECK(it != all.end(), "'{}' of chunk {}, layer {} does not persist", e.plan().buffer(buffer).name, chunk,
             layer);
    return e.operand(*it);
  });
}

Progress progress_of(const Executor& e) {
  const TrainingState& s = e.state();
  const plan::Plan& plan = e.plan();
  Progress p;
  p.step = s.step;
  p.skipped = s.skipped;
  p.samples = s.step * plan.micro_batches * plan.micro_batch_size * plan.mesh.data_ranks();
  p.seed = plan.seed;
  p.learning_rate = e.options().learning_rate.at(s.step);
  p.loss_scale = s.loss_scale.scale;
  p.good_steps = s.loss_scale.good_steps;
  return p;
}

void continue_from(Executor& e, const Progress& p) {
  TrainingState& s = e.state();
  s.step = p.step;
  s.skipped = p.skipped;
  s.loss_scale.scale = p.loss_scale;
  s.loss_scale.good_steps = p.good_steps;
}

}  // namespace wt::exec
