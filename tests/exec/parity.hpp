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

using Gradients = std::map<WeightId, std::vector<double>>;

/// Plain descent with rate 1, no clipping: one step takes the gradient off the weights.
inline JobSpec descent(JobSpec j) {
  j.training.optimizer = OptimizerKind::sgd;
  j.training.gradient_clipping = 0;
  return j;
}

/// Weights before a step less those after it.
inline Gradients gradients(const JobSpec& job, TrainOptions options = {}) {
  options.learning_rate = 1;
  options.steps = 0;
  const Trained before = train(job, options);
  options.steps = 1;
  Trained after = train(job, options);
  EXPECT_EQ(before.failure, "");
  EXPECT_EQ(after.failure, "");
  for (auto& [id, w] : after.weights)
    for (size_t i = 0; i < w.size(); ++i) w[i] = before.weights.at(id)[i] - w[i];
  return after.weights;
}

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

inline void expect_same_gradients(const Gradients& many, const Gradients& one) {
  EXPECT_EQ(many.size(), one.size());
  for (const auto& [id, g] : one) {
    double largest = 0;
    for (const double x : g) largest = std::max(largest, std::abs(x));
    EXPECT_GT(largest, 1e-8) << id.first << " layer " << id.second;  // a gradient of zeros would agree with anything
    EXPECT_LT(worst_difference(many.at(id), g), 1e-12) << id.first << " layer " << id.second;
  }
}

}  // namespace wt::exec
