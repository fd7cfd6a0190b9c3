// Properties of every schedule of the registry: a new file is tested without being named here. Closed forms
// and known figures of the schedules that have them follow.
#include "core/lower/schedule.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace wt::lower {

void PrintTo(const Slot& s, std::ostream* out) {
  const char* const letters[] = {"F", "B", "I", "W"};
  *out << letters[static_cast<int>(s.pass)] << s.chunk << '.' << s.micro_batch;
}

namespace {

using ::testing::HasSubstr;

struct Case {
  const Schedule* schedule;
  ScheduleInput in;
};

/// Every schedule with every small input that it accepts.
std::vector<std::pair<Case, Orders>> accepted() {
  std::vector<std::pair<Case, Orders>> out;
  for (const Schedule* s : all_schedules())
    for (int64_t p = 1; p <= 6; ++p)
      for (int64_t v = 1; v <= 4; ++v)
        for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24})
          for (int64_t g : {0, 4, 5, 7}) {
            const ScheduleInput in{p, v, m, g};
            Result<Orders> orders = s->order(in);
            if (orders) out.push_back({{s, in}, std::move(orders.value())});
          }
  return out;
}

std::string name_of(const Case& c) {
  return fmt::format("{} p={} v={} m={} group={}", c.schedule->name, c.in.pipeline, c.in.chunks, c.in.micro_batches,
                     c.in.group_size);
}

/// The oracle: a rank runs its slots in order, a slot starts when its rank is free and its data is there;
/// messages take no time.
struct Outcome {
  bool stuck = false;
  std::string where;
  double makespan = 0;
};

Outcome run(const Case& c, const Orders& orders, double forward, double input, double weight) {
  const plan::Placement place{c.schedule->placement, c.in.pipeline, c.in.chunks};
  std::map<std::tuple<bool, int64_t, int64_t>, double> over;  // (backward, stage, micro-batch) -> end
  std::vector<size_t> next(orders.size(), 0);
  std::vector<double> free_at(orders.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < orders.size(); ++r)
      while (next[r] < orders[r].size()) {
        const Slot& slot = orders[r][next[r]];
        const int64_t stage = place.stage({static_cast<int64_t>(r), slot.chunk});
        std::vector<std::tuple<bool, int64_t, int64_t>> needs;
        if (slot.pass == Pass::forward) {
          if (stage > 0) needs.push_back({false, stage - 1, slot.micro_batch});
        } else if (slot.pass == Pass::backward_weight) {
          needs.push_back({true, stage, slot.micro_batch});
        } else {
          needs.push_back({false, stage, slot.micro_batch});
          if (stage + 1 < place.stages()) needs.push_back({true, stage + 1, slot.micro_batch});
        }
        double start = free_at[r];
        bool ready = true;
        for (const auto& need : needs) {
          const auto found = over.find(need);
          if (found == over.end())
            ready = false;
          else
            start = std::max(start, found->second);
        }
        if (!ready) break;
        const double length = slot.pass == Pass::forward          ? forward
                              : slot.pass == Pass::backward       ? input + weight
                              : slot.pass == Pass::backward_input ? input
                                                                  : weight;
        free_at[r] = start + length;
        if (slot.pass != Pass::backward_weight)
          over[{slot.pass != Pass::forward, stage, slot.micro_batch}] = free_at[r];
        ++next[r];
        progress = true;
      }
  }
  Outcome result;
  for (size_t r = 0; r < orders.size(); ++r) {
    if (next[r] < orders[r].size()) result.stuck = true, result.where += fmt::format(" rank {} at {}", r, next[r]);
    result.makespan = std::max(result.makespan, free_at[r]);
  }
  return result;
}

/// Blocking rendezvous: each rank has in-order queues for compute and for each (direction, send or receive), those of
/// chunks on a V's way back apart.
/// A send is over only when the receive at the head of the peer's queue is the one it meets, so a pair of
/// queues that list messages in different orders is stuck, and so is a cycle of waits.
bool rendezvous_makes_progress(const Case& c, const Orders& orders) {
  struct Message {
    bool backward;
    int64_t to_stage, micro_batch;
    auto operator<=>(const Message&) const = default;
  };
  const plan::Placement place{c.schedule->placement, c.in.pipeline, c.in.chunks};
  const size_t ranks = orders.size();
  // [rank][0: forwards, 1: backwards; + 2 on the way back]
  std::vector<std::array<std::deque<Message>, 4>> sends(ranks), receives(ranks);
  const auto queue_of = [&](bool backward, int64_t chunk) {
    return static_cast<size_t>(backward) + (place.kind == plan::PlacementKind::zigzag && chunk % 2 == 1 ? 2 : 0);
  };
  std::set<Message> arrived;
  for (size_t r = 0; r < ranks; ++r)
    for (const Slot& s : orders[r]) {
      const int64_t stage = place.stage({static_cast<int64_t>(r), s.chunk});
      if (s.pass == Pass::forward && stage > 0)
        receives[r][queue_of(false, s.chunk)].push_back({false, stage, s.micro_batch});
      if ((s.pass == Pass::backward || s.pass == Pass::backward_input) && stage + 1 < place.stages())
        receives[r][queue_of(true, s.chunk)].push_back({true, stage, s.micro_batch});
    }
  std::vector<size_t> next(ranks, 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < ranks; ++r) {
      while (next[r] < orders[r].size()) {  // compute, and hand the result to a send queue
        const Slot& s = orders[r][next[r]];
        const int64_t stage = place.stage({static_cast<int64_t>(r), s.chunk});
        const bool backward = s.pass != Pass::forward;
        const bool receives_it = s.pass == Pass::forward           ? stage > 0
                                 : s.pass == Pass::backward_weight ? false
                                                                   : stage + 1 < place.stages();
        if (receives_it && !arrived.contains({backward, stage, s.micro_batch})) break;
        const int64_t to = backward ? stage - 1 : stage + 1;
        if (s.pass != Pass::backward_weight && to >= 0 && to < place.stages())
          sends[r][queue_of(backward, s.chunk)].push_back({backward, to, s.micro_batch});
        ++next[r];
        progress = true;
      }
      for (size_t way = 0; way < 4; ++way)
        while (!sends[r][way].empty()) {
          const Message m = sends[r][way].front();
          const plan::Placement::Slot to = place.slot(m.to_stage);
          auto& peer = receives[static_cast<size_t>(to.pp)][queue_of(m.backward, to.chunk)];
          if (peer.empty() || peer.front() != m) break;
          peer.pop_front();
          sends[r][way].pop_front();
          arrived.insert(m);
          progress = true;
        }
    }
  }
  for (size_t r = 0; r < ranks; ++r) {
    if (next[r] < orders[r].size()) return false;
    for (size_t way = 0; way < 4; ++way)
      if (!sends[r][way].empty() || !receives[r][way].empty()) return false;
  }
  return true;
}

int64_t measured_peak(const std::vector<Slot>& slots) {
  const bool split =
      std::any_of(slots.begin(), slots.end(), [](const Slot& s) { return s.pass == Pass::backward_weight; });
  int64_t now = 0, peak = 0;
  for (const Slot& s : slots) {
    if (s.pass == Pass::forward)
      peak = std::max(peak, ++now);
    else if (s.pass == (split ? Pass::backward_weight : Pass::backward))
      --now;
    else if (split && s.pass == Pass::backward)
      --now;
  }
  return peak;
}

// ------------------------------------------------------------------------------------------- the whole
// registry

TEST(Registry, FindsEveryScheduleByItsFileStem) {
  ASSERT_GE(all_schedules().size(), 3u);
  std::set<std::string_view> names;
  for (const Schedule* s : all_schedules()) {
    EXPECT_EQ(find_schedule(s->name), s);
    EXPECT_TRUE(names.insert(s->name).second) << s->name;
    EXPECT_FALSE(s->cites.empty()) << s->name;
  }
  EXPECT_EQ(find_schedule("gpip"), nullptr);
  EXPECT_EQ(find_schedule(""), nullptr);
}

TEST(Registry, EveryScheduleAcceptsSomething) {
  std::map<std::string_view, int> count;
  for (const auto& [c, orders] : accepted()) ++count[c.schedule->name];
  for (const Schedule* s : all_schedules())
    if (!s->reads_file) { EXPECT_GE(count[s->name], 20) << s->name; }
}

TEST(Registry, EveryPairRunsForwardOnceThenBackwardOnce) {
  for (const auto& [c, orders] : accepted()) {
    SCOPED_TRACE(name_of(c));
    ASSERT_EQ(static_cast<int64_t>(orders.size()), c.in.pipeline);
    for (const std::vector<Slot>& slots : orders) {
      std::map<std::pair<int32_t, int32_t>, std::string> seen;
      for (const Slot& s : slots) {
        ASSERT_TRUE(s.chunk >= 0 && s.chunk < c.in.chunks && s.micro_batch >= 0 && s.micro_batch < c.in.micro_batches);
        seen[{s.chunk, s.micro_batch}] += "FBIW"[static_cast<int>(s.pass)];
      }
      ASSERT_EQ(static_cast<int64_t>(seen.size()), c.in.chunks * c.in.micro_batches);
      for (const auto& [pair, passes] : seen) ASSERT_TRUE(passes == "FB" || passes == "FIW") << passes;
    }
  }
}

TEST(Registry, PeakInFlightIsAsDocumented) {
  for (const auto& [c, orders] : accepted())
    for (size_t r = 0; r < orders.size(); ++r)
      if (!c.schedule->peak_in_flight)
        ASSERT_EQ(measured_peak(orders[r]), count_in_flight(orders[r])) << name_of(c) << " rank " << r;
      else
        ASSERT_EQ(measured_peak(orders[r]), c.schedule->peak_in_flight(c.in, static_cast<int64_t>(r)))
            << name_of(c) << " rank " << r;
}

TEST(Registry, NoDeadlock) {
  for (const auto& [c, orders] : accepted()) {
    const Outcome result = run(c, orders, 1, 1, 1);
    ASSERT_FALSE(result.stuck) << name_of(c) << result.where;
    ASSERT_TRUE(rendezvous_makes_progress(c, orders)) << name_of(c);
  }
}

TEST(Registry, TheOraclesSeeFaults) {
  const Case c{find_schedule("1f1b"), {3, 1, 4}};
  Orders orders = c.schedule->order(c.in).value();
  std::swap(orders[1][0], orders[1][1]);  // rank 1 wants micro-batch 1 first: only the message order is wrong
  EXPECT_FALSE(run(c, orders, 1, 1, 1).stuck);
  EXPECT_FALSE(rendezvous_makes_progress(c, orders));
  orders = c.schedule->order(c.in).value();
  std::swap(orders[0][3], orders[0][4]);  // legal: one forward more ahead
  EXPECT_FALSE(run(c, orders, 1, 1, 1).stuck);
  EXPECT_NE(measured_peak(orders[0]), c.schedule->peak_in_flight(c.in, 0));
  orders = c.schedule->order(c.in).value();
  std::rotate(orders[0].begin(), orders[0].begin() + 3,
              orders[0].begin() + 4);  // a backward before its forward
  EXPECT_TRUE(run(c, orders, 1, 1, 1).stuck);
  EXPECT_FALSE(rendezvous_makes_progress(c, orders));
}

TEST(Registry, OrdersDoNotDependOnTheCall) {
  for (const auto& [c, orders] : accepted()) ASSERT_EQ(orders, c.schedule->order(c.in).value()) << name_of(c);
}

TEST(Registry, ARefusalSaysWhereWhatAndTheLegalValues) {
  int refused = 0;
  for (const Schedule* s : all_schedules())
    for (int64_t p = 1; p <= 5; ++p)
      for (int64_t v = 1; v <= 3; ++v)
        for (int64_t m = 1; m <= 13; ++m)
          for (int64_t g : {0, 2, 3, 6}) {
            const auto orders = s->order({p, v, m, g});
            if (orders) continue;
            ++refused;
            for (const Diagnostic& d : orders.errors()) {
              EXPECT_TRUE(d.where.starts_with("strategy.") || d.where.starts_with("training.")) << d.where;
              EXPECT_FALSE(d.what.empty());
              EXPECT_THAT(d.hint, HasSubstr("legal")) << s->name;
            }
          }
  EXPECT_GT(refused, 100);
}

// --------------------------------------------------------------------------------------------------- known
// orders

std::string text(const std::vector<Slot>& slots) {
  std::string out;
  for (const Slot& s : slots) out += fmt::format("{}{}.{} ", "FBIW"[static_cast<int>(s.pass)], s.chunk, s.micro_batch);
  return out;
}

TEST(OneForwardOneBackward, IsMegatronsOrder) {
  const Orders o = find_schedule("1f1b")->order({3, 1, 4}).value();
  EXPECT_EQ(text(o[0]), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3 ");
  EXPECT_EQ(text(o[1]), "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3 ");
  EXPECT_EQ(text(o[2]), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 ");
}

TEST(OneForwardOneBackward, FewerMicroBatchesThanStages) {
  const Orders o = find_schedule("1f1b")->order({4, 1, 2}).value();
  EXPECT_EQ(text(o[0]), "F0.0 F0.1 B0.0 B0.1 ");
  EXPECT_EQ(text(o[3]), "F0.0 B0.0 F0.1 B0.1 ");
}

TEST(Gpipe, AllForwardsThenAllBackwards) {
  EXPECT_EQ(text(find_schedule("gpipe")->order({2, 1, 3}).value()[1]), "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2 ");
}

TEST(Interleaved, IsMegatronsOrder) {
  const Orders o = find_schedule("interleaved")->order({2, 2, 4}).value();
  EXPECT_EQ(text(o[0]), "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3 ");
  EXPECT_EQ(text(o[1]), "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3 ");
}

TEST(Interleaved, AShortLastRoundKeepsItsPlace) {
  const Orders o = find_schedule("interleaved")->order({2, 2, 5, 3}).value();
  EXPECT_EQ(text(o[1]),
            "F0.0 F0.1 F0.2 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F0.3 B0.0 F0.4 B0.1 F1.3 B0.2 F1.4 B1.3 B1.4 B0.3 B0.4 ");
}

TEST(Interleaved, PeaksOfTheFacts) {
  const Schedule* s = find_schedule("interleaved");
  EXPECT_EQ(measured_peak(s->order({4, 2, 16}).value()[0]), 11);
  EXPECT_EQ(measured_peak(s->order({8, 4, 32}).value()[0]), 39);
}

// ------------------------------------------------------------------------------------------------- closed
// forms

TEST(Makespan, OneForwardOneBackwardAndGpipe) {
  for (const char* name : {"1f1b", "gpipe"})
    for (int64_t p = 1; p <= 8; ++p)
      for (int64_t m = 1; m <= 17; ++m) {
        const Case c{find_schedule(name), {p, 1, m}};
        EXPECT_DOUBLE_EQ(run(c, c.schedule->order(c.in).value(), 1, 1.25, 0.75).makespan,
                         static_cast<double>(m + p - 1) * 3)
            << name_of(c);
      }
}

TEST(Makespan, Interleaved) {
  const Schedule* s = find_schedule("interleaved");
  for (int64_t p : {2, 4, 8})
    for (int64_t v : {2, 4})
      for (int64_t rounds = 1; rounds <= 4; ++rounds) {
        const Case c{s, {p, v, p * rounds}};
        const double chunks = static_cast<double>(v);  // a chunk takes 1 / v of a stage
        EXPECT_NEAR(run(c, s->order(c.in).value(), 1 / chunks, 1 / chunks, 1 / chunks).makespan,
                    static_cast<double>(p * rounds) * 3 + static_cast<double>(p - 1) * 3 / chunks, 1e-9)
            << name_of(c);
      }
  // Uneven rounds keep the bubble (facts: p = 4; m = 10, G = 5; m = 9, G = 5; m = 11, G = 7).
  for (const auto& [m, g] : {std::pair<int64_t, int64_t>{10, 5}, {9, 5}, {11, 7}})
    for (int64_t v : {2, 3}) {
      const Case c{s, {4, v, m, g}};
      EXPECT_NEAR(run(c, s->order(c.in).value(), 1, 1, 1).makespan, static_cast<double>(m * v) * 3 + 9, 1e-9)
          << name_of(c);
    }
}

// ---------------------------------------------------------------------------------------------------
// refusals

std::string refusal(const char* name, const ScheduleInput& in) {
  const auto orders = find_schedule(name)->order(in);
  return orders ? "accepted" : to_text(orders.errors());
}

TEST(Refusals, OneChunkSchedules) {
  for (const char* name : {"gpipe", "1f1b"})
    EXPECT_EQ(refusal(name, {4, 2, 8}),
              fmt::format("strategy.virtual_stages: is 2, but strategy.schedule {} runs one chunk on each rank (legal: "
                          "strategy.virtual_stages 1, or strategy.schedule interleaved)\n",
                          name));
}

TEST(Refusals, MicroBatchesThatDoNotFillTheRounds) {
  EXPECT_EQ(refusal("interleaved", {4, 2, 10}),
            "training.global_batch: gives 10 micro-batches: rounds of 4 leave a last round of 2, less than "
            "strategy.pipeline 4 (legal: 8 or 12 micro-batches (micro-batches = training.global_batch / "
            "(training.micro_batch x data-parallel size)), or strategy.group_size 5)\n");
  EXPECT_EQ(refusal("interleaved", {4, 2, 3}),
            "training.global_batch: gives 3 micro-batches, fewer than the 4 of one round (strategy.pipeline) "
            "(legal: 4 "
            "micro-batches (micro-batches = training.global_batch / (training.micro_batch x data-parallel "
            "size)))\n");
  EXPECT_THAT(refusal("interleaved", {4, 2, 8, 10}), HasSubstr("(strategy.group_size) (legal: 10 micro-batches"));
  EXPECT_THAT(refusal("interleaved", {4, 2, 8, 10}), HasSubstr("or strategy.group_size 8"));
  EXPECT_EQ(refusal("interleaved", {4, 2, 10, 5}), "accepted");
}

TEST(Refusals, AllAtOnce) {
  const auto orders = find_schedule("interleaved")->order({4, 1, 10});
  ASSERT_FALSE(orders);
  EXPECT_EQ(orders.errors().size(), 2u);
  EXPECT_THAT(refusal("interleaved", {1, 2, 10}), HasSubstr("strategy.pipeline: is 1"));
  EXPECT_THAT(refusal("interleaved", {4, 2, 8, 2}),
              HasSubstr("strategy.group_size: is 2, less than strategy.pipeline 4"));
}

}  // namespace
}  // namespace wt::lower
