// The report as text: one screen, JSON (a stable schema, product.md), CSV and Markdown. Pure: values in, text out;
// computes nothing that the report does not hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/report/report.hpp"
#include "core/spec/specs.hpp"

namespace wt::report {

struct Simulated {
  uint64_t ranks = 0, distinct_ranks = 0, ops = 0, events = 0;
  double wall_seconds = 0;
};

/// Where the step lies if this prediction is as right as those that were held against measured runs.
struct StepBand {
  double low_s = 0, high_s = 0;
  std::string basis;  // which runs, in words
};

/// Everything that is printed of one job. The references must outlive it.
struct Sheet {
  const JobSpec& job;
  const plan::Plan& plan;
  const StepReport& report;
  uint64_t plan_digest = 0;
  const std::vector<std::string>& assumptions;
  const std::vector<std::string>& warnings;
  Simulated simulated;
  std::optional<StepBand> band = {};
};

inline constexpr int kSchemaVersion = 1;

/// The answer on top, then where time and memory go. Up to about 40 lines of at most 120 columns.
std::string print_screen(const Sheet&);
std::string print_json(const Sheet&);
/// A header line and one row.
std::string print_csv(const Sheet&);
std::string print_markdown(const Sheet&);

/// What holds the step back most, in words: "compute (84 % of the step)".
std::string limit_text(const StepReport&);

/// Columns padded to the widest cell; first column left, others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text(const std::string& indent = "  ") const;
  std::string markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace wt::report
