// Ranks as threads: every collective against plain loops, messages in order, and what happens when a rank fails or hangs.
#include "exec/comm/inproc.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "exec/convert.hpp"

namespace wt::exec {
namespace {

using namespace std::chrono_literals;
using plan::CollectiveKind;
using plan::Stream;

/// f(machine, rank) on a thread for each rank.
template <class F>
void on_ranks(std::vector<Machine>& machines, F f) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < machines.size(); ++r) threads.emplace_back([&, r] { f(machines[r], r); });
  for (auto& t : threads) t.join();
}

/// Of ranks 0 .. n - 1 in one group, on the tensor stream.
std::vector<Channel> whole(uint32_t ranks, uint32_t rank) {
  Channel c{Stream::tensor, {}, rank};
  for (uint32_t r = 0; r < ranks; ++r) c.members.push_back({r});
  return {c};
}

int64_t elements_out(CollectiveKind kind, int64_t in, int64_t ranks) {
  if (kind == CollectiveKind::all_gather) return in * ranks;
  return kind == CollectiveKind::reduce_scatter ? in / ranks : in;
}

/// What rank `r` gets at `k`, by the definition in plan.hpp.
double wanted(CollectiveKind kind, plan::Reduction how, const std::vector<std::vector<double>>& in, size_t r,
              size_t k) {
  const size_t n = in.size(), size = in[0].size();
  auto reduced = [&](size_t i) {
    double x = in[0][i];
    for (size_t m = 1; m < n; ++m) x = how == plan::Reduction::max ? std::max(x, in[m][i]) : x + in[m][i];
    return how == plan::Reduction::average ? x / static_cast<double>(n) : x;
  };
  switch (kind) {
    case CollectiveKind::all_reduce: return reduced(k);
    case CollectiveKind::reduce_scatter: return reduced(r * (size / n) + k);
    case CollectiveKind::all_gather: return in[k / size][k % size];
    case CollectiveKind::all_to_all: return in[k / (size / n)][r * (size / n) + k % (size / n)];
    case CollectiveKind::broadcast: return in[0][k];
    case CollectiveKind::shift_up: return in[(r + n - 1) % n][k];
    case CollectiveKind::shift_down: return in[(r + 1) % n][k];
  }
  return 0;
}

TEST(Inproc, CollectivesDoWhatThePlanSays) {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u})
    for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const auto how : {plan::Reduction::sum, plan::Reduction::max, plan::Reduction::average})
        for (const auto kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                CollectiveKind::all_to_all, CollectiveKind::broadcast, CollectiveKind::shift_up,
                                CollectiveKind::shift_down})
          for (const bool in_place : {false, true}) {
            const bool moves_all = kind == CollectiveKind::all_to_all || kind == CollectiveKind::shift_up ||
                                   kind == CollectiveKind::shift_down;
            if (in_place && moves_all) continue;
            SCOPED_TRACE(testing::Message() << plan::to_text(kind) << " " << plan::to_text(how) << " " << to_text(type)
                                            << " on " << ranks << (in_place ? " in place" : ""));
            const int64_t sizes[] = {12 * int64_t{ranks}, 1200 * int64_t{ranks}};  // two buffers in one call
            std::mt19937_64 random(ranks);
            std::vector<std::vector<std::vector<double>>> in(2);  // buffer, rank
            for (size_t b = 0; b < 2; ++b)
              for (uint32_t r = 0; r < ranks; ++r) {
                auto& x = in[b].emplace_back();
                for (int64_t i = 0; i < sizes[b]; ++i) x.push_back(static_cast<double>(random() % 17) - 8);
              }
            const plan::Collective op{kind, how, type, {}, 0};
            std::vector<std::vector<std::vector<double>>> out(2, std::vector<std::vector<double>>(ranks));
            auto machines = open_inproc(ranks);
            on_ranks(machines, [&](Machine& m, uint32_t r) {
              std::vector<std::vector<std::byte>> memory;
              std::vector<Operand> reads, writes;
              memory.reserve(4);
              for (size_t b = 0; b < 2; ++b) {
                const int64_t give = sizes[b], get = elements_out(kind, give, ranks);
                auto& large = memory.emplace_back(static_cast<size_t>(std::max(give, get) * size_of(type)));
                std::byte *from = large.data(), *to = large.data();
                if (!in_place)
                  to = memory.emplace_back(static_cast<size_t>(get * size_of(type))).data();
                else if (kind == CollectiveKind::all_gather)
                  from += r * give * size_of(type);  // its own piece of the result
                else if (kind == CollectiveKind::reduce_scatter)
                  to += r * get * size_of(type);
                store(in[b][r], type, from);
                reads.push_back({from, type, give, {}});
                writes.push_back({to, type, get, {}});
              }
              ASSERT_TRUE(m.communicator->connect(whole(ranks, r)).ok());
              Transfer t;
              t.op = "test";
              t.collective = &op;
              t.reads = reads;
              t.writes = writes;
              m.communicator->start(t, Stream::tensor, 0);
              ASSERT_TRUE(m.device->synchronize().ok());
              for (size_t b = 0; b < 2; ++b) {
                out[b][r].resize(static_cast<size_t>(writes[b].elements));
                load(writes[b].data, type, out[b][r]);
              }
            });
            for (size_t b = 0; b < 2; ++b)
              for (uint32_t r = 0; r < ranks; ++r)
                for (size_t k = 0; k < out[b][r].size(); ++k) {
                  const double want = wanted(kind, how, in[b], r, k);
                  ASSERT_NEAR(out[b][r][k], want, type == DType::f64 ? 0 : std::abs(want) * 4e-3) << r << " " << k;
                }
          }
}

TEST(Inproc, ManyCollectivesInARow) {
  constexpr uint32_t kRanks = 3;
  auto machines = open_inproc(kRanks);
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    ASSERT_TRUE(m.communicator->connect(whole(kRanks, r)).ok());
    std::vector<double> x(100, r + 1.0);
    const Operand all[] = {{x.data(), DType::f64, 100, {}}};
    const plan::Collective op{CollectiveKind::all_reduce, plan::Reduction::average, DType::f64, {}, 0};
    Transfer t;
    t.collective = &op;
    t.reads = t.writes = all;
    for (Ticket k = 0; k < 200; ++k) m.communicator->start(t, Stream::tensor, k);
    ASSERT_TRUE(m.device->synchronize().ok());
    for (const double v : x) ASSERT_DOUBLE_EQ(v, 2.0);
  });
}

TEST(Inproc, MessagesMatchInOrderByLane) {
  auto machines = open_inproc(2);
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    ASSERT_TRUE(m.communicator->connect({}).ok());
    constexpr int kMessages = 50;
    // Both ways at once; what comes back is on lane 1.
    std::vector<double> out(kMessages), in(kMessages, -1);
    std::vector<Operand> from(kMessages), to(kMessages);
    Ticket ticket = 0;
    for (int k = 0; k < kMessages; ++k) {
      out[static_cast<size_t>(k)] = 100 * (r + 1.0) + k;
      from[static_cast<size_t>(k)] = {&out[static_cast<size_t>(k)], DType::f64, 1, {}};
      to[static_cast<size_t>(k)] = {&in[static_cast<size_t>(k)], DType::f64, 1, {}};
      Transfer send, receive;
      send.kind = Transfer::Kind::send;
      receive.kind = Transfer::Kind::receive;
      send.peer = receive.peer = {1 - r};
      send.lane = r;
      receive.lane = 1 - r;
      send.reads = {&from[static_cast<size_t>(k)], 1};
      receive.writes = {&to[static_cast<size_t>(k)], 1};
      m.communicator->start(receive, Stream::receive_previous, ticket++);
      m.communicator->start(send, Stream::send_next, ticket++);
    }
    ASSERT_TRUE(m.device->synchronize().ok());
    for (int k = 0; k < kMessages; ++k) ASSERT_EQ(in[static_cast<size_t>(k)], 100 * (2.0 - r) + k);
  });
}

TEST(Inproc, HostAgreement) {
  auto machines = open_inproc(3);
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    EXPECT_TRUE(m.communicator->barrier().ok());
    const double mine[] = {r + 1.0, -static_cast<double>(r)};
    const auto sum = m.communicator->reduce(mine, plan::Reduction::sum);
    const auto most = m.communicator->reduce(mine, plan::Reduction::max);
    ASSERT_TRUE(sum.ok() && most.ok());
    EXPECT_EQ(sum.value(), (std::vector<double>{6, -3}));
    EXPECT_EQ(most.value(), (std::vector<double>{3, 0}));
    const auto texts = m.communicator->gather(std::string(r, 'x'));
    ASSERT_TRUE(texts.ok());
    EXPECT_EQ(texts.value(), (std::vector<std::string>{"", "x", "xx"}));
  });
}

TEST(Inproc, AFailedRankStopsAllWithItsReason) {
  auto machines = open_inproc(3);
  std::vector<std::string> told(3);
  const auto begin = std::chrono::steady_clock::now();
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    ASSERT_TRUE(m.communicator->connect(whole(3, r)).ok());
    auto& device = static_cast<CpuDevice&>(*m.device);
    if (r == 1) device.enqueue(Stream::compute, 0, "broken", [] { return Status(Diagnostic{"", "out of luck", ""}); });
    std::vector<double> x(10);
    const Operand all[] = {{x.data(), DType::f64, 10, {}}};
    const plan::Collective op{CollectiveKind::all_reduce, plan::Reduction::sum, DType::f64, {}, 0};
    Transfer t;
    t.collective = &op;
    t.op = "meeting";
    t.reads = t.writes = all;
    if (r == 1) device.wait(Stream::tensor, 0);
    m.communicator->start(t, Stream::tensor, 1);
    const Status s = m.device->synchronize();
    ASSERT_FALSE(s.ok());
    told[r] = to_text(s.errors());
  });
  for (const std::string& t : told) EXPECT_EQ(t, "rank 1, op 'broken': out of luck\n") << t;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Inproc, AHungRankIsNamedAfterTheTimeout) {
  InprocOptions o;
  o.timeout = 300ms;
  auto machines = open_inproc(3, o);
  std::vector<std::string> told(3);
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    ASSERT_TRUE(m.communicator->connect(whole(3, r)).ok());
    if (r == 2) return;  // never comes
    std::vector<double> x(10);
    const Operand all[] = {{x.data(), DType::f64, 10, {}}};
    const plan::Collective op{CollectiveKind::all_reduce, plan::Reduction::sum, DType::f64, {}, 0};
    Transfer t;
    t.collective = &op;
    t.op = "meeting";
    t.reads = t.writes = all;
    m.communicator->start(t, Stream::tensor, 0);
    const Status s = m.device->synchronize();
    ASSERT_FALSE(s.ok());
    told[r] = to_text(s.errors());
  });
  for (const uint32_t r : {0u, 1u})
    EXPECT_NE(told[r].find("op 'meeting': waited 0.3 s for rank 2"), std::string::npos) << told[r];
}

TEST(Inproc, AMessageThatNobodySendsTimesOut) {
  InprocOptions o;
  o.timeout = 200ms;
  auto machines = open_inproc(2, o);
  on_ranks(machines, [&](Machine& m, uint32_t r) {
    ASSERT_TRUE(m.communicator->connect({}).ok());
    if (r == 0) return;
    double x = 0;
    const Operand to[] = {{&x, DType::f64, 1, {}}};
    Transfer t;
    t.kind = Transfer::Kind::receive;
    t.op = "receive forward";
    t.peer = {0};
    t.writes = to;
    m.communicator->start(t, Stream::receive_previous, 0);
    const Status s = m.device->synchronize();
    ASSERT_FALSE(s.ok());
    EXPECT_NE(to_text(s.errors()).find("rank 1, op 'receive forward': waited 0.2 s for rank 0"), std::string::npos)
        << to_text(s.errors());
  });
}

// What communicators go by: the compute stream is idle when it has nothing, and when it waits for another stream.
TEST(Cpu, SaysWhetherItsComputeStreamHasWork) {
  std::atomic<bool> go{false}, kernel_may_end{false};
  CpuOptions options;
  options.kernel = [&](const plan::Compute&, auto, auto, const KernelContext&, Workers&) {
    while (!kernel_may_end) std::this_thread::yield();
    return ok_status();
  };
  CpuDevice device(options);
  int looks = 0;
  device.after_kernels([&] { ++looks; });
  EXPECT_FALSE(device.computing());
  device.await_idle(std::chrono::seconds(60));  // at once
  device.enqueue(Stream::tensor, 0, "transfer", [&] {
    while (!go) std::this_thread::yield();
    return ok_status();
  });
  const plan::Compute kernel{};
  device.wait(Stream::compute, 0);
  device.launch({&kernel, "kernel", {}, {}, {}}, Stream::compute, 1);
  device.await_idle(std::chrono::seconds(60));
  EXPECT_FALSE(device.computing());
  go = true;
  ASSERT_TRUE(device.wait_host(0));
  EXPECT_TRUE(device.computing());
  EXPECT_EQ(looks, 0);
  device.await_idle(std::chrono::milliseconds(1));
  EXPECT_TRUE(device.computing());
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kernel_may_end = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  device.await_idle(std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
  ends.join();
  ASSERT_TRUE(device.synchronize());
  EXPECT_FALSE(device.computing());
  EXPECT_EQ(looks, 1);
}

TEST(Cpu, StreamsWaitForTicketsAndKeepTheirOrder) {
  CpuDevice device({});
  std::vector<int> order;
  for (int round = 0; round < 20; ++round) {
    order.clear();
    // Only the waits order these: "b" on another stream starts after "a", "c" after "b".
    device.enqueue(Stream::compute, 0, "a", [&] {
      std::this_thread::sleep_for(1ms);
      order.push_back(0);
      return ok_status();
    });
    device.wait(Stream::tensor, 0);
    device.enqueue(Stream::tensor, 1, "b", [&] {
      order.push_back(1);
      return ok_status();
    });
    device.wait(Stream::compute, 1);
    device.enqueue(Stream::compute, 2, "c", [&] {
      order.push_back(2);
      return ok_status();
    });
    ASSERT_TRUE(device.wait_host(1).ok());
    ASSERT_TRUE(device.synchronize().ok());
    ASSERT_EQ(order, (std::vector<int>{0, 1, 2}));
    const auto a = device.interval(0), b = device.interval(1);
    ASSERT_GE(a.value().end_ps - a.value().begin_ps, 900'000'000);
    ASSERT_GE(b.value().begin_ps, a.value().end_ps);
  }
}

TEST(Cpu, TooMuchMemoryIsRefusedWithTheNumbers) {
  CpuDevice device({});
  const auto memory = device.allocate(plan::Space::device, Bytes{int64_t{1} << 60});
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(to_text(memory.errors()).find("are free"), std::string::npos) << to_text(memory.errors());
}

}  // namespace
}  // namespace wt::exec
