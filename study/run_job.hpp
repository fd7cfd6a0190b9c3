// One job, from its spec to its numbers: lower, load the models, simulate, report. The command line, the window and the
// studies all go through this, so they show the same numbers. No printing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/report/report.hpp"
#include "core/spec/specs.hpp"
#include "core/trace/trace.hpp"
#include "sim/simulate.hpp"

namespace wt::study {

struct RunOptions {
  bool all_ranks = false;               // no folding
  bool breakdown = true;                // false: step time, rates and memory peaks only (searches)
  bool keep_trace = false;              // JobResult::trace
  trace::Sink* sink = nullptr;          // receives every span as well (a file)
  const sim::Models* models = nullptr;  // loaded for this cluster already; must outlive the call
  report::FlopFormula formula = report::FlopFormula::model_causal;
};

struct JobResult {
  JobSpec job;  // the degree `data` is filled in
  plan::Plan plan;
  uint64_t plan_digest = 0;
  sim::RunSummary run;
  report::StepReport report;
  std::vector<std::string> assumptions, warnings;
  std::optional<trace::Trace> trace;
};

/// Errors: an illegal strategy; data files that do not parse; a plan that gets stuck.
Result<JobResult> run_job(const JobSpec& job, const RunOptions& options = {});
/// The same with a plan that was lowered (or read) before.
Result<JobResult> run_job(const JobSpec& job, plan::Plan plan, const RunOptions& options = {});

/// What a trace of this result says about itself.
trace::Meta trace_meta(const JobResult& result, std::string code_version, std::string command);

}  // namespace wt::study
