// Seconds of a price as time. Prices follow from a user's sizes and rates, which may be absurd together though each is
// legal: what is longer than kLongestSeconds is given as that, and price_plan refuses it by name. Not for measured times.
#pragma once

#include <algorithm>

#include "core/base/units.hpp"

namespace wt::sim {

inline constexpr double kLongestSeconds = 1e6;

inline Time price_seconds(double seconds) { return Time::from_seconds(std::min(seconds, kLongestSeconds)); }

}  // namespace wt::sim
