// windtunnel run: real training through the shipped program, its forms of output, and how it refuses.
#include <cmath>

#include "program.hpp"

namespace {

TEST_F(Program, RunTrainsAndTellsTheMedian) {
  const Outcome r = run("run examples/tiny-llama.yaml --steps 3 --warmup 1");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "8 ranks as threads"));
  EXPECT_TRUE(has(r.out, "tokens/s"));
  EXPECT_TRUE(has(r.out, "warm-up"));
  EXPECT_TRUE(has(r.out, "median  "));
  EXPECT_TRUE(has(r.out, "(3 steps after 1 of warm-up)"));
}

TEST_F(Program, RunAsJsonHoldsEveryStep) {
  const Outcome r = run("run examples/tiny-gpt.yaml --steps 3 --warmup 2 --json --rate 0.01 --rate-warmup 4");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j.at("schema_version"), 1);
  EXPECT_EQ(j.at("plan_digest").get<std::string>() + "\n", run("plan examples/tiny-gpt.yaml --digest").out);
  EXPECT_EQ(j.at("ranks"), 8);
  EXPECT_EQ(j.at("communicator"), "inproc");
  ASSERT_EQ(j.at("steps").size(), 5u);
  EXPECT_FALSE(j.at("steps")[1].at("measured").get<bool>());
  EXPECT_TRUE(j.at("steps")[2].at("measured").get<bool>());
  EXPECT_NEAR(j.at("steps")[0].at("loss").get<double>(), std::log(128.0), 0.2);
  EXPECT_LT(j.at("steps")[4].at("loss").get<double>(), j.at("steps")[0].at("loss").get<double>());
  EXPECT_DOUBLE_EQ(j.at("steps")[1].at("learning_rate"), 0.005);
  EXPECT_GT(j.at("median_step_time_s").get<double>(), 0);
  EXPECT_GE(j.at("memory").at("arena_gib").get<double>(), j.at("memory").at("peak_gib").get<double>());
}

TEST_F(Program, RunGivesTheSameLossesUnderEveryStrategy) {
  const std::string words = "run examples/tiny-gpt.yaml --floats f64 --steps 4 --warmup 0 --json --nodes 1 ";
  auto losses = [&](const std::string& set) {
    const Outcome r = run(words + "--set cluster.node.devices=4 " + set);
    EXPECT_EQ(r.code, 0) << r.err;
    std::vector<double> all;
    const Json j = Json::parse(r.out);
    for (const Json& s : j.at("steps")) all.push_back(s.at("loss"));
    return all;
  };
  const auto a = losses("--set strategy.tensor=4 --set strategy.pipeline=1");
  const auto b = losses("--set strategy.tensor=1 --set strategy.pipeline=4");
  const auto c = losses("--set strategy.tensor=1 --set strategy.pipeline=1 --set strategy.data_parallel=zero1");
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(b[i], a[i], 1e-10 * a[i]);
    EXPECT_NEAR(c[i], a[i], 1e-10 * a[i]);
  }
}

TEST_F(Program, RunWritesTheTraceThatSimulateWrites) {
  const std::string trace = in_folder("run.wttrace");
  ASSERT_EQ(run("run examples/tiny-gpt.yaml --steps 2 --trace " + trace).code, 0);
  const Outcome d = run("diff examples/tiny-gpt.yaml " + trace);
  EXPECT_EQ(d.code, 0) << d.err;
  EXPECT_EQ(run("convert " + trace + " " + in_folder("run.pftrace")).code, 0);
  EXPECT_GT(fs::file_size(folder_ / "run.pftrace"), 1000u);
}

TEST_F(Program, RunTrainsExpertsAndGoesOnFromACheckpoint) {
  const std::string words = "run examples/small-moe-2-cpu.yaml --set model.layers=1 --warmup 0 --json --checkpoint " +
                            folder_.string() + "/experts --resume ";
  const Outcome whole = run("run examples/small-moe-2-cpu.yaml --set model.layers=1 --warmup 0 --json --steps 4");
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Outcome before = run(words + "--steps 2"), after = run(words + "--steps 4");
  ASSERT_EQ(before.code, 0) << before.err;
  ASSERT_EQ(after.code, 0) << after.err;
  const Json all = Json::parse(whole.out).at("steps"), rest = Json::parse(after.out).at("steps");
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_NEAR(all[0].at("loss").get<double>(), std::log(512.0), 0.2);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(rest[i].at("loss"), all[i + 2].at("loss"));  // bit for bit
}

/// Where there is no GPU the fault says so, and is the machine's; where there is one it trains.
TEST_F(Program, RunOnCudaNeedsAGpu) {
  const Outcome r =
      run("run examples/small-gpt-2-cpu.yaml --device cuda --steps 1 --set model.layers=1 "
          "--set cluster.node.devices=1");
  if (r.code == 0) return;
  EXPECT_EQ(r.code, 4) << r.err;
  EXPECT_TRUE(has(r.err, "no GPU") || has(r.err, "built without CUDA")) << r.err;
  const Outcome cpu = run("run examples/small-gpt-2-cpu.yaml --ranks torchrun");
  EXPECT_EQ(cpu.code, 2);
  EXPECT_TRUE(has(cpu.err, "--ranks torchrun: is for --device cuda")) << cpu.err;
}

TEST_F(Program, RunReadsAFileByteByByte) {
  const Outcome r = run("run examples/tiny-gpt.yaml --steps 2 --data examples/tiny-gpt.yaml");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "bytes of examples/tiny-gpt.yaml"));
}

TEST_F(Program, RunOverMpiSaysSoWhereItIsBuiltWithout) {
  const Outcome r = run("run examples/tiny-gpt.yaml --ranks mpi --steps 1");
  if (!has(r.err, "built without MPI")) GTEST_SKIP() << "skipped: built with MPI";
  EXPECT_EQ(r.code, 4);
  EXPECT_TRUE(has(r.err, "libopenmpi-dev")) << r.err;
}

TEST_F(Program, RunWarnsWhenThereAreMoreRanksThanCores) {
  const Outcome r = run("run examples/tiny-gpt.yaml --steps 1 --threads 64 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "8 ranks of 64 threads on "));
  EXPECT_TRUE(has(r.out, "the times mean nothing"));
}

TEST_F(Program, RunRefusesWhatCannotRun) {
  EXPECT_EQ(run("run examples/tiny-gpt.yaml --steps 0").code, 2);
  EXPECT_EQ(run("run examples/tiny-gpt.yaml --ranks telegraph").code, 2);
  EXPECT_EQ(run("run examples/tiny-gpt.yaml --data nowhere.txt").code, 2);
  EXPECT_EQ(run("run examples/tiny-gpt.yaml --set strategy.tensor=3").code, 3);
  const Outcome half =
      run("run examples/tiny-gpt.yaml --set training.precision=fp16 --set training.gradient_clipping=0");
  EXPECT_EQ(half.code, 3);
  EXPECT_TRUE(has(half.err, "--set training.gradient_clipping=0: fp16 needs it")) << half.err;
  const Outcome large = run("run examples/llama3-70b-1024-h100.yaml");
  EXPECT_EQ(large.code, 4);
  EXPECT_TRUE(has(large.err, "1,024 ranks need ")) << large.err;
  EXPECT_TRUE(has(large.err, " free")) << large.err;
  EXPECT_EQ(run("run examples/tiny-gpt.yaml --steps 1 --trace /nowhere/x.wttrace").code, 4);
}

}  // namespace
