#include "tests/exec/train.hpp"

#include <fmt/format.h>

#include <mutex>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "exec/convert.hpp"

namespace wt::exec {

namespace {

/// Weights of all ranks by global index.
class Collector {
 public:
  void add(Executor& e, Trained& out) {
    const std::lock_guard lock(mutex_);
    const plan::Plan& p = e.plan();
    const RankId rank = e.script().rank;
    const plan::Program& program = p.programs[plan::program_of(p, rank).v];
    for (const Persistent& base : e.script().persistent) {
      if (base.chunk < 0) continue;
      std::vector<double> all(static_cast<size_t>(base.elements));
      load(e.operand(base).data, base.dtype, all);
      const plan::Part& part = p.parts[program.chunks[static_cast<size_t>(base.chunk)].v];
      // Where this rank updates only a piece of the bucket, the rest may be older: it is gathered in the next step.
      int64_t from = 0, to = base.elements;
      for (const plan::View& v : part.views)
        if (v.base == base.buffer && v.shard_group.valid()) {
          from = plan::view_offset(p, rank, v, -1);
          to = from + p.buffer(v.buffer).elements();
        }
      for (const plan::View& v : part.views) {
        const plan::Buffer& b = p.buffer(v.buffer);
        if (v.base != base.buffer || b.role != plan::Role::weight || v.shard_group.valid()) continue;
        const int64_t layers = std::max<int64_t>(1, v.layers);
        for (int64_t i = 0; i < layers; ++i) {
          const int64_t layer = v.layers ? v.first_layer + i : -1;
          const int64_t of_model = v.layers ? program.first_layer[static_cast<size_t>(base.chunk)] + layer : -1;
          auto& found = found_[{std::string(plan::weight_name(b)), of_model}];
          const int64_t at = plan::view_offset(p, rank, v, layer);
          for (int64_t k = std::max<int64_t>(0, from - at); k < std::min(b.elements(), to - at); ++k) {
            const double x = all[static_cast<size_t>(at + k)];
            const auto [it, fresh] = found.emplace(plan::global_index(p, rank, b, k), x);
            if (!fresh && it->second != x && out.failure.empty())
              out.failure = fmt::format("copies of '{}' layer {} differ: {} and {} (rank {})", b.name, of_model,
                                        it->second, x, rank.v);
          }
        }
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
