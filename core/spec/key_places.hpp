// Where each key of a loaded job was written, for faults that only the whole job can show: lowering names keys, this gives
// them their file, line and column, or their `--set`.
// Not a record of values: a JobSpec that was changed after it was read is no longer what these places say.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "core/spec/tree.hpp"

namespace wt {

class KeyPlaces {
 public:
  KeyPlaces() = default;
  explicit KeyPlaces(std::string file) : file_(std::move(file)) {}

  /// The section `path` and every key below it.
  void add(const tree::Node& node, const std::string& path);

  /// "job.yaml:12:5: strategy.tensor" of "strategy.tensor"; of a key that nobody wrote, the file and that it is a default.
  std::string where(std::string_view key) const;

  /// A fault of the value of a key: `legal` is what it may be, or some of that; empty: not known.
  void add_fault(const std::string& key, std::vector<std::string> legal);
  /// Overrides that put the keys at fault right, each list with other values: what is illegal under all of them is so
  /// whatever those keys were meant to say. Empty where a fault is not one of a value.
  std::vector<std::vector<std::string>> corrections() const;

  /// Diagnostics that name a key of the job, with its place; others as they are.
  Diagnostics placed(Diagnostics faults) const;

 private:
  const tree::Place* find(std::string_view key) const;
  struct Written {
    tree::Place place;
    bool section = false;
  };
  std::string file_;
  std::map<std::string, Written, std::less<>> written_;
  std::map<std::string, std::vector<std::string>> at_fault_;
};

/// read_job and parse_job of read.hpp, which also tell where the keys are.
Result<JobSpec> read_job(const std::string& path, std::span<const std::string> overrides, KeyPlaces& places);
Result<JobSpec> parse_job(std::string_view text, const std::string& file, std::span<const std::string> overrides,
                          KeyPlaces& places);

}  // namespace wt
