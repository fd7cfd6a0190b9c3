// A small trace of fixed content, for tests of files and exports.
#pragma once

#include "core/trace/trace.hpp"

namespace wt::trace {

inline Trace sample_trace(uint32_t ranks = 3, uint32_t steps = 2, uint32_t invocations = 5, uint32_t ops = 7) {
  Trace t;
  t.meta.producer = Producer::simulated;
  t.meta.plan_digest = 0x0123456789abcdefull;
  t.meta.cluster = "two nodes";
  t.meta.code_version = "0.1.0";
  t.meta.command = "windtunnel simulate job.yaml";
  t.meta.seed = 1234;
  t.meta.clock_uncertainty = Time::ns(3);
  t.plan_text = "plan text\nof two lines\n";
  for (uint32_t r = 0; r < ranks; ++r) t.meta.ranks.push_back({r * 4, 4});
  for (uint32_t s = 0; s < steps; ++s)
    for (uint32_t r = 0; r < ranks; ++r) {
      RankSpans run{r * 4, s, {}};
      int64_t now = 1'000'000'000ll * s + r;
      for (uint32_t i = 0; i < invocations; ++i)
        for (uint32_t o = 0; o < ops; ++o) {
          const int64_t length = o == 3 ? 0 : 12'345'678 + 1000 * o;
          run.spans.push_back({i, o, now, now + length});
          now += o % 2 ? length + 1'500'000 : -500'000;  // streams overlap: begins are not in order
        }
      t.ranks.push_back(std::move(run));
    }
  t.samples = {{0, CounterKind::memory_bytes, 5, 1.5e9}, {4, CounterKind::link_bytes_per_second, 3, 2.25e10}};
  return t;
}

inline bool operator==(const FoldedRank& a, const FoldedRank& b) { return a.rank == b.rank && a.count == b.count; }

inline bool equal(const Trace& a, const Trace& b) {
  auto same_runs = [&] {
    if (a.ranks.size() != b.ranks.size()) return false;
    for (size_t i = 0; i < a.ranks.size(); ++i)
      if (a.ranks[i].rank != b.ranks[i].rank || a.ranks[i].step != b.ranks[i].step ||
          a.ranks[i].spans != b.ranks[i].spans)
        return false;
    return true;
  };
  return same_runs() && a.plan_text == b.plan_text && a.meta.plan_digest == b.meta.plan_digest &&
         a.meta.cluster == b.meta.cluster && a.meta.code_version == b.meta.code_version &&
         a.meta.command == b.meta.command && a.meta.seed == b.meta.seed && a.meta.producer == b.meta.producer &&
         a.meta.clock_uncertainty == b.meta.clock_uncertainty && a.meta.ranks == b.meta.ranks &&
         fingerprint(a) == fingerprint(b);
}

}  // namespace wt::trace
