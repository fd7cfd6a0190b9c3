// What a run spends beside its steps: waits for data loaders, evaluations (LoopSpec), as shares of the time of a step.
// Not failures and checkpoints: those are a campaign's.
#pragma once

#include "core/spec/specs.hpp"

namespace wt::study {

struct LoopShares {
  double stall = 0;       // for each second of a step: waits for the data loader
  double evaluation = 0;  // and, on the average, evaluations between steps
};
/// Each node loads its share of the batch while the step before runs; an evaluation is forward alone, one third of a step, or
/// one quarter where the layers are run again. `step_seconds` > 0.
LoopShares loop_shares(const JobSpec&, double step_seconds);

}  // namespace wt::study
