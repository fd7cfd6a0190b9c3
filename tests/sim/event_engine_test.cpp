#include "sim/engine/event_engine.hpp"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

namespace wt::sim {
namespace {

TEST(EventEngine, OrderIsTimeThenPhaseThenSequence) {
  EventEngine<int> e;
  e.schedule(Time::ps(5), 1, 1);
  e.schedule(Time::ps(5), 0, 2);
  e.schedule(Time::ps(3), 7, 3);
  e.schedule(Time::ps(5), 0, 4);
  std::vector<int> seen;
  while (auto x = e.pop()) seen.push_back(x->payload);
  EXPECT_EQ(seen, (std::vector<int>{3, 2, 4, 1}));
  EXPECT_EQ(e.now(), Time::ps(5));
  EXPECT_EQ(e.popped(), 4u);
}

TEST(EventEngine, CancelTwiceOrAfterPopDoesNothing) {
  EventEngine<int> e;
  const auto a = e.schedule(Time::ps(1), 0, 1), b = e.schedule(Time::ps(2), 0, 2);
  EXPECT_TRUE(e.cancel(a));
  EXPECT_FALSE(e.cancel(a));
  EXPECT_EQ(e.pop()->payload, 2);
  EXPECT_FALSE(e.cancel(b));
  const auto c = e.schedule(Time::ps(2), 0, 3);  // takes a slot used before
  EXPECT_FALSE(e.cancel(a));
  EXPECT_FALSE(e.cancel(b));
  EXPECT_TRUE(e.cancel(c));
  EXPECT_TRUE(e.empty());
}

TEST(EventEngineDeathTest, RefusesThePast) {
  EventEngine<int> e;
  e.schedule(Time::ps(10), 0, 1);
  e.pop();
  EXPECT_DEATH(e.schedule(Time::ps(9), 0, 2), "event at 9 ps, clock at 10 ps");
}

/// Random schedules, cancels and pops against a sorted list.
TEST(EventEngine, AgreesWithASortedShadow) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    EventEngine<uint64_t> engine;
    struct Shadow {
      int64_t at;
      uint8_t phase;
      uint64_t id;
      EventEngine<uint64_t>::Handle handle;
    };
    std::vector<Shadow> shadow;
    uint64_t id = 0;
    for (int step = 0; step < 5000; ++step) {
      const uint32_t what = random() % 10;
      if (what < 5) {
        const int64_t at = engine.now().count_ps() + random() % 20;
        const auto phase = static_cast<uint8_t>(random() % 3);
        shadow.push_back({at, phase, id, engine.schedule(Time::ps(at), phase, id)});
        ++id;
      } else if (what < 7 && !shadow.empty()) {
        const size_t i = random() % shadow.size();
        EXPECT_TRUE(engine.cancel(shadow[i].handle));
        shadow.erase(shadow.begin() + static_cast<ptrdiff_t>(i));
      } else {
        const auto got = engine.pop();
        const auto least = std::min_element(shadow.begin(), shadow.end(), [](const Shadow& a, const Shadow& b) {
          return std::tie(a.at, a.phase, a.id) < std::tie(b.at, b.phase, b.id);
        });
        ASSERT_EQ(got.has_value(), least != shadow.end());
        if (!got) continue;
        EXPECT_EQ(got->payload, least->id);
        EXPECT_EQ(got->at, Time::ps(least->at));
        EXPECT_EQ(engine.now(), got->at);
        shadow.erase(least);
      }
      ASSERT_EQ(engine.pending(), shadow.size());
    }
  }
}

}  // namespace
}  // namespace wt::sim
