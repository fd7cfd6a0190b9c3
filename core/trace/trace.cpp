#include "core/trace/trace.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

namespace wt::trace {

void MemorySink::spans(uint32_t rank, uint32_t step, std::span<const Span> spans) {
  const std::lock_guard lock(mutex_);
  auto [it, fresh] = index_.try_emplace({step, rank}, trace_.ranks.size());
  if (fresh) {
    trace_.ranks.push_back({rank, step, {}});
    trace_.ranks.back().spans.reserve(expected_);
  }
  std::vector<Span>& all = trace_.ranks[it->second].spans;
  all.insert(all.end(), spans.begin(), spans.end());
}

void MemorySink::sample(const Sample& sample) {
  const std::lock_guard lock(mutex_);
  trace_.samples.push_back(sample);
}

Trace MemorySink::take(Meta meta, std::string plan_text) {
  const std::lock_guard lock(mutex_);
  trace_.meta = std::move(meta);
  trace_.plan_text = std::move(plan_text);
  std::sort(trace_.ranks.begin(), trace_.ranks.end(),
            [](const RankSpans& a, const RankSpans& b) { return std::tie(a.step, a.rank) < std::tie(b.step, b.rank); });
  index_.clear();
  return std::exchange(trace_, {});
}

namespace {
// splitmix64's finaliser over a running sum: order matters, and a 10^7-span trace takes tens of milliseconds.
struct Hash {
  uint64_t h = 0x9e3779b97f4a7c15ull;
  void add(uint64_t v) {
    h = (h ^ v) + 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    h ^= h >> 31;
  }
};
}  // namespace

uint64_t fingerprint(const Trace& trace) {
  Hash hash;
  for (const RankSpans& r : trace.ranks) {
    hash.add(uint64_t{r.step} << 32 | r.rank);
    hash.add(r.spans.size());
    for (const Span& s : r.spans) {
      hash.add(uint64_t{s.invocation} << 32 | s.op);
      hash.add(static_cast<uint64_t>(s.begin_ps));
      hash.add(static_cast<uint64_t>(s.end_ps));
    }
  }
  std::vector<Sample> samples = trace.samples;  // threads may interleave: put in a fixed order
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return std::tuple(a.rank, a.kind, a.at_ps) < std::tuple(b.rank, b.kind, b.at_ps);
  });
  for (const Sample& s : samples) {
    hash.add(uint64_t{s.rank} << 8 | static_cast<uint64_t>(s.kind));
    hash.add(static_cast<uint64_t>(s.at_ps));
    hash.add(std::bit_cast<uint64_t>(s.value));
  }
  return hash.h;
}

}  // namespace wt::trace
