// The breakdown of a step against closed forms: simulated with prices that make the answer exact. And what is executed
// against what is counted.
#include <algorithm>

#include "core/report/report.hpp"
#include "jobs.hpp"
#include "sim/simulate.hpp"

namespace wt::report {
namespace {

/// A matrix product of a layer costs `product`, everything else that computes nothing; transfers cost what the test says.
class Prices final : public sim::Pricing {
 public:
  int64_t product = 1'000'000, collective_ps = 0, message_ps = 0, issue = 0;
  Time compute(const plan::Compute& op) const override {
    const bool head =
        std::any_of(op.dims.begin(), op.dims.end(), [](int64_t d) { return d == kVocabulary || d == kVocabulary / 8; });
    return Time::ps(op.kernel == plan::Kernel::gemm && !head ? product : 0);
  }
  Time copy(const plan::Copy&) const override { return {}; }
  sim::CollectivePrice collective(const plan::Collective& op, const sim::GroupShape&) const override {
    return {Time::ps(op.bytes > 1'000'000 ? collective_ps : 0), 0};  // the small ones (loss, norm) are free
  }
  Time message(int64_t, RankId, RankId, int64_t) const override { return Time::ps(message_ps); }
  sim::GroupShape shape_of(std::span<const RankId> members) const override {
    sim::GroupShape s;
    s.ranks = static_cast<int64_t>(members.size());
    return s;
  }
  double slowdown(const plan::Compute&, int64_t) const override { return 1; }
  Time device_gap() const override { return {}; }
  Time kernel_issue() const override { return Time::ps(issue); }
  Time transfer_issue() const override { return {}; }
  sim::MachineCells cells() const override { return {}; }
  static constexpr int64_t kVocabulary = 51200;
};

StepReport reported(const Lowered& l, const Prices& prices, bool all_ranks = false) {
  trace::MemorySink sink;
  sim::SimulateOptions options;
  options.sink = &sink;
  options.all_ranks = all_ranks;
  auto run = sim::simulate(l.plan, prices, options);
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : to_text(run.errors()));
  const trace::Trace trace = sink.take({}, "");
  auto report = step_report(l.job, l.plan, trace);
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : to_text(report.errors()));
  if (run.ok() && report.ok()) {
    EXPECT_EQ(report.value().step_time, run.value().step_time);
    for (const StageTime& s : report.value().by_stage)
      EXPECT_NEAR(s.time.total(), report.value().step_time.seconds(), 1e-12) << s.stage;
  }
  return report.ok() ? report.value() : StepReport{};
}

constexpr double kPs = 1e-12;
constexpr int kProducts = 12;  // of a layer: qkv, proj, fc1, fc2, each forward, input and weight gradient

// 1F1B with free messages: m (F + B) of work and (p - 1)(F + B) of bubble on every stage.
TEST(Step, BubbleOf1F1B) {
  for (int64_t p : {2, 4, 8}) {
    const Lowered l =
        lowered({"strategy.pipeline=" + std::to_string(p), "training.global_batch=" + std::to_string(128 / p)});
    const Prices prices;
    const StepReport r = reported(l, prices);
    const double m = static_cast<double>(l.plan.micro_batches);
    const double one = kPs * static_cast<double>(24 / p * kProducts * prices.product);
    EXPECT_NEAR(r.step_time.seconds(), (m + static_cast<double>(p) - 1) * one, 1e-12);
    ASSERT_EQ(r.by_stage.size(), static_cast<size_t>(p));
    for (const StageTime& s : r.by_stage) {
      EXPECT_NEAR(s.time.compute, m * one, 1e-12) << s.stage;
      EXPECT_NEAR(s.time.bubble, (static_cast<double>(p) - 1) * one, 1e-12) << s.stage;
    }
    EXPECT_NEAR(r.bubble_fraction, (static_cast<double>(p) - 1) / (m + static_cast<double>(p) - 1), 1e-9);
  }
}

// Stages of unequal work wait unequally: the fraction is of all of them, not of the one where the step ends.
TEST(Step, BubbleFractionIsTheMeanOfTheStages) {
  const Lowered l = lowered({"strategy.pipeline=4", "strategy.first_stage_layers=2", "strategy.last_stage_layers=10",
                             "training.global_batch=32"});
  const StepReport r = reported(l, Prices{});
  double waiting = 0;
  for (const StageTime& s : r.by_stage) waiting += s.time.bubble;
  EXPECT_NEAR(r.bubble_fraction, waiting / (4 * r.step_time.seconds()), 1e-12);
  // The step ends on the first stage, which has the least to do: of that rank alone it would be nearly the whole step.
  EXPECT_LT(r.bubble_fraction, 0.6 * r.time.bubble / r.step_time.seconds());
}

// Interleaved: the bubble shrinks by the number of chunks.
TEST(Step, BubbleOfInterleaved) {
  const Lowered l = lowered({"strategy.pipeline=4", "strategy.virtual_stages=3", "strategy.schedule=interleaved",
                             "training.global_batch=32"});
  const Prices prices;
  const StepReport r = reported(l, prices);
  const double chunk = kPs * static_cast<double>(2 * kProducts * prices.product);
  for (const StageTime& s : r.by_stage) EXPECT_NEAR(s.time.bubble, 3 * chunk, 1e-12) << s.stage;
}

// A message that takes time is exposed while it travels and not called a bubble.
TEST(Step, MessagesAreExposedWhileTheyTravel) {
  const Lowered l = lowered({"strategy.pipeline=4", "training.global_batch=32"});
  Prices prices;
  const StepReport free = reported(l, prices);
  prices.message_ps = 5'000'000;
  const StepReport r = reported(l, prices);
  EXPECT_EQ(r.time.compute, free.time.compute);
  EXPECT_GT(r.time.exposed_pipeline, 2 * 3 * kPs * 5e6);
  EXPECT_EQ(free.time.exposed_pipeline, 0);
  EXPECT_EQ(r.time.exposed_data, 0);
}

// Megatron's order: the two reductions of a forward are exposed, those of the backward hide behind weight gradients.
TEST(Step, TensorCollectives) {
  const Lowered l = lowered({"strategy.tensor=8", "training.global_batch=4"});
  Prices prices;
  prices.collective_ps = 100'000;
  const StepReport r = reported(l, prices);
  const double m = 4, each = kPs * 100'000;
  EXPECT_NEAR(r.time.compute, m * 24 * kProducts * kPs * 1e6, 1e-12);
  EXPECT_GE(r.time.exposed_tensor, m * 24 * 2 * each - 1e-12);
  EXPECT_LE(r.time.exposed_tensor, m * (24 * 2 + 6) * each);
  EXPECT_EQ(r.time.exposed_data, 0);
  EXPECT_EQ(r.time.bubble, 0);
}

TEST(Step, GradientReductionAfterTheBackwardIsExposed) {
  const Lowered l = lowered({}, "{data_parallel: megatron}");
  Prices prices;
  prices.collective_ps = 7'000'000;
  const StepReport r = reported(l, prices);
  EXPECT_NEAR(r.time.exposed_data, kPs * 7e6, 1e-15);
  EXPECT_NEAR(r.time.exposed_tensor + r.time.bubble + r.time.exposed_pipeline, 0, 1e-15);
}

// A host that needs longer to issue a kernel than the device to run it: what is missing from the step is the host's.
TEST(Step, AHostThatIsLate) {
  const Lowered l = lowered({"training.global_batch=8"});
  Prices prices;
  const StepReport without = reported(l, prices);
  prices.issue = 3 * prices.product;
  const StepReport r = reported(l, prices);
  EXPECT_EQ(r.time.compute, without.time.compute);
  EXPECT_EQ(without.time.host, 0);
  EXPECT_GT(r.time.host, 2 * 24 * kProducts * kPs * 1e6);
  EXPECT_NEAR(r.time.host + r.time.compute + r.time.optimizer, r.step_time.seconds(), 1e-12);
}

TEST(Step, AllRanksGiveTheSameReport) {
  const Lowered l = lowered({"strategy.pipeline=2", "strategy.tensor=2"});
  Prices prices;
  prices.collective_ps = 90'000;
  prices.message_ps = 1'234;
  const StepReport folded = reported(l, prices), all = reported(l, prices, true);
  EXPECT_EQ(folded.step_time, all.step_time);
  for (const TimeTerm& t : time_terms()) EXPECT_EQ(folded.time.*t.seconds, all.time.*t.seconds) << t.key;
}

TEST(Step, AnotherPlansTraceIsRefused) {
  const Lowered l = lowered({"strategy.pipeline=2"}), other = lowered({"strategy.pipeline=4"});
  trace::MemorySink sink;
  sim::SimulateOptions options;
  options.sink = &sink;
  ASSERT_TRUE(sim::simulate(l.plan, Prices(), options).ok());
  trace::Trace trace = sink.take({}, "");
  EXPECT_FALSE(step_report(other.job, other.plan, trace).ok());
  trace.ranks[0].spans.pop_back();
  EXPECT_FALSE(step_report(l.job, l.plan, trace).ok());
  EXPECT_FALSE(step_report(l.job, l.plan, trace::Trace{}).ok());
}

// Executed work: FlashAttention's backward makes the scores again (5 products for 4); full recompute adds the layers'
// forward. Everything else is what the formula counts.
TEST(Step, HardwareFlopsAreTheFormulaAndWhatIsDoneAgain) {
  const double s = 2048, tokens = 64 * s, layers = 24, h = 1024;
  const double product = 2 * tokens * (s / 2) * h * layers;  // one causal attention product of all layers
  const Lowered l = lowered({});
  const double formula = step_flops(l.job.model, l.job.training, FlopFormula::model_causal, 1);
  EXPECT_NEAR((hardware_flops(l.plan) - formula) / product, 1, 1e-6);
  const Lowered full = lowered({}, "{recompute: full}");
  const double forward = layers * 24 * tokens * h * h + 2 * product;
  EXPECT_NEAR((hardware_flops(full.plan) - hardware_flops(l.plan)) / forward, 1, 1e-6);
}

TEST(Step, RatesNeedOnlyTheStepTime) {
  const Lowered l = lowered({});
  const StepReport r = step_rates(l.job, l.plan, Time::from_seconds(2));
  EXPECT_DOUBLE_EQ(r.tokens_per_second, 64 * 2048 / 2.0);
  EXPECT_NEAR(r.mfu, step_flops(l.job.model, l.job.training, FlopFormula::model_causal, 1) / 2 / 8 / 312e12, 1e-9);
  EXPECT_FALSE(r.memory.fits.empty());
}

}  // namespace
}  // namespace wt::report
