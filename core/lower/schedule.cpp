#include "core/lower/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.hpp"

namespace wt::lower {

int64_t count_in_flight(std::span<const Slot> slots) {
  int64_t now = 0, peak = 0;
  for (const Slot& s : slots) {
    if (s.pass == Pass::forward) peak = std::max(peak, ++now);
    if (s.pass == Pass::backward || s.pass == Pass::backward_weight) --now;
  }
  return peak;
}

std::optional<Diagnostic> refuse_chunks(const ScheduleInput& in, std::string_view schedule, int64_t wanted) {
  WT_CHECK(in.pipeline >= 1 && in.chunks >= 1 && in.micro_batches >= 1);
  if (in.chunks != wanted)
    return Diagnostic{"strategy.virtual_stages",
                      fmt::format("is {}, but strategy.schedule {} runs {} on each rank", in.chunks, schedule,
                                  wanted == 1 ? "one chunk" : fmt::format("{} chunks", wanted)),
                      fmt::format("legal: strategy.virtual_stages {}", wanted)};
  if (wanted > 1 && in.pipeline == 1)
    return Diagnostic{"strategy.pipeline", fmt::format("is 1, but strategy.schedule {} needs several ranks", schedule),
                      "legal: strategy.pipeline 2 or more, or strategy.schedule 1f1b with strategy.virtual_stages 1"};
  return std::nullopt;
}

const Schedule* find_schedule(std::string_view name) {
  for (const Schedule* schedule : all_schedules())
    if (schedule->name == name) return schedule;
  return nullptr;
}

}  // namespace wt::lower
