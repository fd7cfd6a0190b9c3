#include "study/scale.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.hpp"
#include "study/run_job.hpp"

namespace wt::study {

namespace {

void fill_shares(ScalePoint& p, const report::TimeBreakdown& t) {
  const double step = t.total();
  if (step <= 0) return;
  p.communication =
      (t.exposed_tensor + t.exposed_data + t.exposed_pipeline + t.exposed_context + t.exposed_expert + t.offload) /
      step;
  p.imbalance = t.bubble / step;
  p.fixed = (t.host + t.optimizer + t.other) / step;
}

/// The job with its best strategy at this size, or why there is none.
Result<JobSpec> with_best_strategy(const JobSpec& job, const ScaleOptions& options) {
  SearchOptions search_options;
  search_options.threads = options.threads;
  search_options.stop = options.stop;
  auto found = search(job, default_space(job, options.largest_micro_batch), search_options);
  if (!found) return found.errors();
  const SearchResult& r = found.value();
  if (r.ranking.empty())
    return Diagnostic{"search",
                      fmt::format("none of {} strategies runs: {}", r.candidates.size(),
                                  r.rejections.empty() ? "interrupted" : r.rejections.front().first),
                      ""};
  return job_of(job, r.candidates[r.outcomes[r.ranking.front()].candidate]);
}

std::string first_fault(const Diagnostics& faults) {
  const Diagnostic& d = faults.front();
  return d.hint.empty() ? fmt::format("{}: {}", d.where, d.what) : fmt::format("{}: {} ({})", d.where, d.what, d.hint);
}

ScalePoint point_at(const JobSpec& job, int64_t gpus, const ScaleOptions& options) {
  ScalePoint p;
  p.gpus = gpus;
  auto sized = job_on(job, gpus, options.scaling);
  if (sized && options.choose) sized = with_best_strategy(sized.value(), options);
  if (!sized) {
    p.reason = first_fault(sized.errors());
    return p;
  }
  p.job = std::move(sized.value());
  p.nodes = p.job.cluster.nodes;
  p.global_batch = p.job.training.global_batch;
  auto result = run_job(p.job);
  if (!result) {
    p.reason = first_fault(result.errors());
    return p;
  }
  const report::StepReport& r = result.value().report;
  p.job = result.value().job;
  p.step_s = r.step_time.seconds();
  p.tokens_per_s = r.tokens_per_second;
  p.mfu = r.mfu;
  p.fits = r.memory.fits;
  p.reserved_gib = r.memory.stages[r.memory.peak_stage].reserved.gib();
  if (p.fits == "out_of_memory")
    p.reason = fmt::format("needs {:.0f} of {:.0f} GiB", p.reserved_gib, r.memory.capacity.gib());
  fill_shares(p, r.time);
  return p;
}

}  // namespace

std::vector<int64_t> doubling(int64_t first, int64_t last) {
  std::vector<int64_t> out;
  for (int64_t n = first; n < last; n *= 2) out.push_back(n);
  out.push_back(last);
  return out;
}

Result<JobSpec> job_on(const JobSpec& job, int64_t gpus, Scaling scaling) {
  JobSpec out = job;
  NodeSpec& node = out.cluster.node;
  const int64_t was = job.cluster.ranks();
  if (gpus < node.devices) {
    node.devices = gpus;
    out.cluster.nodes = 1;
  } else if (gpus % node.devices == 0) {
    out.cluster.nodes = gpus / node.devices;
  } else {
    return Diagnostic{
        "--gpus", fmt::format("{} GPUs are not whole nodes of {}", gpus, node.devices),
        fmt::format("nearest: {}, {}", gpus / node.devices * node.devices, (gpus / node.devices + 1) * node.devices)};
  }
  out.strategy.data = 0;
  if (scaling == Scaling::weak) {
    if (job.training.global_batch * gpus % was != 0)
      return Diagnostic{
          "training.global_batch",
          fmt::format("{} sequences on {} GPUs are no whole number on {}", job.training.global_batch, was, gpus), ""};
    out.training.global_batch = job.training.global_batch * gpus / was;
  }
  return out;
}

Result<ScaleResult> scale(const JobSpec& job, const ScaleOptions& options) {
  // A data file that does not parse is no reason of a size.
  if (auto models = sim::load_models(job.cluster); !models) return models.errors();
  ScaleResult out;
  const ScalePoint* base = nullptr;
  const ScalePoint* before = nullptr;
  out.points.reserve(options.gpus.size());
  for (const int64_t gpus : options.gpus) {
    if (options.stop && options.stop->load()) {
      out.complete = false;
      break;
    }
    ScalePoint& p = out.points.emplace_back(point_at(job, gpus, options));
    if (options.progress) options.progress(out.points.size(), options.gpus.size());
    if (!p.reason.empty()) continue;
    const auto per_gpu = [](const ScalePoint& q) { return q.tokens_per_s / static_cast<double>(q.gpus); };
    if (!base) base = &p;
    p.efficiency = per_gpu(p) / per_gpu(*base);
    if (before)
      p.marginal =
          (p.tokens_per_s - before->tokens_per_s) / static_cast<double>(p.gpus - before->gpus) / per_gpu(*base);
    before = &p;
  }
  return out;
}

}  // namespace wt::study
