#include "sim/collective/measured_transfers.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace wt::sim {

TransferKind kind_of(plan::CollectiveKind kind) {
  switch (kind) {
    case plan::CollectiveKind::all_reduce: return TransferKind::all_reduce;
    case plan::CollectiveKind::all_gather: return TransferKind::all_gather;
    case plan::CollectiveKind::reduce_scatter: return TransferKind::reduce_scatter;
    case plan::CollectiveKind::all_to_all: return TransferKind::all_to_all;
    case plan::CollectiveKind::broadcast: return TransferKind::broadcast;
    case plan::CollectiveKind::shift_up:
    case plan::CollectiveKind::shift_down: return TransferKind::message;  // one to each neighbour, at the same time
  }
  return TransferKind::broadcast;
}

std::optional<TransferEstimate> MeasuredTransfers::estimate(TransferKind kind, DType dtype, double bytes, int64_t ranks,
                                                            int64_t nodes) const {
  const auto away = [&](const TransferCurve& c) {
    const auto apart = [](int64_t a, int64_t b) {
      return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
    };
    return std::tuple(c.dtype != dtype, apart(c.nodes, nodes), apart(c.ranks, ranks));
  };
  const TransferCurve* curve = nullptr;
  for (const TransferCurve& c : curves_)
    if (c.kind == kind && (!curve || away(c) < away(*curve))) curve = &c;
  if (!curve) return std::nullopt;

  // A size lies on the line of its regime, but is never quicker than the end of the regimes before.
  TransferEstimate e;
  for (size_t i = 0; i < curve->lines.size(); ++i) {
    const TransferLine& l = curve->lines[i];
    if (i > 0 && bytes < static_cast<double>(l.from.n)) break;
    const bool last = i + 1 == curve->lines.size();
    const double until = last ? bytes : std::min(bytes, static_cast<double>(curve->lines[i + 1].from.n));
    const double per_byte = l.bandwidth.n > 0 ? 1 / l.bandwidth.n : 0;
    const double seconds = l.latency.seconds() + per_byte * until;
    if (seconds >= e.seconds) e = {seconds, l.latency.seconds(), l.bandwidth.n, curve->device_share};
  }
  if (kind != TransferKind::message && ranks != curve->ranks) {
    // A rank moves (n - 1) / n of the buffer, in steps that grow with n - 1.
    const auto n = static_cast<double>(ranks), m = static_cast<double>(curve->ranks);
    const double moved = ((n - 1) / n) / ((m - 1) / m), steps = (n - 1) / (m - 1);
    e.seconds = e.latency * steps + (e.seconds - e.latency) * moved;
    e.latency *= steps;
    e.bandwidth /= moved;
  }
  return e;
}

}  // namespace wt::sim
