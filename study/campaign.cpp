#include "study/campaign.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <random>

#include "core/base/check.hpp"
#include "sim/cost/csv.hpp"
#include "study/on_threads.hpp"

namespace wt::study {

namespace {

constexpr double kHour = 3600;
constexpr double kClockTick = 1e-6;  // s: sums of times that should meet do, whatever their rounding
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Draws that are the same everywhere: the standard leaves its distributions to the library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double exponential(double rate) { return rate > 0 ? -std::log1p(-uniform()) / rate : kNever; }

 private:
  std::mt19937_64 engine_;
};

/// One run. Time passes in stretches of undisturbed training, each from a restart to the next event.
class Run {
 public:
  Run(const Campaign& c, uint64_t seed) : c_(c), random_(seed), active_(c.nodes), spares_(c.spare_nodes) {
    // A checkpoint that is still being written when the next is due delays it.
    interval_ = std::max(c.interval_s, c.checkpoint_s - c.checkpoint_blocks_s);
  }

  RunAccount account() {
    while (safe_ < c_.work_s) {
      if (a_.wall_s > c_.most_s) {
        a_.finished = false;
        break;
      }
      if (!staff()) continue;
      if (train()) break;
    }
    a_.work_s = std::min(safe_, c_.work_s);
    return a_;
  }

 private:
  double staffed() const { return static_cast<double>(active_) / static_cast<double>(c_.nodes); }
  /// Work for each second of training: with fewer nodes less, and steps are not alone in that second.
  double speed() const { return staffed() / (1 + c_.stall_share + c_.evaluation_share); }

  void pass(double seconds, double& cause) {
    a_.wall_s += seconds;
    cause += seconds;
    while (!returns_.empty() && returns_.top() <= a_.wall_s + kClockTick) {
      returns_.pop();
      ++spares_;
    }
  }

  /// Nodes from the spares; false: there are not enough, and time was spent waiting for the next.
  bool staff() {
    const int64_t taken = std::min(spares_, c_.nodes - active_);
    active_ += taken;
    spares_ -= taken;
    if (active_ == c_.nodes || (c_.elastic && active_ > 0)) return true;
    pass(std::max(0.0, returns_.top() - a_.wall_s), a_.waiting_s);
    return false;
  }

  /// Trains until the end (true) or the next event, and accounts for it.
  bool train() {
    const double gpus = static_cast<double>(active_ * c_.gpus_per_node);
    const double fails = random_.exponential(c_.failures.per_gpu_hour / kHour * gpus);
    const double leaves = random_.exponential(c_.preemptions_per_node_s * static_cast<double>(active_));
    const double grows = active_ < c_.nodes && !returns_.empty() ? returns_.top() - a_.wall_s : kNever;
    const double event = std::min({fails, leaves, grows});
    const double cycle = interval_ + c_.checkpoint_blocks_s;

    const double left = (c_.work_s - safe_) / speed();
    const double between = std::floor(std::max(0.0, left - kClockTick) / interval_);  // no checkpoint at the very end
    const double needed = left + between * c_.checkpoint_blocks_s;
    if (needed <= event) {
      settle(needed, left, needed - left);
      a_.checkpoints += static_cast<int64_t>(between);
      safe_ = c_.work_s;
      return true;
    }
    // Full cycles, then a part of one; what the last whole checkpoint holds is safe.
    const double cycles = std::floor(event / cycle), part = std::min(event - cycles * cycle, interval_);
    const double trained = cycles * interval_ + part;
    const bool told = event != fails && (event == grows || c_.notice_s >= c_.checkpoint_s);  // time to save first
    // Checkpoint k begins after k intervals and k - 1 blocks; it is safe checkpoint_s later.
    const double saved = std::max(0.0, std::floor((event - c_.checkpoint_s + c_.checkpoint_blocks_s) / cycle));
    const double kept = told ? trained : std::min(saved * interval_, trained);
    settle(event, trained, event - trained);
    if (told) pass(c_.checkpoint_s, a_.checkpoints_s);
    a_.checkpoints += static_cast<int64_t>(cycles) + (told ? 1 : 0);
    a_.lost_s += (trained - kept) * speed();
    safe_ += kept * speed();
    if (event == fails)
      fail();
    else if (event == leaves)
      leave();
    pass(c_.failures.restart_s, a_.restart_s);
    return false;
  }

  /// `wall` seconds of which `trained` were training and `blocked` stood for checkpoints.
  void settle(double wall, double trained, double blocked) {
    double ignored = 0;
    pass(wall, ignored);
    a_.checkpoints_s += blocked;
    a_.slower_s += trained * (1 - staffed());  // with fewer nodes they are worth less than they take
    a_.stalls_s += trained * speed() * c_.stall_share;
    a_.evaluation_s += trained * speed() * c_.evaluation_share;
  }

  void fail() {
    ++a_.failures;
    pass(c_.failures.detection_s, a_.detection_s);
    if (random_.uniform() >= c_.failures.node_share) return;
    --active_;
    returns_.push(a_.wall_s + c_.repair_s);
  }
  void leave() {
    ++a_.preemptions;
    --active_;
    returns_.push(a_.wall_s + random_.exponential(1 / std::max(c_.preempted_s, 1.0)));
  }

  const Campaign& c_;
  Random random_;
  RunAccount a_;
  double interval_ = 0, safe_ = 0;  // safe_: seconds of work at full speed that a checkpoint holds
  int64_t active_, spares_;
  std::priority_queue<double, std::vector<double>, std::greater<>> returns_;
};

Quantiles quantiles(std::vector<double> values) {
  Quantiles q;
  if (values.empty()) return q;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  q.p10 = at(0.1);
  q.p50 = at(0.5);
  q.p90 = at(0.9);
  for (const double v : values) q.mean += v / static_cast<double>(values.size());
  return q;
}

/// Mean seconds between interruptions that lose work.
double mean_between(const Campaign& c) {
  const double rate = c.failures.per_gpu_hour / kHour * static_cast<double>(c.nodes * c.gpus_per_node) +
                      (c.notice_s >= c.checkpoint_s ? 0 : c.preemptions_per_node_s * static_cast<double>(c.nodes));
  return rate > 0 ? 1 / rate : 0;
}

double mean_wall(Campaign c, double interval, int64_t seeds) {
  c.interval_s = interval;
  double sum = 0;
  for (int64_t s = 0; s < seeds; ++s) sum += simulate_run(c, static_cast<uint64_t>(s) + 1).wall_s;
  return sum / static_cast<double>(seeds);
}

}  // namespace

Result<std::vector<FailureRates>> failure_rates(const std::string& data) {
  constexpr std::string_view kColumns[] = {"name",    "failures", "node_share", "detection",
                                           "restart", "storage",  "source"};
  auto csv = sim::Csv::read(data + "/campaign/failures.csv", kColumns);
  if (!csv) return csv.errors();
  std::vector<FailureRates> out;
  for (size_t row = 0; row < csv.value().rows(); ++row) {
    sim::Csv& t = csv.value();
    FailureRates f{std::string(t.text(row, 0)),
                   std::string(t.text(row, 6)),
                   t.number(row, 1),
                   t.number(row, 2),
                   t.number(row, 3),
                   t.number(row, 4),
                   t.number(row, 5)};
    if (f.per_gpu_hour < 0) t.fail(row, 1, "must not be negative");
    if (f.node_share < 0 || f.node_share > 1) t.fail(row, 2, "is no share", "legal: 0 to 1");
    if (f.detection_s < 0) t.fail(row, 3, "must not be negative");
    if (f.restart_s < 0) t.fail(row, 4, "must not be negative");
    if (f.storage_gb_s <= 0) t.fail(row, 5, "must be more than 0");
    out.push_back(std::move(f));
  }
  if (!csv.value().errors().empty()) return csv.value().errors();
  return out;
}

RunAccount simulate_run(const Campaign& c, uint64_t seed) {
  WT_CHECK(c.work_s > 0 && c.nodes > 0 && c.gpus_per_node > 0 && c.interval_s > 0 && c.checkpoint_s >= 0 &&
           c.checkpoint_blocks_s <= c.checkpoint_s && c.stall_share >= 0 && c.evaluation_share >= 0);
  return Run(c, seed).account();
}

double young_interval(const Campaign& c) { return std::sqrt(2 * c.checkpoint_blocks_s * mean_between(c)); }

double daly_interval(const Campaign& c) {
  const double m = mean_between(c), cost = c.checkpoint_blocks_s;
  if (m == 0) return 0;
  if (cost >= 2 * m) return m;
  return std::sqrt(2 * cost * m) * (1 + std::sqrt(cost / (2 * m)) / 3 + cost / (18 * m)) - cost;
}

double best_interval(const Campaign& c, int64_t seeds) {
  const double young = young_interval(c);
  if (young == 0) return c.work_s;  // nothing is ever lost, or a checkpoint costs nothing
  constexpr double kReach = 8, kClose = 1.05, kGolden = 0.6180339887498949;
  double low = std::log(young / kReach), high = std::log(young * kReach);
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  double at_a = mean_wall(c, std::exp(a), seeds), at_b = mean_wall(c, std::exp(b), seeds);
  while (high - low > std::log(kClose)) {
    if (at_a <= at_b) {
      high = b;
      b = a;
      at_b = at_a;
      a = high - kGolden * (high - low);
      at_a = mean_wall(c, std::exp(a), seeds);
    } else {
      low = a;
      a = b;
      at_a = at_b;
      b = low + kGolden * (high - low);
      at_b = mean_wall(c, std::exp(b), seeds);
    }
  }
  return std::exp((low + high) / 2);
}

namespace {
/// Of an account: the wall time and its parts.
constexpr double RunAccount::*kTerms[] = {
    &RunAccount::wall_s,      &RunAccount::work_s,      &RunAccount::checkpoints_s, &RunAccount::lost_s,
    &RunAccount::detection_s, &RunAccount::restart_s,   &RunAccount::waiting_s,     &RunAccount::slower_s,
    &RunAccount::stalls_s,    &RunAccount::evaluation_s};
}  // namespace

CampaignResult run_campaign(Campaign campaign, const CampaignOptions& options) {
  CampaignResult out;
  out.young_s = young_interval(campaign);
  out.daly_s = daly_interval(campaign);
  out.best_s = best_interval(campaign);
  if (campaign.interval_s == 0) campaign.interval_s = out.best_s;
  out.campaign = campaign;
  std::vector<RunAccount> runs(static_cast<size_t>(options.seeds));
  std::vector<uint8_t> done(runs.size());
  on_threads(options.threads, runs.size(), [&](size_t i) {
    if (options.stop && options.stop->load(std::memory_order_relaxed)) return;
    runs[i] = simulate_run(campaign, options.first_seed + i);
    done[i] = 1;
  });
  std::vector<double> wall, goodput;
  RunAccount& m = out.mean;
  double failures = 0, preemptions = 0, checkpoints = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!done[i]) {
      out.complete = false;
      continue;
    }
    const RunAccount& r = runs[i];
    ++out.seeds;
    if (!r.finished) ++out.unfinished;
    wall.push_back(r.wall_s);
    goodput.push_back(r.goodput());
    for (double RunAccount::*term : kTerms) m.*term += r.*term;
    failures += static_cast<double>(r.failures);
    preemptions += static_cast<double>(r.preemptions);
    checkpoints += static_cast<double>(r.checkpoints);
  }
  const double n = std::max<double>(1, static_cast<double>(out.seeds));
  for (double RunAccount::*term : kTerms) m.*term /= n;
  m.failures = std::llround(failures / n);
  m.preemptions = std::llround(preemptions / n);
  m.checkpoints = std::llround(checkpoints / n);
  out.wall_s = quantiles(std::move(wall));
  out.goodput = quantiles(std::move(goodput));
  return out;
}

}  // namespace wt::study
