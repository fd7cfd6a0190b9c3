// Work -> time on the host's side of a node: kernels on its cores, copies between its memory, a device and files. The ranks
// of a node do the same at the same time, so each has an equal share of cores, memory bandwidth and drives.
// Not the time in which the host issues kernels (hosts.hpp). Rates are data: the cluster's node, data/host_memory.csv.
#pragma once

#include <map>
#include <string>

#include "core/base/result.hpp"
#include "core/base/units.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::sim {

class HostCost {
 public:
  /// Errors: data/host_memory.csv cannot be read or lacks a row.
  static Result<HostCost> load(const NodeSpec&);

  /// The slower of what memory gives this rank and what its cores do; zero where the node names no memory bandwidth.
  Time compute(const plan::Compute&) const;
  /// Pinned: the device's own link, or this rank's share of the memory behind it. Pageable: staged by the driver. A file:
  /// this rank's share of the drives.
  Time copy(const plan::Copy&) const;

 private:
  struct Row {
    double memory_share = 0;  // of the node's bandwidth, that kernels of this kind reach
    double core_bytes = 0;    // bytes a second and core; 0: memory alone decides
  };
  Row row_of(const plan::Compute&) const;

  NodeSpec node_;
  double ranks_ = 1;
  std::map<std::string, Row, std::less<>> rows_;
};

}  // namespace wt::sim
