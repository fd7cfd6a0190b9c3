// What a training run decides from step to step on the host: learning rate, loss scale, which tokens come next. Pure
// values, equal on every rank; nothing here looks at a device. Invariant: everything follows from the job's options and
// the step's number (and the skipped steps before it), so a resumed run goes on as if it had not stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/result.hpp"

namespace wt::exec {

/// Linear warm-up to `peak`, then half a cosine down to `floor` at `total`; constant where `total` is 0.
struct LearningRate {
  double peak = 1e-3, floor = 0;
  int64_t warmup = 0, total = 0;  // steps
  double at(int64_t step) const;  // 0-based: the first step of a warm-up is at peak / warmup
};

/// Dynamic scaling of an fp16 loss: halved when a gradient is infinite (and that step skipped), doubled after a run of
/// good steps. The figures are those of PyTorch's GradScaler.
struct LossScale {
  double scale = 65536;
  int64_t good_steps = 0;
  static constexpr double kGrowth = 2, kBackoff = 0.5;
  static constexpr int64_t kGrowthInterval = 2000;
  void after(bool overflow);
  bool operator==(const LossScale&) const = default;
};

/// Samples of the global batch, by number: the same under every strategy.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::string description() const = 0;
  /// tokens.size() is a sequence and plan::tokens_ahead more: labels are the tokens of the next position. Safe from several threads.
  virtual void sample(int64_t step, int64_t number, std::span<int32_t> tokens) const = 0;
};

/// Uniformly drawn: what tests/reference trains on. Nothing to learn.
std::unique_ptr<TokenSource> random_tokens(uint64_t seed, int64_t vocabulary);
/// A text in a made-up language: each token decides the next, seven times in eight. A model learns it in some hundred steps.
std::unique_ptr<TokenSource> pattern_tokens(uint64_t seed, int64_t vocabulary);
/// The bytes of a file, a token each; samples of `sequence` + `ahead` start at places drawn from the seed. Errors: unreadable, shorter than a
/// sample, a byte beyond the vocabulary.
Result<std::unique_ptr<TokenSource>> byte_tokens(const std::string& path, uint64_t seed, int64_t vocabulary,
                                                 int64_t sequence, int64_t ahead = 1);

}  // namespace wt::exec
