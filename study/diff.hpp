// Two sides laid beside each other, term by term: two traces of one plan (predicted and measured), joined op by op; two
// jobs, each by its own prediction; or a profiler's trace of another program beside either, by class and phase. Not a judge: it says what differs and by how much. Every row is A, B, A - B and
// that relative to B, so that with a prediction as A and a measurement as B it is the error of the prediction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/trace/profile.hpp"
#include "core/trace/trace.hpp"
#include "study/run_job.hpp"

namespace wt::study {

enum class DiffUnit : uint8_t { seconds, bytes, share, count, per_second, tflops };

/// One compared value. A side that has none (an op class of one job only, memory that was not sampled) is empty.
struct DiffRow {
  std::string key;    // stable, for programs
  std::string words;  // for people; empty: the key
  std::optional<double> a, b;
  std::string note;  // "32 a step; most apart: rank 1, layer 3, micro-batch 2: 1.20 ms, 3.40 ms"

  double difference() const { return a && b ? *a - *b : 0; }
  std::optional<double> relative() const;  // (a - b) / b; nothing without both or with b = 0
};

struct DiffTable {
  std::string key, title;
  DiffUnit unit = DiffUnit::seconds;
  std::vector<DiffRow> rows;
};

struct DiffSide {
  std::string name;          // the file
  std::string description;   // "simulated on dgx-h100", "measured, median of 8 of 10 steps"
  uint64_t plan_digest = 0;  // 0: of no plan
};

/// What one job says and the other does not: dotted keys as in the job file.
struct KeyDifference {
  std::string key, a, b;
};

struct Diff {
  DiffSide a, b;
  std::vector<KeyDifference> keys;  // jobs only
  std::vector<DiffTable> tables;
  std::vector<std::string> notes;

  const DiffTable* table(std::string_view key) const;
};

struct TraceSide {
  std::string name;
  const trace::Trace* trace = nullptr;
  const plan::Plan* plan = nullptr;
};

struct DiffOptions {
  int64_t warm_up = 0;  // first steps of a measured trace that are left out too (a run writes none of its own warm-up)
};

/// Medians over the steps that are left after the warm-up. Errors: the traces are of two plans (both digests, and what
/// differs), one is cut, or no rank and step of one can be found in the other.
Result<Diff> diff_traces(const TraceSide& a, const TraceSide& b, const DiffOptions& options = {});

/// A trace of a plan as a profile of those of `ranks` that it can tell of (all that it holds where `ranks` is empty).
/// Errors: none of them is one of the plan's.
Result<trace::Profile> profile_of(const TraceSide& side, const std::vector<uint32_t>& ranks);

/// Two profiles by class and phase: medians over the steps, means over the ranks. What has no counterpart, and what no
/// rule could class, is named in the notes. Errors: a side has no step left.
Result<Diff> diff_profiles(const std::string& name_a, const trace::Profile& a, const std::string& name_b,
                           const trace::Profile& b, const DiffOptions& options = {});

/// Two predictions, of any two jobs.
Diff diff_jobs(const std::string& name_a, const JobResult& a, const std::string& name_b, const JobResult& b);

/// What two plans differ in, in words, the mesh first: "axis tp: 2 | 4", "first line of the plan that differs ...".
std::vector<std::string> plan_differences(const plan::Plan& a, const plan::Plan& b);

/// What people are shown of it.
struct DiffListing {
  size_t rows = 10;  // of the tables that may be long, those furthest apart
  bool full =
      false;  // every row for itself; else rows that say nearly the same of other ranks, stages or buckets are one,
              // with their count, least and most
};
std::string print_diff_screen(const Diff&, const DiffListing& = {});
std::string print_diff_markdown(const Diff&, const DiffListing& = {});
/// Everything.
std::string print_diff_json(const Diff&);
/// table,key,unit,a,b,difference,relative,note: a row for each value.
std::string print_diff_csv(const Diff&);

}  // namespace wt::study
