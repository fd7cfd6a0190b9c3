// A whole training run as events on a clock of its own: failures, detection, restart, repair, checkpoints, spot nodes that
// leave and come back. From the speed of one step to days, goodput, GPU-hours and money, with percentiles over seeds.
// The step is not simulated again: its time comes from the job. The same seed gives the same run on every machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/data_path.hpp"
#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

/// A row of data/campaign/failures.csv.
struct FailureRates {
  std::string name, source;
  double per_gpu_hour = 0;  // unplanned interruptions
  double node_share = 0;    // of them, those that take the node out
  double detection_s = 0, restart_s = 0;
  double storage_gb_s = 0;  // for each node
};
Result<std::vector<FailureRates>> failure_rates(const std::string& data = data_directory());

/// The run. Times in seconds.
struct Campaign {
  double work_s = 0;  // at full speed, without a fault: tokens / (tokens per second)
  int64_t nodes = 0, gpus_per_node = 0;
  FailureRates failures;
  int64_t spare_nodes = 0;
  double repair_s = 0;   // until a broken node is back, as a spare
  bool elastic = false;  // without a spare the run goes on with fewer nodes, each worth its share of the speed
  double preemptions_per_node_s = 0;  // spot: a node leaves; it comes back after `preempted_s` on the average
  double preempted_s = 0, notice_s = 0;
  double checkpoint_s = 0;           // until a checkpoint is safe
  double checkpoint_blocks_s = 0;    // of them, those in which training stands: all of it, or the copy to the host
  double interval_s = 0;             // of training between checkpoints
  double stall_share = 0;            // for each second of a step: waits for the data loader
  double evaluation_share = 0;       // and, on the average, evaluations between steps
  double most_s = 10 * 365 * 86400;  // a run that is not over by then never will be
};

/// Where the wall time of a run went, in seconds; adds up to wall_s.
struct RunAccount {
  double wall_s = 0;
  double work_s = 0;         // what would have sufficed
  double checkpoints_s = 0;  // training stood for them
  double lost_s = 0;         // done twice
  double detection_s = 0, restart_s = 0;
  double waiting_s = 0;  // for a node
  double slower_s = 0;   // elastic: what fewer nodes cost
  double stalls_s = 0;   // steps waited for data
  double evaluation_s = 0;
  int64_t failures = 0, preemptions = 0, checkpoints = 0;
  bool finished = true;
  double goodput() const { return wall_s > 0 ? work_s / wall_s : 0; }
};

RunAccount simulate_run(const Campaign& campaign, uint64_t seed);

/// Young's sqrt(2 C M), Daly's higher order form; M: mean time between interruptions of the job. 0 without any.
double young_interval(const Campaign&);
double daly_interval(const Campaign&);
/// Least mean wall time over seeds, by golden section around Young's.
double best_interval(const Campaign&, int64_t seeds = 64);

struct Quantiles {
  double p10 = 0, p50 = 0, p90 = 0, mean = 0;
};
struct CampaignResult {
  Campaign campaign;
  Quantiles wall_s, goodput;
  RunAccount mean;  // of all seeds (counts too, rounded)
  int64_t seeds = 0, unfinished = 0;
  double young_s = 0, daly_s = 0, best_s = 0;  // intervals
  bool complete = true;
};

struct CampaignOptions {
  int64_t seeds = 1000;
  uint64_t first_seed = 1;
  unsigned threads = 0;
  const std::atomic<bool>* stop = nullptr;
};
/// interval_s 0: the best. CHECKs that work, nodes and checkpoint times are positive.
CampaignResult run_campaign(Campaign campaign, const CampaignOptions& options = {});

struct CampaignQuestion {
  const JobSpec& job;
  double step_s = 0, price = 0;  // of a GPU-hour
  double checkpoint_gib = 0, storage_gb_s = 0;
};
std::string print_campaign_screen(const CampaignResult&, const CampaignQuestion&);
std::string print_campaign_json(const CampaignResult&, const CampaignQuestion&);

}  // namespace wt::study
