// What each resource is worth: the step simulated again with one number of the cluster or the batch changed, all else
// equal, and the least of it that keeps most of the speed. Says nothing of two resources changed together.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

/// A number that is scaled. More is better for all but latencies and oversubscription.
struct Resource {
  std::string id, name;
  bool more_is_better = true;
  bool continuous = true;                      // any factor makes a job: the least that will do can be asked for
  std::string (*value)(const JobSpec&);        // as printed: "400 Gb/s x 8"; "": the job has none
  bool (*scale)(JobSpec& job, double factor);  // false: this factor makes no job
};
/// In the order of the table.
const std::vector<Resource>& resources();

struct SensitivityOptions {
  std::vector<double> factors = {0.25, 0.5, 2, 4};
  double keep = 0.9;  // share of the speed that the least amount must keep
  unsigned threads = 0;
  const std::atomic<bool>* stop = nullptr;
};

struct SensitivityRow {
  std::string id, name, value;
  bool more_is_better = true, continuous = true;
  std::vector<double> step_s;  // by factor; 0: cannot be
  double least_factor = 0;     // keeps `keep` of the speed (the most, of a latency); 0: even the extreme tried does
  std::string least_value;
  double elasticity = 0;  // per cent of speed that one per cent more (less of a latency) brings, at the job's own value
};

struct SensitivityResult {
  double step_s = 0;
  std::vector<double> factors;
  double keep = 0.9;
  std::vector<SensitivityRow> rows;
  bool complete = true;
};

/// Errors: the job itself does not run.
Result<SensitivityResult> sensitivity(const JobSpec& job, const SensitivityOptions& options = {});

std::string print_sensitivity_screen(const SensitivityResult&, const JobSpec&);
std::string print_sensitivity_json(const SensitivityResult&);
std::string print_sensitivity_csv(const SensitivityResult&);

}  // namespace wt::study
