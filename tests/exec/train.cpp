#include "tests/exec/train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "exec/checkpoint/executor_state.hpp"
#include "exec/convert.hpp"

namespace wt::exec {

namespace {

/// Weights of all ranks by global index: what a checkpoint would save, and the copies of it. Shards count as they are, whole
/// weights that are gathered only while they are used do not.
class Collector {
 public:
  void add(const Executor& e, Trained& out) {
    const std::lock_guard lock(mutex_);
    const std::vector<Holding> all = holdings_of(e);
    // Where this rank updates pieces, what it would not write may be older, until the next step gathers it.
    const bool in_pieces = std::any_of(all.begin(), all.end(), [](const Holding& h) { return !h.loaded; });
    for (const Holding& h : all) {
      if (h.tensor.role != plan::Role::weight || (in_pieces && h.loaded && !h.written)) continue;
      std::vector<double> values(static_cast<size_t>(h.layout.count));
      load(h.operand.data, h.operand.dtype, values);
      auto& found = found_[{h.tensor.name, h.tensor.layer}];
      for (const Segment& s : segments_of(h.layout))
        for (int64_t k = 0; k < s.count; ++k) {
          const double x = values[static_cast<size_t>(s.local + k)];
          const auto [it, fresh] = found.emplace(s.global + k, x);
          if (!fresh && it->second != x && out.failure.empty())
            out.failure = fmt::format("copies of {} differ: {} and {} (rank {})", to_text(h.tensor), it->second, x,
                                      e.script().rank.v);
        }
    }
  }

  void finish(Trained& out) {
    for (const auto& [id, elements] : found_)
      for (const auto& [index, x] : elements) {
        if (index != static_cast<int64_t>(out.weights[id].size()) && out.failure.empty())
          out.failure = fmt::format("nobody holds '{}' element {}", id.first, out.weights[id].size());
        out.weights[id].push_back(x);
      }
  }

 private:
  std::mutex mutex_;
  std::map<WeightId, std::map<int64_t, double>> found_;
};

}  // namespace

Trained train(const plan::Plan& p, const TrainOptions& options) {
  Trained out;
  const auto tokens = random_tokens(p.seed, plan::vocabulary_of(p));
  Collector collector;
  RunOptions run;
  run.warmup = 0;
  run.steps = options.steps;
  run.execute.script.floats = options.floats;
  run.execute.learning_rate.peak = options.learning_rate;
  run.execute.tokens = tokens.get();
  if (options.weights) run.inspect = [&](Executor& e) { collector.add(e, out); };
  if (options.loss_scale)
    run.begin = [&](Executor& e) {
      e.state().loss_scale.scale = *options.loss_scale;
      return ok_status();
    };
  auto machines = open_inproc(p.mesh.ranks(), options.inproc);
  const auto summary = run_ranks(p, machines, run);
  if (!summary) {
    out.failure = to_text(summary.errors());
    return out;
  }
  out.summary = summary.value();
  for (const StepOutcome& s : summary.value().steps) out.losses.push_back(s.loss);
  collector.finish(out);
  return out;
}

Trained train(const JobSpec& job, const TrainOptions& options) {
  const auto p = lower::lower(job);
  if (!p) return {to_text(p.errors()), {}, {}, {}};
  if (const auto valid = plan::validate(p.value()); !valid) return {to_text(valid.errors()), {}, {}, {}};
  return train(p.value(), options);
}

}  // namespace wt::exec
