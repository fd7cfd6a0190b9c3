// What a search tries: the values of each number, and their combinations in a stated order.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "core/lower/schedule.hpp"
#include "study/search.hpp"

namespace wt::study {

namespace {

std::vector<int64_t> divisors(int64_t n, int64_t largest) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= std::min(n, largest); ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

/// Whether the schedule takes so many chunks a rank at all, asked of itself with micro-batches enough.
bool takes(const std::string& schedule, int64_t pipeline, int64_t chunks) {
  const lower::Schedule* s = lower::find_schedule(schedule);
  constexpr int64_t kEnough = 4;
  return s && s->order({pipeline, chunks, kEnough * pipeline, 0}).ok();
}

/// What goes with a data-parallel kind where the job asked for another: its usual overlap.
void choose(StrategySpec& s, DataParallel kind) {
  if (s.data_parallel == kind) return;
  s.data_parallel = kind;
  s.overlap_grad_reduce = s.overlap_param_gather = kind == DataParallel::distributed_optimizer;
  if (kind == DataParallel::ddp) s.overlap_grad_reduce = true;
  s.fsdp = FsdpSpec{};
  s.zero = ZeroSpec{};
  s.gradient_copies = GradientCopies::automatic;
  s.bucket_elements = 0;
}

}  // namespace

SearchSpace default_space(const JobSpec& job, int64_t largest_micro_batch) {
  SearchSpace space;
  const ModelSpec& m = job.model;
  const NodeSpec& node = job.cluster.node;
  const int64_t domain = node.scale_up.domain > 0 ? node.scale_up.domain : node.devices;
  space.nodes = {job.cluster.nodes};
  space.tensor = divisors(std::gcd(m.heads, job.cluster.ranks()), domain);
  space.pipeline = divisors(m.layers, job.cluster.ranks());
  space.virtual_stages = divisors(m.layers, m.layers);
  space.context = {job.strategy.context};
  space.expert = {job.strategy.expert};
  space.micro_batch = divisors(job.training.global_batch, largest_micro_batch);
  space.schedules = {"1f1b", "interleaved"};
  space.data_parallel = {job.strategy.data_parallel};
  if (job.strategy.data_parallel != DataParallel::distributed_optimizer)
    space.data_parallel.push_back(DataParallel::distributed_optimizer);
  space.recompute = {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full};
  return space;
}

std::vector<SearchPoint> candidates(const JobSpec& job, const SearchSpace& space) {
  std::vector<SearchPoint> out;
  const int64_t layers = job.model.layers;
  std::map<std::tuple<std::string, int64_t, int64_t>, bool> known;
  const auto known_takes = [&](const std::string& schedule, int64_t pipeline, int64_t chunks) {
    const auto [at, is_new] = known.try_emplace({schedule, pipeline, chunks}, false);
    if (is_new) at->second = takes(schedule, pipeline, chunks);
    return at->second;
  };
  const auto with_schedules = [&](const SearchPoint& cut) {
    for (const int64_t chunks : space.virtual_stages)
      for (const std::string& schedule : space.schedules) {
        const bool pipeline = cut.strategy.pipeline > 1;
        if (!pipeline && (chunks > 1 || schedule != space.schedules.front())) continue;
        if (layers % (cut.strategy.pipeline * chunks) != 0) continue;
        if (pipeline && !known_takes(schedule, cut.strategy.pipeline, chunks)) continue;
        SearchPoint c = cut;
        c.strategy.schedule = pipeline ? schedule : "1f1b";
        c.strategy.virtual_stages = chunks;
        out.push_back(std::move(c));
      }
  };
  const auto with_batches = [&](const SearchPoint& cut, int64_t data) {
    for (const int64_t micro_batch : space.micro_batch)
      for (const DataParallel kind : space.data_parallel)
        for (const RecomputeKind recompute : space.recompute) {
          if (job.training.global_batch % (micro_batch * data) != 0) continue;
          SearchPoint c = cut;
          c.micro_batch = micro_batch;
          choose(c.strategy, kind);
          c.strategy.recompute = recompute == job.strategy.recompute.kind ? job.strategy.recompute : RecomputeSpec{};
          c.strategy.recompute.kind = recompute;
          with_schedules(c);
        }
  };
  for (const int64_t nodes : space.nodes)
    for (const int64_t tensor : space.tensor)
      for (const int64_t pipeline : space.pipeline)
        for (const int64_t context : space.context)
          for (const int64_t expert : space.expert) {
            const int64_t ranks = nodes * job.cluster.node.devices, cut = tensor * pipeline * context;
            if (cut <= 0 || ranks % cut != 0) continue;
            SearchPoint c{nodes, 1, job.strategy};
            c.strategy.tensor = tensor;
            c.strategy.pipeline = pipeline;
            c.strategy.context = context;
            c.strategy.expert = expert;
            c.strategy.data = 0;
            c.strategy.sequence_parallel = tensor > 1;
            c.strategy.first_stage_layers = c.strategy.last_stage_layers = 0;
            if (tensor == 1) c.strategy.tensor_overlap = c.strategy.keep_gathered = false;
            with_batches(c, ranks / cut);
          }
  return out;
}

JobSpec job_of(const JobSpec& job, const SearchPoint& candidate) {
  JobSpec out = job;
  out.cluster.nodes = candidate.nodes;
  out.training.micro_batch = candidate.micro_batch;
  out.strategy = candidate.strategy;
  return out;
}

}  // namespace wt::study
