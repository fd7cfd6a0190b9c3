// The text form: golden text, folding of orders, round trips of random and of lowered plans, the digest.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>

#include "core/base/file.hpp"
#include "core/plan/fold.hpp"
#include "core/plan/names.hpp"
#include "core/plan/plan_io.hpp"
#include "tests/core/plan/small_plan.hpp"

namespace wt::plan {
namespace {

/// The lines of the text that begin with one of the words, as they stand.
std::string lines_with(const std::string& text, std::string_view word) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (line.find(word) != std::string::npos) out += line + "\n";
    at = end + 1;
  }
  return out;
}

TEST(Print, SmallPlanIsTheKeptText) {
  const std::string path = WT_SOURCE_DIR "/tests/kept/plan_v1.plan";
  const std::string text = print(small_plan());
  if (std::getenv("WT_UPDATE")) { ASSERT_TRUE(write_file_atomically(path, text).ok()); }
  const auto kept = read_file(path);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(text, kept.value()) << "run with WT_UPDATE=1 and review the difference; a released version never changes";
  const auto back = parse_plan(kept.value());
  ASSERT_TRUE(back.ok()) << to_text(back.errors());
  EXPECT_EQ(back.value(), small_plan());
}

TEST(Print, AnOpIsOneLineWithEverythingByName) {
  const std::string text = print(small_plan());
  EXPECT_NE(text.find("    1 compute backward_weight \"wgrad\": gemm f32 [2, 4, 4] transpose_a accumulate "
                      "(d_out, hidden) -> (\"weight grad\") work 64 flops 96 read 32 written\n"),
            std::string::npos)
      << lines_with(text, "wgrad");
  EXPECT_NE(text.find("    2 send_next forward \"send\": send next_stage bytes 64 (hidden[+1]) wait tail compute "
                      "-hidden[+1]\n"),
            std::string::npos)
      << lines_with(text, "send");
}

// ----------------------------------------------------------------------------------------------- folding

Plan with_order(const std::vector<Invocation>& order) {
  Plan p = small_plan();
  p.micro_batches = 65536;
  for (size_t i = 0; i < 4; ++i) p.blocks[i].name = std::string(1, "SFBU"[i]);
  p.programs[0].steps[0].order = order;
  return p;
}

std::string printed_order(const std::vector<Invocation>& order) {
  const Plan p = with_order(order);
  const std::string text = print(p);
  const auto back = parse_plan(text);
  EXPECT_TRUE(back.ok()) << (back.ok() ? "" : to_text(back.errors())) << text;
  if (back.ok()) { EXPECT_EQ(back.value(), p) << text; }
  const size_t at = text.find("step steady {") + 13;
  return text.substr(at, text.find(" }\n", at) + 2 - at);
}

TEST(Fold, OneForwardOneBackward) {
  std::vector<Invocation> order;
  constexpr int kBatches = 32, kAhead = 3;
  for (int i = 0; i < kAhead; ++i) order.push_back(invoke(1, 0, i));
  for (int i = kAhead; i < kBatches; ++i) {
    order.push_back(invoke(1, 0, i));
    order.push_back(invoke(2, 0, i - kAhead));
  }
  for (int i = kBatches - kAhead; i < kBatches; ++i) order.push_back(invoke(2, 0, i));
  order.push_back(invoke(3));
  EXPECT_EQ(printed_order(order), " 3x{ F.0[i] } 29x{ F.0[3+i] B.0[i] } 3x{ B.0[29+i] } U }");
}

TEST(Fold, RoundsOfRounds) {
  std::vector<Invocation> order;
  for (int round = 0; round < 5; ++round)
    for (int chunk = 0; chunk < 2; ++chunk)
      for (int i = 0; i < 4; ++i) order.push_back(invoke(1, chunk, 4 * round + i));
  EXPECT_EQ(printed_order(order), " 5x{ 4x{ F.0[4i+j] } 4x{ F.1[4i+j] } } }");
}

TEST(Fold, BackwardsAndConstantStrides) {
  std::vector<Invocation> order;
  for (int i = 9; i >= 0; --i) order.push_back(invoke(1, 0, i));
  for (int i = 0; i < 4; ++i) order.push_back(invoke(3));
  for (int i = 0; i < 4; ++i) order.push_back(invoke(2, 0, 7));
  EXPECT_EQ(printed_order(order), " 10x{ F.0[9-i] } 4x{ U } 4x{ B.0[7] } }");
}

TEST(Fold, PairsOfBindings) {
  std::vector<Invocation> order;
  for (int i = 0; i < 6; ++i) {
    Invocation v = invoke(1, 0, i + 2);
    v.bindings = 2;
    v.binding[1] = {1, static_cast<uint16_t>(i)};
    order.push_back(v);
  }
  EXPECT_EQ(printed_order(order), " 6x{ F.0[2+i]&1[i] } }");
}

TEST(Fold, AnyOrderRoundTrips) {
  ASSERT_TRUE(rc::check([] {
    std::vector<Invocation> order;
    const auto pieces = *rc::gen::inRange(0, 12);
    for (int k = 0; k < pieces; ++k) {
      const auto repeats = *rc::gen::inRange(1, 7), stride = *rc::gen::inRange(-2, 3);
      const auto body = *rc::gen::container<std::vector<std::tuple<uint32_t, int, int>>>(
          *rc::gen::inRange<size_t>(1, 4),
          rc::gen::tuple(rc::gen::inRange(0u, 4u), rc::gen::inRange(-1, 3), rc::gen::inRange(20, 24)));
      for (int i = 0; i < repeats; ++i)
        for (const auto& [block, chunk, mb] : body)
          order.push_back(invoke(block, chunk, chunk < 0 ? 0 : mb + i * stride));
    }
    const Plan p = with_order(order);
    const auto back = parse_plan(print(p));
    RC_ASSERT(back.ok());
    RC_ASSERT(back.value() == p);
  }));
}

// ------------------------------------------------------------------------------------------- round trips

double some_double() {
  switch (*rc::gen::inRange(0, 5)) {
    case 0: return 0;
    case 1: return 0.1;
    case 2: return *rc::gen::arbitrary<int32_t>() / 3.0;
    case 3: return std::ldexp(1.0, *rc::gen::inRange(-1074, 1023));
    default: return std::numeric_limits<double>::max();
  }
}

/// Any bytes but the empty name; names get a number so that they are unique.
std::string some_name(size_t i) {
  std::string s = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  if (*rc::gen::arbitrary<bool>()) s = "plain.name";
  return s + "_" + std::to_string(i);
}

template <class E, size_t N>
E some(const std::array<std::string_view, N>&) {
  return static_cast<E>(*rc::gen::inRange<size_t>(0, N));
}

/// A plan of the right shape with anything in it: what printing and parsing may rely on, not a plan that runs.
Plan random_plan() {
  auto count = [](int64_t most) { return *rc::gen::inRange<int64_t>(0, most + 1); };
  auto flag = [] { return *rc::gen::arbitrary<bool>(); };
  Plan p;
  p.name = *rc::gen::arbitrary<std::string>();
  p.seed = *rc::gen::arbitrary<uint64_t>();
  for (int64_t i = 0, n = count(3); i < n; ++i)
    p.mesh.axes.push_back({some_name(static_cast<size_t>(i)), 1 + count(4)});
  p.placement = {some<PlacementKind>(kPlacementNames), 1 + count(3), 1 + count(3)};
  p.micro_batches = 1 + count(100);
  p.micro_batch_size = 1 + count(9);
  p.sequence = 1 + count(9);
  auto filter = [&] {
    AxisFilter f{AxisId{static_cast<uint32_t>(count(static_cast<int64_t>(p.mesh.axes.size()) - 1))}, {}};
    for (int64_t v = 0; v < p.mesh.axes[f.axis.v].size; ++v)
      if (v == 0 || flag()) f.values.push_back(v);
    return f;
  };
  for (int64_t i = 0, n = 1 + count(2); i < n; ++i) {
    Group g{some_name(static_cast<size_t>(i)), {}, {}};
    for (uint32_t a = 0; a < p.mesh.axes.size(); ++a)
      if (flag()) g.axes.push_back({a});
    if (!p.mesh.axes.empty() && flag()) g.filter = filter();
    p.groups.push_back(g);
  }
  auto group = [&] { return GroupId{static_cast<uint32_t>(count(static_cast<int64_t>(p.groups.size()) - 1))}; };
  for (int64_t i = 0, n = 1 + count(4); i < n; ++i) {
    Buffer b;
    b.name = some_name(static_cast<size_t>(i));
    b.role = some<Role>(kRoleNames);
    b.dtype = some<DType>(kDTypeNames);
    b.space = some<Space>(kSpaceNames);
    b.scope = some<Scope>(kScopeNames);
    b.per_layer = flag();
    b.view = flag();
    for (int64_t d = count(3); d > 0; --d) b.shape.push_back(1 + count(1000));
    for (int64_t s = count(1); s > 0; --s) b.shards.push_back({static_cast<uint8_t>(count(3)), group(), 1 + count(2)});
    b.init = some<Init>(kInitNames);
    b.init_scale = some_double();
    p.buffers.push_back(b);
  }
  auto buffer = [&] { return BufferId{static_cast<uint32_t>(count(static_cast<int64_t>(p.buffers.size()) - 1))}; };
  for (int64_t i = 0, n = 1 + count(2); i < n; ++i) {
    Part part;
    part.name = some_name(static_cast<size_t>(i));
    part.embedding = flag();
    part.head = flag();
    part.layers = count(9);
    part.parameters = count(1 << 30);
    for (int64_t k = count(9); k > 0; --k) part.persistent.push_back(buffer());
    for (int64_t k = count(3); k > 0; --k)
      part.views.push_back(
          {buffer(), buffer(), count(3), count(3), count(1 << 20), count(99) - 50, flag() ? group() : GroupId{}});
    p.parts.push_back(part);
  }
  for (int64_t i = 0, n = 1 + count(3); i < n; ++i) {
    Block b;
    b.name = some_name(static_cast<size_t>(i));
    if (flag()) b.part = {static_cast<uint32_t>(count(static_cast<int64_t>(p.parts.size()) - 1))};
    for (int64_t s = count(3); s > 0; --s) {
      Segment segment;
      segment.first_op = static_cast<uint32_t>(b.ops.size());
      segment.op_count = static_cast<uint32_t>(count(3));
      segment.iterations = static_cast<uint32_t>(1 + count(3));
      segment.first_layer = static_cast<int32_t>(count(4) - 1);
      segment.layer_step = static_cast<int32_t>(count(2) - 1);
      for (uint32_t k = 0; k < segment.op_count; ++k) {
        Op o;
        o.name = *rc::gen::arbitrary<std::string>();
        o.phase = some<Phase>(kPhaseNames);
        o.stream = some<Stream>(kStreamNames);
        switch (count(6)) {
          case 0: {
            Compute c;
            c.kernel = some<Kernel>(kKernelNames);
            c.dtype = some<DType>(kDTypeNames);
            for (auto& d : c.dims) d = count(3);
            c.transpose_a = flag();
            c.transpose_b = flag();
            c.accumulate = flag();
            c.causal = flag();
            c.gated = flag();
            c.function = static_cast<uint8_t>(count(255));
            c.launches = static_cast<uint16_t>(count(65535));
            c.pieces = static_cast<uint16_t>(count(65535));
            if (flag()) c.group = group();
            c.scalar = some_double();
            c.work = {some_double(), count(1 << 30), count(1 << 30)};
            o.body = c;
            break;
          }
          case 1:
            o.body = Collective{some<CollectiveKind>(kCollectiveNames), some<Reduction>(kReductionNames),
                                some<DType>(kDTypeNames), group(), count(1 << 30)};
            break;
          case 2: o.body = Send{some<Direction>(kDirectionNames), count(99)}; break;
          case 3: o.body = Receive{some<Direction>(kDirectionNames), count(99)}; break;
          case 4: o.body = Copy{some<Space>(kSpaceNames), some<Space>(kSpaceNames), count(99)}; break;
          case 5: o.body = HostWait{}; break;
          default: o.body = Join{};
        }
        o.waits.begin = static_cast<uint32_t>(b.waits.size());
        for (int64_t w = count(2); w > 0; --w, ++o.waits.count) {
          Wait wait;
          wait.kind = static_cast<Wait::Kind>(count(2));
          wait.index = static_cast<uint32_t>(wait.kind == Wait::Kind::tail ? count(kStreams - 1) : count(9));
          wait.iterations_back = static_cast<uint32_t>(count(2));
          wait.pieces = static_cast<uint32_t>(count(4));
          b.waits.push_back(wait);
        }
        for (Range Op::*list : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases}) {
          (o.*list).begin = static_cast<uint32_t>(b.refs.size());
          for (int64_t r = count(2); r > 0; --r, ++(o.*list).count)
            b.refs.push_back({buffer(), static_cast<int16_t>(count(4) - 2), static_cast<uint8_t>(count(1))});
        }
        b.ops.push_back(o);
      }
      b.segments.push_back(segment);
    }
    p.blocks.push_back(b);
  }
  for (int64_t i = 0, n = count(2); i < n; ++i) {
    Program g;
    g.name = some_name(static_cast<size_t>(i));
    if (!p.mesh.axes.empty() && flag()) g.when = filter();
    for (int64_t c = count(3); c > 0; --c) {
      g.chunks.push_back({static_cast<uint32_t>(count(static_cast<int64_t>(p.parts.size()) - 1))});
      g.first_layer.push_back(count(99));
    }
    auto order = [&] {
      std::vector<Invocation> out;
      for (int64_t k = count(20); k > 0; --k) {
        Invocation v;
        v.block = {static_cast<uint32_t>(count(static_cast<int64_t>(p.blocks.size()) - 1))};
        v.bindings = static_cast<uint8_t>(count(2));
        for (size_t b = 0; b < v.bindings; ++b)
          v.binding[b] = {static_cast<uint16_t>(count(3)), static_cast<uint16_t>(count(4))};
        out.push_back(v);
      }
      return out;
    };
    g.setup = order();
    for (int64_t s = count(2); s > 0; --s) g.steps.push_back({some_name(static_cast<size_t>(s)), order()});
    p.programs.push_back(g);
  }
  for (int64_t i = count(2); i > 0; --i) p.assumptions.push_back(*rc::gen::arbitrary<std::string>());
  return p;
}

TEST(RoundTrip, RandomPlans) {
  ASSERT_TRUE(rc::check([] {
    const Plan p = random_plan();
    const std::string text = print(p);
    const auto back = parse_plan(text);
    if (!back.ok()) RC_FAIL(to_text(back.errors()) + "\n" + text);
    RC_ASSERT(back.value() == p);
    RC_ASSERT(print(back.value()) == text);
    RC_ASSERT(digest(back.value()) == digest(p));
  }));
}

TEST(Digest, IsOfTheWorkAndNotOfItsName) {
  Plan renamed = small_plan();
  renamed.name = "the same work";
  EXPECT_EQ(digest(renamed), digest(small_plan()));
  // What the first versions wrote into a trace of this plan, the name hashed with it.
  constexpr uint64_t kOfTheFirstVersions = 1610597583094183517u;
  EXPECT_TRUE(is_digest_of(kOfTheFirstVersions, small_plan()));
  EXPECT_TRUE(is_digest_of(digest(small_plan()), small_plan()));
  EXPECT_FALSE(is_digest_of(kOfTheFirstVersions, renamed));
  EXPECT_FALSE(is_digest_of(kOfTheFirstVersions + 1, small_plan()));
}

TEST(Digest, TellsChangesApartAndIsTheSameEverywhere) {
  const Plan p = small_plan();
  // Kept: a trace names its plan by this value, on every machine and compiler.
  EXPECT_EQ(digest(p), 1470497290911985550u);
  std::vector<uint64_t> seen{digest(p)};
  auto changed = [&](auto change) {
    Plan q = small_plan();
    change(q);
    for (uint64_t d : seen) EXPECT_NE(digest(q), d);
    seen.push_back(digest(q));
  };
  changed([](Plan& q) { q.seed++; });
  changed([](Plan& q) { q.mesh.axes[1].size = 4; });
  changed([](Plan& q) { q.groups[1].filter.reset(); });
  changed([](Plan& q) { q.buffers[0].shape[0]++; });
  changed([](Plan& q) { q.buffers[1].init_scale = 0.03; });
  changed([](Plan& q) { q.parts[0].views[0].offset++; });
  changed([](Plan& q) { q.blocks[1].ops[0].name = "y"; });
  changed([](Plan& q) { q.blocks[1].refs[0].layer_offset++; });
  changed([](Plan& q) { q.blocks[1].waits[0].index++; });
  changed([](Plan& q) { std::get<Compute>(q.blocks[1].ops[0].body).pieces = 2; });
  changed([](Plan& q) { q.programs[0].steps[0].order[0].binding[0].micro_batch = 1; });
  changed([](Plan& q) { std::swap(q.programs[0].steps[0].order[0], q.programs[0].steps[0].order[1]); });
  changed([](Plan& q) { q.assumptions.clear(); });
}

}  // namespace
}  // namespace wt::plan
