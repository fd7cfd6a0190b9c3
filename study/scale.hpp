// Speed against the number of GPUs: strong scaling (the batch stays) or weak (it grows with them), the strategy held or
// chosen anew at each size, and where the speed is lost. Many simulations, no model of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/report/report.hpp"
#include "core/spec/specs.hpp"
#include "study/search.hpp"

namespace wt::study {

enum class Scaling : uint8_t { strong, weak };

struct ScaleOptions {
  std::vector<int64_t> gpus;  // ascending; below a node: one node with fewer devices
  Scaling scaling = Scaling::strong;
  bool choose = false;  // the best strategy at each size; else the job's, data parallelism taking what is left
  int64_t largest_micro_batch = 4;
  unsigned threads = 0;
  std::function<void(size_t done, size_t all)> progress;
  const std::atomic<bool>* stop = nullptr;
};

struct ScalePoint {
  int64_t gpus = 0, nodes = 0, global_batch = 0;
  std::string reason;  // why this size does not run; else empty, and what follows holds
  JobSpec job;
  double step_s = 0, tokens_per_s = 0, mfu = 0, reserved_gib = 0;
  std::string fits;
  double efficiency = 0;     // speed per GPU, relative to the smallest size that runs
  double marginal = 0;       // what an added GPU brings since the size before, relative to one of the smallest size
  double communication = 0;  // share of the step in which transfers are waited for
  double imbalance = 0;      // share in which a rank waits for others: pipeline bubble
  double fixed = 0;          // share of host gaps, optimizer and the rest
};

struct ScaleResult {
  std::vector<ScalePoint> points;
  bool complete = true;
};

/// 16, 32, 64 ... up to `last`, and `last`.
std::vector<int64_t> doubling(int64_t first, int64_t last);
/// The job on so many GPUs. Errors: not whole nodes; a batch that cannot be scaled.
Result<JobSpec> job_on(const JobSpec& job, int64_t gpus, Scaling scaling);

/// Errors: data files that do not parse. A size that does not run is a point with its reason.
Result<ScaleResult> scale(const JobSpec& job, const ScaleOptions& options);

struct ScaleQuestion {
  double price = 0;      // of a GPU-hour
  double day_worth = 0;  // what a day earlier is worth, in the same money
};
std::string print_scale_screen(const ScaleResult&, const JobSpec&, const ScaleOptions&, const ScaleQuestion&);
std::string print_scale_json(const ScaleResult&, const ScaleOptions&, const ScaleQuestion&);
std::string print_scale_csv(const ScaleResult&, const ScaleQuestion&);

}  // namespace wt::study
