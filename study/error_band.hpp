// The band around a predicted step: where measured runs lay relative to their prediction, by the kernel curves that the
// prediction used. `validate` writes the table data/validate/error_bands.csv, `simulate` reads it.
// Not a correction: the predicted step stays what it is, the band only says how far from it runs were.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::study {

struct ErrorBand {
  std::string kernels;  // folder of data/kernels, "roofline" for devices without one, "all"
  std::string kind;     // of job: kind_of, or "all"
  int64_t runs = 0, settings = 0;
  double low = 1, high = 1;  // measured / predicted at the 10th and the 90th percentile; a setting weighs one
};

/// A compared run. Near-duplicates have one setting (cluster, model, paper).
struct ComparedRun {
  std::string kernels, kind, setting;
  double predicted_s = 0, measured_s = 0;
};

/// One band a set of curves and kind of job, sorted, then one a kind, then "all". Empty without runs.
std::vector<ErrorBand> error_bands(std::span<const ComparedRun>);

std::string print_error_bands(std::span<const ErrorBand>);
Result<std::vector<ErrorBand>> read_error_bands(const std::string& path);

struct JobBand {
  double low = 1, high = 1;  // times the predicted step
  std::string basis;         // whose runs these are
};
/// The band of jobs of its kind with its curves; where too few of these were compared of its kind, else of all, and the
/// basis says so.
JobBand band_of(const JobSpec&, std::span<const ErrorBand>);
/// From the built-in table.
Result<JobBand> error_band(const JobSpec&);

/// What the errors of a prediction depend on most: "experts", else "fp8", else "sharded" (weights gathered unit by unit),
/// else "small" (hidden sizes up to 2048: the host decides), else "dense".
std::string kind_of(const JobSpec&);

/// "h100"; "roofline" for a device without curves.
std::string kernels_of(const DeviceSpec&);

}  // namespace wt::study
