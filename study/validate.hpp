// Predicted against published: every row of the files, bad rows included, and what the errors are in sum.
// The rules of judging are those of docs/validation.md: time is compared, never MFU across FLOP conventions; a row
// with unknown fields is a band and is scored at its middle; rows of one cluster share the weight of one row.
// Not an engine and not a fit: the prediction is a function that the caller gives.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "study/validate_case.hpp"
#include "study/validate_map.hpp"

namespace wt::study {

struct Prediction {
  double step_time_s = 0;
  double peak_gib = 0, reserved_gib = 0, context_gib = 0;
  std::string fits;                      // product.md: "fits", "tight", "borderline", "out_of_memory"
  std::map<std::string, double> time_s;  // by cause; sums to step_time_s
};
/// Called from several threads at once.
using Predict = std::function<Result<Prediction>(const JobSpec&)>;
/// One step of the job, simulated; models of clusters are kept for the next call.
Predict predict_by_simulation();

struct ValidateOptions {
  std::string group, tier;                                  // empty: all
  std::set<std::string> ids;                                // empty: all
  unsigned threads = 0;                                     // 0: one per core
  std::function<void(size_t done, size_t total)> progress;  // from one thread at a time
  const std::atomic<bool>* stop = nullptr;                  // rows not begun are skipped as "interrupted"
};

enum class RowStatus : uint8_t { compared, band, skipped, predicted_out_of_memory };
std::string_view to_text(RowStatus);

struct Row {
  std::string id, group, tier, cluster, source, gpu, framework;
  std::string kernels, kind;  // of the device that the job was predicted on, and of the job (study/error_band.hpp)
  RowStatus status = RowStatus::skipped;
  std::string reason;  // of a skipped row
  std::vector<std::string> assumptions;
  std::string basis;      // what the measured time is: "step_time_s", "tokens_per_s", "tflops, full", ...
  size_t candidates = 0;  // jobs that were predicted for the row
  std::optional<double> predicted_step_time_s, predicted_low_s, predicted_high_s, measured_step_time_s;
  std::optional<double> relative_error;  // predicted / measured - 1, at the middle of the band
  std::optional<double> predicted_peak_gib, measured_peak_gib;
  std::string memory_kind = "unknown", fits;
  std::map<std::string, double> time_s;  // of the candidate nearest to the middle
  int64_t tp = 1, pp = 1, dp = 1, vpp = 1, seq_len = 0;
  std::string recompute;
  std::vector<std::string> mechanisms;             // study/validate_mechanisms.hpp
  bool open = false;                               // the source leaves fields open
  double band_low = 1, band_high = 1;              // of its kind of job: measured / predicted of 4 of 5 runs
  bool out_of_memory_row = false, agrees = false;  // files of configurations that ran out of memory
};

struct ErrorSummary {
  size_t rows = 0, compared = 0, skipped = 0;
  double coverage = 0;  // compared / rows
  // Of |relative error| over compared rows; nothing where there is none.
  std::optional<double> mean, weighted_mean, median, p90, bias, weighted_bias;
  std::optional<double> memory_mean, memory_bias;
  size_t memory_compared = 0;
};

struct Agreement {
  size_t rows = 0, judged = 0, agreed = 0;
  double share() const { return judged ? static_cast<double>(agreed) / static_cast<double>(judged) : 0; }
};

struct Validation {
  std::vector<Row> rows;  // in the order of the files
  ErrorSummary all;
  std::map<std::string, ErrorSummary> by_group, by_tier;
  std::map<std::string, size_t> skipped_for;  // reason -> rows
  Agreement out_of_memory;                    // rows = 0: the files have no such configurations
  std::map<std::string, Agreement> out_of_memory_by_source;
  std::vector<std::string> warnings;
};

/// `step_time_s`, else tokens or samples per second, else a time under the FLOP convention that the row's check
/// matched, else the middle of both conventions. Nothing when the source gives none of them.
struct MeasuredTime {
  double seconds = 0;
  std::string basis;
};
std::optional<MeasuredTime> measured_step_time(const Case&, int64_t global_batch);

/// Errors: no file; no row that the options select.
Result<Validation> validate(const std::vector<CaseFile>& files, const ValidateData&, const Predict&,
                            const ValidateOptions&);

ErrorSummary summary_of(const std::vector<const Row*>&);
/// Summaries of rows that exist already (the middle of `validate`).
void summarise(Validation&);

std::string print_json(const Validation&);      // product.md, `validate --json`
std::string print_table(const Validation&);     // one screen a row and the summary
std::string print_markdown(const Validation&);  // docs/validation.md
std::string print_bands(const Validation&);     // data/validate/error_bands.csv

}  // namespace wt::study
