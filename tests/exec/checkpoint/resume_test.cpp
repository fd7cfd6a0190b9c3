// Training that stops and goes on: on the same mesh bit for bit, on another as if it had not stopped.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "core/plan/values.hpp"
#include "exec/checkpoint/executor_state.hpp"
#include "exec/comm/inproc.hpp"
#include "tests/exec/checkpoint/ranks.hpp"
#include "tests/exec/variants.hpp"
#include "tests/reference/experts.hpp"

namespace wt::exec {
namespace {

namespace fs = std::filesystem;

/// The first loss after a load tells of the weights, the second of the moments too.
constexpr int64_t kBefore = 2, kAfter = 3;

struct Curve {
  std::vector<double> losses;
  std::string failure;
};

/// Trains from the newest checkpoint of `root` (if there is one) for `steps`, and leaves one behind.
Curve train(const plan::Plan& plan, const std::string& root, int64_t steps, std::optional<DType> floats,
            bool asynchronous) {
  Curve out;
  const auto tokens = random_tokens(plan.seed, plan::vocabulary_of(plan));
  InprocOptions inproc;
  inproc.poison = true;
  auto machines = open_inproc(plan.mesh.ranks(), inproc);
  ExecuteOptions options;
  options.script.floats = floats;
  options.learning_rate = {1e-2, 1e-3, 2, 20};
  options.tokens = tokens.get();
  std::vector<std::string> failures(machines.size());
  auto rank = [&](size_t r) -> Status {
    Machine& m = machines[r];
    auto made = Executor::create(plan, m, options);
    if (!made) return made.errors();
    Executor& e = *made.value();
    if (auto s = e.setup(); !s) return s;
    const std::vector<Holding> holdings = holdings_of(e);
    const Team team = Team::of(*m.communicator);
    auto loaded = load_newest(root, holdings, team, *m.device);
    if (!loaded) return loaded.errors();
    if (loaded.value()) continue_from(e, loaded.value()->progress);
    Saver saver({root, 2, asynchronous}, team, *m.device);
    for (int64_t i = 0; i < steps; ++i) {
      if (asynchronous && i + 1 == steps)  // the last step runs beside the writing of the state before it
        if (auto s = saver.save({1, progress_of(e), holdings}); !s) return s;
      auto step = e.step();
      if (!step) return step.errors();
      if (r == 0) out.losses.push_back(step.value().loss);
    }
    if (!asynchronous)
      if (auto s = saver.save({1, progress_of(e), holdings}); !s) return s;
    return saver.finish();
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < machines.size(); ++r)
    threads.emplace_back([&, r] {
      if (auto s = rank(r); !s) failures[r] = to_text(s.errors());
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& f : failures)
    if (!f.empty() && out.failure.empty()) out.failure = f;
  return out;
}

/// `like`: a strategy whose needs of the model (tables of their own at both ends) are met too.
plan::Plan plan_of(const Variant& model, const Variant& strategy, bool mixed = false, const Variant* like = nullptr) {
  JobSpec job = reference::tiny_job();
  model.change(job);
  JobSpec alike = job;
  if (like) like->change(alike);
  strategy.change(job);
  job.model.tied_embeddings = job.model.tied_embeddings && alike.model.tied_embeddings;
  if (mixed) {
    job.training.param_dtype = job.training.compute_dtype = DType::bf16;
    job.training.master_weights = true;
  }
  auto plan = lower::lower(job);
  EXPECT_TRUE(plan) << to_text(plan.errors());
  return plan ? std::move(plan.value()) : plan::Plan{};
}

class Resume : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    root_ = (fs::temp_directory_path() / fmt::format("wt_resume_{}_{}", ::getpid(), GetParam().name)).string();
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string fresh(const char* name) const { return root_ + "/" + name; }
  std::string root_;
};

TEST_P(Resume, OnTheSameMeshBitForBit) {
  for (const bool mixed : {false, true}) {
    const plan::Plan plan = plan_of(models()[0], GetParam(), mixed);
    const Curve whole = train(plan, fresh(mixed ? "a1" : "a0"), kBefore + kAfter, std::nullopt, false);
    ASSERT_EQ(whole.failure, "");
    const std::string root = fresh(mixed ? "b1" : "b0");
    const Curve before = train(plan, root, kBefore, std::nullopt, false);
    ASSERT_EQ(before.failure, "");
    const Curve after = train(plan, root, kAfter, std::nullopt, false);
    ASSERT_EQ(after.failure, "");
    std::vector<double> both = before.losses;
    both.insert(both.end(), after.losses.begin(), after.losses.end());
    EXPECT_EQ(both, whole.losses);
    EXPECT_NE(whole.losses.front(), whole.losses.back());
  }
}

// The state of the call is saved, although the next step runs at once: the step is trained again, to the same loss.
TEST_P(Resume, FromASaveBesideTheTraining) {
  const plan::Plan plan = plan_of(models()[1], GetParam());
  const Curve whole = train(plan, fresh("whole"), kBefore + 2, std::nullopt, false);
  ASSERT_EQ(whole.failure, "");
  const std::string root = fresh("part");
  ASSERT_EQ(train(plan, root, kBefore, std::nullopt, true).failure, "");
  const Curve after = train(plan, root, 3, std::nullopt, true);
  ASSERT_EQ(after.failure, "");
  EXPECT_EQ(after.losses, std::vector<double>(whole.losses.begin() + kBefore - 1, whole.losses.end()));
}

TEST_P(Resume, OnAnotherMeshAsIfItHadNotStopped) {
  const std::vector<Variant> all = strategies();
  for (const Variant& model : models()) {
    const plan::Plan one = plan_of(model, all[0], false, &GetParam());
    const std::string reference = fresh((model.name + "reference").c_str());
    const Curve whole = train(one, reference, kBefore + kAfter, DType::f64, false);
    ASSERT_EQ(whole.failure, "");
    // There and back: one rank, this strategy, one rank.
    const plan::Plan other = plan_of(model, GetParam());
    const std::string root = fresh(model.name.c_str());
    std::vector<double> losses;
    for (const auto& [plan, steps] :
         {std::pair(&one, kBefore), std::pair(&other, kAfter / 2), std::pair(&one, kAfter - kAfter / 2)}) {
      const Curve part = train(*plan, root, steps, DType::f64, false);
      ASSERT_EQ(part.failure, "");
      losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    }
    ASSERT_EQ(losses.size(), whole.losses.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], whole.losses[i], 1e-10 * whole.losses[i]) << model.name << " step " << i;
  }
}

std::vector<Variant> resumed() {
  std::vector<Variant> all = strategies();
  for (Variant& v : sharded_strategies()) all.push_back(std::move(v));
  if (!kSanitized) return all;
  std::vector<Variant> few;
  for (size_t i = 1; i < all.size(); i += 4) few.push_back(all[i]);
  return few;
}

/// Layers of experts: on the same mesh bit for bit, and from one cut to another.
TEST(ResumeExperts, FromOneCutToAnother) {
  const std::string root = (fs::temp_directory_path() / fmt::format("wt_resume_experts_{}", ::getpid())).string();
  const auto plan_with = [](const reference::ExpertVariant& model, std::string_view cut) {
    JobSpec job = reference::expert_job();
    model.change(job);
    for (const reference::ExpertVariant& v : reference::kExpertStrategies)
      if (v.name == cut) v.change(job);
    auto plan = lower::lower(job);
    EXPECT_TRUE(plan) << to_text(plan.errors());
    return plan ? std::move(plan.value()) : plan::Plan{};
  };
  for (const reference::ExpertVariant& model : reference::kExpertModels) {
    SCOPED_TRACE(model.name);
    const bool narrow = std::string_view(model.name) == "fp8";  // rounds: bit for bit on the same mesh alone
    const plan::Plan start = plan_with(model, "tp4_ep2_etp2");
    const auto floats = narrow ? std::nullopt : std::optional(DType::f64);
    const Curve whole = train(start, root + "/whole", 6, floats, false);
    ASSERT_EQ(whole.failure, "");
    std::vector<double> losses;
    for (const char* cut : {"tp4_ep2_etp2", "ep4_distributed_overlap", "pp2_tp2_ep2_interleaved"}) {
      const Curve part = train(plan_with(model, narrow ? "tp4_ep2_etp2" : cut), root + "/part", 2, floats, false);
      ASSERT_EQ(part.failure, "") << cut;
      losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    }
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], whole.losses[i], narrow ? 0 : 1e-10 * whole.losses[i]) << "step " << i;
    fs::remove_all(root);
  }
}

/// In 16 bits too a mesh takes what another saved: shards in fp32 are master weights, and weights are master weights rounded.
TEST(ResumeMixed, BetweenShardsAndWholeWeights) {
  const std::string root = (fs::temp_directory_path() / fmt::format("wt_resume_mixed_{}", ::getpid())).string();
  const std::vector<Variant> whole = strategies(), cut = sharded_strategies();
  const auto named = [](const std::vector<Variant>& all, std::string_view name) {
    return *std::find_if(all.begin(), all.end(), [&](const Variant& v) { return v.name == name; });
  };
  const plan::Plan one = plan_of(models()[1], whole[0], true);
  const Curve straight = train(one, root + "/straight", 8, std::nullopt, false);
  ASSERT_EQ(straight.failure, "");
  for (const char* name : {"fsdp_full", "fsdp2_hybrid", "zero2", "zero3"}) {
    SCOPED_TRACE(name);
    const plan::Plan other = plan_of(models()[1], named(cut, name), true);
    std::vector<double> losses;
    for (const plan::Plan* p : {&one, &other, &one, &other}) {
      const Curve part = train(*p, root + "/" + name, 2, std::nullopt, false);
      ASSERT_EQ(part.failure, "");
      losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    }
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], straight.losses[i], 1e-2 * straight.losses[i]) << "step " << i;
  }
  fs::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Resume, testing::ValuesIn(resumed()), [](const auto& p) {
  std::string name = p.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace wt::exec
