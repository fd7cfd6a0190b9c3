// A script holds what the plan says and no more: ops in order, waits that suffice, memory that no two ops share unordered,
// and the peak that the report tells.
#include "exec/script.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "core/plan/plan_io.hpp"
#include "core/report/report.hpp"
#include "exec/arena.hpp"
#include "tests/exec/variants.hpp"
#include "tests/reference/races.hpp"

namespace wt::exec {
namespace {

class Scripts : public testing::TestWithParam<Variant> {};

/// What is over when each task starts, by the script's waits alone.
std::vector<Clock> clocks_of(const Tasks& t, std::vector<uint32_t>& number) {
  std::vector<Clock> clocks(t.tasks.size());
  number.resize(t.tasks.size());
  std::array<std::vector<Ticket>, plan::kStreams> queue;
  Clock host;
  auto stream = [&](Ticket k) { return static_cast<size_t>(t.tasks[k].body().stream); };
  auto past = [&](Ticket k) {
    Clock c = clocks[k];
    c.over[stream(k)] = number[k] + 1;
    return c;
  };
  for (Ticket k = 0; k < t.tasks.size(); ++k) {
    auto& mine = queue[stream(k)];
    clocks[k] = host;
    if (!mine.empty()) clocks[k].merge(past(mine.back()));
    for (uint32_t w = 0; w < t.tasks[k].waits.count; ++w) {
      const Ticket on = t.waits[t.tasks[k].waits.begin + w];
      EXPECT_LT(on, k);
      EXPECT_NE(stream(on), stream(k));
      clocks[k].merge(past(on));
    }
    number[k] = static_cast<uint32_t>(mine.size());
    mine.push_back(k);
    if (std::holds_alternative<plan::HostWait>(t.tasks[k].body().body)) host.merge(past(k));
  }
  return clocks;
}

/// Two tasks that touch the same bytes, one of them writing, must be ordered. The first that are not.
std::string first_clash(const Tasks& t) {
  std::vector<uint32_t> number;
  const std::vector<Clock> clocks = clocks_of(t, number);
  struct Cell {
    Ticket write = UINT32_MAX;
    std::array<Ticket, plan::kStreams> reads;
    Cell() { reads.fill(UINT32_MAX); }
  };
  std::array<std::vector<Cell>, kSpaces> cells;  // of 4 bytes: no element of these plans is smaller
  std::string found;
  auto ordered = [&](Ticket before, Ticket k) {
    if (before == UINT32_MAX || before == k) return true;
    const auto stream = static_cast<size_t>(t.tasks[before].body().stream);
    return clocks[k].over[stream] > number[before];
  };
  auto touch = [&](Ticket k, plan::Range range, bool writes) {
    for (uint32_t i = range.begin; i < range.begin + range.count; ++i) {
      const Place& p = t.places[i];
      auto& space = cells[static_cast<size_t>(p.space)];
      const auto end = static_cast<size_t>((p.offset + t.operands[i].bytes() + 3) / 4);
      if (space.size() < end) space.resize(end);
      for (auto at = static_cast<size_t>(p.offset / 4); at < end; ++at) {
        Cell& cell = space[at];
        bool fine = ordered(cell.write, k);
        if (writes)
          for (const Ticket r : cell.reads) fine = fine && ordered(r, k);
        if (!fine && found.empty())
          found = std::string(t.tasks[k].body().name) + " in " + t.tasks[k].block->name + " at byte " +
                  std::to_string(at * 4);
        if (writes) {
          cell = {};
          cell.write = k;
        } else {
          cell.reads[static_cast<size_t>(t.tasks[k].body().stream)] = k;
        }
      }
    }
  };
  for (Ticket k = 0; k < t.tasks.size(); ++k) {
    touch(k, t.tasks[k].reads, false);
    touch(k, t.tasks[k].writes, true);
  }
  return found;
}

TEST_P(Scripts, HoldWhatThePlanSays) {
  for (const Variant& model : models()) {
    SCOPED_TRACE(model.name);
    JobSpec job = reference::tiny_job();
    model.change(job);
    GetParam().change(job);
    const auto lowered = lower::lower(job);
    ASSERT_TRUE(lowered.ok()) << to_text(lowered.errors());
    const plan::Plan& p = lowered.value();
    ASSERT_TRUE(plan::validate(p).ok());
    std::map<uint32_t, int64_t> peaks;  // by rank
    for (uint32_t r = 0; r < p.mesh.ranks(); ++r) {
      const auto made = Script::make(p, {r});
      ASSERT_TRUE(made.ok()) << to_text(made.errors());
      const Script& s = made.value();
      peaks[r] = s.arenas[0].peak;
      EXPECT_GE(s.arenas[0].slack(), 0);
      const plan::Program& program = p.programs[plan::program_of(p, {r}).v];
      const auto& order = program.steps[0].order;
      const std::vector<reference::Issued> wanted = reference::issue(p, order);
      const Tasks& steady = s.steps[0];
      ASSERT_EQ(steady.tasks.size(), wanted.size());
      std::vector<uint32_t> number;
      const std::vector<Clock> clocks = clocks_of(steady, number);
      for (size_t k = 0; k < wanted.size(); ++k) {
        const ScriptTask& t = steady.tasks[k];
        EXPECT_EQ(t.block, wanted[k].block);
        EXPECT_EQ(t.op, wanted[k].op);
        EXPECT_EQ(t.layer, wanted[k].layer);
        EXPECT_EQ(t.invocation, wanted[k].invocation);
        EXPECT_EQ(t.reads.count, t.body().reads.count);
        EXPECT_EQ(t.writes.count, t.body().writes.count);
        for (const uint32_t after : wanted[k].after)
          EXPECT_GT(clocks[k].over[static_cast<size_t>(steady.tasks[after].body().stream)], number[after])
              << t.body().name << " does not wait for " << steady.tasks[after].body().name;
      }
      EXPECT_EQ(first_clash(steady), "");
      EXPECT_EQ(first_clash(s.setup), "");
    }
    const report::MemoryReport memory = report::memory_peaks(job, p);
    const auto pp = p.mesh.find("pp");
    for (const auto& [rank, peak] : peaks) {
      const auto stage = static_cast<size_t>(pp ? p.mesh.coordinate({rank}, *pp) : 0);
      EXPECT_EQ(peak, memory.stages.at(stage).peak.n) << "rank " << rank;
    }
  }
}

TEST_P(Scripts, LayOutTheSamePlacesInDoubles) {
  JobSpec job = reference::tiny_job();
  GetParam().change(job);
  const auto p = lower::lower(job);
  ASSERT_TRUE(p.ok());
  const auto plain = Script::make(p.value(), {0}), wide = Script::make(p.value(), {0}, {DType::f64});
  ASSERT_TRUE(plain.ok() && wide.ok());
  EXPECT_EQ(first_clash(wide.value().steps[0]), "");
  EXPECT_GT(wide.value().arenas[0].peak, plain.value().arenas[0].peak * 3 / 2);  // all but tokens, labels and masks
  for (const Operand& o : wide.value().steps[0].operands) EXPECT_TRUE(o.dtype == DType::f64 || o.dtype == DType::i32);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Scripts, testing::ValuesIn(strategies()),
                         [](const auto& c) { return c.param.name; });

/// The check above must see what a layout by the order of issue alone would do.
TEST(Script, ReuseByIssueOrderAloneIsSeen) {
  JobSpec job = reference::tiny_job();
  cut(job, 2, 1, 1);
  job.strategy.sequence_parallel = true;
  const auto p = lower::lower(job);
  ASSERT_TRUE(p.ok());
  auto s = Script::make(p.value(), {0});
  ASSERT_TRUE(s.ok());
  Tasks t = s.value().steps[0];
  ASSERT_EQ(first_clash(t), "");
  size_t crossing = 0, seen = 0;
  for (size_t k = 0; k < t.tasks.size() && crossing < 40; ++k) {
    if (t.tasks[k].waits.count == 0) continue;
    ++crossing;
    Tasks broken = t;
    broken.tasks[k].waits.count = 0;
    seen += !first_clash(broken).empty();
  }
  EXPECT_GT(seen, crossing / 2);
}

TEST(Arena, GivesAPlaceAgainOnlyInOrder) {
  Arena a;
  const Clock start;
  const int64_t x = a.reserve(256, start), y = a.reserve(512, start);
  EXPECT_NE(x, y);
  Clock after;
  after.over[1] = 3;
  a.release(x, 256, after);
  EXPECT_EQ(a.reserve(256, start), 768);  // x may still be in use
  Clock later = after;
  later.over[0] = 1;
  EXPECT_EQ(a.reserve(128, later), x);
  EXPECT_EQ(a.bytes(), 1024);
  a.release(y, 512, after);
  a.settle();
  EXPECT_EQ(a.reserve(640, start), 128);  // what was left of x, and y
  EXPECT_EQ(a.bytes(), 1024);
  EXPECT_EQ(a.reserve(100, start), 1024);
}

TEST(Arena, GrowsAFreeEnd) {
  Arena a;
  const int64_t x = a.reserve(256, {});
  a.release(x, 256, {});
  EXPECT_EQ(a.reserve(1024, {}), x);
  EXPECT_EQ(a.bytes(), 1024);
}

}  // namespace
}  // namespace wt::exec
