// What it means that two runs trained alike: losses, weights and gradients beside each other. Shared by the parity tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tests/exec/train.hpp"

namespace wt::exec {

inline constexpr int64_t kSteps = 20;

inline double relative(double x, double y) { return std::abs(x - y) / std::max(std::abs(y), 1e-300); }

inline double worst_difference(const std::vector<double>& x, const std::vector<double>& y) {
  double worst = 0;  // vocabularies may be padded to different sizes: padding lies at the end
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

using Weights = std::map<WeightId, std::vector<double>>;

/// Plain descent with rate 1, no clipping: one step takes the gradient off the weights.
inline JobSpec descent(JobSpec j) {
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  return j;
}

/// Weights after so many such steps.
inline Weights descended(const JobSpec& job, int64_t steps = 1) {
  TrainOptions o;
  o.learning_rate = 1;
  o.steps = steps;
  Trained t = train(descent(job), o);
  EXPECT_EQ(t.failure, "");
  return std::move(t.weights);
}

/// Of one rank. All start from the same weights, so what others have after the step differs by what their gradients differ.
struct OneStep {
  Weights before, after;
  explicit OneStep(const JobSpec& job) : before(descended(job, 0)), after(descended(job)) {}
};

inline void expect_same_losses(const Trained& many, const Trained& one, double tolerance) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (size_t i = 0; i < many.losses.size(); ++i)
    EXPECT_LT(relative(many.losses[i], one.losses[i]), tolerance) << "step " << i;
}

/// Weights after the last step of a run in doubles.
inline void expect_same_weights(const Trained& many, const Trained& one) {
  EXPECT_EQ(many.weights.size(), one.weights.size());
  for (const auto& [id, w] : one.weights)
    EXPECT_LT(worst_difference(many.weights.at(id), w), 1e-8) << id.first << " layer " << id.second;
}

inline void expect_same_gradients(const Weights& many, const OneStep& one) {
  EXPECT_EQ(many.size(), one.after.size());
  for (const auto& [id, after] : one.after) {
    EXPECT_GT(worst_difference(one.before.at(id), after), 1e-8)  // a gradient of zeros would agree with anything
        << id.first << " layer " << id.second;
    EXPECT_LT(worst_difference(many.at(id), after), 1e-12) << id.first << " layer " << id.second;
  }
}

}  // namespace wt::exec
