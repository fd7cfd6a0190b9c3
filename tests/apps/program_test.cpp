// The shipped program, run as a user runs it: exit codes, what goes to stdout and stderr, the JSON contract, every example.
#include "program.hpp"

#include <set>

namespace {

TEST_F(Program, EveryExampleRuns) {
  int n = 0;
  for (const auto& file : fs::directory_iterator(std::string(WT_SOURCE_DIR) + "/examples")) {
    if (file.path().extension() != ".yaml" || !has(slurp(file.path()), "\ntraining:")) continue;
    const Outcome r = run("simulate '" + file.path().string() + "' --json");
    EXPECT_EQ(r.code, 0) << file.path() << "\n" << r.err;
    EXPECT_GT(Json::parse(r.out).at("step_time_s").get<double>(), 0) << file.path();
    ++n;
  }
  EXPECT_GE(n, 5);
}

TEST_F(Program, JsonHoldsTheContract) {
  const Outcome r = run("simulate examples/llama3-70b-1024-h100.yaml --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out);
  for (const char* key :
       {"schema_version", "plan_digest", "fits", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu",
        "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "hfu", "flop_formula", "bubble_fraction", "time_s",
        "memory", "assumptions", "warnings", "simulated"})
    EXPECT_TRUE(j.contains(key)) << key;
  double sum = 0;
  for (const auto& [name, seconds] : j.at("time_s").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, j.at("step_time_s").get<double>(), 1e-9 * sum);
  for (const char* key : {"compute", "exposed_tensor", "exposed_data", "exposed_pipeline", "exposed_context",
                          "exposed_expert", "bubble", "offload", "optimizer", "other"})
    EXPECT_TRUE(j.at("time_s").contains(key)) << key;
  for (const char* key : {"capacity_gib", "peak_gib", "reserved_gib", "peak_rank", "peak_phase", "by_phase", "by_stage",
                          "host_gib_per_node", "host_items_gib", "checkpoint_gib"})
    EXPECT_TRUE(j.at("memory").contains(key)) << key;
  std::set<std::string> phases;
  for (const Json& p : j.at("memory").at("by_phase")) phases.insert(p.at("phase"));
  for (const char* phase : {"load", "model built", "optimizer built", "forward", "backward", "optimizer", "checkpoint"})
    EXPECT_TRUE(phases.contains(phase)) << phase;
  EXPECT_GT(j.at("simulated").at("events").get<int64_t>(), j.at("simulated").at("distinct_ranks").get<int64_t>());
  EXPECT_EQ(j.at("simulated").at("ranks"), 1024);
  EXPECT_EQ(j.at("memory").at("by_stage").size(), 4u);
}

TEST_F(Program, ExitCodesTellWhoseFaultItIs) {
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("simulate").code, 2);
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --nonsense").code, 2);
  const Outcome missing = run("simulate no-such-file.yaml");
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(has(missing.err, "no-such-file.yaml")) << missing.err;
  EXPECT_EQ(run("simulate examples").code, 2);
  const Outcome key = run("simulate examples/tiny-gpt.yaml --set strategy.tensr=4 --set training.seq_len=-1");
  EXPECT_EQ(key.code, 2);
  EXPECT_TRUE(has(key.err, "did you mean 'tensor'")) << key.err;
  EXPECT_TRUE(has(key.err, "training.seq_len")) << key.err;
  const Outcome illegal =
      run("simulate examples/llama3-70b-1024-h100.yaml --set model.layers=30 --set strategy.virtual_stages=1 --set "
          "strategy.schedule=1f1b");
  EXPECT_EQ(illegal.code, 3);
  EXPECT_TRUE(has(illegal.err, "30 layers do not divide over 4 stages")) << illegal.err;
  EXPECT_TRUE(illegal.out.empty());
  const Outcome big =
      run("simulate examples/llama2-7b-8-a100.yaml --set training.micro_batch=64 --set training.global_batch=512");
  EXPECT_EQ(big.code, 3);
  EXPECT_TRUE(has(big.out, "step")) << "a job that does not fit still gets its full answer";
}

TEST_F(Program, OutputsAreWholeOrAbsent) {
  const Outcome unwritable = run("simulate examples/tiny-gpt.yaml --trace /no/such/folder/t.wttrace");
  EXPECT_EQ(unwritable.code, 4);
  EXPECT_TRUE(has(unwritable.err, "/no/such/folder")) << unwritable.err;
  const Outcome ending = run("simulate examples/tiny-gpt.yaml --trace " + in_folder("t.txt"));
  EXPECT_EQ(ending.code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "t.txt"));
  ASSERT_EQ(run("simulate examples/tiny-llama.yaml --trace " + in_folder("t.wttrace")).code, 0);
  ASSERT_EQ(run("convert " + in_folder("t.wttrace") + " " + in_folder("t.json")).code, 0);
  ASSERT_EQ(run("simulate examples/tiny-llama.yaml --trace " + in_folder("direct.json")).code, 0);
  const Json j = Json::parse(slurp(folder_ / "t.json")), direct = Json::parse(slurp(folder_ / "direct.json"));
  EXPECT_TRUE(j.at("traceEvents") == direct.at("traceEvents"));
  for (const Json* file : {&j, &direct}) {  // who made it, either way
    const Json& by = file->at("otherData");
    EXPECT_TRUE(by.at("command").get<std::string>().starts_with("windtunnel simulate examples/tiny-llama.yaml")) << by;
    EXPECT_EQ("windtunnel " + by.at("code_version").get<std::string>() + "\n", run("--version").out);
  }
  size_t spans = 0, sends = 0, receives = 0;
  for (const Json& e : j.at("traceEvents")) {
    spans += e.at("ph") == "X";
    sends += e.at("ph") == "s";
    receives += e.at("ph") == "f";
  }
  EXPECT_GT(spans, 100u);
  EXPECT_GT(sends, 0u);
  EXPECT_EQ(sends, receives);
  std::string cut = slurp(folder_ / "t.wttrace");
  cut.resize(cut.size() / 2);
  std::ofstream(folder_ / "cut.wttrace", std::ios::binary) << cut;
  EXPECT_EQ(run("convert " + in_folder("cut.wttrace") + " " + in_folder("cut.json")).code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "cut.json"));
}

TEST_F(Program, PlanTextIsStableAndDigestNamesIt) {
  const Outcome a = run("plan examples/tiny-gpt.yaml"), b = run("plan examples/tiny-gpt.yaml");
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_TRUE(a.out.starts_with("windtunnel plan 1\n"));
  EXPECT_NE(run("plan examples/tiny-gpt.yaml --digest").out, run("plan examples/tiny-llama.yaml --digest").out);
}

TEST_F(Program, ASheetOverTheSparsePeakBuysTooFew) {  // user case P67
  const Outcome r = run("audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "GPUs needed: 975")) << r.out;
  EXPECT_TRUE(has(r.out, "2.8 times too few")) << r.out;
  EXPECT_EQ(run("audit --flops 3e24 --days 90").code, 2);
  EXPECT_TRUE(has(run("audit --model llama3-70b --tokens 15e12 --gpus 1024 --mfu 0.40").out, "days: "));
}

TEST_F(Program, ExplainNamesFormulaInputsAndSource) {
  const Outcome r = run("simulate examples/llama3-70b-1024-h100.yaml --explain");
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* piece : {"data/kernels", "model_causal", "ring", "fc1 wgrad", "dp reduce-scatter"})
    EXPECT_TRUE(has(r.out, piece)) << piece;
}

}  // namespace
