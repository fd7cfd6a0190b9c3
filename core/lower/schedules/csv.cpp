// The order that strategy.schedule_file gives, in PyTorch's notation; stage s is on rank s modulo p.
#include "core/lower/schedule_table.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) { return read_schedule_table(in, plan::PlacementKind::loop); }

}  // namespace

extern const Schedule schedules_csv;
const Schedule schedules_csv{
    .name = "csv",
    .cites = "PyTorch torch/distributed/pipelining/schedules.py, _PipelineScheduleRuntime._load_csv",
    .placement = plan::PlacementKind::loop,
    .reads_file = true,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = nullptr,
};

}  // namespace wt::lower
