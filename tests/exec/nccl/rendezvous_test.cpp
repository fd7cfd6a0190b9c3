// Processes that find each other as torchrun starts them, here as threads over the loopback; NCCL itself where GPUs are.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <map>
#include <thread>

#include "exec/comm/inproc.hpp"
#include "exec/comm/nccl/rendezvous.hpp"

#if defined(WT_HAVE_CUDA)
#include "exec/comm/nccl/nccl.hpp"
#include "exec/device/cuda/cuda.hpp"
#endif

namespace wt::exec {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

/// Runs f(rank, rendezvous) on a thread for each rank.
template <class F>
void on_ranks(int64_t ranks, milliseconds timeout, F f) {
  const int port = free_port().value();
  std::vector<std::thread> threads;
  for (int64_t r = ranks - 1; r >= 0; --r)
    threads.emplace_back([=] {
      RendezvousPlace place;
      place.rank = r;
      place.size = ranks;
      place.port = port;
      auto joined = Rendezvous::join(place, timeout);
      ASSERT_TRUE(joined.ok()) << to_text(joined.errors());
      f(r, *joined.value());
    });
  for (auto& t : threads) t.join();
}

TEST(Rendezvous, EveryoneLearnsEveryonesBytesInOrder) {
  on_ranks(4, 10s, [](int64_t rank, Rendezvous& all) {
    for (int round = 0; round < 20; ++round) {
      const std::string mine = std::to_string(rank) + ":" + std::string(static_cast<size_t>(rank * 1000), '\0');
      const auto got = all.exchange(mine);
      ASSERT_TRUE(got.ok()) << to_text(got.errors());
      ASSERT_EQ(got.value().size(), 4u);
      for (int64_t r = 0; r < 4; ++r)
        EXPECT_EQ(got.value()[static_cast<size_t>(r)],
                  std::to_string(r) + ":" + std::string(static_cast<size_t>(r * 1000), '\0'));
    }
  });
}

TEST(Rendezvous, OneRankNeedsNoNetwork) {
  auto alone = Rendezvous::join({}, 100ms);
  ASSERT_TRUE(alone.ok());
  EXPECT_THAT(alone.value()->exchange("x").value(), ElementsAre("x"));
}

TEST(Rendezvous, ClocksOfOneMachineAgree) {
  on_ranks(3, 10s, [](int64_t rank, Rendezvous& all) {
    const auto clock = all.clock_offset();
    ASSERT_TRUE(clock.ok());
    EXPECT_LE(std::abs(clock.value().offset_ps), clock.value().uncertainty_ps + 1'000'000) << rank;
    EXPECT_LT(clock.value().uncertainty_ps, int64_t{1} << 38);  // a quarter of a second
  });
}

TEST(Rendezvous, OneReasonStopsAll) {
  std::latch ready(3);  // a stop overtakes what a slower rank has yet to read
  on_ranks(3, 10s, [&](int64_t rank, Rendezvous& all) {
    std::atomic<int> told{0};
    std::string why;
    all.on_stop([&](const Diagnostic& d) {
      why = d.where + ": " + d.what;
      ++told;
    });
    const bool joined = all.exchange("").ok();
    ready.arrive_and_wait();
    ASSERT_TRUE(joined);
    if (rank == 2) {
      all.stop({"rank 2, op 'adam'", "not a number", ""});
    } else {
      const auto got = all.exchange("");  // rank 2 never comes
      ASSERT_FALSE(got.ok());
      EXPECT_EQ(got.errors()[0].what, "not a number");
      for (int i = 0; i < 1000 && told == 0; ++i) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(told, 1);
      EXPECT_EQ(why, "rank 2, op 'adam': not a number");
    }
    EXPECT_EQ(all.exchange("").ok(), false);
  });
}

TEST(Rendezvous, WaitingHasAnEnd) {
  std::atomic<int> in_time{0};
  on_ranks(2, 300ms, [&](int64_t rank, Rendezvous& all) {
    if (rank == 1) {
      std::this_thread::sleep_for(1s);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto got = all.exchange("");
    ASSERT_FALSE(got.ok());
    EXPECT_THAT(got.errors()[0].what, HasSubstr("waited 0.3 s for rank 1"));
    in_time += std::chrono::steady_clock::now() - begin < 900ms;
  });
  EXPECT_EQ(in_time, 1);
}

TEST(Rendezvous, SaysWhoDidNotCome) {
  RendezvousPlace place;
  place.size = 3;
  place.port = free_port().value();
  auto first = Rendezvous::join(place, 300ms);
  ASSERT_FALSE(first.ok());
  EXPECT_THAT(first.errors()[0].what, HasSubstr("did not come in time: 1, 2"));
  place.rank = 1;
  auto second = Rendezvous::join(place, 300ms);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.errors()[0].what, HasSubstr("cannot reach rank 0"));
}

TEST(Rendezvous, StrayConnectionsAreLetGoOf) {
  RendezvousPlace place;
  place.size = 2;
  place.port = free_port().value();
  std::thread stray([&] {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(place.port));
    int fd = -1;
    for (int i = 0; i < 100; ++i) {
      fd = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0) break;
      ::close(fd);
      fd = -1;
      std::this_thread::sleep_for(10ms);
    }
    ASSERT_GE(fd, 0);
    const std::string noise(100, 'x');
    EXPECT_EQ(::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 100);
    std::this_thread::sleep_for(100ms);
    RendezvousPlace other = place;
    other.rank = 1;
    auto joined = Rendezvous::join(other, 5s);
    EXPECT_TRUE(joined.ok());
    ::close(fd);
  });
  auto joined = Rendezvous::join(place, 5s);
  EXPECT_TRUE(joined.ok()) << to_text(joined.errors());
  stray.join();
}

Result<RendezvousPlace> place_of(const std::map<std::string, std::string>& variables) {
  return rendezvous_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(RendezvousPlace, AsTorchrunSetsIt) {
  const auto p = place_of(
      {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "host"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p.value().rank, 3);
  EXPECT_EQ(p.value().size, 8);
  EXPECT_EQ(p.value().local_rank, 1);
  EXPECT_EQ(p.value().address, "host");
  EXPECT_EQ(p.value().port, 1234);
}

TEST(RendezvousPlace, EveryFaultAtOnce) {
  const auto p = place_of({{"RANK", "8"}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", "x"}});
  ASSERT_FALSE(p.ok());
  std::vector<std::string> text;
  for (const auto& d : p.errors()) text.push_back(d.where + " " + d.what);
  EXPECT_THAT(text, ElementsAre("RANK '8' is not a number from 0 to 7",
                                "MASTER_PORT 'x' is not a number from 1 to 65535", "MASTER_ADDR is not set"));
}

/// Ranks that MPI (here: threads) brought together tell each other where to meet.
TEST(Place, IsAgreedOnOverAnotherCommunicator) {
  auto machines = open_inproc(3, {});
  std::vector<std::vector<std::string>> got(machines.size());
  std::vector<RendezvousPlace> places(machines.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < machines.size(); ++r)
    threads.emplace_back([&, r] {
      const auto place = rendezvous_over(*machines[r].communicator);
      ASSERT_TRUE(place.ok()) << to_text(place.errors());
      places[r] = place.value();
      auto met = Rendezvous::join(place.value(), 10s);
      ASSERT_TRUE(met.ok()) << to_text(met.errors());
      const auto all = met.value()->exchange(std::string(1, static_cast<char>('a' + r)));
      ASSERT_TRUE(all.ok());
      got[r] = all.value();
    });
  for (std::thread& t : threads) t.join();
  for (size_t r = 0; r < machines.size(); ++r) {
    EXPECT_THAT(got[r], ElementsAre("a", "b", "c"));
    EXPECT_EQ(places[r].rank, static_cast<int64_t>(r));
    EXPECT_EQ(places[r].local_rank, static_cast<int64_t>(r));  // one host
    EXPECT_EQ(places[r].port, places[0].port);
  }
}

TEST(Nccl, OneRankReducesToItself) {
#if !defined(WT_HAVE_CUDA)
  GTEST_SKIP() << "skipped: no GPU (built without CUDA)";
#else
  const auto count = cuda_device_count();
  if (!count.ok() || count.value() == 0) GTEST_SKIP() << "skipped: no GPU";
  auto machine = open_nccl(std::move(Rendezvous::join({}, 10s).value()), {});
  ASSERT_TRUE(machine.ok()) << to_text(machine.errors());
  Device& device = *machine.value().device;
  Communicator& all = *machine.value().communicator;
  const Channel channel{plan::Stream::tensor, {RankId{0}}, 0};
  ASSERT_TRUE(all.connect({&channel, 1}).ok());
  auto memory = device.allocate(plan::Space::device, Bytes{64});
  ASSERT_TRUE(memory.ok());
  const Operand x{memory.value(), DType::f32, 4, {}}, y{memory.value() + 32, DType::f32, 4, {}};
  const float in[4] = {1, 2, 3, 4};
  float out[4] = {};
  ASSERT_TRUE(device.write(in, x).ok());
  plan::Collective sum;
  Transfer t;
  t.op = "sum";
  t.collective = &sum;
  t.reads = {&x, 1};
  t.writes = {&y, 1};
  all.start(t, plan::Stream::tensor, 0);
  ASSERT_TRUE(device.synchronize().ok());
  ASSERT_TRUE(device.read(y, out).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
  machine.value().communicator.reset();
#endif
}

}  // namespace
}  // namespace wt::exec
