// The prediction of a row is the prediction of its job: run_job, with the models of a cluster loaded once.
#include <list>
#include <memory>
#include <mutex>

#include "study/run_job.hpp"
#include "study/validate.hpp"

namespace wt::study {
namespace {

/// Clusters differ by number of nodes and network; a file of runs has a few dozen.
class ModelCache {
 public:
  Result<std::shared_ptr<const sim::Models>> get(const ClusterSpec& cluster) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, models] : loaded_)
      if (known == cluster) return models;
    auto models = sim::load_models(cluster);
    if (!models) return models.errors();
    loaded_.emplace_back(cluster, std::make_shared<const sim::Models>(std::move(models.value())));
    return loaded_.back().second;
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<ClusterSpec, std::shared_ptr<const sim::Models>>> loaded_;
};

Prediction prediction_of(const JobResult& result) {
  Prediction p;
  p.step_time_s = result.run.step_time.seconds();
  const report::MemoryReport& memory = result.report.memory;
  p.fits = memory.fits;
  if (memory.peak_stage < memory.stages.size()) {
    const report::StageMemory& stage = memory.stages[memory.peak_stage];
    p.peak_gib = stage.peak.gib();
    p.reserved_gib = stage.reserved.gib();
    p.context_gib = stage.context.gib() + stage.communicators.gib();
  }
  for (const report::TimeTerm& term : report::time_terms())
    p.time_s[std::string(term.key)] = result.report.time.*term.seconds;
  return p;
}

}  // namespace

Predict predict_by_simulation() {
  auto cache = std::make_shared<ModelCache>();
  return [cache](const JobSpec& job) -> Result<Prediction> {
    const auto models = cache->get(job.cluster);
    if (!models) return models.errors();
    RunOptions options;
    options.models = models.value().get();
    const auto result = run_job(job, options);
    if (!result) return result.errors();
    return prediction_of(result.value());
  };
}

}  // namespace wt::study
