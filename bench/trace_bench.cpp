// Cost of writing, reading and hashing a trace, per span.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "core/trace/file.hpp"

namespace wt::trace {
namespace {

// Looks like a simulated rank: layers repeat, a compute stream with gaps and a collective stream beside it.
std::vector<Span> spans_of_a_rank(size_t count) {
  std::vector<Span> spans;
  spans.reserve(count);
  int64_t now = 0;
  uint64_t state = 1;
  for (uint32_t i = 0; spans.size() < count; ++i)
    for (uint32_t o = 0; o < 400 && spans.size() < count; ++o) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const int64_t jitter = o % 20 == 0 ? static_cast<int64_t>(state >> 50) : 0;
      const int64_t length = 40'000'000 + 3'000'000 * (o % 20) + jitter;
      spans.push_back({i, o, now, now + length});
      now += o % 20 == 7 ? 2'000'000 : length + 1'700'000;
    }
  return spans;
}

void write_file(benchmark::State& state) {
  const auto spans = spans_of_a_rank(static_cast<size_t>(state.range(0)));
  const auto portion = static_cast<size_t>(state.range(1));
  const std::string path = std::filesystem::temp_directory_path() / "wt_bench.wttrace";
  for (auto _ : state) {
    auto sink = FileSink::create(path, "plan");
    for (size_t i = 0; i < spans.size(); i += portion)
      sink.value()->spans(0, 0, std::span(spans).subspan(i, std::min(portion, spans.size() - i)));
    benchmark::DoNotOptimize(sink.value()->finish({}).ok());
  }
  state.counters["ns_per_span"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(spans.size()) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes_per_span"] =
      static_cast<double>(std::filesystem::file_size(path)) / static_cast<double>(spans.size());
  std::filesystem::remove(path);
}
BENCHMARK(write_file)->Args({1 << 20, 1 << 16})->Args({1 << 20, 400})->Args({1 << 20, 20});

void read_file(benchmark::State& state) {
  const auto spans = spans_of_a_rank(1 << 20);
  const std::string path = std::filesystem::temp_directory_path() / "wt_bench.wttrace";
  Trace t;
  t.ranks.push_back({0, 0, spans});
  (void)write_trace(path, t);
  for (auto _ : state) benchmark::DoNotOptimize(read_trace(path).ok());
  state.counters["ns_per_span"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(spans.size()) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  std::filesystem::remove(path);
}
BENCHMARK(read_file);

void hash_trace(benchmark::State& state) {
  Trace t;
  t.ranks.push_back({0, 0, spans_of_a_rank(1 << 20)});
  for (auto _ : state) benchmark::DoNotOptimize(fingerprint(t));
  state.counters["ns_per_span"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(t.ranks[0].spans.size()) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(hash_trace);

}  // namespace
}  // namespace wt::trace
