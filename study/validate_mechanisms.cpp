#include "study/validate_mechanisms.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "core/base/file.hpp"
#include "core/spec/data_dir.hpp"
#include "study/validate_words.hpp"

namespace wt::study {

std::vector<std::string> mechanisms_of(const Case& row) {
  constexpr int64_t kLongContext = 32768;
  std::vector<std::string> out;
  const bool sharded = row.fsdp.value_or(false) || row.zero_stage.value_or(0) >= 2;
  const bool narrow = has(row.precision, "fp8") || has(row.precision, "fp4");
  const std::string offload = lower(row.offload);
  if (!row.moe && !sharded && !narrow) out.emplace_back("dense");
  if (row.moe) out.emplace_back("experts");
  if (sharded) out.emplace_back("FSDP, ZeRO-2 and 3");
  if (row.cp.value_or(1) > 1 || row.seq_len.value_or(0) >= kLongContext) out.emplace_back("long context");
  if (!offload.empty() && offload != "none" && offload != "unknown") out.emplace_back("offload");
  if (narrow) out.emplace_back("fp8 and fp4");
  return out;
}

BandCount bands_that_hold(const std::vector<Row>& rows) {
  BandCount count;
  for (const Row& r : rows) {
    if (!r.relative_error || !r.open) continue;
    ++count.rows;
    if (*r.measured_step_time_s >= *r.predicted_low_s * r.band_low &&
        *r.measured_step_time_s <= *r.predicted_high_s * r.band_high)
      ++count.inside;
  }
  return count;
}

std::map<std::string, ErrorSummary> by_mechanism(const std::vector<Row>& rows) {
  std::map<std::string, std::vector<const Row*>> groups;
  for (const Row& r : rows)
    if (r.tier == "A" || r.tier == "B")
      for (const std::string& mechanism : r.mechanisms) groups[mechanism].push_back(&r);
  std::map<std::string, ErrorSummary> out;
  for (const auto& [name, list] : groups) out[name] = summary_of(list);
  return out;
}

Result<std::map<std::string, std::string>> read_remarks() {
  const std::string path = find_data("data/validate", "remarks");
  if (path.empty()) return Diagnostic{"data/validate/remarks.yaml", "not found", "set WINDTUNNEL_DATA"};
  auto text = read_file(path);
  if (!text) return text.errors();
  std::map<std::string, std::string> out;
  try {
    const YAML::Node root = YAML::Load(text.value());
    for (const auto& entry : root) out[entry.first.Scalar()] = entry.second.Scalar();
  } catch (const YAML::Exception& e) { return Diagnostic{path, e.what(), ""}; }
  return out;
}

}  // namespace wt::study
