// windtunnel run over several processes: mpirun trains like threads, checkpoints go from one mesh to another, and --elastic
// goes on when ranks are killed at random moments, with the losses of a run that nobody disturbed.
#include <signal.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "program.hpp"

namespace {

using namespace std::chrono_literals;

class Processes : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    const Outcome r =
        run("run examples/tiny-gpt.yaml --ranks mpi --set strategy.tensor=1 --set strategy.pipeline=1 "
            "--nodes 1 --set cluster.node.devices=1 --steps 1");
    if (has(r.err, "built without MPI")) GTEST_SKIP() << "skipped: no MPI";
    if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "skipped: no mpirun";
  }
  /// The program under mpirun.
  Outcome mpirun(int ranks, const std::string& words) const {
    const std::string command = "cd '" + std::string(WT_SOURCE_DIR) + "' && timeout -k 1 200 mpirun -np " +
                                std::to_string(ranks) + " --oversubscribe --allow-run-as-root '" + WT_BINARY_DIR +
                                "/windtunnel' " + words + " >'" + (folder_ / "out").string() + "' 2>'" +
                                (folder_ / "err").string() + "'";
    Outcome r;
    const int status = std::system(command.c_str());
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r.out = slurp(folder_ / "out");
    r.err = slurp(folder_ / "err");
    return r;
  }
  static std::vector<double> losses(const Outcome& r) {
    EXPECT_EQ(r.code, 0) << r.err;
    std::vector<double> all;
    const Json j = Json::parse(r.out, nullptr, false);
    EXPECT_TRUE(j.is_object()) << r.out;
    if (j.is_object())
      for (const Json& s : j.at("steps")) all.push_back(s.at("loss"));
    return all;
  }
};

// A job of so many replicas on one machine.
std::string job(int ranks, const std::string& more = "") {
  return "run examples/tiny-gpt.yaml --floats f64 --rate 0.01 --nodes 1 --set strategy.tensor=1 --set "
         "strategy.pipeline=1 --set cluster.node.devices=" +
         std::to_string(ranks) + " " + more + " ";
}

TEST_F(Processes, TrainLikeThreadsAndWriteTheTraceOfAllRanks) {
  const std::string words =
      job(2, "--set strategy.tensor=2 --set strategy.sequence_parallel=true") + "--steps 3 --json";
  const auto threads = losses(run(words));
  const std::string trace = in_folder("t.wttrace");
  const Outcome r = mpirun(2, words + " --trace " + trace);
  EXPECT_EQ(losses(r), threads);
  EXPECT_EQ(Json::parse(r.out).at("communicator"), "mpi");
  const Outcome d =
      run("diff examples/tiny-gpt.yaml " + trace +
          " --set strategy.tensor=2 --set strategy.pipeline=1 --set strategy.sequence_parallel=true --set "
          "cluster.nodes=1 --set cluster.node.devices=2 --json");
  EXPECT_EQ(d.code, 0) << d.err;
  EXPECT_EQ(Json::parse(d.out).at("memory").size(), 2u);
}

TEST_F(Processes, AnotherNumberOfRanksIsRefusedOnce) {
  const Outcome r = mpirun(2, job(4) + "--steps 3");
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "the plan is for 4 ranks, 2 were started")) << r.err;
  EXPECT_EQ(r.err.find("the plan is for"), r.err.rfind("the plan is for"));
}

/// step -> loss as the table printed it last.
std::map<int64_t, std::string> table_of(const std::string& text) {
  std::map<int64_t, std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    int64_t step = 0;
    std::string loss;
    if (cells >> step >> loss && loss.find('.') != std::string::npos) out[step] = loss;
  }
  return out;
}

/// The process of this user's windtunnel that mpirun told to be this rank; 0: none is there (any more).
pid_t rank_of(int rank) {
  const std::string wanted = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code unreadable;
    if (fs::read_symlink(entry.path() / "exe", unreadable) != fs::path(WT_BINARY_DIR) / "windtunnel") continue;
    const std::string environment = slurp(entry.path() / "environ");
    const size_t at = environment.find(wanted);
    if (at != std::string::npos && environment[at + wanted.size()] == '\0') return std::stoi(entry.path().filename());
  }
  return 0;
}

// Open MPI ends the others with SIGTERM and a second later for good, and its own code is that of the signal: the ranks that are
// left say in that second what they know.
TEST_F(Processes, AKilledRankIsNamedWithTheOpThatWaitsForIt) {
  Outcome r;
  std::thread running([&] { r = mpirun(2, job(2) + "--steps 1000000 --warmup 0"); });
  pid_t victim = 0;
  for (int i = 0; i < 6000 && victim == 0; ++i) {
    std::this_thread::sleep_for(10ms);
    if (!table_of(slurp(folder_ / "out")).empty()) victim = rank_of(1);
  }
  if (victim > 0) ::kill(victim, SIGKILL);
  running.join();
  ASSERT_GT(victim, 0) << r.out << r.err;
  EXPECT_TRUE(has(r.err, "rank 0, op '")) << r.err;
  EXPECT_TRUE(has(r.err, "was told to end (SIGTERM); rank 1 does not answer: stopped, dead or cut off")) << r.err;
}

TEST_F(Processes, ACheckpointGoesFromProcessesToThreadsOfAnotherMesh) {
  const auto whole = losses(run(job(1) + "--steps 8 --warmup 0 --json"));
  ASSERT_EQ(whole.size(), 8u);
  const std::string folder = " --checkpoint " + in_folder("ckpt") + " --resume --warmup 0 --json";
  std::vector<double> parts;
  auto add = [&](const std::vector<double>& more) { parts.insert(parts.end(), more.begin(), more.end()); };
  add(losses(mpirun(2, job(2, "--set strategy.data_parallel=distributed_optimizer") + "--steps 3" + folder)));
  add(losses(run(job(4, "--set strategy.tensor=4") + "--steps 5 --checkpoint-async" + folder)));
  add(losses(run(job(1) + "--steps 8" + folder)));
  ASSERT_EQ(parts.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-10 * whole[i]) << i;
  EXPECT_TRUE(losses(run(job(1) + "--steps 8" + folder)).empty());  // nothing is left
}

TEST_F(Processes, WordsThatNeedAFolderSaySo) {
  for (const char* words : {"--resume", "--checkpoint-every 3", "--elastic"}) {
    const Outcome r = run(job(1) + words);
    EXPECT_EQ(r.code, 2) << words;
    EXPECT_TRUE(has(r.err, "--checkpoint FOLDER")) << r.err;
  }
}

// WT_KILLS: how many runs are disturbed (./dev soak: many).
TEST_F(Processes, ElasticGoesOnWhenRanksAreKilled) {
  const char* kills = std::getenv("WT_KILLS");
  const int rounds = kills ? std::atoi(kills) : 5;
  constexpr int kSteps = 24;
  const std::string steps = "--warmup 0 --steps " + std::to_string(kSteps) +
                            " --checkpoint-every 2 --launcher 'mpirun --mca odls_base_sigkill_timeout 2' ";
  const Outcome calm = run(job(4) + "--warmup 0 --steps " + std::to_string(kSteps));
  ASSERT_EQ(calm.code, 0) << calm.err;
  const auto wanted = table_of(calm.out);
  ASSERT_EQ(wanted.size(), static_cast<size_t>(kSteps));

  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    const fs::path root = folder_ / ("ckpt" + std::to_string(round));
    std::ofstream(folder_ / "out");  // of the round before
    Outcome r;
    std::thread running([&] {
      r = run(job(4) + steps + "--timeout 20 --elastic --checkpoint '" + root.string() + "'" +
              (round % 2 ? " --checkpoint-async" : ""));
    });
    // At a random moment behind a random step, a random rank.
    const int64_t after = static_cast<int64_t>(random() % 12);
    const auto pause = std::chrono::microseconds(random() % 20000);
    const std::string rank = std::to_string(random() % 4);
    const auto until = std::chrono::steady_clock::now() + 120s;
    pid_t victim = 0;
    while (victim == 0 && std::chrono::steady_clock::now() < until) {
      const auto table = table_of(slurp(folder_ / "out"));
      if (!table.empty() && table.rbegin()->first >= after)
        std::istringstream(slurp(root / ".ranks" / "0" / ("rank-" + rank))) >> victim;
      std::this_thread::sleep_for(2ms);
    }
    std::this_thread::sleep_for(pause);
    if (victim > 0) ::kill(victim, SIGKILL);
    running.join();
    ASSERT_GT(victim, 0) << r.out << r.err;
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_TRUE(has(r.err, "1 of 4 ranks died; going on from")) << r.err;
    EXPECT_TRUE(has(r.err, "with 2 of the 3 that are left")) << r.err;  // 3 do not divide the batch
    EXPECT_EQ(table_of(r.out), wanted);
  }
}

}  // namespace
