// Which layers each model chunk holds.
#include "core/lower/context.hpp"

namespace wt::lower {

std::vector<std::vector<int64_t>> layers_of_chunks(const JobSpec& job, int64_t pipeline, int64_t chunks) {
  const StrategySpec& s = job.strategy;
  std::vector<int64_t> of_rank(static_cast<size_t>(pipeline));
  const int64_t extra = (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0);
  if (s.first_stage_layers > 0 || s.last_stage_layers > 0) {
    const int64_t fixed = s.first_stage_layers + s.last_stage_layers;
    const int64_t others = pipeline - (s.first_stage_layers > 0) - (s.last_stage_layers > 0);
    for (auto& n : of_rank) n = others > 0 ? (job.model.layers - fixed) / others : 0;
    if (s.first_stage_layers > 0) of_rank.front() = s.first_stage_layers;
    if (s.last_stage_layers > 0) of_rank.back() = s.last_stage_layers;
  } else {
    for (auto& n : of_rank) n = (job.model.layers + extra) / pipeline;
  }
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(pipeline),
                                        std::vector<int64_t>(static_cast<size_t>(chunks)));
  for (size_t r = 0; r < of_rank.size(); ++r)
    for (auto& n : out[r]) n = of_rank[r] / chunks;
  // A chunk that also holds the embedding or the loss gives up one layer for it.
  if (s.account_for_embedding) --out.front().front();
  if (s.account_for_loss) --out.back().back();
  return out;
}

}  // namespace wt::lower
