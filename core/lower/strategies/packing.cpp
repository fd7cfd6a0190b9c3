// Packed sequences: documents of uneven length fill each sequence, and attention does not look from one into another
// (cu_seqlens). A document of s tokens costs s^2 scores, so a sequence costs what one of equal documents costs whose length
// is sum s^2 / sum s: that length is what the plan holds. Everything else depends on the tokens alone.
// Ranks draw different documents and wait for each other once a step: planned is the rank with the most scores.
// Not modelled: that micro-batches of one rank differ, which pipelines feel.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/lower/context.hpp"

namespace wt::lower {

namespace {

/// Uniform numbers of a seed: splitmix64 (Steele, Lea, Flood 2014). The same on every machine.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  /// In (0, 1).
  double next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (static_cast<double>((z ^ (z >> 31)) >> 12) + 0.5) / 4503599627370496.0;
  }
  /// Normal, by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(next()));
    return radius * std::cos(2 * 3.141592653589793 * next());
  }

 private:
  uint64_t state_;
};

/// Effective length of a document, sum s^2 / sum s, over the step of a rank.
struct Lengths {
  double mean = 0, slowest = 0;
  int64_t ranks = 0;  // drawn
};

Lengths draw(const JobSpec& j) {
  const TrainingSpec& t = j.training;
  const PackingSpec& p = t.packing;
  const StrategySpec& s = j.strategy;
  const int64_t cut = std::max<int64_t>(1, s.tensor * s.pipeline * s.context);
  const int64_t data = s.data > 0 ? s.data : std::max<int64_t>(1, j.cluster.ranks() / cut);
  const int64_t each = std::max<int64_t>(1, t.global_batch / data);  // sequences of a rank in a step
  constexpr double kMostDraws = 4e6;
  const double documents = static_cast<double>(each) * (1 + static_cast<double>(t.seq_len) / p.mean_length);
  Lengths out;
  out.ranks = std::clamp<int64_t>(static_cast<int64_t>(kMostDraws / documents), 1, data);
  const double spread = p.deviation / p.mean_length, variance = std::log(1 + spread * spread);
  const double middle = std::log(p.mean_length) - variance / 2, width = std::sqrt(variance);
  const auto sequence = static_cast<double>(t.seq_len);
  Numbers numbers(t.seed);
  for (int64_t rank = 0; rank < out.ranks; ++rank) {
    double squares = 0, rest = 0;  // rest: of a document that the sequence before cut
    for (int64_t i = 0; i < each; ++i)
      for (double left = sequence; left > 0;) {
        const double whole = rest > 0 ? rest : std::max(1.0, std::round(std::exp(middle + width * numbers.normal())));
        const double length = std::min(whole, left);
        squares += length * length;
        left -= length;
        rest = whole - length;
      }
    const double effective = squares / (static_cast<double>(each) * sequence);
    out.mean += effective / static_cast<double>(out.ranks);
    out.slowest = std::max(out.slowest, effective);
  }
  return out;
}

}  // namespace

int64_t document_length(const JobSpec& j) {
  if (j.training.packing.mean_length <= 0) return 0;
  const int64_t length = std::max<int64_t>(1, std::llround(draw(j).slowest));
  return length < j.training.seq_len ? length : 0;
}

std::vector<JobFault> packing_faults(const JobSpec& j) {
  std::vector<JobFault> out;
  if (j.training.packing.mean_length <= 0) return out;
  if (j.strategy.attention != AttentionKernel::flash)
    out.push_back({"training.packing", "unfused attention computes every score of a sequence, masked or not",
                   "with attention: flash"});
  if (j.strategy.context > 1)
    out.push_back(
        {"training.packing", "documents in sequences that ranks share cannot be planned yet", "with context: 1"});
  if (j.model.mla) out.push_back({"training.packing", "with latent attention cannot be planned yet", ""});
  return out;
}

void note_packing(const JobSpec& j, std::vector<std::string>& out) {
  if (j.training.packing.mean_length <= 0) return;
  const Lengths l = draw(j);
  const auto of = [&](double length) { return 100 * length / static_cast<double>(j.training.seq_len); };
  out.push_back(
      fmt::format("packed documents of {:g} +- {:g} tokens: attention looks at {:.1f} % of the scores of full "
                  "sequences; planned is the "
                  "rank with the most of {}, {:.1f} %",
                  j.training.packing.mean_length, j.training.packing.deviation, of(l.mean), l.ranks, of(l.slowest)));
}

}  // namespace wt::lower
