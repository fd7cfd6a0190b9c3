// A pipeline schedule decides order only: which chunk and micro-batch each rank works on next. One file per schedule
// in schedules/, its stem is the spelling in a job; the table is made from the file names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::lower {

enum class Pass : uint8_t { forward, backward, backward_input, backward_weight };

struct Slot {
  Pass pass = Pass::forward;
  int32_t chunk = 0, micro_batch = 0;
  bool paired = false;  // a forward that is issued in turns with the backward behind it
  bool operator==(const Slot&) const = default;
};

struct ScheduleInput {
  int64_t pipeline = 1, chunks = 1, micro_batches = 1;
  int64_t group_size = 0;  // interleaved: micro-batches per round of chunks; 0: pipeline
  ScheduleWeights weights{};
  int64_t max_in_flight = 0;  // zero-bubble: 0: as many as help
  bool pairs = false;         // forwards beside the backwards of other micro-batches, where the schedule can
  std::string_view file{};    // text of StrategySpec::schedule_file
};

/// [pp rank][position]
using Orders = std::vector<std::vector<Slot>>;

struct Schedule {
  std::string_view name;   // spelling in a job: the file's stem
  std::string_view cites;  // paper or code it follows
  plan::PlacementKind placement;
  bool splits_backward = false;  // orders of backward_input and backward_weight
  bool reads_file = false;       // the order is ScheduleInput::file
  bool pairs = false;            // honours ScheduleInput::pairs
  bool overlaps_p2p;             // sends and receives run beside compute where the job allows
  /// Errors speak the job's keys and name the nearest legal values. CHECKs that every size is at least 1.
  Result<Orders> (*order)(const ScheduleInput&);
  /// Most (chunk, micro-batch) pairs that `rank` has run forward and not yet backward (backward_weight where the
  /// backward is split), for an input that `order` accepts. Exact: the tests hold every order to it. nullptr: no closed
  /// form (count_in_flight).
  int64_t (*peak_in_flight)(const ScheduleInput&, int64_t rank);
};

/// Generated from the file names; each file defines `extern const Schedule schedules_<stem>`.
std::span<const Schedule* const> all_schedules();
const Schedule* find_schedule(std::string_view name);

/// Most pairs in flight on a rank that runs these slots, as Schedule::peak_in_flight counts them.
int64_t count_in_flight(std::span<const Slot> slots);
/// Nothing, or the refusal of a schedule that runs `wanted` chunks on each rank (1: for any pipeline; else for several).
std::optional<Diagnostic> refuse_chunks(const ScheduleInput&, std::string_view schedule, int64_t wanted);

}  // namespace wt::lower
