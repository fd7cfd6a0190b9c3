// A published row -> the jobs that it may have been. What the row leaves out is filled from data/validate/ (what a
// framework does, what hardware a phrase names) or tried over its plausible values; each such choice is named.
// Not a place for factors: nothing here knows how fast anything is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "study/validate_case.hpp"

namespace wt::study {

/// data/validate/{clusters,frameworks,memory_kinds}.yaml, read once.
class ValidateData {
 public:
  /// From the directory, or from the built-in data where it is empty. Errors: missing, not YAML, without its lists.
  static Result<ValidateData> load(const std::string& directory = "");

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// One value of everything that the row leaves open.
struct Candidate {
  std::string label;  // "micro_batch 2, recompute full"; empty when nothing was open
  std::string job;    // YAML, as `windtunnel simulate` takes it
  int64_t global_batch = 0;
};

struct Mapping {
  std::string skip;                      // why the row cannot be predicted; then there are no candidates
  std::vector<std::string> assumptions;  // what the row does not say and we chose
  std::vector<Candidate> candidates;
};
/// Never empty on both sides: a reason or at least one candidate.
Mapping map_case(const Case&, const ValidateData&);

/// "allocated", "reserved", "nvidia_smi" or "unknown", and what one unit of the figure is in GiB.
struct MemoryKind {
  std::string kind = "unknown";
  double unit_gib = 1;
};
MemoryKind memory_kind_of(const Case&, const ValidateData&);

/// Words compared as people write them: case, punctuation and plurals of blanks do not matter.
bool contains_words(std::string_view text, std::string_view words);

/// "8x HDR IB 200Gb/s per node", "400Gb/s per GPU", "RoCE 1600Gb/s per node (8x200G)". Nothing when no count and rate
/// can be read. `kind` is not looked at here.
struct NicPhrase {
  int64_t nics_per_node = 0;
  double gigabits = 0;  // of one NIC
};
std::optional<NicPhrase> parse_nics(std::string_view text, int64_t gpus_per_node);

}  // namespace wt::study
