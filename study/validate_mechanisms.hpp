// The errors by mechanism: what of a run they depend on, with a remark where a group is far off; and how often the band of a
// row that leaves something open holds what was measured.
// Summaries of rows that exist; predicts nothing. Remarks are data: data/validate/remarks.yaml.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "study/validate.hpp"

namespace wt::study {

/// Of a row; several may hold: "dense" (16-bit, whole weights on each rank), "experts", "FSDP, ZeRO-2 and 3", "long context"
/// (context parallelism, or 32,768 tokens and more), "offload", "fp8 and fp4".
std::vector<std::string> mechanisms_of(const Case&);

struct BandCount {
  size_t rows = 0, inside = 0;
  double share() const { return rows ? static_cast<double>(inside) / static_cast<double>(rows) : 0; }
};
/// Compared rows with fields that their source leaves open: those whose measured step lies between the fastest and the
/// slowest candidate, each times the band of its kind of job (error_band.hpp).
BandCount bands_that_hold(const std::vector<Row>&);

/// Rows of tiers A and B by mechanism, then by source (group), each with more than `kFar` of weighted error named.
std::map<std::string, ErrorSummary> by_mechanism(const std::vector<Row>&);

inline constexpr double kFar = 0.3;
/// mechanism or group -> why it is far off. Errors: not found, not YAML.
Result<std::map<std::string, std::string>> read_remarks();

}  // namespace wt::study
