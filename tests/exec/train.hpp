// Trains a job on ranks as threads and brings back what tests compare: the loss of each step, and the weights by global
// index. Copies of a weight on several ranks are compared here: they must be equal to the bit.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/spec/specs.hpp"
#include "exec/comm/inproc.hpp"
#include "exec/execute.hpp"

namespace wt::exec {

/// Name and layer of the model (-1: of no layer).
using WeightId = std::pair<std::string, int64_t>;

struct Trained {
  std::string failure;  // empty: it went well
  std::vector<double> losses;
  std::map<WeightId, std::vector<double>> weights;
  RunSummary summary;
};

struct TrainOptions {
  int64_t steps = 20;
  double learning_rate = 1e-2;
  std::optional<DType> floats = DType::f64;
  bool weights = true;               // bring them back
  std::optional<double> loss_scale;  // fp16: to begin with
  InprocOptions inproc;
  TrainOptions() { inproc.poison = true; }
};

Trained train(const plan::Plan&, const TrainOptions& = {});
/// Lowers first; a job that cannot be lowered fails.
Trained train(const JobSpec&, const TrainOptions& = {});

}  // namespace wt::exec
