// Schedules with a split backward, and those on a V, against an event-level run of their orders: the bubbles and the peaks
// of the papers, unequal passes and a cost of messages. What holds for every schedule of the registry: schedule_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pipe_oracle.hpp"

namespace wt::lower {
namespace {

const Schedule& named(const char* name) { return *find_schedule(name); }

int64_t peak(const char* name, const ScheduleInput& in, int64_t rank) {
  return count_in_flight(named(name).order(in).value()[static_cast<size_t>(rank)]);
}

TEST(ZeroBubble, SpansAreThoseOfThePaper) {
  for (const int64_t p : {2, 4, 8})
    for (int64_t m = 2 * p; m <= 4 * p; ++m)
      for (const Lengths& t : {Lengths{1, 1, 1, 0}, Lengths{1, 1.25, 1, 0}}) {
        const double stages = static_cast<double>(p - 1);
        const Ran one = run(named("zb-h1"), {p, 1, m}, t);
        if (t.input == t.weight) {
          EXPECT_NEAR(one.longest_span - one.work, stages * (t.forward + t.input - t.weight), 1e-9) << p << " " << m;
          const Ran two = run(named("zb-h2"), {p, 1, m}, t);
          EXPECT_NEAR(two.longest_span - two.work, 0, 1e-9) << p << " " << m;
          EXPECT_NEAR(two.makespan - two.work, stages * t.forward, 1e-9) << p << " " << m;
        }
        const Ran plain = run(named("1f1b"), {p, 1, m}, t);
        EXPECT_NEAR(plain.makespan - plain.work, stages * (t.forward + t.input + t.weight), 1e-9);
        EXPECT_LT(one.makespan, plain.makespan);
      }
}

/// facts, p = 8, m = 24: makespan bubble of equal passes and span bubble of F = 1, I = 1.3, W = 0.9.
TEST(ZeroBubble, BubblesOfTheOracle) {
  struct Known {
    const char* name;
    int64_t chunks;
    double makespan, span;  // span < 0: not known
  };
  for (const Known& k : {Known{"zb-h1", 1, 7, 9.8},
                         {"zb-h2", 1, 7, 3.5},
                         {"zb-v", 2, 3.5, 2.8},
                         {"v-half", 2, 13, 16.4},
                         {"v-min", 2, 13.5, 31.8}}) {
    const double length = 1.0 / static_cast<double>(k.chunks);
    const Ran equal = run(named(k.name), {8, k.chunks, 24}, {length, length, length, 0});
    EXPECT_NEAR(equal.makespan - equal.work, k.makespan, 0.06) << k.name;
    const Ran unequal = run(named(k.name), {8, k.chunks, 24}, {length, 1.3 * length, 0.9 * length, 0});
    EXPECT_NEAR(unequal.longest_span - unequal.work, k.span, 0.06) << k.name;
  }
}

TEST(ZeroBubble, PeaksOfTheFacts) {
  for (const int64_t p : {2, 4, 8}) {
    const ScheduleInput one{p, 1, 4 * p}, two{p, 2, 4 * p};
    for (int64_t r = 0; r < p; ++r) {
      EXPECT_EQ(named("zb-h1").peak_in_flight(one, r), p);
      EXPECT_EQ(named("zb-h2").peak_in_flight(one, r), 2 * p - 1);
      EXPECT_LE(peak("zb-v", two, r), 2 * p);  // chunks of half a stage
      EXPECT_LE(peak("v-half", two, r), p + 4);
      EXPECT_LE(peak("v-min", two, r), 2 * p / 3 + 6);
    }
    ScheduleInput capped = one;
    for (capped.max_in_flight = p; capped.max_in_flight < 2 * p; ++capped.max_in_flight)
      for (int64_t r = 0; r < p; ++r)
        EXPECT_LE(count_in_flight(named("zb-h2").order(capped).value()[static_cast<size_t>(r)]), capped.max_in_flight);
  }
}

/// Nothing gets stuck, and no rank works less, whatever passes and messages cost.
TEST(EverySchedule, RunsWithUnequalPassesAndMessages) {
  for (const Schedule* s : all_schedules())
    for (const int64_t p : {2, 4, 8})
      for (int64_t m = p; m <= 4 * p; m += p / 2)
        for (const int64_t chunks : {1, 2, 3}) {
          const ScheduleInput in{p, chunks, m};
          if (!s->order(in)) continue;
          SCOPED_TRACE(fmt::format("{} p={} v={} m={}", s->name, p, chunks, m));
          const Lengths t{1, 1.3, 0.9, 0.2};
          const Ran ran = run(*s, in, t);
          EXPECT_NEAR(ran.work, static_cast<double>(m * chunks) * (t.forward + t.input + t.weight), 1e-9);
          EXPECT_GE(ran.makespan, ran.work);
        }
}

}  // namespace
}  // namespace wt::lower
