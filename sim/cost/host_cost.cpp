#include "sim/cost/host_cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/data_path.hpp"
#include "sim/cost/csv.hpp"
#include "sim/price_seconds.hpp"

namespace wt::sim {

using plan::Kernel;
using plan::Space;

Result<HostCost> HostCost::load(const NodeSpec& node) {
  static constexpr std::string_view columns[] = {"kind", "memory_share", "core_gb_s", "source"};
  const std::string path = data_directory() + "/host_memory.csv";
  auto csv = Csv::read(path, columns);
  if (!csv) return csv.errors();
  HostCost out;
  out.node_ = node;
  out.ranks_ = static_cast<double>(std::max<int64_t>(1, node.devices));
  Csv& c = csv.value();
  for (size_t row = 0; row < c.rows(); ++row) {
    const double share = c.number(row, 1), core = c.number(row, 2);
    if (share <= 0 || share > 1) c.fail(row, 1, "not a share above 0, up to 1");
    if (core < 0) c.fail(row, 2, "negative");
    out.rows_[std::string(c.text(row, 0))] = {share, core * 1e9};
  }
  if (!c.errors().empty()) return c.errors();
  for (const char* kind : {"fused_update", "update", "stream", "pageable"})
    if (!out.rows_.contains(kind)) return Diagnostic{path, fmt::format("no row '{}'", kind), ""};
  return out;
}

HostCost::Row HostCost::row_of(const plan::Compute& op) const {
  const bool update = op.kernel == Kernel::adam || op.kernel == Kernel::sgd;
  return rows_.at(!update ? "stream" : op.launches > 1 ? "update" : "fused_update");
}

Time HostCost::compute(const plan::Compute& op) const {
  const Row row = row_of(op);
  const double bytes = static_cast<double>(op.work.bytes_read + op.work.bytes_written);
  const double memory = node_.host_memory_bandwidth.n / ranks_ * row.memory_share;
  const double cores = static_cast<double>(node_.cpu_cores) / ranks_ * row.core_bytes;
  double seconds = memory > 0 ? bytes / memory : 0;
  if (cores > 0) seconds = std::max(seconds, bytes / cores);
  return price_seconds(seconds);
}

Time HostCost::copy(const plan::Copy& op) const {
  const double bytes = static_cast<double>(op.bytes);
  auto over = [&](double rate) { return rate > 0 ? price_seconds(bytes / rate) : Time(); };
  if (op.from == Space::nvme) return over(node_.nvme_read.n / ranks_);
  if (op.to == Space::nvme) return over(node_.nvme_write.n / ranks_);
  double rate = node_.host_copy_bandwidth.n > 0 ? node_.host_copy_bandwidth.n : node_.pcie_bandwidth.n;
  if (op.from == Space::pageable || op.to == Space::pageable) rate *= rows_.at("pageable").memory_share;
  const double behind = node_.host_memory_bandwidth.n / ranks_;  // a copy reads or writes each byte once
  return over(behind > 0 ? std::min(rate, behind) : rate);
}

}  // namespace wt::sim
