// Measures the machine that a run would use and writes down what it is as a cluster spec: curves with their points, fitted
// here, read by the simulator through the file alone. Not a benchmark of what the hardware could do.
#pragma once

#include <string>

#include "core/spec/specs.hpp"
#include "exec/calibrate/fit.hpp"
#include "exec/calibrate/transfers.hpp"

namespace wt::exec {

struct CalibrateOptions {
  std::string name = "calibrated";
  DType precision = DType::f32;
  Extent extent = Extent::full;
  std::string scratch = "/tmp";                 // folder for the file that the disk is timed by
  std::string source = "windtunnel calibrate";  // how it was measured: goes into the spec
};

struct Calibration {
  ClusterSpec cluster;
  std::vector<Residual> kernels, transfers;  // of cluster.device.measured->kernels and cluster.transfers
};

/// The same on every rank but for the disk, which rank 0 has. Collective.
Result<Calibration> calibrate(const Ranks&, const CalibrateOptions&);

/// The curves as a table: what was timed, the line, how far it is from its points.
std::string print_residuals(const Calibration&);

}  // namespace wt::exec
