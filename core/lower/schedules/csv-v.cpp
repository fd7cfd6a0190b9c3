// The order that strategy.schedule_file gives, in PyTorch's notation; stages go up and down the ranks in a V.
#include "core/lower/schedule_table.hpp"

namespace wt::lower {
namespace {

Result<Orders> order(const ScheduleInput& in) { return read_schedule_table(in, plan::PlacementKind::zigzag); }

}  // namespace

extern const Schedule schedules_csv_v;
const Schedule schedules_csv_v{
    .name = "csv-v",
    .cites = "PyTorch torch/distributed/pipelining/schedules.py, _PipelineScheduleRuntime._load_csv",
    .placement = plan::PlacementKind::zigzag,
    .reads_file = true,
    .overlaps_p2p = true,
    .order = order,
    .peak_in_flight = nullptr,
};

}  // namespace wt::lower
