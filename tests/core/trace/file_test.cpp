// The native trace file: round trips, atomic writing, every kind of damage, the kept file of version 1.
#include "core/trace/file.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/file.hpp"
#include "sample_trace.hpp"

namespace wt::trace {
namespace {

namespace fs = std::filesystem;

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("wt_trace_" + std::to_string(::getpid()) + "_" +
                                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  std::string bytes_of(const Trace& t) {
    EXPECT_TRUE(write_trace(path("t"), t).ok());
    return read_file(path("t")).value();
  }
  fs::path directory_;
};

TEST_F(TraceFile, GivesBackWhatWasWritten) {
  const Trace t = sample_trace();
  ASSERT_TRUE(write_trace(path("a.wttrace"), t).ok());
  auto back = read_trace(path("a.wttrace"));
  ASSERT_TRUE(back.ok()) << to_text(back.errors());
  EXPECT_TRUE(equal(t, back.value()));
  EXPECT_EQ(files(), 1u);
}

TEST_F(TraceFile, AnyPortionsGiveTheSameTrace) {
  rc::check("portions", [&] {
    const Trace t = sample_trace(2, 2, 40, 50);
    auto sink = FileSink::create(path("p"), t.plan_text);
    RC_ASSERT(sink.ok());
    for (const RankSpans& r : t.ranks) {
      std::span<const Span> rest(r.spans);
      while (!rest.empty()) {
        const auto n = static_cast<size_t>(*rc::gen::inRange<int>(1, 900));
        sink.value()->spans(r.rank, r.step, rest.first(std::min(n, rest.size())));
        rest = rest.subspan(std::min(n, rest.size()));
      }
    }
    for (const Sample& s : t.samples) sink.value()->sample(s);
    RC_ASSERT(sink.value()->finish(t.meta).ok());
    auto back = read_trace(path("p"));
    RC_ASSERT(back.ok());
    RC_ASSERT(equal(t, back.value()));
  });
}

TEST_F(TraceFile, KeepsExtremeValues) {
  Trace t = sample_trace(1, 1, 1, 1);
  constexpr int64_t kFar = int64_t{1} << 62;
  t.ranks[0].rank = UINT32_MAX - 1;
  t.ranks[0].step = UINT32_MAX;
  t.ranks[0].spans = {{UINT32_MAX, UINT32_MAX, -kFar, kFar}, {0, 0, -kFar, -kFar}, {7, 0, 0, 0}};
  auto back = parse_trace(bytes_of(t));
  ASSERT_TRUE(back.ok()) << to_text(back.errors());
  EXPECT_TRUE(equal(t, back.value()));
}

TEST_F(TraceFile, LongRunsAreCutInChunksAndJoined) {
  const Trace t = sample_trace(1, 1, 1000, 300);
  const std::string bytes = bytes_of(t);
  EXPECT_LT(bytes.size(), t.ranks[0].spans.size());  // a repeating run takes less than a byte a span
  auto back = parse_trace(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(equal(t, back.value()));
}

TEST_F(TraceFile, NothingIsLeftWithoutFinish) {
  {
    auto sink = FileSink::create(path("x"), "plan");
    ASSERT_TRUE(sink.ok());
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(TraceFile, AnOldFileSurvivesAnUnfinishedOne) {
  std::ofstream(path("x")) << "old";
  {
    auto sink = FileSink::create(path("x"), "plan");
    ASSERT_TRUE(sink.ok());
  }
  EXPECT_EQ(read_file(path("x")).value(), "old");
}

TEST_F(TraceFile, UnwritablePathsAreKnownAtOnce) {
  EXPECT_FALSE(FileSink::create(path("no/such/directory/x"), "").ok());
  EXPECT_FALSE(FileSink::create(directory_.string(), "").ok());
  EXPECT_FALSE(FileSink::create("", "").ok());
}

TEST_F(TraceFile, AFullDiskIsToldAtFinish) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  auto sink = FileSink::create("/dev/full", "plan");
  ASSERT_TRUE(sink.ok());
  auto status = sink.value()->finish({});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(to_text(status.errors()).find("No space left"), std::string::npos);
}

TEST_F(TraceFile, EveryCutIsNoticed) {
  const std::string bytes = bytes_of(sample_trace());
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(parse_trace(bytes.substr(0, n)).ok()) << n;
  auto cut = parse_trace(std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_NE(to_text(cut.errors()).find("cut short"), std::string::npos) << to_text(cut.errors());
}

TEST_F(TraceFile, EveryFlippedBitIsNoticed) {
  const std::string bytes = bytes_of(sample_trace(1, 1, 2, 3));
  const Trace t = sample_trace(1, 1, 2, 3);
  for (size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = bytes;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      auto result = parse_trace(bad);
      // Bytes 12..15 are reserved: they may change without harm.
      EXPECT_TRUE(!result.ok() || (i >= 12 && i < 16 && equal(t, result.value()))) << i << " bit " << bit;
    }
}

TEST_F(TraceFile, TellsOtherFilesAndNewerVersions) {
  EXPECT_NE(to_text(parse_trace("PK\3\4 something else", "x.zip").errors()).find("x.zip: is not a Windtunnel trace"),
            std::string::npos);
  std::string bytes = bytes_of(sample_trace());
  bytes[8] = 2;
  EXPECT_NE(to_text(parse_trace(bytes).errors()).find("trace version 2"), std::string::npos);
  bytes = bytes_of(sample_trace()) + "tail";
  EXPECT_NE(to_text(parse_trace(bytes).errors()).find("4 bytes after the end"), std::string::npos);
}

TEST_F(TraceFile, RefusesMoreThanTheLimit) {
  ReadLimits limits;
  limits.spans = 10;
  auto result = parse_trace(bytes_of(sample_trace()), "t", limits);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(to_text(result.errors()).find("limit"), std::string::npos);
}

TEST_F(TraceFile, FingerprintSeesEveryField) {
  const Trace t = sample_trace();
  const uint64_t f = fingerprint(t);
  auto differs = [&](auto change) {
    Trace other = sample_trace();
    change(other);
    EXPECT_NE(fingerprint(other), f);
  };
  differs([](Trace& o) { o.ranks[1].spans[3].end_ps += 1; });
  differs([](Trace& o) { o.ranks[1].spans[3].begin_ps -= 1; });
  differs([](Trace& o) { o.ranks[1].spans[3].op += 1; });
  differs([](Trace& o) { o.ranks[1].spans[3].invocation += 1; });
  differs([](Trace& o) { o.ranks[1].rank += 1; });
  differs([](Trace& o) { o.ranks[1].step += 1; });
  differs([](Trace& o) { o.samples[0].value += 1; });
  Trace reordered = sample_trace();
  std::swap(reordered.samples[0], reordered.samples[1]);
  EXPECT_EQ(fingerprint(reordered), f);
}

TEST_F(TraceFile, MemorySinkSortsRanks) {
  const Trace t = sample_trace();
  MemorySink sink;
  for (size_t i = t.ranks.size(); i-- > 0;) {
    const std::span<const Span> all(t.ranks[i].spans);
    sink.spans(t.ranks[i].rank, t.ranks[i].step, all.first(10));
    sink.spans(t.ranks[i].rank, t.ranks[i].step, all.subspan(10));
  }
  for (const Sample& s : t.samples) sink.sample(s);
  EXPECT_TRUE(equal(sink.take(t.meta, t.plan_text), t));
  EXPECT_TRUE(sink.take({}, "").ranks.empty());
}

// Files of released versions open for ever. WT_UPDATE_KEPT=1 writes the file once, when a version is made.
TEST_F(TraceFile, KeptFileOfVersion1) {
  const std::string kept = WT_SOURCE_DIR "/tests/kept/trace_v1.wttrace";
  if (std::getenv("WT_UPDATE_KEPT")) { ASSERT_TRUE(write_trace(kept, sample_trace()).ok()); }
  auto back = read_trace(kept);
  ASSERT_TRUE(back.ok()) << to_text(back.errors());
  EXPECT_TRUE(equal(back.value(), sample_trace()));
  EXPECT_EQ(fingerprint(back.value()), 17385351564521505207u);
}

}  // namespace
}  // namespace wt::trace
