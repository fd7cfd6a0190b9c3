#include "study/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <mutex>

#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/report/report.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"
#include "sim/simulate.hpp"
#include "study/on_threads.hpp"
#include "study/search_results.hpp"

namespace wt::study {

namespace {

using ModelsByNodes = std::map<int64_t, sim::Models>;

/// Nobody should buy for a job that may or may not fit.
bool runs_safely(std::string_view fits) { return fits != "out_of_memory" && fits != "borderline"; }

/// Lowered, held against memory, and only if it fits simulated.
Outcome evaluate(const JobSpec& job, const sim::Models& models, size_t index) {
  Outcome out;
  out.candidate = index;
  auto plan = lower::lower(job);
  if (!plan) {
    out.fate = Fate::illegal;
    out.reason = fmt::format("{}: {}", plan.errors().front().where, plan.errors().front().what);
    return out;
  }
  report::MemoryReport memory = report::memory_peaks(job, plan.value());
  const report::StageMemory& fullest = memory.stages[memory.peak_stage];
  out.reserved_gib = fullest.reserved.gib();
  out.fits = memory.fits;
  if (!runs_safely(memory.fits)) {
    out.fate = Fate::out_of_memory;
    out.reason = fullest.peak_phase;
    return out;
  }
  auto run = sim::simulate(plan.value(), job.cluster, job.training, models, {});
  if (!run) {
    out.fate = Fate::failed;
    out.reason = run.errors().front().what;
    return out;
  }
  const report::StepReport rates = report::step_rates(job, plan.value(), run.value().step_time, std::move(memory));
  out.fate = Fate::simulated;
  out.step_s = rates.step_time.seconds();
  out.mfu = rates.mfu;
  out.tokens_per_s = rates.tokens_per_second;
  return out;
}

/// With what the allocator holds beyond the plan's peaks.
void make_exact(Outcome& out, const JobSpec& job) {
  const auto plan = lower::lower(job);
  WT_CHECK(plan.ok());  // it was simulated
  const report::MemoryReport memory = report::memory_report(job, plan.value());
  const report::StageMemory& fullest = memory.stages[memory.peak_stage];
  out.exact_memory = true;
  out.reserved_gib = fullest.reserved.gib();
  out.fits = memory.fits;
  if (runs_safely(memory.fits)) return;
  out.fate = Fate::out_of_memory;
  out.reason = fullest.peak_phase;
}

/// What results are of: another job or space has another. The text of both, hashed.
std::string identity_of(const JobSpec& job, const std::vector<SearchPoint>& all) {
  uint64_t hash = fnv1a(print_job(job));
  for (const SearchPoint& c : all)
    hash = fnv1a(fmt::format("{} {} {}", c.nodes, c.micro_batch, print_strategy(c.strategy)), hash);
  return fmt::format("{:016x}", hash);
}

/// A reason with its numbers left out, so that like ones count together: "gives N micro-batches". Words that begin with
/// a digit (1f1b) or hold one stay.
std::string without_numbers(std::string_view reason) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_word = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; };
  std::string out;
  for (size_t i = 0; i < reason.size();) {
    size_t end = i;
    while (end < reason.size() && is_digit(reason[end])) ++end;
    const bool number = end > i && !(end < reason.size() && is_word(reason[end])) && !(i > 0 && is_word(reason[i - 1]));
    if (number)
      out += 'N';
    else
      out.append(reason.substr(i, std::max<size_t>(end - i, 1)));
    i = std::max(end, i + 1);
  }
  return out;
}

void rank_outcomes(SearchResult& r) {
  std::map<std::string, size_t> reasons;
  r.ranking.clear();
  r.front.clear();
  r.simulated = r.out_of_memory = r.illegal = r.failed = 0;
  for (size_t i = 0; i < r.outcomes.size(); ++i) {
    const Outcome& o = r.outcomes[i];
    switch (o.fate) {
      case Fate::simulated:
        ++r.simulated;
        r.ranking.push_back(i);
        break;
      case Fate::out_of_memory:
        ++r.out_of_memory;
        ++reasons[fmt::format("does not fit in memory (peak in phase {})", o.reason)];
        break;
      case Fate::illegal:
        ++r.illegal;
        ++reasons[without_numbers(o.reason)];
        break;
      case Fate::failed:
        ++r.failed;
        ++reasons[without_numbers(o.reason)];
        break;
    }
  }
  r.rejections.assign(reasons.begin(), reasons.end());
  std::stable_sort(r.rejections.begin(), r.rejections.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::stable_sort(r.ranking.begin(), r.ranking.end(), [&](size_t a, size_t b) {
    const Outcome &x = r.outcomes[a], &y = r.outcomes[b];
    return x.step_s != y.step_s ? x.step_s < y.step_s : x.reserved_gib < y.reserved_gib;
  });
  // Fastest first: a point is on the front unless one before it, on as few GPUs, reserves as little.
  for (const size_t i : r.ranking) {
    const Outcome& o = r.outcomes[i];
    const bool dominated = std::any_of(r.front.begin(), r.front.end(), [&](size_t f) {
      return r.outcomes[f].reserved_gib <= o.reserved_gib &&
             r.candidates[r.outcomes[f].candidate].nodes <= r.candidates[o.candidate].nodes;
    });
    if (!dominated) r.front.push_back(i);
  }
}

/// Ranks, asks for the exact memory of what is shown, and ranks again until nothing that is shown is a bound. A bound is
/// below the exact value: what it keeps off the front, or behind the rows, the exact value does too.
void rank_exactly(SearchResult& r, const JobSpec& job, const SearchOptions& options) {
  for (;;) {
    rank_outcomes(r);
    std::vector<size_t> asked = r.front;
    asked.insert(asked.end(), r.ranking.begin(),
                 r.ranking.begin() + static_cast<std::ptrdiff_t>(std::min(options.exact_rows, r.ranking.size())));
    std::sort(asked.begin(), asked.end());
    asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
    std::erase_if(asked, [&](size_t i) { return r.outcomes[i].exact_memory; });
    if (asked.empty()) return;
    on_threads(options.threads, asked.size(), [&](size_t k) {
      Outcome& o = r.outcomes[asked[k]];
      make_exact(o, job_of(job, r.candidates[o.candidate]));
    });
  }
}

/// Which number has no value, or that no combination divides.
Diagnostic empty_space(const JobSpec& job, const SearchSpace& s) {
  const std::pair<const char*, bool> kParts[] = {{"nodes", s.nodes.empty()},
                                                 {"tensor", s.tensor.empty()},
                                                 {"pipeline", s.pipeline.empty()},
                                                 {"virtual stages", s.virtual_stages.empty()},
                                                 {"context", s.context.empty()},
                                                 {"expert", s.expert.empty()},
                                                 {"micro-batch", s.micro_batch.empty()},
                                                 {"schedule", s.schedules.empty()},
                                                 {"data-parallel kind", s.data_parallel.empty()},
                                                 {"recompute", s.recompute.empty()}};
  for (const auto& [name, empty] : kParts)
    if (empty) return {"search", fmt::format("no value is left for {}", name), ""};
  return {"search",
          fmt::format("no combination divides: {} devices a node, {} layers, global batch {}", job.cluster.node.devices,
                      job.model.layers, job.training.global_batch),
          fmt::format("tensor x pipeline x context must divide the GPUs, micro-batch x data {}, pipeline x chunks {}",
                      job.training.global_batch, job.model.layers)};
}

Result<ModelsByNodes> load_models(const JobSpec& job, const SearchSpace& space) {
  ModelsByNodes out;
  for (const int64_t nodes : space.nodes) {
    if (out.contains(nodes)) continue;
    ClusterSpec cluster = job.cluster;
    cluster.nodes = nodes;
    auto models = sim::load_models(cluster);
    if (!models) return models.errors();
    if (const Status known = models.value().compute.check(job.training); !known) return known.errors();
    out.emplace(nodes, std::move(models.value()));
  }
  return out;
}

}  // namespace

Result<SearchResult> search(const JobSpec& job, const SearchSpace& space, const SearchOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  SearchResult r;
  r.candidates = candidates(job, space);
  if (r.candidates.empty()) return empty_space(job, space);
  auto models = load_models(job, space);
  if (!models) return models.errors();

  std::vector<std::optional<Outcome>> outcomes(r.candidates.size());
  std::optional<ResultsFile> results;
  if (!options.results.empty()) {
    auto file = ResultsFile::open(options.results, identity_of(job, r.candidates), r.candidates.size());
    if (!file) return file.errors();
    results.emplace(std::move(file.value()));
    for (const Outcome& o : results->done()) outcomes[o.candidate] = o;
  }
  std::vector<size_t> open;
  for (size_t i = 0; i < outcomes.size(); ++i)
    if (!outcomes[i]) open.push_back(i);
  r.resumed = outcomes.size() - open.size();

  std::mutex told;
  size_t done = r.resumed;
  const auto work = [&](size_t i) {
    if (options.stop && options.stop->load(std::memory_order_relaxed)) return;
    const SearchPoint& c = r.candidates[i];
    outcomes[i] = evaluate(job_of(job, c), models.value().at(c.nodes), i);
    const std::scoped_lock lock(told);
    if (results) results->append(*outcomes[i]);
    ++done;
    if (options.progress) options.progress(done, outcomes.size());
  };
  on_threads(options.threads, open.size(), [&](size_t k) { work(open[k]); });

  if (results)
    if (const Status written = results->status(); !written) return written.errors();
  for (std::optional<Outcome>& o : outcomes)
    if (o) r.outcomes.push_back(std::move(*o));
  r.complete = r.outcomes.size() == r.candidates.size();
  rank_exactly(r, job, options);
  r.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

}  // namespace wt::study
