// Ranks over MPI, run by mpirun on 1 to 4 ranks (tests/CMakeLists.txt): every collective gives bit for bit what ranks as
// threads give, messages come in order, a plan trains to the same losses. Faults are in tests/exec/mpi_faults.
#include "exec/comm/mpi.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <random>
#include <thread>

#include "core/lower/lower.hpp"
#include "core/plan/values.hpp"
#include "exec/comm/inproc.hpp"
#include "exec/convert.hpp"
#include "exec/execute.hpp"
#include "tests/exec/variants.hpp"

namespace wt::exec {

MpiSession* session = nullptr;

namespace {

using plan::CollectiveKind;
using plan::Stream;

Machine mpi_machine() {
  auto m = session->machine({});
  EXPECT_TRUE(m) << to_text(m.errors());
  return std::move(m.value());
}

std::vector<Channel> whole(int64_t ranks, RankId rank) {
  Channel c{Stream::tensor, {}, rank.v};
  for (uint32_t r = 0; r < ranks; ++r) c.members.push_back({r});
  return {c};
}

int64_t elements_out(CollectiveKind kind, int64_t in, int64_t ranks) {
  if (kind == CollectiveKind::all_gather) return in * ranks;
  return kind == CollectiveKind::reduce_scatter ? in / ranks : in;
}

struct Case {
  plan::Collective op;
  bool in_place = false;
  std::vector<int64_t> sizes;  // elements of each buffer of the call, for each rank
};

/// The bytes that the rank ends with.
std::vector<std::string> outputs(Machine& m, const Case& c) {
  const RankId rank = m.communicator->rank();
  const int64_t ranks = m.communicator->size();
  std::vector<std::vector<std::byte>> memory;
  std::vector<Operand> reads, writes;
  memory.reserve(2 * c.sizes.size());
  for (const int64_t give : c.sizes) {
    std::mt19937_64 random(static_cast<uint64_t>(give) * 8 + rank.v);
    std::vector<double> values;
    for (int64_t i = 0; i < give; ++i)
      values.push_back(c.op.dtype == DType::i32 ? static_cast<double>(random() % 1000)
                                                : std::ldexp(static_cast<double>(random() % 4001) - 2000, -10));
    const int64_t get = elements_out(c.op.kind, give, ranks), size = size_of(c.op.dtype);
    auto& large = memory.emplace_back(static_cast<size_t>(std::max(give, get) * size));
    std::byte *from = large.data(), *to = large.data();
    if (!c.in_place)
      to = memory.emplace_back(static_cast<size_t>(get * size)).data();
    else if (c.op.kind == CollectiveKind::all_gather)
      from += rank.v * give * size;
    else if (c.op.kind == CollectiveKind::reduce_scatter)
      to += rank.v * get * size;
    store(values, c.op.dtype, from);
    reads.push_back({from, c.op.dtype, give, {}});
    writes.push_back({to, c.op.dtype, get, {}});
  }
  EXPECT_TRUE(m.communicator->connect(whole(ranks, rank)));
  Transfer t;
  t.op = "test";
  t.collective = &c.op;
  t.reads = reads;
  t.writes = writes;
  m.communicator->start(t, Stream::tensor, 0);
  const Status s = m.device->synchronize();
  EXPECT_TRUE(s) << to_text(s.errors());
  std::vector<std::string> out;
  for (const Operand& w : writes) out.emplace_back(static_cast<const char*>(w.data), static_cast<size_t>(w.bytes()));
  return out;
}

TEST(Mpi, CollectivesGiveWhatThreadsGiveBitForBit) {
  const int64_t ranks = session->size();
  Machine mine = mpi_machine();
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32})
    for (const auto how : {plan::Reduction::sum, plan::Reduction::max, plan::Reduction::average})
      for (const auto kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                              CollectiveKind::all_to_all, CollectiveKind::broadcast})
        for (const bool in_place : {false, true}) {
          if (in_place && kind == CollectiveKind::all_to_all) continue;
          // Two buffers in one call, one of them above what MPI sends at once; an all-reduce need not divide.
          const bool odd = kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather;
          const Case c{{kind, how, type, {}, 0}, in_place, {odd ? 7 : 12 * ranks, 20000 * ranks}};
          SCOPED_TRACE(testing::Message() << plan::to_text(kind) << " " << plan::to_text(how) << " " << to_text(type)
                                          << (in_place ? " in place" : ""));
          std::vector<std::vector<std::string>> wanted(static_cast<size_t>(ranks));
          auto machines = open_inproc(ranks);
          std::vector<std::thread> threads;
          for (size_t r = 0; r < machines.size(); ++r)
            threads.emplace_back([&, r] { wanted[r] = outputs(machines[r], c); });
          for (auto& t : threads) t.join();
          const auto got = outputs(mine, c);
          ASSERT_TRUE(got == wanted[session->rank().v]);
        }
}

TEST(Mpi, ManyCollectivesInARowOnTwoStreams) {
  Machine m = mpi_machine();
  const int64_t ranks = session->size();
  auto channels = whole(ranks, session->rank());
  channels.push_back(channels[0]);
  channels[1].stream = Stream::data;
  ASSERT_TRUE(m.communicator->connect(channels));
  std::vector<double> x(1000, session->rank().v + 1.0), y = x;
  const Operand in_x[] = {{x.data(), DType::f64, 1000, {}}}, in_y[] = {{y.data(), DType::f64, 1000, {}}};
  const plan::Collective op{CollectiveKind::all_reduce, plan::Reduction::average, DType::f64, {}, 0};
  Transfer t;
  t.collective = &op;
  for (Ticket k = 0; k < 200; ++k) {
    t.channel = k % 2;
    t.reads = t.writes = k % 2 ? in_y : in_x;
    m.communicator->start(t, k % 2 ? Stream::data : Stream::tensor, k);
  }
  ASSERT_TRUE(m.device->synchronize());
  for (const double v : x) ASSERT_DOUBLE_EQ(v, (static_cast<double>(ranks) + 1) / 2);
  for (const double v : y) ASSERT_DOUBLE_EQ(v, (static_cast<double>(ranks) + 1) / 2);
}

// Round the ring both ways at once; what comes back is on lane 1.
TEST(Mpi, MessagesMatchInOrderByLane) {
  const auto ranks = static_cast<uint32_t>(session->size()), me = session->rank().v;
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to send to";
  Machine m = mpi_machine();
  ASSERT_TRUE(m.communicator->connect({}));
  constexpr size_t kMessages = 50;
  std::vector<double> out(kMessages), forward(kMessages, -1), backward(kMessages, -1);
  std::vector<Operand> from(kMessages), to(2 * kMessages);
  Ticket ticket = 0;
  const RankId next{(me + 1) % ranks}, previous{(me + ranks - 1) % ranks};
  auto start = [&](Transfer::Kind kind, RankId peer, uint32_t lane, const Operand* x, Stream stream) {
    Transfer t;
    t.kind = kind;
    t.op = "ring";
    t.peer = peer;
    t.lane = lane;
    (kind == Transfer::Kind::send ? t.reads : t.writes) = {x, 1};
    m.communicator->start(t, stream, ticket++);
  };
  for (size_t k = 0; k < kMessages; ++k) {
    out[k] = 100.0 * me + static_cast<double>(k);
    from[k] = {&out[k], DType::f64, 1, {}};
    to[2 * k] = {&forward[k], DType::f64, 1, {}};
    to[2 * k + 1] = {&backward[k], DType::f64, 1, {}};
    start(Transfer::Kind::receive, previous, 0, &to[2 * k], Stream::receive_previous);
    start(Transfer::Kind::receive, next, 1, &to[2 * k + 1], Stream::receive_next);
    start(Transfer::Kind::send, next, 0, &from[k], Stream::send_next);
    start(Transfer::Kind::send, previous, 1, &from[k], Stream::send_previous);
  }
  ASSERT_TRUE(m.device->synchronize());
  for (size_t k = 0; k < kMessages; ++k) {
    ASSERT_EQ(forward[k], 100.0 * previous.v + static_cast<double>(k));
    ASSERT_EQ(backward[k], 100.0 * next.v + static_cast<double>(k));
  }
}

// What is sent while the other computes arrives while it computes: a pipeline's receives are posted early. The message is
// larger than MPI sends at once, so it takes looks on both sides.
TEST(Mpi, AMessageArrivesBesideKernels) {
  if (session->size() != 2) GTEST_SKIP() << "for two ranks";
  MpiOptions options;
  options.kernel = [](const plan::Compute&, auto, auto, const KernelContext&, Workers&) {
    const int64_t until = now_ps() + 10'000'000'000;  // 10 ms
    while (now_ps() < until) continue;
    return ok_status();
  };
  auto opened = session->machine(options);
  ASSERT_TRUE(opened);
  Machine m = std::move(opened.value());
  ASSERT_TRUE(m.communicator->connect({}));
  std::vector<double> data(200'000, 1.0 + session->rank().v);
  const Operand x{data.data(), DType::f64, static_cast<int64_t>(data.size()), {}};
  const bool sends = session->rank().v == 0;
  Transfer t;
  t.kind = sends ? Transfer::Kind::send : Transfer::Kind::receive;
  t.op = "beside";
  t.peer = {sends ? 1U : 0U};
  (sends ? t.reads : t.writes) = {&x, 1};
  const Stream stream = sends ? Stream::send_next : Stream::receive_previous;
  const plan::Compute spin{};
  constexpr Ticket kKernels = 40;
  for (Ticket k = 1; k <= kKernels; ++k) {
    m.device->launch({&spin, "spin", {}, {}, {}}, Stream::compute, k);
    if (k != (sends ? 10U : 5U)) continue;
    m.device->wait(stream, k);
    m.communicator->start(t, stream, 0);
  }
  ASSERT_TRUE(m.communicator->barrier());
  ASSERT_TRUE(m.device->synchronize());
  EXPECT_EQ(data[0], 1.0);
  EXPECT_LT(m.device->interval(0).value().end_ps, m.device->interval(kKernels - 10).value().begin_ps);
}

TEST(Mpi, HostAgreement) {
  Machine m = mpi_machine();
  const auto ranks = static_cast<uint32_t>(session->size()), me = session->rank().v;
  EXPECT_TRUE(m.communicator->barrier());
  const double mine[] = {me + 1.0, -static_cast<double>(me)};
  const auto sum = m.communicator->reduce(mine, plan::Reduction::sum);
  ASSERT_TRUE(sum);
  EXPECT_EQ(sum.value()[0], ranks * (ranks + 1) / 2.0);
  const auto texts = m.communicator->gather(std::string(me * 100000, static_cast<char>('a' + me)));
  ASSERT_TRUE(texts);
  ASSERT_EQ(texts.value().size(), ranks);
  for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(texts.value()[r], std::string(r * 100000, static_cast<char>('a' + r)));
}

// Ranks of one machine read one clock: the offset must be within what it says of itself.
TEST(Mpi, ClockOffsetIsWithinItsUncertainty) {
  Machine m = mpi_machine();
  const auto c = m.communicator->clock_offset();
  ASSERT_TRUE(c);
  EXPECT_LE(std::abs(c.value().offset_ps), c.value().uncertainty_ps + 1000);
  EXPECT_LT(c.value().uncertainty_ps, 100'000'000'000);
}

TEST(Mpi, PlansTrainToTheLossesOfThreads) {
  const int64_t ranks = session->size();
  int trained = 0;
  for (const Variant& model : models())
    for (const Variant& strategy : strategies()) {
      JobSpec job = reference::tiny_job();
      model.change(job);
      strategy.change(job);
      if (job.cluster.nodes != ranks) continue;
      SCOPED_TRACE(model.name + " " + strategy.name);
      const auto plan = lower::lower(job);
      ASSERT_TRUE(plan) << to_text(plan.errors());
      const auto tokens = random_tokens(plan.value().seed, plan::vocabulary_of(plan.value()));
      RunOptions run;
      run.warmup = 0;
      run.steps = 5;
      run.execute.learning_rate.peak = 1e-2;
      run.execute.tokens = tokens.get();
      auto machines = open_inproc(ranks);
      const auto threads = run_ranks(plan.value(), machines, run);
      ASSERT_TRUE(threads) << to_text(threads.errors());
      Machine mine = mpi_machine();
      const auto processes = run_rank(plan.value(), mine, run);
      ASSERT_TRUE(processes) << to_text(processes.errors());
      for (size_t i = 0; i < 5; ++i) EXPECT_EQ(processes.value().steps[i].loss, threads.value().steps[i].loss) << i;
      ++trained;
    }
  EXPECT_GE(trained, ranks <= 2 ? 4 : 0);
}

}  // namespace
}  // namespace wt::exec

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto opened = wt::exec::MpiSession::open(&argc, &argv);
  if (!opened) {
    std::cerr << wt::to_text(opened.errors());
    return 1;
  }
  wt::exec::session = &opened.value();
  return RUN_ALL_TESTS();
}
