// Interleaved 1F1B: each rank holds v chunks, chunk c of rank r is global stage c p + r, and a stage is v
// times shorter, so the bubble is (p - 1)(F + B) / v. One table gives the order of all forwards: G
// micro-batches (a round; default p) of chunk 0, the same G of chunk 1, ...; backwards follow the same table
// with the chunks reversed. Rank r runs 2(p - r - 1) + (v - 1) G forwards ahead, then a forward and a
// backward in turn, then what is left.
//
//   p = 2, v = 2, m = 4     0..3 forward of chunk 0, a..d of chunk 1; (.) the backward of the same
//   table    0 1 a b 2 3 c d
//   rank 0   0 1 a b 2(a) 3(b) c(0) d(1)(c)(d)(2)(3)     4 ahead
//   rank 1   0 1 a(a) b(b) 2(0) 3(1) c(c) d(d)(2)(3)     2 ahead
//
// Megatron-Core's rules, all refusals included: p <= G <= m, and the last round is empty or holds p or more.
// Not reproduced: before November 2024 Megatron ran every forward ahead when m == p.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.hpp"
#include "core/lower/schedule.hpp"

namespace wt::lower {
namespace {

bool rounds_fit(int64_t m, int64_t group, int64_t pipeline) {
  return group >= pipeline && group <= m && (m % group == 0 || m % group >= pipeline);
}

constexpr std::string_view kMicroBatches =
    "micro-batches = training.global_batch / (training.micro_batch x data-parallel size)";

/// The nearest legal counts of micro-batches below and above m for this group, and the group sizes nearest to
/// `group` that m allows.
std::string legal_values(int64_t m, int64_t group, int64_t pipeline) {
  std::string counts;
  int64_t below = m - 1;
  while (below >= group && !rounds_fit(below, group, pipeline)) --below;
  if (below >= group) counts = fmt::format("{} or ", below);
  int64_t above = std::max(m + 1, group);
  while (!rounds_fit(above, group, pipeline)) ++above;
  counts += fmt::format("{}", above);
  std::string hint = fmt::format("legal: {} micro-batches ({})", counts, kMicroBatches);
  if (m < pipeline) return hint;
  const int64_t from = std::min(group, m);
  for (int64_t distance = 0;; ++distance)  // ends: one round of all m is legal
    for (const int64_t other : {from + distance, from - distance})
      if (rounds_fit(m, other, pipeline)) return hint + fmt::format(", or strategy.group_size {}", other);
}

Result<Orders> order(const ScheduleInput& in) {
  WT_CHECK(in.pipeline >= 1 && in.chunks >= 1 && in.micro_batches >= 1 && in.group_size >= 0);
  const int64_t p = in.pipeline, v = in.chunks, m = in.micro_batches, group = in.group_size ? in.group_size : p;
  Diagnostics errors;
  if (v == 1)
    errors.push_back({"strategy.virtual_stages",
                      "is 1, but strategy.schedule interleaved needs several chunks on each rank",
                      "legal: strategy.virtual_stages 2 or more, or strategy.schedule 1f1b"});
  if (p == 1)
    errors.push_back({"strategy.pipeline", "is 1, but strategy.schedule interleaved needs several ranks",
                      "legal: strategy.pipeline 2 or more, or strategy.schedule 1f1b with strategy.virtual_stages 1"});
  else if (in.group_size != 0 && in.group_size < p)
    errors.push_back(
        {"strategy.group_size",
         fmt::format("is {}, less than strategy.pipeline {}: a round must fill the pipeline", in.group_size, p),
         fmt::format("legal: 0 (the pipeline size) or {} to the number of micro-batches", p)});
  else if (m < group)
    errors.push_back({"training.global_batch",
                      fmt::format("gives {} micro-batches, fewer than the {} of one round ({})", m, group,
                                  in.group_size ? "strategy.group_size" : "strategy.pipeline"),
                      legal_values(m, group, p)});
  else if (!rounds_fit(m, group, p))
    errors.push_back({"training.global_batch",
                      fmt::format("gives {} micro-batches: rounds of {} leave a last round of {}, less than "
                                  "strategy.pipeline {}",
                                  m, group, m % group, p),
                      legal_values(m, group, p)});
  if (!errors.empty()) return errors;

  std::vector<Slot> forwards, backwards;
  forwards.reserve(static_cast<size_t>(m * v));
  backwards.reserve(static_cast<size_t>(m * v));
  for (int64_t start = 0; start < m; start += group)
    for (int64_t chunk = 0; chunk < v; ++chunk)
      for (int64_t i = start; i < std::min(start + group, m); ++i) {
        forwards.push_back({Pass::forward, static_cast<int32_t>(chunk), static_cast<int32_t>(i)});
        backwards.push_back({Pass::backward, static_cast<int32_t>(v - 1 - chunk), static_cast<int32_t>(i)});
      }

  Orders orders(static_cast<size_t>(p));
  for (int64_t rank = 0; rank < p; ++rank) {
    const auto total = static_cast<size_t>(m * v);
    // Of a pair the forward is one more ahead (Megatron get_pp_rank_microbatches, overlap_moe_expert_parallel_comm).
    const auto warm_up = std::min(static_cast<size_t>(2 * (p - rank - 1) + (v - 1) * group + in.pairs), total);
    std::vector<Slot>& slots = orders[static_cast<size_t>(rank)];
    slots.reserve(2 * total);
    slots.assign(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warm_up));
    for (size_t i = warm_up; i < total; ++i) {
      slots.push_back(forwards[i]);
      slots.back().paired = in.pairs;
      slots.push_back(backwards[i - warm_up]);
    }
    slots.insert(slots.end(), backwards.end() - static_cast<std::ptrdiff_t>(warm_up), backwards.end());
  }
  return orders;
}

int64_t peak_in_flight(const ScheduleInput& in, int64_t rank) {
  const int64_t group = in.group_size ? in.group_size : in.pipeline;
  return std::min(in.micro_batches * in.chunks, 2 * (in.pipeline - rank - 1) + (in.chunks - 1) * group + 1 + in.pairs);
}

}  // namespace

extern const Schedule schedules_interleaved;
const Schedule schedules_interleaved{
    .name = "interleaved",
    .cites =
        "Narayanan et al. 2021 (arXiv 2104.04473); Megatron-Core "
        "forward_backward_pipelining_with_interleaving",
    .placement = plan::PlacementKind::loop,
    .pairs = true,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = peak_in_flight,
};

}  // namespace wt::lower
