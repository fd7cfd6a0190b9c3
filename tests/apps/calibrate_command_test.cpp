// windtunnel calibrate through the shipped program: the file that it writes predicts a run of the same plan.
#include "program.hpp"

namespace {

TEST_F(Program, CalibrateWritesTheClusterThatPredictsARun) {
  const std::string spec = in_folder("calibrated.yaml"), trace = in_folder("measured.wttrace");
  const std::string job = "examples/small-gpt-2-cpu.yaml", set = " --set model.layers=1 --set training.seq_len=32";
  const Outcome c = run("calibrate " + spec + " --quick --ranks 2 --name here");
  ASSERT_EQ(c.code, 0) << c.err;
  EXPECT_TRUE(has(c.out, "gemm transpose_b fp32")) << c.out;
  EXPECT_TRUE(has(c.out, "all_reduce fp32 of 2 ranks")) << c.out;
  const Outcome s = run("simulate " + job + set + " --cluster " + spec + " --json");
  ASSERT_EQ(s.code, 0) << s.err;
  ASSERT_EQ(run("run " + job + set + " --steps 2 --trace " + trace).code, 0);
  // The same plan: what a cluster is called and how fast it is does not reach it.
  const Outcome d = run("diff " + job + " " + trace + set + " --set cluster=" + spec);
  EXPECT_EQ(d.code, 0) << d.err;
  EXPECT_TRUE(has(d.out, "step time")) << d.out;
}

TEST_F(Program, CalibrateNamesAPathThatCannotBeWritten) {
  const Outcome c = run("calibrate /no/such/folder/c.yaml --quick");
  EXPECT_EQ(c.code, 4);
  EXPECT_TRUE(has(c.err, "/no/such/folder")) << c.err;
}

}  // namespace
