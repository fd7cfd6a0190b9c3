// What a run reports beside its numbers: traces that hold every op of the plan in order, clocks, the peak, skipped steps;
// and how it refuses what cannot run.
#include "exec/execute.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "core/report/report.hpp"
#include "core/trace/file.hpp"
#include "exec/kernels/cpu/run.hpp"
#include "tests/exec/train.hpp"
#include "tests/exec/variants.hpp"

namespace wt::exec {
namespace {

plan::Plan lowered(const std::function<void(JobSpec&)>& change) {
  JobSpec j = reference::tiny_job();
  change(j);
  auto p = lower::lower(j);
  EXPECT_TRUE(p.ok()) << to_text(p.errors());
  return std::move(p.value());
}

struct Traced {
  trace::Trace trace;
  RunSummary summary;
};

Traced run_traced(const plan::Plan& p, int64_t warmup, int64_t steps) {
  const auto tokens = random_tokens(p.seed, plan::vocabulary_of(p));
  trace::MemorySink sink;
  RunOptions run;
  run.warmup = warmup;
  run.steps = steps;
  run.sink = &sink;
  run.execute.tokens = tokens.get();
  auto machines = open_inproc(p.mesh.ranks());
  auto summary = run_ranks(p, machines, run);
  EXPECT_TRUE(summary.ok()) << to_text(summary.errors());
  Traced t{{}, summary.value()};
  t.trace = sink.take(trace_meta(p, t.summary), plan::print(p));
  return t;
}

class Traces : public testing::TestWithParam<Variant> {};

TEST_P(Traces, HoldEveryOpOfEveryRank) {
  const plan::Plan p = lowered(GetParam().change);
  const Traced t = run_traced(p, 1, 3);
  EXPECT_EQ(t.trace.meta.producer, trace::Producer::executed);
  EXPECT_EQ(t.trace.meta.plan_digest, plan::digest(p));
  const Status complete = trace::check_against_plan(t.trace, p);
  EXPECT_TRUE(complete.ok()) << to_text(complete.errors());
  ASSERT_EQ(t.trace.ranks.size(), static_cast<size_t>(3 * p.mesh.ranks()));
  ASSERT_EQ(t.summary.steps.size(), 4u);
  std::array<int64_t, 3> ends{};
  for (const trace::RankSpans& r : t.trace.ranks)
    for (const trace::Span& s : r.spans) {
      EXPECT_LE(s.begin_ps, s.end_ps);
      EXPECT_GE(s.begin_ps, 0) << "before the step before was over everywhere";
      ends[r.step] = std::max(ends[r.step], s.end_ps);
    }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Time::ps(ends[i]), t.summary.steps[i + 1].time);
}

/// On each stream, ops run one after another in the plan's order; what waits begins after what it waits for.
TEST_P(Traces, KeepThePlansOrder) {
  const plan::Plan p = lowered(GetParam().change);
  const Traced t = run_traced(p, 0, 2);
  for (const trace::RankSpans& r : t.trace.ranks) {
    const auto script = Script::make(p, {r.rank});
    ASSERT_TRUE(script.ok());
    const Tasks& tasks = script.value().steps[0];
    ASSERT_EQ(tasks.tasks.size(), r.spans.size());
    std::array<int64_t, plan::kStreams> over{};
    for (size_t k = 0; k < r.spans.size(); ++k) {
      const ScriptTask& task = tasks.tasks[k];
      if (std::holds_alternative<plan::HostWait>(task.body().body)) continue;  // no work of its stream
      auto& end = over[static_cast<size_t>(task.body().stream)];
      EXPECT_GE(r.spans[k].begin_ps, end);
      end = r.spans[k].end_ps;
      for (uint32_t w = 0; w < task.waits.count; ++w)
        EXPECT_GE(r.spans[k].begin_ps, r.spans[tasks.waits[task.waits.begin + w]].end_ps);
    }
  }
}

/// Both producers tell of the same plan: the report reads a measured trace as it does a simulated one.
TEST_P(Traces, AreReadByTheReport) {
  JobSpec j = reference::tiny_job();
  GetParam().change(j);
  const auto p = lower::lower(j);
  ASSERT_TRUE(p.ok());
  j.strategy.data = p.value().mesh.size("dp");
  const Traced t = run_traced(p.value(), 1, 2);
  const auto report = report::step_report(j, p.value(), t.trace);
  ASSERT_TRUE(report.ok()) << to_text(report.errors());
  EXPECT_EQ(report.value().step_time, t.summary.steps.back().time);
  EXPECT_NEAR(report.value().time.total(), report.value().step_time.seconds(), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Traces, testing::ValuesIn(strategies()),
                         [](const auto& c) { return c.param.name; });

TEST(Run, TellsTheMedianAndTheStateOfEachStep) {
  const plan::Plan p = lowered([](JobSpec&) {});
  const auto tokens = pattern_tokens(3, plan::vocabulary_of(p));
  RunOptions run;
  run.warmup = 2;
  run.steps = 5;
  run.execute.tokens = tokens.get();
  run.execute.learning_rate = {.peak = 1, .floor = 0, .warmup = 4, .total = 10};
  std::vector<bool> measured;
  run.on_step = [&](const StepOutcome&, bool counts) { measured.push_back(counts); };
  auto machines = open_inproc(1);
  const auto s = run_ranks(p, machines, run);
  ASSERT_TRUE(s.ok()) << to_text(s.errors());
  EXPECT_EQ(measured, (std::vector<bool>{false, false, true, true, true, true, true}));
  std::vector<Time> times;
  for (size_t i = 2; i < 7; ++i) times.push_back(s.value().steps[i].time);
  std::sort(times.begin(), times.end());
  EXPECT_EQ(s.value().median, times[2]);
  EXPECT_DOUBLE_EQ(s.value().steps[0].learning_rate, 0.25);
  EXPECT_EQ(s.value().steps[6].step, 6);
  EXPECT_GT(s.value().steps[0].gradient_norm, 0);
  EXPECT_EQ(s.value().steps[0].loss_scale, 1);  // fp32
  EXPECT_GT(s.value().arenas[0].peak, 0);
}

/// The made-up language is learned: far below the loss of guessing, towards its entropy.
TEST(Run, Learns) {
  const plan::Plan p = lowered([](JobSpec& j) { j.training.vocab_multiple = 1; });
  const int64_t vocabulary = plan::vocabulary_of(p);
  const auto tokens = pattern_tokens(3, vocabulary);
  RunOptions run;
  run.warmup = 0;
  run.steps = 150;
  run.execute.tokens = tokens.get();
  run.execute.learning_rate = {.peak = 1e-2, .floor = 1e-3, .warmup = 10, .total = 150};
  auto machines = open_inproc(1);
  const auto s = run_ranks(p, machines, run);
  ASSERT_TRUE(s.ok());
  EXPECT_NEAR(s.value().steps.front().loss, std::log(static_cast<double>(vocabulary)), 0.1);
  EXPECT_LT(s.value().steps.back().loss, 0.6 * std::log(static_cast<double>(vocabulary)));
}

JobSpec half(JobSpec j) {
  j.training.param_dtype = j.training.compute_dtype = DType::f16;
  j.training.master_weights = true;
  return j;
}

/// Gradients that a planted kernel makes infinite until the scale has fallen twice: no update then, on any rank.
TEST(Run, SkipsAStepWhoseGradientsOverflow) {
  JobSpec job = half(reference::tiny_job());
  cut(job, 1, 1, 2);
  job.strategy.data_parallel = DataParallel::distributed_optimizer;
  std::atomic<int> updates{0};
  std::atomic<bool> broken{false};
  TrainOptions o;
  o.floats = std::nullopt;
  o.steps = 4;
  o.learning_rate = 1e-3;
  o.inproc.poison = false;
  o.inproc.kernel = [&](const plan::Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                        const KernelContext& k, Workers& w) {
    updates += c.kernel == plan::Kernel::adam;
    const Status s = run_cpu_kernel(c, reads, writes, k, w);
    if (broken && c.kernel == plan::Kernel::square_sum && k.values->loss_scale > 16384)
      *static_cast<float*>(writes[0].data) = INFINITY;
    return s;
  };
  const Trained plain = train(job, o);
  ASSERT_EQ(plain.failure, "");
  for (const StepOutcome& s : plain.summary.steps) EXPECT_FALSE(s.skipped) << s.step;
  EXPECT_EQ(plain.summary.steps[3].loss_scale, 65536);
  const int all = updates.exchange(0);

  broken = true;
  const Trained t = train(job, o);
  ASSERT_EQ(t.failure, "");
  const auto& steps = t.summary.steps;
  EXPECT_TRUE(steps[0].skipped && steps[1].skipped);
  EXPECT_FALSE(steps[2].skipped || steps[3].skipped);
  EXPECT_EQ(steps[1].loss_scale, 32768);
  EXPECT_EQ(steps[2].loss_scale, 16384);
  EXPECT_EQ(updates, all / 2);
}

TEST(Run, HalfPrecisionFollowsSinglePrecision) {
  TrainOptions o;
  o.floats = std::nullopt;
  o.learning_rate = 1e-3;
  o.steps = 10;
  const Trained wide = train(reference::tiny_job(), o), narrow = train(half(reference::tiny_job()), o);
  ASSERT_EQ(wide.failure + narrow.failure, "");
  for (size_t i = 0; i < wide.losses.size(); ++i) EXPECT_NEAR(narrow.losses[i], wide.losses[i], 5e-3);
}

TEST(Run, RefusesAPlanForAnotherWorld) {
  const plan::Plan p = lowered([](JobSpec& j) { cut(j, 2, 1, 1); });
  const auto tokens = random_tokens(1, 22);
  RunOptions run;
  run.execute.tokens = tokens.get();
  auto machines = open_inproc(3);
  const auto s = run_ranks(p, machines, run);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(to_text(s.errors()),
            "run: the plan is for 2 ranks, 3 run (start as many ranks as the job's cluster has devices)\n");
}

TEST(Run, RefusesHalfPrecisionWithoutClipping) {
  JobSpec j = half(reference::tiny_job());
  j.training.gradient_clipping = 0;
  TrainOptions o;
  o.floats = std::nullopt;
  EXPECT_NE(train(j, o).failure.find("training.gradient_clipping: fp16 needs it"), std::string::npos);
}

/// A kernel that fails on one rank in the middle of a step ends all ranks with its reason, soon.
TEST(Run, AFailingKernelEndsEveryRank) {
  JobSpec j = reference::tiny_job();
  cut(j, 2, 2, 1);
  TrainOptions o;
  o.steps = 5;
  std::atomic<int> calls{0};
  o.inproc.kernel = [&](const plan::Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                        const KernelContext& k, Workers& w) {
    if (c.kernel == plan::Kernel::attention_backward && ++calls == 50)
      return Status(Diagnostic{"", "the device fell off", ""});
    return run_cpu_kernel(c, reads, writes, k, w);
  };
  const auto begin = std::chrono::steady_clock::now();
  const Trained t = train(j, o);
  EXPECT_NE(t.failure.find("op 'attention backward' (attention_backward): "), std::string::npos) << t.failure;
  EXPECT_NE(t.failure.find("the device fell off"), std::string::npos) << t.failure;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

/// Memory that nobody wrote is NaN here: a plan that reads it gives no loss.
TEST(Run, ReadingWhatNobodyWroteIsSeen) {
  plan::Plan p = lowered([](JobSpec&) {});
  bool planted = false;
  for (plan::Block& b : p.blocks)
    for (plan::Op& o : b.ops)
      if (auto* c = std::get_if<plan::Compute>(&o.body);
          c && c->kernel == plan::Kernel::fill_zero && o.name == "zero loss") {
        o.writes.count = 0;
        planted = true;
      }
  ASSERT_TRUE(planted);
  TrainOptions o;
  o.steps = 1;
  o.inproc.kernel = [](const plan::Compute& c, std::span<const Operand> reads, std::span<const Operand> writes,
                       const KernelContext& k,
                       Workers& w) { return writes.empty() ? ok_status() : run_cpu_kernel(c, reads, writes, k, w); };
  const Trained t = train(p, o);
  EXPECT_TRUE(std::isnan(t.losses.at(0)));
}

}  // namespace
}  // namespace wt::exec
