// What the memory of this machine can do on one core: the limit that "ns an op" in docs/performance.md is held against.
// An op that happens is a span of 24 bytes; no engine that keeps them all can be faster than writing them.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

#include "core/trace/trace.hpp"

namespace wt {
namespace {

constexpr size_t kDoubles = size_t{1} << 24;  // 128 MiB an array, far beyond any cache

/// STREAM's triad; bytes are counted as STREAM does, without the read that a write allocates.
void memory_triad(benchmark::State& state) {
  std::vector<double> a(kDoubles, 0), b(kDoubles, 1), c(kDoubles, 2);
  for (auto _ : state) {
    for (size_t i = 0; i < kDoubles; ++i) a[i] = b[i] + 3 * c[i];
    benchmark::DoNotOptimize(a.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 3 * kDoubles * sizeof(double)));
}
BENCHMARK(memory_triad)->Unit(benchmark::kMillisecond);

void memory_write_spans(benchmark::State& state) {
  constexpr size_t kSpans = size_t{1} << 23;  // 192 MiB
  std::vector<trace::Span> spans(kSpans);
  int64_t now = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < kSpans; ++i, now += 1700)
      spans[i] = {static_cast<uint32_t>(i >> 9), static_cast<uint32_t>(i & 511), now, now + 1000};
    benchmark::DoNotOptimize(spans.data());
    benchmark::ClobberMemory();
  }
  state.counters["per_op"] = benchmark::Counter(
      static_cast<double>(kSpans), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(memory_write_spans)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace wt
