// Any bytes as a file of published runs: rows or diagnostics; each row maps to jobs or is skipped with a reason, and a
// job that a row stands for is one that the reader of jobs takes or faults.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/check.hpp"
#include "core/spec/read.hpp"
#include "study/validate_map.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const wt::study::ValidateData known = [] {
    auto loaded = wt::study::ValidateData::load();
    WT_CHECK(loaded.ok(), "{}", wt::to_text(loaded.errors()));
    return std::move(loaded.value());
  }();
  const auto file = wt::study::parse_cases(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!file.ok()) {
    for (const wt::Diagnostic& d : file.errors()) WT_CHECK(!d.what.empty());
    return 0;
  }
  for (const wt::study::Case& row : file.value().cases) {
    const wt::study::Mapping mapping = wt::study::map_case(row, known);
    WT_CHECK(!mapping.skip.empty() || !mapping.candidates.empty(), "{}", row.id);
    for (const wt::study::Candidate& c : mapping.candidates) (void)wt::parse_job(c.job, "fuzz");
  }
  return 0;
}
