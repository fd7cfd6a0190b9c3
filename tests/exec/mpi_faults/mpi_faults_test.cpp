// What ranks over MPI are told when one fails, hangs, is stopped or is killed, and that nobody waits for ever. Three ranks
// of ranks/main.cpp under mpirun, with a timeout of 1.5 s.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

using testing::HasSubstr;
using testing::Not;

struct Outcome {
  std::string text;
  int code = -1;
  double seconds = 0;
};

Outcome run(const std::string& mode) {
  const std::string command =
      fmt::format("exec timeout -k 1 60 {} -np 3 '{}' {} 2>&1", WT_MPIRUN, WT_FAULT_RANKS, mode);
  Outcome o;
  const auto begin = std::chrono::steady_clock::now();
  std::FILE* f = ::popen(command.c_str(), "r");
  if (!f) return o;
  char chunk[4096];
  for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, f)) > 0;) o.text.append(chunk, n);
  const int status = ::pclose(f);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  o.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return o;
}

/// The timeout, what the others get to answer, and what mpirun takes to start and to end three processes on a busy machine.
constexpr double kInTime = 30;

TEST(MpiFaults, AFailedRankStopsAllWithItsReason) {
  const Outcome o = run("fails");
  for (int r = 0; r < 3; ++r)
    EXPECT_THAT(o.text, HasSubstr(fmt::format("rank {} is told: rank 2, op 'broken': out of luck", r)));
  EXPECT_EQ(o.code, 4);
  EXPECT_LT(o.seconds, kInTime);
}

TEST(MpiFaults, AHungRankIsNamedAndSaidToBeAlive) {
  const Outcome o = run("hangs");
  EXPECT_THAT(o.text, HasSubstr("op 'meeting': waited 1.5 s for rank 2"));
  EXPECT_THAT(o.text, HasSubstr("rank 2 waits for nobody"));
  EXPECT_THAT(o.text, Not(HasSubstr("not answer")));
  EXPECT_EQ(o.code, 4);
  EXPECT_LT(o.seconds, kInTime);
}

TEST(MpiFaults, AStoppedRankIsNamedAndSaidNotToAnswer) {
  const Outcome o = run("stopped");
  EXPECT_THAT(o.text, HasSubstr("op 'meeting': waited 1.5 s for rank 2; rank 2 does not answer"));
  EXPECT_THAT(o.text, HasSubstr("rank 0 is told"));
  EXPECT_THAT(o.text, HasSubstr("rank 1 is told"));
  EXPECT_EQ(o.code, 4);
  EXPECT_LT(o.seconds, kInTime);
}

// Whoever is the first to run out of time, the rank that holds all up is named.
TEST(MpiFaults, TheRankAtTheEndOfAChainIsNamed) {
  const Outcome o = run("chain");
  EXPECT_THAT(o.text, HasSubstr("rank 2 does not answer"));
  EXPECT_THAT(o.text, HasSubstr("op 'receive from before'"));
  EXPECT_EQ(o.code, 4);
  EXPECT_LT(o.seconds, kInTime);
}

// The launcher ends the others; its code is that of the signal that killed the first.
TEST(MpiFaults, AKilledRankEndsTheJobAndIsNamed) {
  const Outcome o = run("killed");
  EXPECT_THAT(o.text, HasSubstr("op 'meeting': was told to end (SIGTERM); rank 2 does not answer"));
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.code, 124);
  EXPECT_LT(o.seconds, kInTime);
}

}  // namespace
