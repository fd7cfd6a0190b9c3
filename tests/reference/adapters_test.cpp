// Adapters beside frozen weights, losses in pieces, and DDP's copies and hooks: each trains like one plain rank; what
// PowerSGD sends is held to a projection computed here from the gradient that it was given.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/reference/alike.hpp"
#include "tests/reference/kernels.hpp"
#include "tests/reference/races.hpp"
#include "tests/reference/sharded.hpp"
#include "tests/reference/tiny.hpp"
#include "tests/reference/train.hpp"

namespace wt::reference {
namespace {

bool leaves_the_device(const OffloadSpec& o) {
  return o.optimizer != OffloadDevice::none || o.parameters != OffloadDevice::none;
}

void adapt(JobSpec& j) {
  j.training.lora.rank = 3;
  j.training.lora.alpha = 5;
}

/// One rank and `many` train alike, and no wait of `many` is missing.
void expect_alike(const JobSpec& one, const JobSpec& many, double tolerance = 1e-7) {
  try {
    const auto lowered = lower::lower(many);
    ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
    EXPECT_EQ(races(lowered.value()), std::vector<std::string>{});
    const Trained a = train(one, 1), b = train(many, 2);
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(b.losses[i], a.losses[i], 1e-9 * std::abs(a.losses[i])) << "step " << i;
    ASSERT_LE(a.weights.size(), b.weights.size());  // a shard may be a weight of its own beside the whole ones
    for (const auto& [id, x] : a.weights) {
      const auto& y = b.weights.at(id);
      double worst = 0;
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
      EXPECT_LT(worst, tolerance) << id.first << " layer " << id.second;
    }
  } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
}

TEST(Adapters, AloneAreTrainedAndStartAsNothing) {
  JobSpec base = tiny_job(), j = base;
  adapt(j);
  try {
    const auto plan = lower::lower(j).value();
    const Trained plain = train(base, 1), t = train(j, 1);
    EXPECT_DOUBLE_EQ(t.losses[0], plain.losses[0]);  // B is zero
    EXPECT_NE(t.losses[kSteps - 1], plain.losses[kSteps - 1]);
    Reference start(plan, {});
    for (const auto& [id, x] : t.weights) {
      const bool adapter = id.first.find("lora") != std::string::npos;
      EXPECT_EQ(x != start.weight(id.first, id.second), adapter) << id.first;
    }
  } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
}

// y = x W^T + s (x A^T) B^T with B = 0: dB = s dW A^T, where dW is what full training finds at the same point. Plain descent
// shows both: W moves by -lr dW, B by -lr dB.
TEST(Adapters, GradientIsThatOfTheWeightThroughA) {
  JobSpec full = tiny_job();
  make_llama(full);
  full.training.optimizer = OptimizerKind::sgd;
  full.training.gradient_clipping = 0;
  JobSpec j = full;
  adapt(j);
  const double s = 5.0 / 3;
  try {
    const auto a = lower::lower(full).value(), b = lower::lower(j).value();
    Reference whole(a, {1, 1e-2}), low(b, {1, 1e-2});
    struct Shape {
      const char* name;
      int64_t out, in;
    };
    for (const Shape& x : {Shape{"qkv", 32, 16}, {"proj", 16, 16}, {"fc1", 48, 16}, {"fc2", 16, 24}}) {
      SCOPED_TRACE(x.name);
      Reference fresh(a, {1, 1e-2}), adapted(b, {1, 1e-2});
      const auto before = fresh.weight(x.name, 1), matrix = adapted.weight(std::string(x.name) + ".lora_a", 1);
      fresh.step();
      adapted.step();
      const auto after = fresh.weight(x.name, 1), b1 = adapted.weight(std::string(x.name) + ".lora_b", 1);
      ASSERT_EQ(before.size(), static_cast<size_t>(x.out * x.in));
      for (int64_t o = 0; o < x.out; ++o)
        for (int64_t r = 0; r < 3; ++r) {
          double want = 0;
          for (int64_t i = 0; i < x.in; ++i) {
            const auto at = static_cast<size_t>(o * x.in + i);
            want += s * (after[at] - before[at]) * matrix[static_cast<size_t>(r * x.in + i)];
          }
          EXPECT_NEAR(b1[static_cast<size_t>(o * 3 + r)], want, 1e-12);
        }
    }
  } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
}

TEST(Adapters, TrainAlikeHoweverTheModelIsCut) {
  struct Cut {
    const char* name;
    std::function<void(JobSpec&)> change;
  };
  const Cut cuts[] = {
      {"tensor 2",
       [](JobSpec& j) {
         j.strategy.tensor = 2;
         j.cluster.nodes = 2;
       }},
      {"tensor 2, sequence parallel, distributed optimizer 2",
       [](JobSpec& j) {
         j.strategy.tensor = 2;
         j.strategy.sequence_parallel = true;
         j.strategy.data_parallel = DataParallel::distributed_optimizer;
         j.strategy.overlap_grad_reduce = true;
         j.cluster.nodes = 4;
       }},
      {"pipeline 2, data 2",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.cluster.nodes = 4;
       }},
      {"interleaved, tensor 2",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.strategy.virtual_stages = 2;
         j.strategy.schedule = "interleaved";
         j.strategy.tensor = 2;
         j.strategy.sequence_parallel = true;
         j.cluster.nodes = 4;
       }},
      {"zero1 2",
       [](JobSpec& j) {
         j.strategy.data_parallel = DataParallel::zero1;
         j.cluster.nodes = 2;
       }},
      {"recompute full", [](JobSpec& j) { j.strategy.recompute.kind = RecomputeKind::full; }},
      {"recompute selective, unfused",
       [](JobSpec& j) {
         j.strategy.recompute.kind = RecomputeKind::selective;
         j.strategy.attention = AttentionKernel::unfused;
       }},
  };
  for (const bool llama : {false, true})
    for (const std::vector<std::string>& targets :
         {std::vector<std::string>{"qkv", "proj", "fc1", "fc2"}, {"qkv"}, {"q", "v", "up"}})
      for (const Cut& cut : cuts) {
        SCOPED_TRACE(cut.name);
        JobSpec one = tiny_job();
        if (llama) make_llama(one);
        if (llama) one.model.qk_norm = true;
        adapt(one);
        one.training.lora.targets = targets;
        JobSpec many = one;
        cut.change(many);
        expect_alike(one, many);
      }
}

TEST(Adapters, TrainAlikeInShardedUnits) {
  for (const Sharded& v : kSharded) {
    SCOPED_TRACE(v.name);
    JobSpec one = tiny_job();
    make_llama(one);
    adapt(one);
    JobSpec many = one;
    apply(v, many);
    const auto faults = lower::lower(many);
    if (leaves_the_device(many.strategy.offload)) {
      ASSERT_FALSE(faults.ok());
      EXPECT_EQ(faults.errors()[0].where.rfind("strategy.offload", 0), 0u) << to_text(faults.errors());
      continue;
    }
    expect_alike(one, many);
  }
}

TEST(ChunkedLoss, TrainsLikeTheWholeLogits) {
  for (const bool adapters : {false, true}) {
    JobSpec one = tiny_job();
    make_llama(one);
    if (adapters) adapt(one);
    const Trained whole = train(one, 1);
    for (const int64_t chunk : {2, 3, 100}) {
      SCOPED_TRACE(chunk);
      JobSpec pieces = one;
      pieces.training.loss_chunk = chunk;
      expect_trains_like(whole, pieces);
      pieces.strategy.pipeline = 2;
      pieces.cluster.nodes = 4;
      expect_trains_like(whole, pieces);
    }
    for (const Sharded& v : kSharded) {
      if (v.kind == DataParallel::fsdp && v.ranks != 4) continue;
      SCOPED_TRACE(v.name);
      JobSpec many = one;
      many.training.loss_chunk = 3;  // leaves a rest
      apply(v, many);
      if (adapters && leaves_the_device(many.strategy.offload)) continue;  // refused, see above
      if (many.strategy.tensor == 1) expect_trains_like(whole, many);
    }
  }
}

TEST(Ddp, CopiesAndHalvesTrainLikeOneRank) {
  const std::function<void(DdpSpec&)> kinds[] = {
      [](DdpSpec& d) { d.bucket_view = false; },
      [](DdpSpec& d) { d.hook = CommHook::fp16_compress; },
      [](DdpSpec& d) { d.hook = CommHook::bf16_compress; },
      [](DdpSpec& d) { d.find_unused = true; },
      [](DdpSpec& d) { d.no_sync = false; },
      [](DdpSpec& d) { d.no_sync = d.bucket_view = false; },
  };
  for (const auto& change : kinds)
    for (const int64_t bucket : {500, 1 << 20}) {
      const JobSpec one = tiny_job();
      JobSpec many = one;
      many.cluster.nodes = 4;
      many.strategy.ddp_bucket = many.strategy.ddp_first_bucket = {bucket};
      change(many.strategy.ddp);
      SCOPED_TRACE(bucket);
      expect_alike(one, many);
    }
}

/// Numerical rank by elimination with full pivoting.
int64_t rank_of(std::vector<double> x, int64_t n, int64_t m) {
  const auto at = [&](int64_t i, int64_t j) -> double& { return x[static_cast<size_t>(i * m + j)]; };
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  for (int64_t k = 0; k < std::min(n, m); ++k) {
    int64_t row = k, column = k;
    for (int64_t i = k; i < n; ++i)
      for (int64_t j = k; j < m; ++j)
        if (std::abs(at(i, j)) > std::abs(at(row, column))) row = i, column = j;
    if (std::abs(at(row, column)) < 1e-9 * largest) return k;
    for (int64_t j = 0; j < m; ++j) std::swap(at(k, j), at(row, j));
    for (int64_t i = 0; i < n; ++i) std::swap(at(i, k), at(i, column));
    for (int64_t i = k + 1; i < n; ++i) {
      const double f = at(i, k) / at(k, k);
      for (int64_t j = k; j < m; ++j) at(i, j) -= f * at(k, j);
    }
  }
  return std::min(n, m);
}

// P = sum M_i Q = N M Q has the column space of M Q, so P (mean M_i^T P)^T is the projection of the mean gradient M on a
// space of r dimensions: of rank r, and orthogonal to what it leaves. Plain descent shows the gradient.
TEST(Ddp, PowerSgdSendsAProjectionOfTheGradient) {
  JobSpec plain = tiny_job();
  plain.training.optimizer = OptimizerKind::sgd;
  plain.training.gradient_clipping = 0;
  plain.cluster.nodes = 4;
  JobSpec low = plain;
  low.strategy.ddp.hook = CommHook::powersgd;
  low.strategy.ddp.powersgd_rank = 2;
  try {
    const auto a = lower::lower(plain), b = lower::lower(low);
    ASSERT_TRUE(b.ok()) << to_text(b.errors());
    const auto valid = plan::validate(b.value());
    ASSERT_TRUE(valid.ok()) << to_text(valid.errors());
    EXPECT_EQ(races(b.value()), std::vector<std::string>{});
    Reference whole(a.value(), {1, 1}), sent(b.value(), {2, 1});
    const auto start_of = [&](const char* name) { return whole.weight(name, 2); };
    struct Shape {
      const char* name;
      int64_t n, m;
    };
    const Shape shapes[] = {{"qkv", 48, 16}, {"proj", 16, 16}, {"fc1", 24, 16}, {"fc2", 16, 24}};
    std::map<std::string, std::vector<double>> start;
    for (const Shape& x : shapes) start[x.name] = start_of(x.name);
    start["norm1.gamma"] = start_of("norm1.gamma");
    EXPECT_NEAR(whole.step(), sent.step(), 1e-12);
    for (const Shape& x : shapes) {
      SCOPED_TRACE(x.name);
      auto gradient = whole.weight(x.name, 2), approximate = sent.weight(x.name, 2);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] -= start[x.name][i];
        approximate[i] -= start[x.name][i];
      }
      EXPECT_EQ(rank_of(approximate, x.n, x.m), 2);
      double size = 0, worst = 0;
      for (int64_t i = 0; i < x.m; ++i)
        for (int64_t j = 0; j < x.m; ++j) {
          double dot = 0;
          for (int64_t k = 0; k < x.n; ++k) {
            const auto p = static_cast<size_t>(k * x.m + i), q = static_cast<size_t>(k * x.m + j);
            dot += approximate[p] * (gradient[q] - approximate[q]);
            size = std::max(size, std::abs(gradient[p] * gradient[q]));
          }
          worst = std::max(worst, std::abs(dot));
        }
      EXPECT_LT(worst, 1e-9 * size);
    }
    // Vectors go uncompressed.
    const auto g = whole.weight("norm1.gamma", 2), h = sent.weight("norm1.gamma", 2);
    for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], h[i], 1e-12);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isfinite(sent.step()));
  } catch (const Fault& f) { ADD_FAILURE() << f.what(); }
}

TEST(Packing, AttentionOfDocumentsIsThatOfEachAlone) {
  plan::Compute c;
  c.kernel = plan::Kernel::attention_forward;
  c.causal = true;
  c.dims = {1, 6, 2, 1, 3};  // batch, tokens, heads, kv heads, width
  c.document = 3;
  const int64_t width = (2 + 2) * 3;
  std::vector<double> qkv(static_cast<size_t>(6 * width)), out(6 * 2 * 3), lse(6 * 2);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(static_cast<double>(3 * i + 1));
  const auto of = [](std::vector<double>& v) { return Operand{&v, 0, static_cast<int64_t>(v.size())}; };
  run_kernel(c, {of(qkv)}, {of(out), of(lse)}, {});
  plan::Compute one = c;
  one.dims[1] = 3;
  one.document = 0;
  for (int64_t document = 0; document < 2; ++document) {
    std::vector<double> part(qkv.begin() + document * 3 * width, qkv.begin() + (document + 1) * 3 * width), o(18), l(6);
    run_kernel(one, {of(part)}, {of(o), of(l)}, {});
    for (size_t i = 0; i < o.size(); ++i) EXPECT_DOUBLE_EQ(o[i], out[static_cast<size_t>(document) * 18 + i]);
  }
}

TEST(Windows, TrainAlikeHoweverTheModelIsCut) {
  JobSpec one = tiny_job();
  make_llama(one);
  one.model.sliding_window = 3;
  for (const bool alternate : {true, false}) {
    one.model.sliding_period = alternate ? 2 : 1;
    one.model.full_period = alternate ? 0 : 4;
    JobSpec many = one;
    many.strategy.pipeline = 2;
    many.cluster.nodes = 4;
    expect_alike(one, many);
    for (const Sharded& v : kSharded) {
      if (v.ranks != 4) continue;
      SCOPED_TRACE(v.name);
      many = one;
      apply(v, many);
      expect_alike(one, many);
    }
    JobSpec whole = one;  // and the window has an effect
    whole.model.sliding_window = 0;
    whole.model.sliding_period = 1;
    whole.model.full_period = 0;
    EXPECT_NE(train(one, 1).losses[1], train(whole, 1).losses[1]);
  }
}

TEST(Packing, RanksTrainAlike) {
  JobSpec one = tiny_job();
  make_llama(one);
  one.training.packing.mean_length = 4;
  JobSpec many = one;
  many.strategy.tensor = 2;
  many.cluster.nodes = 2;
  expect_alike(one, many);
}

}  // namespace
}  // namespace wt::reference
