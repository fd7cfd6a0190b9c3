// Trains a job for a few steps in the reference: losses before each update and all weights after the last.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "tests/reference/reference.hpp"

namespace wt::reference {

struct Trained {
  std::vector<double> losses;
  std::map<std::pair<std::string, int64_t>, std::vector<double>> weights;
};

inline constexpr int kSteps = 5;

/// Throws Fault where lowering, validation or a step fails.
inline Trained train(const JobSpec& job, uint64_t order_seed) {
  const auto lowered = lower::lower(job);
  if (!lowered.ok()) throw Fault(to_text(lowered.errors()));
  const auto valid = plan::validate(lowered.value());
  if (!valid.ok()) throw Fault(to_text(valid.errors()));
  Reference run(lowered.value(), {order_seed, 1e-2});
  Trained t;
  for (int i = 0; i < kSteps; ++i) t.losses.push_back(run.step());
  for (const auto& [name, layer] : run.weights())
    t.weights[{name, layer}] = run.weight(name, layer, job.strategy.overlap_param_gather);
  return t;
}

}  // namespace wt::reference
