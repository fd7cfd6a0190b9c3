// Which layers each model chunk holds.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "core/lower/context.hpp"

namespace wt::lower {

namespace {

constexpr std::string_view kLayout = "strategy.pipeline_layout";
constexpr std::string_view kLegal =
    "legal: E (embedding) first, t for each layer, m for each of multi-token prediction before L (loss), which is "
    "last, | "
    "between stages, x*n or (...)*n: Et*3|(tt|)*6tL";

/// Megatron's parse_str_to_list: repetitions written out. Nothing: not a layout. Bounded, whatever n is.
std::optional<std::string> written_out(std::string_view text) {
  constexpr size_t kLongest = 1 << 16;
  std::string out;
  size_t unit = 0;  // where what a following *n repeats begins
  std::optional<size_t> open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',' || c == ' ') continue;
    if (c == '(') {
      if (open) return std::nullopt;
      open = out.size();
    } else if (c == ')') {
      if (!open) return std::nullopt;
      unit = *std::exchange(open, std::nullopt);
    } else if (c == '*') {
      size_t n = 0;
      const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + text.size(), n);
      if (error != std::errc{} || n < 1 || unit == out.size() || n * (out.size() - unit) > kLongest)
        return std::nullopt;
      const std::string repeated = out.substr(unit);
      for (size_t k = 1; k < n; ++k) out += repeated;
      i = static_cast<size_t>(end - text.data()) - 1;
    } else {
      unit = out.size();
      out += c;
    }
    if (out.size() > kLongest) return std::nullopt;
  }
  if (open) return std::nullopt;
  return out;
}

}  // namespace

Result<std::vector<int64_t>> layers_of_layout(const JobSpec& job) {
  const StrategySpec& s = job.strategy;
  const auto fault = [&](std::string what) {
    return Diagnostic{std::string(kLayout), std::move(what), std::string(kLegal)};
  };
  const auto layout = written_out(s.pipeline_layout);
  if (!layout) return fault(fmt::format("'{}' is no layout", s.pipeline_layout));
  std::vector<int64_t> layers{0};
  bool embedding = false, loss = false;
  int64_t ahead = 0;
  for (size_t i = 0; i < layout->size(); ++i) {
    const char c = (*layout)[i];
    if (c == '|') {
      layers.push_back(0);
    } else if (c == 't') {
      ++layers.back();
    } else if (c == 'E' && i == 0) {
      embedding = true;
    } else if (c == 'L' && i + 1 == layout->size()) {
      loss = true;
    } else if (c == 'm') {
      if (layout->find_first_not_of('m', i) + 1 != layout->size() || layout->back() != 'L')
        return fault("multi-token prediction (m) on another stage than the loss cannot be planned yet");
      ++ahead;
    } else {
      return fault(fmt::format("'{}' is out of place in '{}'", c, s.pipeline_layout));
    }
  }
  if (!embedding || !loss) return fault(fmt::format("'{}' does not begin with E and end with L", s.pipeline_layout));
  const auto stages = static_cast<int64_t>(layers.size());
  if (stages != s.pipeline * s.virtual_stages)
    return fault(
        fmt::format("has {} stages for pipeline {} x virtual_stages {}", stages, s.pipeline, s.virtual_stages));
  int64_t total = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    total += layers[i];
    if (layers[i] == 0 && i != 0 && i + 1 != layers.size()) return fault(fmt::format("stage {} holds nothing", i));
  }
  if (ahead != job.model.mtp_layers)
    return fault(fmt::format("has {} layers of multi-token prediction (m) of {}", ahead, job.model.mtp_layers));
  if (total != job.model.layers) return fault(fmt::format("has {} layers of {}", total, job.model.layers));
  return layers;
}

std::vector<int64_t> layers_of_stages(const JobSpec& job, const plan::Placement& place) {
  const StrategySpec& s = job.strategy;
  if (!s.pipeline_layout.empty()) return layers_of_layout(job).value();
  const int64_t pipeline = place.pipeline, chunks = place.chunks;
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
  std::vector<int64_t> out;
  for (int64_t g = 0; g < place.stages(); ++g) out.push_back(of_rank[static_cast<size_t>(place.slot(g).pp)] / chunks);
  // A chunk that also holds the embedding or the loss gives up one layer for it.
  if (s.account_for_embedding) --out.front();
  if (s.account_for_loss) --out.back();
  return out;
}

}  // namespace wt::lower
