// A pipeline schedule decides order only: which chunk and micro-batch each rank works on next. One file per schedule
// in schedules/, its stem is the spelling in a job; the table is made from the file names.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"

namespace wt::lower {

enum class Pass : uint8_t { forward, backward, backward_input, backward_weight };

struct Slot {
  Pass pass = Pass::forward;
  int32_t chunk = 0, micro_batch = 0;
  bool operator==(const Slot&) const = default;
};

struct ScheduleInput {
  int64_t pipeline = 1, chunks = 1, micro_batches = 1;
  int64_t group_size = 0;  // interleaved: micro-batches per round of chunks; 0: pipeline
};

/// [pp rank][position]
using Orders = std::vector<std::vector<Slot>>;

struct Schedule {
  std::string_view name;   // spelling in a job: the file's stem
  std::string_view cites;  // paper or code it follows
  plan::PlacementKind placement;
  bool overlaps_p2p;  // sends and receives run beside compute where the job allows
  /// Errors speak the job's keys and name the nearest legal values. CHECKs that every size is at least 1.
  Result<Orders> (*order)(const ScheduleInput&);
  /// Most (chunk, micro-batch) pairs that `rank` has run forward and not yet backward (backward_weight where the
  /// backward is split), for an input that `order` accepts. Exact: the tests hold every order to it.
  int64_t (*peak_in_flight)(const ScheduleInput&, int64_t rank);
};

/// Generated from the file names; each file defines `extern const Schedule schedules_<stem>`.
std::span<const Schedule* const> all_schedules();
const Schedule* find_schedule(std::string_view name);

}  // namespace wt::lower
