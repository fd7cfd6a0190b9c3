// diff by class and phase: a trace against itself is nothing, nothing is lost on the way, planted differences are found where
// they are, and what has no counterpart is said.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/spec/read.hpp"
#include "import/kineto.hpp"
#include "study/diff.hpp"

namespace wt::study {
namespace {

using testing::Contains;
using testing::HasSubstr;
using trace::Profile;
using trace::ProfilePhase;
using trace::ProfileSpan;
using trace::WorkClass;

JobResult run_of(const std::vector<std::string>& overrides = {}, bool all_ranks = true) {
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  EXPECT_TRUE(job) << to_text(job.errors());
  RunOptions options;
  options.all_ranks = all_ranks;
  options.keep_trace = true;
  auto result = run_job(job.value(), options);
  EXPECT_TRUE(result) << to_text(result.errors());
  return std::move(result.value());
}

TraceSide side(const JobResult& r) { return {"job", &*r.trace, &r.plan}; }

Profile profile(const JobResult& r, const std::vector<uint32_t>& ranks = {}) {
  auto p = profile_of(side(r), ranks);
  EXPECT_TRUE(p) << to_text(p.errors());
  return p ? p.value() : Profile{};
}

Diff diff_of(const Profile& a, const Profile& b, int64_t warm_up = 0) {
  auto d = diff_profiles("a", a, "b", b, {warm_up});
  EXPECT_TRUE(d) << to_text(d.errors());
  return d ? d.value() : Diff{};
}

double total(const Diff& d, const char* table) {
  double sum = 0;
  for (const DiffRow& row : d.table(table)->rows) sum += row.a.value_or(0);
  return sum;
}

TEST(DiffProfiles, ATraceAgainstItselfIsNothing) {
  const JobResult r = run_of();
  const Profile p = profile(r);
  const Diff d = diff_of(p, p);
  for (const DiffTable& t : d.tables) {
    EXPECT_FALSE(t.rows.empty()) << t.key;
    for (const DiffRow& row : t.rows) {
      EXPECT_TRUE(row.a && row.b) << t.key << " " << row.key;
      EXPECT_EQ(row.difference(), 0) << t.key << " " << row.key;
    }
  }
  EXPECT_TRUE(d.notes.empty());
}

// The step is the run's own, its parts add up to it, and every span of a device is in one class.
TEST(DiffProfiles, NothingIsLost) {
  const JobResult r = run_of();
  const Profile p = profile(r);
  const Diff d = diff_of(p, p);
  EXPECT_DOUBLE_EQ(*d.table("step")->rows[0].a, r.report.step_time.seconds());
  EXPECT_NEAR(total(d, "time"), r.report.step_time.seconds(), 1e-12);
  double device = 0;
  for (const ProfileSpan& s : p.spans) device += static_cast<double>(s.end_ps - s.begin_ps) * 1e-12;
  EXPECT_NEAR((total(d, "classes") + total(d, "communication")) * static_cast<double>(p.ranks.size()), device,
              1e-9 * device);
  EXPECT_EQ(p.ranks.size(), static_cast<size_t>(r.plan.mesh.ranks()));
}

// A folded trace tells of every rank what the whole one does.
TEST(DiffProfiles, FoldedRanksAreStoodFor) {
  const JobResult whole = run_of(), folded = run_of({}, false);
  ASSERT_LT(folded.trace->ranks.size(), whole.trace->ranks.size());
  const Profile all = profile(whole);
  const Diff d = diff_of(all, profile(folded, all.ranks));
  for (const DiffTable& t : d.tables)
    for (const DiffRow& row : t.rows)
      EXPECT_NEAR(row.difference(), 0, 1e-9 * row.a.value_or(0)) << t.key << " " << row.key;
  EXPECT_THAT(d.notes, Contains(HasSubstr("stands for them")));
}

TEST(DiffProfiles, PlantedDifferencesAreFoundWhereTheyAre) {
  const JobResult r = run_of();
  const Profile a = profile(r);
  Profile b = a;
  double planted = 0;
  for (ProfileSpan& s : b.spans)
    if (s.work == WorkClass::attention && s.phase == ProfilePhase::backward) {
      planted += static_cast<double>(s.end_ps - s.begin_ps) * 1e-12;
      s.end_ps += s.end_ps - s.begin_ps;
    }
  ASSERT_GT(planted, 0);
  const Diff d = diff_of(a, b);
  for (const DiffRow& row : d.table("classes")->rows)
    if (row.key == "attention/backward") {
      EXPECT_NEAR(-row.difference() * static_cast<double>(a.ranks.size()), planted, 1e-9 * planted);
      EXPECT_NEAR(*row.relative(), -0.5, 1e-9);
    } else {
      EXPECT_EQ(row.difference(), 0) << row.key;
    }
}

// Communication that runs beside a kernel is not exposed, however long.
TEST(DiffProfiles, HiddenCommunicationIsNoExposedTime) {
  Profile p;
  p.ranks = {0};
  p.names = {"x"};
  p.steps = {{0, 0, 100'000'000}};
  auto span = [&](WorkClass work, int64_t begin, int64_t end, uint16_t stream) {
    ProfileSpan s;
    s.step = 0;
    s.work = work;
    s.begin_ps = begin * 1'000'000;
    s.end_ps = end * 1'000'000;
    s.stream = stream;
    p.spans.push_back(s);
  };
  span(WorkClass::gemm, 0, 30, 0);
  span(WorkClass::all_gather, 10, 50, 1);
  span(WorkClass::norm, 40, 60, 0);
  span(WorkClass::copy, 45, 70, 2);
  const Diff d = diff_of(p, p);
  const auto& rows = d.table("time")->rows;
  EXPECT_NEAR(*rows[0].a, 50e-6, 1e-12);  // compute
  EXPECT_NEAR(*rows[1].a, 10e-6, 1e-12);  // 30 to 40
  EXPECT_NEAR(*rows[2].a, 10e-6, 1e-12);  // copies 60 to 70
  EXPECT_NEAR(*rows[3].a, 30e-6, 1e-12);  // nothing
}

TEST(DiffProfiles, AMeasurementBesideAPrediction) {
  auto measured = import::read_kineto({WT_SOURCE_DIR "/tests/import/fixtures/kineto_rank0.json.gz",
                                       WT_SOURCE_DIR "/tests/import/fixtures/kineto_rank1.json.gz"});
  ASSERT_TRUE(measured) << to_text(measured.errors());
  const JobResult r = run_of();
  const Diff d = diff_of(profile(r, measured.value().ranks), measured.value(), 1);
  EXPECT_THAT(d.b.description, HasSubstr("2 of 2 ranks, median of 2 of 3 steps"));
  EXPECT_EQ(d.b.plan_digest, 0u);
  double gemm = 0;
  for (const DiffRow& row : d.table("classes")->rows)
    if (row.key == "gemm/forward") {
      EXPECT_TRUE(row.a.has_value());
      gemm = row.b.value_or(0);
    }
  EXPECT_NEAR(gemm, 240e-6, 1e-12);
  EXPECT_THAT(d.notes, Contains(HasSubstr("A is of 8 ranks and B of 2")));
  for (const DiffRow& row : d.table("communication_bytes")->rows)
    EXPECT_EQ(row.b.value_or(0), row.key == "all_reduce/2" ? 20'960 * 4 : 0) << row.key;
}

TEST(DiffProfiles, WhatIsNotMatchedIsSaid) {
  const JobResult r = run_of();
  Profile b = profile(r);
  b.names = {"void my_kernel<float>"};
  for (ProfileSpan& s : b.spans) {
    s.name = 0;
    if (s.work == WorkClass::gemm) s.work = WorkClass::other;
    if (s.work == WorkClass::norm) s.phase = ProfilePhase::outside;
  }
  b.marked = false;
  const Profile a = profile(r, {0, 3, 100});
  EXPECT_THAT(a.notes, Contains(HasSubstr("rank 100 of the other side is not matched")));
  const Diff d = diff_of(a, b);
  EXPECT_THAT(d.notes, Contains(HasSubstr("in 1 kernels whose names tell no class: 'void my_kernel<float>'")));
  EXPECT_THAT(d.notes, Contains(HasSubstr("are of no phase")));
  EXPECT_THAT(d.notes, Contains(HasSubstr("without marks of steps")));
  auto none = profile_of(side(r), {100, 101});
  ASSERT_FALSE(none);
  EXPECT_THAT(to_text(none.errors()), HasSubstr("none of the other side's ranks"));
  auto empty = diff_profiles("a", a, "b", Profile{});
  ASSERT_FALSE(empty);
  EXPECT_THAT(to_text(empty.errors()), HasSubstr("no step with work of a device"));
}

}  // namespace
}  // namespace wt::study
