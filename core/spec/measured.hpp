// What was timed on a machine, as a spec holds it: curves of kernels and of transfers, each with the points behind it.
// Written by `windtunnel calibrate`, readable and editable by a person, read by the simulator. Plain values: what a curve
// means at a size between its points is decided in sim/cost/measured_kernels.hpp and sim/collective/measured_transfers.hpp.
#pragma once

#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/units.hpp"

namespace wt {

/// One shape of a kernel and its time. `flops` and `bytes` are the plan's work of the op.
struct KernelPoint {
  std::vector<int64_t> dims;  // as the plan prints them, zeros at the end left out
  double flops = 0;
  Bytes bytes;  // read and written
  Time time;
  bool operator==(const KernelPoint&) const = default;
};

/// time = latency + flops / rate + bytes / bandwidth; a term that the fit does not need is 0 and left out.
struct KernelCurve {
  std::string kernel;   // as the plan prints it: gemm, norm_forward ...
  std::string variant;  // the plan's words for what else decides the time: "transpose_b", "causal", "function 1" ...
  DType dtype = DType::f32;
  Time latency;
  double rate = 0;  // FLOP/s
  BytesPerSecond bandwidth;
  double error = 0;  // mean over the points of |fit / measured - 1|
  std::vector<KernelPoint> points;
  bool operator==(const KernelCurve&) const = default;
};

/// One device under training load, all devices of its node busy with the same.
struct MeasuredDevice {
  std::string source;
  Time op_overhead;  // of an op beside its kernel: what issues it, queues it and stamps its times
  std::vector<KernelCurve> kernels;
  bool operator==(const MeasuredDevice&) const = default;
};

enum class TransferKind : uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, message };

struct TransferPoint {
  Bytes bytes;
  Time time;
  bool operator==(const TransferPoint&) const = default;
};

/// One regime of a transfer: time = latency + bytes / bandwidth from this size on.
struct TransferLine {
  Bytes from;
  Time latency;
  BytesPerSecond bandwidth;  // 0: the time does not grow
  bool operator==(const TransferLine&) const = default;
};

/// A collective over a group, or a message between two ranks; bytes as plan::Collective and plan::Send count them.
struct TransferCurve {
  TransferKind kind = TransferKind::all_reduce;
  int64_t ranks = 2, nodes = 1;  // of the group, evenly spread
  DType dtype = DType::f32;      // of the elements, which a reduction adds up
  // Share of each device that it takes from a kernel beside it: 1 where the same core does both, little where a slow network
  // is waited for.
  double device_share = 0;
  double error = 0;  // as KernelCurve::error
  std::vector<TransferLine> lines;
  std::vector<TransferPoint> points;
  bool operator==(const TransferCurve&) const = default;
};

}  // namespace wt
