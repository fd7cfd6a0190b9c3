// The time of one collective over sizes, as nccl-tests prints it: what the simulator charges when nothing else uses the
// links. Sizes and bus bandwidth by nccl-tests' conventions, so that a user's log can be laid beside it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "sim/collective/collective_cost.hpp"

namespace wt::study {

/// A collective of the plan, or a message between two neighbours (kind empty).
struct TableOp {
  std::string_view name;  // as nccl-tests spells it
  std::optional<plan::CollectiveKind> kind;
};
const std::vector<TableOp>& table_ops();

struct CollectiveQuestion {
  TableOp op;
  DType dtype = DType::f32;
  int64_t gpus = 0;      // ranks 0 .. gpus - 1, node by node; send_recv: from rank 0 to the last
  int64_t per_node = 0;  // of each node so many take part; 0: all
  std::vector<int64_t> bytes;
  sim::NcclOptions nccl;
};

struct CollectiveRow {
  int64_t bytes = 0;
  sim::CollectiveEstimate estimate;
  double algorithm_gb_s = 0, bus_gb_s = 0;  // 10^9 bytes
};
struct CollectiveTable {
  sim::GroupShape shape;
  std::vector<CollectiveRow> rows;
};

/// 2 (n - 1) / n of an all-reduce, (n - 1) / n of gathers, scatters and all-to-all, else 1 (nccl-tests PERFORMANCE.md).
double bus_factor(const TableOp& op, int64_t ranks);

/// Errors: more GPUs than the cluster has, fewer than 2, not whole nodes of `per_node`; data files that do not parse.
Result<CollectiveTable> collective_table(const ClusterSpec& cluster, const CollectiveQuestion& question);

std::string print_collective_screen(const CollectiveTable&, const ClusterSpec&, const CollectiveQuestion&);
std::string print_collective_json(const CollectiveTable&, const ClusterSpec&, const CollectiveQuestion&);
std::string print_collective_csv(const CollectiveTable&);

}  // namespace wt::study
