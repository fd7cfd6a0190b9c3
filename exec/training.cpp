#include "exec/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/file.hpp"
#include "core/plan/values.hpp"

namespace wt::exec {

double LearningRate::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (total <= warmup) return peak;
  const double done = std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(total - warmup));
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

void LossScale::after(bool overflow) {
  if (overflow) {
    scale = std::max(1.0, scale * kBackoff);
    good_steps = 0;
  } else if (++good_steps == kGrowthInterval) {
    scale *= kGrowth;
    good_steps = 0;
  }
}

namespace {

class RandomTokens final : public TokenSource {
 public:
  RandomTokens(uint64_t seed, int64_t vocabulary) : seed_(seed), vocabulary_(vocabulary) {}
  std::string description() const override { return fmt::format("random tokens, seed {}", seed_); }
  void sample(int64_t step, int64_t number, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(plan::random_token(seed_, step, number, static_cast<int64_t>(i), vocabulary_));
  }

 private:
  uint64_t seed_;
  int64_t vocabulary_;
};

class PatternTokens final : public TokenSource {
 public:
  PatternTokens(uint64_t seed, int64_t vocabulary) : random_(seed, vocabulary), seed_(seed), vocabulary_(vocabulary) {}
  std::string description() const override { return fmt::format("made-up language, seed {}", seed_); }
  void sample(int64_t step, int64_t number, std::span<int32_t> tokens) const override {
    random_.sample(step, number, tokens);  // what stands where the pattern does not hold
    for (size_t i = 1; i < tokens.size(); ++i) {
      const uint64_t draw = plan::mix(plan::mix(seed_ ^ static_cast<uint64_t>(step)) ^
                                      static_cast<uint64_t>(number * 100003 + static_cast<int64_t>(i)));
      if (draw % 8 != 0)
        tokens[i] = static_cast<int32_t>(plan::mix(seed_ ^ static_cast<uint64_t>(tokens[i - 1])) %
                                         static_cast<uint64_t>(vocabulary_));
    }
  }

 private:
  RandomTokens random_;
  uint64_t seed_;
  int64_t vocabulary_;
};

class ByteTokens final : public TokenSource {
 public:
  ByteTokens(std::string path, std::string bytes, uint64_t seed)
      : path_(std::move(path)), bytes_(std::move(bytes)), seed_(seed) {}
  std::string description() const override { return fmt::format("{} bytes of {}", bytes_.size(), path_); }
  void sample(int64_t step, int64_t number, std::span<int32_t> tokens) const override {
    const uint64_t places = bytes_.size() - tokens.size() + 1;
    const uint64_t at =
        plan::mix(plan::mix(seed_ ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(number)) % places;
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint8_t>(bytes_[at + i]);
  }

 private:
  std::string path_, bytes_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<TokenSource> random_tokens(uint64_t seed, int64_t vocabulary) {
  return std::make_unique<RandomTokens>(seed, vocabulary);
}
std::unique_ptr<TokenSource> pattern_tokens(uint64_t seed, int64_t vocabulary) {
  return std::make_unique<PatternTokens>(seed, vocabulary);
}

Result<std::unique_ptr<TokenSource>> byte_tokens(const std::string& path, uint64_t seed, int64_t vocabulary,
                                                 int64_t sequence, int64_t ahead) {
  auto bytes = read_file(path);
  if (!bytes) return bytes.errors();
  const std::string& text = bytes.value();
  if (static_cast<int64_t>(text.size()) < sequence + ahead)
    return Diagnostic{path, fmt::format("{} bytes are shorter than a sample of {}", text.size(), sequence + ahead), ""};
  if (const auto most = std::max_element(
          text.begin(), text.end(), [](char a, char b) { return static_cast<uint8_t>(a) < static_cast<uint8_t>(b); });
      static_cast<uint8_t>(*most) >= vocabulary)
    return Diagnostic{path,
                      fmt::format("byte {} at offset {} is beyond the vocabulary of {}", static_cast<uint8_t>(*most),
                                  most - text.begin(), vocabulary),
                      "model.vocab = 256 takes any file"};
  return std::unique_ptr<TokenSource>(std::make_unique<ByteTokens>(path, std::move(bytes.value()), seed));
}

}  // namespace wt::exec
