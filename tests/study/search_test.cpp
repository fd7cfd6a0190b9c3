// A search: its outcomes are those of the jobs simulated alone, its best is the best of all of them, its front is the
// front; a search that was killed or stopped ends in the same result, and no file of another search is taken for its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/file.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"
#include "study/search_print.hpp"

namespace wt::study {
namespace {

using testing::HasSubstr;

JobSpec small_job() {
  const std::string overrides[] = {"training.global_batch=16"};
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  EXPECT_TRUE(job) << to_text(job.errors());
  return job.value();
}
SearchSpace small_space(const JobSpec& job) {
  SearchSpace space = default_space(job, 4);
  space.recompute = {RecomputeKind::none, RecomputeKind::full};
  return space;
}
SearchResult found(const JobSpec& job, const SearchSpace& space, const SearchOptions& options = {}) {
  auto r = search(job, space, options);
  EXPECT_TRUE(r) << to_text(r.errors());
  return r ? r.value() : SearchResult{};
}

class SearchFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_.results = (folder_ / "results").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string content() const { return read_file(options_.results).value(); }
  std::filesystem::path folder_;
  SearchOptions options_;
};

TEST(Search, OutcomesAreThoseOfTheJobsAlone) {
  const JobSpec job = small_job();
  SearchOptions all;
  all.exact_rows = SIZE_MAX;
  const SearchResult r = found(job, small_space(job), all);
  ASSERT_EQ(r.outcomes.size(), r.candidates.size());
  ASSERT_GT(r.simulated, 10u);
  double best = 1e30;
  for (const Outcome& o : r.outcomes) {
    const auto alone = run_job(job_of(job, r.candidates[o.candidate]));
    ASSERT_EQ(alone.ok(), o.fate != Fate::illegal);
    if (!alone) continue;
    const report::StepReport& report = alone.value().report;
    EXPECT_EQ(o.fate == Fate::out_of_memory,
              report.memory.fits == "out_of_memory" || report.memory.fits == "borderline");
    if (o.fate != Fate::simulated) continue;
    EXPECT_EQ(o.step_s, report.step_time.seconds());
    EXPECT_EQ(o.reserved_gib, report.memory.stages[report.memory.peak_stage].reserved.gib());
    EXPECT_EQ(o.mfu, report.mfu);
    best = std::min(best, o.step_s);
  }
  EXPECT_EQ(r.outcomes[r.ranking.front()].step_s, best);
}

TEST(Search, TheFrontIsTheFront) {
  const JobSpec job = small_job();
  SearchSpace space = small_space(job);
  space.nodes = {job.cluster.nodes, 2 * job.cluster.nodes};
  const SearchResult r = found(job, space);
  const auto nodes = [&](size_t i) { return r.candidates[r.outcomes[i].candidate].nodes; };
  const auto as_good = [&](size_t a, size_t b) {
    return r.outcomes[a].step_s <= r.outcomes[b].step_s && r.outcomes[a].reserved_gib <= r.outcomes[b].reserved_gib &&
           nodes(a) <= nodes(b);
  };
  for (const size_t i : r.front)
    for (const size_t k : r.front) EXPECT_TRUE(i == k || !as_good(i, k));
  for (const size_t i : r.ranking)
    EXPECT_TRUE(std::any_of(r.front.begin(), r.front.end(), [&](size_t f) { return as_good(f, i); }));
}

TEST(Search, WhatIsShownHasExactMemoryAndIsWhatAllExactGives) {
  const std::string overrides[] = {"training.global_batch=16", "cluster.device.memory=3 GiB"};
  const auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  ASSERT_TRUE(job) << to_text(job.errors());
  SearchOptions few, all;
  few.exact_rows = 5;
  all.exact_rows = SIZE_MAX;
  const SearchResult a = found(job.value(), small_space(job.value()), few);
  const SearchResult b = found(job.value(), small_space(job.value()), all);
  EXPECT_EQ(a.front, b.front);
  ASSERT_GE(b.ranking.size(), 5u);
  for (size_t k = 0; k < 5; ++k) EXPECT_EQ(a.ranking[k], b.ranking[k]);
  for (const size_t i : a.front) EXPECT_EQ(a.outcomes[i], b.outcomes[i]);
  for (size_t i = 0; i < a.outcomes.size(); ++i)
    EXPECT_LE(a.outcomes[i].reserved_gib, b.outcomes[i].reserved_gib * (1 + 1e-12));
}

TEST(Search, ThreadsDoNotChangeIt) {
  const JobSpec job = small_job();
  SearchOptions one, many;
  one.threads = 1;
  many.threads = 5;
  const SearchResult a = found(job, small_space(job), one), b = found(job, small_space(job), many);
  EXPECT_EQ(a.outcomes, b.outcomes);
  EXPECT_EQ(a.ranking, b.ranking);
  EXPECT_EQ(a.front, b.front);
}

TEST_F(SearchFile, GoesOnWhereItWasKilled) {
  const JobSpec job = small_job();
  const SearchSpace space = small_space(job);
  const SearchResult whole = found(job, space, options_);
  const std::string all = content();
  for (const size_t cut : {size_t{0}, size_t{5}, all.size() / 3, all.size() - 1}) {
    std::ofstream(options_.results, std::ios::trunc) << all.substr(0, cut);
    size_t evaluated = 0;
    options_.progress = [&](size_t, size_t) { ++evaluated; };
    const SearchResult again = found(job, space, options_);
    EXPECT_EQ(again.outcomes, whole.outcomes) << "cut at " << cut;
    EXPECT_EQ(again.resumed + evaluated, whole.outcomes.size());
    if (cut > all.size() / 2) { EXPECT_EQ(evaluated, 1u); }
    EXPECT_EQ(content().size(), all.size()) << "cut at " << cut;
  }
}

TEST_F(SearchFile, StoppedItHasTheBestSoFarAndGoesOn) {
  const JobSpec job = small_job();
  const SearchSpace space = small_space(job);
  std::atomic<bool> stop{false};
  options_.stop = &stop;
  options_.threads = 1;
  options_.progress = [&](size_t done, size_t) { stop = done == 20; };
  const SearchResult part = found(job, space, options_);
  EXPECT_FALSE(part.complete);
  EXPECT_EQ(part.outcomes.size(), 20u);
  options_.stop = nullptr;
  options_.progress = nullptr;
  const SearchResult rest = found(job, space, options_);
  EXPECT_EQ(rest.resumed, 20u);
  EXPECT_EQ(rest.outcomes, found(job, space).outcomes);
}

TEST_F(SearchFile, RefusesWhatIsNotItsOwn) {
  const JobSpec job = small_job();
  const SearchSpace space = small_space(job);
  const auto refusal = [&](const JobSpec& j) {
    auto r = search(j, space, options_);
    return r ? std::string() : to_text(r.errors());
  };
  found(job, space, options_);
  const std::string all = content();
  JobSpec other = job;
  other.training.seq_len /= 2;
  EXPECT_THAT(refusal(other), HasSubstr("results:1: the results of another job, space or version"));
  EXPECT_EQ(content(), all);
  std::string damaged = all;
  const size_t third = all.find('\n', all.find('\n') + 1) + 1;
  damaged.replace(third, 5, "?????");
  std::ofstream(options_.results, std::ios::trunc) << damaged;
  EXPECT_THAT(refusal(job), HasSubstr("results:3: not a result of this search"));
  std::ofstream(options_.results, std::ios::trunc) << "model: llama3-70b\n";
  EXPECT_THAT(refusal(job), HasSubstr("not a results file"));
  EXPECT_EQ(content(), "model: llama3-70b\n");
}

// P93: a search that finds nothing says why, of every configuration.
TEST(Search, AnEmptySpaceSaysWhatEmptiesIt) {
  const JobSpec job = small_job();
  SearchSpace space = small_space(job);
  space.pipeline = {7};
  auto r = search(job, space);
  ASSERT_FALSE(r);
  EXPECT_THAT(to_text(r.errors()), HasSubstr("no combination divides"));
  space.pipeline.clear();
  r = search(job, space);
  ASSERT_FALSE(r);
  EXPECT_THAT(to_text(r.errors()), HasSubstr("no value is left for pipeline"));
}

TEST(Search, RejectionsCountLikeReasonsTogether) {
  const std::string overrides[] = {"training.global_batch=16", "cluster.device.memory=2 GiB"};
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  ASSERT_TRUE(job) << to_text(job.errors());
  const SearchResult r = found(job.value(), small_space(job.value()));
  size_t counted = 0;
  for (const auto& [reason, count] : r.rejections) counted += count;
  EXPECT_EQ(counted, r.outcomes.size() - r.simulated);
  EXPECT_EQ(r.illegal + r.out_of_memory + r.failed + r.simulated, r.outcomes.size());
}

TEST(Search, FewestGpusForADeadline) {
  JobSpec job = small_job();
  job.training.total_tokens = 1e12;
  SearchSpace space = small_space(job);
  space.nodes = {1, 2, 4};
  const SearchResult r = found(job, space);
  const double fastest = 1e12 / r.outcomes[r.ranking.front()].tokens_per_s / 86400;
  EXPECT_FALSE(fewest_for(r, job, fastest * 0.99));
  const auto exact = fewest_for(r, job, fastest);
  ASSERT_TRUE(exact);
  const auto any = fewest_for(r, job, 1e9);
  ASSERT_TRUE(any);
  EXPECT_EQ(r.candidates[r.outcomes[*any].candidate].nodes, 1);
  const std::string screen = print_search_screen(r, {job, 3, 2.0, 1e9});
  EXPECT_THAT(screen, HasSubstr("are the fewest tried that do it"));
}

}  // namespace
}  // namespace wt::study
