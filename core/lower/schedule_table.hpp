// A schedule written down as a table in the notation of PyTorch's pipelining: a line for each rank, cells of stage, pass and
// micro-batch ("0F3", "2I0", "2W0", "1B4"; B: the whole backward), empty cells where a rank is idle.
#pragma once

#include "core/lower/schedule.hpp"

namespace wt::lower {

/// Errors, all at once: a cell that is no pass, a stage that is not on the line's rank, a pass that is missing, twice or
/// before what it needs on its rank.
Result<Orders> read_schedule_table(const ScheduleInput&, plan::PlacementKind);

}  // namespace wt::lower
