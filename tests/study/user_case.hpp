// Shared by the tests of reported cases (docs/user_cases.md): a job as its reporter would write it, simulated, and what is
// read from the result.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/lower/lower.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::study {

constexpr double kGb = 1e9, kGib = 1073741824.0;

/// `value` lies within `share` of `expected`.
#define EXPECT_WITHIN(value, expected, share) EXPECT_NEAR(value, expected, (share) * (expected))

inline JobSpec job_of(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  auto job = parse_job(yaml, "job.yaml", sets);
  EXPECT_TRUE(job) << to_text(job.errors());
  return job.value();
}

/// The step, whether it fits or not.
inline JobResult run(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  auto r = run_job(job_of(yaml, sets));
  EXPECT_TRUE(r) << to_text(r.errors());
  return std::move(r.value());
}

inline std::string refused(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  const auto plan = lower::lower(job_of(yaml, sets));
  return plan ? "" : to_text(plan.errors());
}

inline double seconds(const JobResult& r) { return r.report.step_time.seconds(); }
inline double tflops(const JobResult& r) { return r.report.model_tflops_per_gpu; }
inline const report::MemoryReport& memory(const JobResult& r) { return r.report.memory; }
inline double reserved(const JobResult& r) {
  return static_cast<double>(memory(r).stages[memory(r).peak_stage].reserved.n);
}
inline double item(const JobResult& r, std::string_view name) {
  for (const report::MemoryItem& i : memory(r).stages[0].items)
    if (i.name == name) return static_cast<double>(i.bytes.n);
  return 0;
}
inline double phase(const JobResult& r, std::string_view name) {
  for (const report::PhasePeak& p : memory(r).stages[0].phases)
    if (p.phase == name) return static_cast<double>(p.peak.n);
  return 0;
}

}  // namespace wt::study
