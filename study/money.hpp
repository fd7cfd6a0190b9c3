// Days and money of a whole run at a steady step time: no failures, no restarts, no evaluation.
#pragma once

#include "core/spec/specs.hpp"

namespace wt::study {

inline constexpr double kSecondsOfDay = 86400, kSecondsOfHour = 3600;

/// 0 where training.total_tokens is not given.
inline double days_of_run(const TrainingSpec& training, double tokens_per_s) {
  return tokens_per_s > 0 ? training.total_tokens / tokens_per_s / kSecondsOfDay : 0;
}
inline double gpu_hours(double days, int64_t gpus) { return days * 24 * static_cast<double>(gpus); }

}  // namespace wt::study
