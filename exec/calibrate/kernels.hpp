// How long kernels take where they run: in small training jobs of many widths and lengths, every rank busy at once, each
// operand where the op before left it. Not a loop over one kernel, whose operands would never leave the nearest cache.
#pragma once

#include <vector>

#include "core/spec/specs.hpp"
#include "exec/calibrate/ranks.hpp"

namespace wt::exec {

/// How much is measured: `quick` is for tests and first looks, its curves rest on few points.
enum class Extent : uint8_t { quick, full };

struct KernelMeasurement {
  std::vector<KernelCurve> curves;  // points only: see fit.hpp
  Time op_overhead;                 // of one op when kernels do nothing
};

/// Jobs of `precision` (fp32 or bf16) over so many ranks. The same on every rank. Collective.
Result<KernelMeasurement> measure_kernels(const Ranks&, DType precision, Extent);

/// The jobs themselves; tests look at them.
std::vector<JobSpec> probe_jobs(int64_t ranks, DType precision, Extent);

}  // namespace wt::exec
