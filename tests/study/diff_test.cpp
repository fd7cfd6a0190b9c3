// diff: a trace against itself is nothing; planted differences are found, named and scaled right; two plans are refused.
#include "study/diff.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/plan/plan_io.hpp"
#include "core/report/report.hpp"
#include "core/spec/read.hpp"

namespace wt::study {
namespace {

using testing::HasSubstr;

struct Predicted {
  plan::Plan plan;
  trace::Trace trace;
  JobResult result;
};

Predicted run_of(std::vector<std::string> overrides = {}, bool all_ranks = true) {
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", overrides);
  EXPECT_TRUE(job) << to_text(job.errors());
  RunOptions options;
  options.all_ranks = all_ranks;
  options.keep_trace = true;
  auto result = run_job(job.value(), options);
  EXPECT_TRUE(result) << to_text(result.errors());
  Predicted r;
  r.plan = result.value().plan;
  r.trace = std::move(*result.value().trace);
  result.value().trace.reset();
  r.result = std::move(result.value());
  return r;
}

/// The trace as if it had been measured: a step for each factor, all its instants times that.
trace::Trace measured(const trace::Trace& one, const std::vector<double>& factors) {
  trace::Trace t = one;
  t.meta.producer = trace::Producer::executed;
  t.ranks.clear();
  for (uint32_t s = 0; s < factors.size(); ++s)
    for (trace::RankSpans r : one.ranks) {
      r.step = s;
      for (trace::Span& x : r.spans) {
        x.begin_ps = std::llround(static_cast<double>(x.begin_ps) * factors[s]);
        x.end_ps = std::llround(static_cast<double>(x.end_ps) * factors[s]);
      }
      t.ranks.push_back(std::move(r));
    }
  return t;
}

Diff diff_of(const Predicted& a, const trace::Trace& b, int64_t warm_up = 1) {
  auto d = diff_traces({"a", &a.trace, &a.plan}, {"b", &b, &a.plan}, {warm_up});
  EXPECT_TRUE(d) << to_text(d.errors());
  return d ? d.value() : Diff{};
}

TEST(DiffTraces, ATraceAgainstItselfIsNothing) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    const Predicted r = run_of({fmt::format("strategy.schedule={}", schedule)});
    const Diff d = diff_of(r, r.trace);
    for (const char* table : {"step", "time", "stages", "op_classes", "ops", "memory"}) {
      ASSERT_TRUE(d.table(table)) << table;
      EXPECT_FALSE(d.table(table)->rows.empty()) << table;
      for (const DiffRow& row : d.table(table)->rows) {
        EXPECT_EQ(row.difference(), 0) << table << " " << row.key;
        EXPECT_EQ(row.relative().value_or(0), 0) << table << " " << row.key;
      }
    }
    EXPECT_TRUE(d.notes.empty());
    EXPECT_DOUBLE_EQ(*d.table("step")->rows[0].a, r.result.report.step_time.seconds());
  }
}

// Every joined op is of the plan and none is left out: the mean over the ranks of all ops is the mean busy time.
TEST(DiffTraces, ClassesHoldEverySpan) {
  const Predicted r = run_of();
  const Diff d = diff_of(r, r.trace);
  double spans = 0;
  for (const trace::RankSpans& run : r.trace.ranks)
    for (const trace::Span& s : run.spans) spans += static_cast<double>(s.end_ps - s.begin_ps) * 1e-12;
  double classes = 0;
  for (const DiffRow& row : d.table("op_classes")->rows) classes += *row.a;
  EXPECT_NEAR(classes * static_cast<double>(r.trace.ranks.size()), spans, 1e-9 * spans);
}

// The host's wait spans ops that are compared themselves: as long as it was measured to be, it is no row.
TEST(DiffTraces, AWaitOfTheHostIsNoWork) {
  const Predicted r = run_of();
  trace::Trace m = measured(r.trace, {1.0});
  int64_t waits = 0;
  for (trace::RankSpans& run : m.ranks) {
    size_t i = 0;
    for (const plan::Invocation& v : r.plan.programs[plan::program_of(r.plan, RankId{run.rank}).v].steps.front().order)
      plan::for_each_op(r.plan.block(v.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
        trace::Span& span = run.spans[i++];
        if (!std::holds_alternative<plan::HostWait>(op.body)) return;
        ++waits;
        span.begin_ps = 0;
      });
    ASSERT_EQ(i, run.spans.size());
  }
  ASSERT_GT(waits, 0);
  const Diff d = diff_of(r, m);
  for (const char* table : {"op_classes", "ops"})
    for (const DiffRow& row : d.table(table)->rows) EXPECT_NEAR(row.difference(), 0, 1e-12) << row.key;
}

TEST(DiffTraces, TheMedianOfTheStepsAfterTheWarmUpCounts) {
  const Predicted r = run_of();
  const trace::Trace m = measured(r.trace, {7.0, 1.5, 1.0, 1.25, 1.3, 1.2});
  const Diff d = diff_of(r, m);
  const DiffRow& step = d.table("step")->rows[0];
  EXPECT_NEAR(*step.b, 1.25 * *step.a, 1e-9 * *step.a);
  EXPECT_NEAR(step.relative().value(), 1 / 1.25 - 1, 1e-9);
  for (const DiffRow& row : d.table("op_classes")->rows) EXPECT_NEAR(*row.relative(), -0.2, 1e-6) << row.key;
  for (const DiffRow& row : d.table("ops")->rows)  // a short op is rounded to picoseconds
    EXPECT_NEAR(row.relative().value_or(-0.2), -0.2, 1e-3) << row.key;
  double total = 0;
  for (const DiffRow& row : d.table("time")->rows) total += *row.b;
  EXPECT_NEAR(total, *step.b, 1e-9 * total);
  EXPECT_THAT(d.b.description, HasSubstr("median of 5 of 6 steps"));
  ASSERT_EQ(d.notes.size(), 1u);
  EXPECT_THAT(d.notes[0], HasSubstr("its steps differ by +50.0 %"));

  // An even number: the middle between the two; without warm-up the slow one counts.
  const DiffRow all = diff_of(r, measured(r.trace, {7.0, 1.2, 1.0, 1.3}), 0).table("step")->rows[0];
  EXPECT_NEAR(*all.b, 1.25 * *all.a, 1e-9 * *all.a);
  // A run that is all warm-up still has its last step.
  const DiffRow last = diff_of(r, measured(r.trace, {3.0, 2.0}), 5).table("step")->rows[0];
  EXPECT_NEAR(*last.b, 2 * *last.a, 1e-9 * *last.a);
}

TEST(DiffTraces, AnOpThatTookLongerIsNamedWithItsPlace) {
  const Predicted r = run_of();
  trace::Trace m = measured(r.trace, {1.0});
  // On one rank the product "fc1" of one layer and micro-batch; what follows is not moved, so that only this differs.
  trace::RankSpans& run = m.ranks[5];
  const plan::Program& program = r.plan.programs[plan::program_of(r.plan, RankId{run.rank}).v];
  const auto& order = program.steps[0].order;
  size_t i = 0;
  std::string stage_block;
  int64_t layer_of_model = -1;
  for (uint32_t v = 0; v < order.size() && layer_of_model < 0; ++v)
    plan::for_each_op(r.plan.block(order[v].block), [&](const plan::Op& op, uint32_t, int64_t layer, uint32_t) {
      if (order[v].binding[0].micro_batch == 2 && op.name == "fc1" && layer == 1 && layer_of_model < 0) {
        run.spans[i].end_ps += 1'000'000'000;
        stage_block = r.plan.block(order[v].block).name;
        layer_of_model = program.first_layer[0] + layer;
      }
      ++i;
    });
  ASSERT_GE(layer_of_model, 0);
  const Diff d = diff_of(r, m);
  int apart = 0;
  for (const DiffRow& row : d.table("ops")->rows) {
    if (row.difference() == 0) continue;
    ++apart;
    EXPECT_THAT(row.key, HasSubstr(stage_block + "/fc1"));
    EXPECT_THAT(row.note, HasSubstr(fmt::format("rank {}, layer {}, micro-batch 2", run.rank, layer_of_model)));
    EXPECT_NEAR(row.difference(), -1e-3 / 4, 1e-12);  // mean of the 4 ranks of the stage
  }
  EXPECT_EQ(apart, 1);
  const std::string screen = print_diff_screen(d, {.rows = 3});
  EXPECT_THAT(screen, HasSubstr("the 3 of"));
  EXPECT_THAT(screen, HasSubstr("layer " + std::to_string(layer_of_model)));
}

TEST(DiffTraces, FoldedRanksStandForTheOthers) {
  const Predicted all = run_of(), folded = run_of({}, false);
  ASSERT_LT(folded.trace.ranks.size(), all.trace.ranks.size());
  const auto d = diff_traces({"folded", &folded.trace, &folded.plan}, {"all", &all.trace, &all.plan});
  ASSERT_TRUE(d) << to_text(d.errors());
  for (const char* table : {"step", "time", "op_classes", "ops"})
    for (const DiffRow& row : d.value().table(table)->rows)
      EXPECT_NEAR(row.difference(), 0, 1e-15) << table << " " << row.key;
  ASSERT_EQ(d.value().notes.size(), 1u);
  EXPECT_EQ(d.value().notes[0],
            fmt::format("{} of 8 ranks are read from another rank of their stage that stands for them",
                        8 - folded.trace.ranks.size()));
}

TEST(DiffTraces, TwoPlansAreRefusedWithWhatDiffers) {
  const Predicted a = run_of(), b = run_of({"strategy.tensor=4", "training.global_batch=16"});
  const auto d = diff_traces({"a", &a.trace, &a.plan}, {"b", &b.trace, &b.plan});
  ASSERT_FALSE(d);
  const std::string text = to_text(d.errors());
  EXPECT_THAT(text, HasSubstr(fmt::format("{:016x} and {:016x}", plan::digest(a.plan), plan::digest(b.plan))));
  EXPECT_THAT(text, HasSubstr("axis tp: 2 | 4"));
  EXPECT_THAT(text, HasSubstr("axis dp: 2 | 1"));
  EXPECT_THAT(text, HasSubstr("micro-batches: 4 | 16"));
  EXPECT_THAT(text, HasSubstr("line "));
}

// What no count shows is found in the text.
TEST(DiffTraces, APlanThatDiffersInOneOpIsRefused) {
  const Predicted a = run_of();
  plan::Plan other = a.plan;
  for (plan::Op& op : other.blocks[0].ops) op.name += "x";
  const auto d = diff_traces({"a", &a.trace, &a.plan}, {"b", &a.trace, &other});
  ASSERT_FALSE(d);
  EXPECT_THAT(to_text(d.errors()), HasSubstr("of the plan: '"));
}

TEST(DiffTraces, BadTracesAreRefusedBothAtOnce) {
  const Predicted r = run_of();
  trace::Trace empty = r.trace, cut = r.trace, foreign = r.trace;
  empty.ranks.clear();
  cut.ranks[1].spans.pop_back();
  foreign.meta.plan_digest ^= 1;
  const auto d = diff_traces({"empty", &empty, &r.plan}, {"cut", &cut, &r.plan});
  ASSERT_FALSE(d);
  EXPECT_THAT(to_text(d.errors()), HasSubstr("empty: holds no spans"));
  EXPECT_THAT(to_text(d.errors()), HasSubstr("cut: trace: rank 1"));
  const auto f = diff_traces({"foreign", &foreign, &r.plan}, {"b", &r.trace, &r.plan});
  ASSERT_FALSE(f);
  EXPECT_THAT(to_text(f.errors()), HasSubstr("foreign: says it is of plan"));
}

TEST(DiffTraces, MemoryIsWhatWasSampledElseWhatThePlanOwns) {
  const Predicted r = run_of();
  trace::Trace m = measured(r.trace, {1.0});
  m.samples = {{3, trace::CounterKind::memory_bytes, 0, 5e6},
               {3, trace::CounterKind::memory_bytes, 9, 7e6},
               {3, trace::CounterKind::link_bytes_per_second, 9, 7e9}};
  const Diff d = diff_of(r, m);
  const auto& rows = d.table("memory")->rows;
  ASSERT_EQ(rows.size(), 8u);
  for (const DiffRow& row : rows) {
    const auto planned =
        static_cast<double>(report::planned_peak(r.plan, RankId{static_cast<uint32_t>(&row - rows.data())}).n);
    EXPECT_GT(planned, 0);
    EXPECT_EQ(*row.a, planned);
    EXPECT_EQ(*row.b, row.key == "rank 3" ? 7e6 : planned);
  }
}

TEST(PlannedPeak, IsThatOfTheReport) {
  const Predicted r = run_of();
  const report::MemoryReport& m = r.result.report.memory;
  EXPECT_EQ(report::planned_peak(r.plan, RankId{m.peak_rank}), m.stages[m.peak_stage].peak);
}

/// Rows of a wide job that say the same of other ranks are one on the screen; what stands out stays alone; JSON has all.
TEST(DiffPrint, RowsThatAreNearlyAlikeAreOne) {
  Diff d;
  DiffTable memory{"memory", "Memory", DiffUnit::bytes, {}};
  constexpr double kGib = 1073741824.0;
  for (int rank = 0; rank < 1024; ++rank)
    memory.rows.push_back({fmt::format("rank {}", rank), "", (40 + rank % 5 * 0.1) * kGib, 41 * kGib, ""});
  memory.rows[700].b = 60 * kGib;
  d.tables.push_back(memory);
  for (int rank = 0; rank < 300; ++rank) d.notes.push_back(fmt::format("rank {} is in one trace only", rank));
  const std::string screen = print_diff_screen(d);
  EXPECT_LT(std::count(screen.begin(), screen.end(), '\n'), 15) << screen;
  EXPECT_THAT(screen, HasSubstr("rank 0-1023 (1,023 rows)"));
  EXPECT_THAT(screen, HasSubstr("40.00 GiB - 40.40 GiB"));
  EXPECT_THAT(screen, HasSubstr("rank 700 "));
  EXPECT_THAT(screen, HasSubstr("rank 0 is in one trace only (and 299 more like it)"));
  const std::string full = print_diff_screen(d, {.full = true});
  EXPECT_GT(std::count(full.begin(), full.end(), '\n'), 1024 + 300);
  EXPECT_THAT(full, HasSubstr("rank 512 "));
  EXPECT_EQ(nlohmann::json::parse(print_diff_json(d)).at("memory").size(), 1024u);
}

TEST(DiffJobs, KeysTermsAndMemoryAreJoined) {
  const Predicted a = run_of(), b = run_of({"strategy.tensor=4", "strategy.sequence_parallel=true"});
  const Diff d = diff_jobs("a.yaml", a.result, "b.yaml", b.result);
  auto key = [&](const char* name) {
    for (const KeyDifference& k : d.keys)
      if (k.key == name) return k.a + " " + k.b;
    return std::string();
  };
  EXPECT_EQ(key("strategy.tensor"), "2 4");
  EXPECT_EQ(key("strategy.sequence_parallel"), "false true");
  EXPECT_EQ(key("model.layers"), "");
  double total_a = 0, total_b = 0;
  for (const DiffRow& row : d.table("time")->rows) {
    total_a += *row.a;
    total_b += *row.b;
  }
  EXPECT_NEAR(total_a, a.result.report.step_time.seconds(), 1e-9);
  EXPECT_NEAR(total_b, b.result.report.step_time.seconds(), 1e-9);
  bool only_in_b = false;
  for (const DiffRow& row : d.table("op_classes")->rows) only_in_b |= !row.a && row.b;
  EXPECT_TRUE(only_in_b);  // sequence parallelism brings collectives of its own
  EXPECT_TRUE(diff_jobs("a", a.result, "a", a.result).keys.empty());
}

TEST(PrintDiff, JsonAndCsvHoldEveryRow) {
  const Predicted r = run_of();
  const Diff d = diff_of(r, measured(r.trace, {2.0}));
  size_t rows = 0;
  for (const DiffTable& t : d.tables) rows += t.rows.size();
  const std::string csv = print_diff_csv(d);
  EXPECT_EQ(static_cast<size_t>(std::count(csv.begin(), csv.end(), '\n')), rows + 1);
  const auto json = nlohmann::json::parse(print_diff_json(d));
  EXPECT_EQ(json.at("a").at("plan_digest"), fmt::format("{:016x}", plan::digest(r.plan)));
  for (const DiffTable& t : d.tables) EXPECT_EQ(json.at(t.key).size(), t.rows.size()) << t.key;
  EXPECT_NEAR(json.at("step")[0].at("relative").get<double>(), -0.5, 1e-9);
  EXPECT_EQ(json.at("memory")[0].count("a_bytes"), 1u);
  EXPECT_THAT(print_diff_markdown(d), HasSubstr("### Step"));
}

}  // namespace
}  // namespace wt::study
