// Layouts against their definition, and what ranks of plans hold: together every element of the model once.
#include "exec/checkpoint/holding.hpp"

#include <random>
#include <unordered_set>

#include "core/spec/specs.hpp"
#include "tests/exec/checkpoint/ranks.hpp"

namespace wt::exec {
namespace {

TEST(Segments, AreTheDefinitionInOrderAndAsLongAsCanBe) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int times = 0; times < 500; ++times) {
    Layout l;
    for (int64_t d = 0, dims = 1 + below(3); d < dims; ++d) {
      const int64_t blocks = 1 + below(3);
      l.shape.push_back(blocks * (1 + below(4)));
      for (int64_t cuts = below(3); cuts > 0; --cuts) {
        const int64_t parts = 1 + below(3);
        l.cuts.push_back({static_cast<uint8_t>(d), parts, below(parts), below(2) == 0 ? blocks : 1});
      }
    }
    l.first = below(l.elements());
    l.count = below(l.elements() - l.first + 1);
    ASSERT_EQ(fault_of(l), "") << "seed " << seed;
    std::vector<int64_t> global(static_cast<size_t>(l.count), -1);
    int64_t before = -1;
    for (const Segment& s : segments_of(l)) {
      ASSERT_GT(s.count, 0);
      ASSERT_GT(s.global, before) << "seed " << seed;  // a gap, or the two were one
      before = s.global + s.count - 1;
      for (int64_t i = 0; i < s.count; ++i) global[static_cast<size_t>(s.local + i)] = s.global + i;
    }
    for (int64_t i = 0; i < l.count; ++i)
      ASSERT_EQ(global[static_cast<size_t>(i)], global_index(l, l.first + i)) << "seed " << seed << " element " << i;
  }
}

TEST(Segments, OfRowsAreOneAndOfColumnsOneForEachRow) {
  EXPECT_EQ(segments_of({{4, 6}, {{0, 2, 1, 1}}, 0, 24}).size(), 1u);
  EXPECT_EQ(segments_of({{4, 6}, {{1, 2, 1, 1}}, 0, 24}).size(), 4u);
  EXPECT_EQ(segments_of({{4, 6}, {{0, 2, 1, 2}}, 0, 24}).size(), 2u);  // gate and up
}

TEST(Layout, BadOnesAreFound) {
  const Layout good{{4, 6}, {{1, 2, 1, 3}}, 3, 5};
  EXPECT_EQ(fault_of(good), "");
  auto bad = [&](auto change) {
    Layout l = good;
    change(l);
    return !fault_of(l).empty();
  };
  EXPECT_TRUE(bad([](Layout& l) { l.shape[0] = 0; }));
  EXPECT_TRUE(bad([](Layout& l) { l.shape = {int64_t{1} << 40, int64_t{1} << 40}; }));
  EXPECT_TRUE(bad([](Layout& l) { l.cuts[0].dim = 2; }));
  EXPECT_TRUE(bad([](Layout& l) { l.cuts[0].index = 2; }));
  EXPECT_TRUE(bad([](Layout& l) { l.cuts[0].index = -1; }));
  EXPECT_TRUE(bad([](Layout& l) { l.cuts[0].parts = 0; }));
  EXPECT_TRUE(bad([](Layout& l) { l.cuts[0].blocks = 4; }));
  EXPECT_TRUE(bad([](Layout& l) { l.count = 22; }));
  EXPECT_TRUE(bad([](Layout& l) { l.first = -1; }));
}

struct Case {
  const char* name;
  const char* example;
  std::vector<std::string> overrides;
  int64_t roles;  // that the optimizer adds to the weights
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"one device", "tiny-gpt", {"cluster.node.devices=1"}, 2},
      {"data", "tiny-gpt", {}, 2},
      {"tensor", "tiny-gpt", {"strategy.tensor=4"}, 2},
      {"tensor, gated", "tiny-llama", {"strategy.tensor=2"}, 2},
      {"pipeline, tied table", "tiny-gpt", {"strategy.pipeline=4"}, 2},
      {"interleaved",
       "tiny-gpt",
       {"strategy.pipeline=2", "strategy.virtual_stages=2", "strategy.schedule=interleaved"},
       2},
      {"all three, bf16", "tiny-gpt", {"strategy.tensor=2", "strategy.pipeline=2", "training.precision=bf16"}, 3},
      {"sharded optimizer",
       "tiny-gpt",
       {"strategy.tensor=2", "strategy.data_parallel=distributed_optimizer", "training.precision=bf16"},
       3},
      {"sharded optimizer, pipeline",
       "tiny-gpt",
       {"strategy.pipeline=2", "strategy.data_parallel=distributed_optimizer"},
       2},
      {"zero1", "tiny-gpt", {"strategy.data_parallel=zero1", "training.precision=bf16"}, 3},
      {"ddp",
       "tiny-gpt",
       {"strategy.data_parallel=ddp", "strategy.ddp_bucket=16 KiB", "strategy.ddp_first_bucket=4 KiB"},
       2},
  };
  return all;
}

TEST(PlanState, RanksTogetherWriteEveryElementOnce) {
  for (const Case& c : cases()) {
    const Job job = job_of(c.overrides, c.example);
    ASSERT_GT(job.world(), 0) << c.name;
    std::map<TensorName, std::unordered_set<int64_t>> seen;
    int64_t weights = 0, all = 0;
    for (uint32_t r = 0; r < job.world(); ++r) {
      RankMemory m(job.plan, RankId{r});
      for (const Holding& h : m.holdings) {
        if (!h.written) continue;
        for (int64_t i = 0; i < h.layout.count; ++i) {
          const int64_t global = global_index(h.layout, h.layout.first + i);
          if (is_padding(h, global)) continue;
          ASSERT_TRUE(seen[h.tensor].insert(global).second) << c.name << ": " << to_text(h.tensor) << " " << global;
          weights += h.tensor.role == plan::Role::weight;
          ++all;
        }
      }
    }
    EXPECT_EQ(weights, job.parameters) << c.name;
    EXPECT_EQ(all, job.parameters * (1 + c.roles)) << c.name;
  }
}

// What a rank holds but does not write is written by another: nothing is lost when copies are left out.
TEST(PlanState, EverythingHeldIsWrittenBySomeone) {
  for (const Case& c : cases()) {
    const Job job = job_of(c.overrides, c.example);
    std::map<TensorName, std::unordered_set<int64_t>> written, held;
    for (uint32_t r = 0; r < job.world(); ++r) {
      RankMemory m(job.plan, RankId{r});
      for (const Holding& h : m.holdings)
        for (int64_t i = 0; i < h.layout.count; ++i)
          (h.written ? written : held)[h.tensor].insert(global_index(h.layout, h.layout.first + i));
    }
    for (const auto& [tensor, elements] : held)
      for (const int64_t e : elements) ASSERT_TRUE(written[tensor].contains(e)) << c.name << ": " << to_text(tensor);
  }
}

}  // namespace
}  // namespace wt::exec
