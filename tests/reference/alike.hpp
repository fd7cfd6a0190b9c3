// Whether a job trains like another one of one rank: what every test of a strategy asks of its plan and its training.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/reference/races.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {

/// The losses of every step, and the weights after the last.
inline void expect_alike(const Trained& one, const Trained& many) {
  for (size_t i = 0; i < kSteps; ++i)
    EXPECT_NEAR(many.losses[i], one.losses[i], 1e-9 * std::abs(one.losses[i])) << "step " << i;
  ASSERT_LE(one.weights.size(), many.weights.size());  // a shard may be a weight of its own beside the whole ones
  for (const auto& [id, x] : one.weights) {
    const auto& y = many.weights.at(id);
    // The vocabulary may be padded to different sizes: padding lies at the end.
    double worst = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
    EXPECT_LT(worst, 1e-7) << id.first << " layer " << id.second;
  }
}

/// The job can be planned, no op of its plan races with another, and it trains like `one`.
inline void expect_trains_like(const Trained& one, const JobSpec& many) {
  const auto lowered = lower::lower(many);
  ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
  EXPECT_EQ(races(lowered.value()), std::vector<std::string>{});
  try {
    expect_alike(one, train(many, 2));
  } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
}

}  // namespace wt::reference
