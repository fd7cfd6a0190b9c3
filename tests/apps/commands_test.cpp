// Every command with its forms of output, and the arithmetic of audit on what users reported (P48, P62, P65, P67, P108).
#include "program.hpp"

#include <algorithm>

namespace {

size_t lines_of(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

/// As audit prints days: one decimal.
std::string fmt_days(double days) {
  std::ostringstream text;
  text.precision(1);
  text << "days: " << std::fixed << days;
  return text.str();
}

size_t cells_of(const std::string& line) {
  size_t n = 1;
  bool inside = false;
  for (char c : line) {
    if (c == '"') inside = !inside;
    n += c == ',' && !inside;
  }
  return n;
}

TEST_F(Program, HelpOfEveryCommandShowsAnExampleOrIsShort) {
  const Outcome all = run("--help");
  EXPECT_EQ(all.code, 0);
  for (const char* command :
       {"simulate", "run", "calibrate", "plan", "diff", "audit", "validate", "convert", "models", "clusters"}) {
    EXPECT_TRUE(has(all.out, command)) << command;
    const Outcome one = run(std::string(command) + " --help");
    EXPECT_EQ(one.code, 0) << command;
    EXPECT_TRUE(has(one.out, "windtunnel")) << one.out;
    EXPECT_TRUE(one.err.empty());
  }
  EXPECT_TRUE(has(run("--version").out, "windtunnel "));
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("smulate x").code, 2);
}

TEST_F(Program, CsvIsOneRowOfAsManyCellsAsItsHeader) {
  const Outcome r = run("simulate examples/tiny-gpt.yaml --csv");
  ASSERT_EQ(r.code, 0) << r.err;
  ASSERT_EQ(lines_of(r.out), 2u);
  const size_t end = r.out.find('\n');
  EXPECT_EQ(cells_of(r.out.substr(0, end)), cells_of(r.out.substr(end + 1)));
  EXPECT_TRUE(r.out.starts_with("job,model,parameters,"));
}

TEST_F(Program, FormsOfOutputExcludeEachOther) {
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --json --csv").code, 2);
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --markdown --explain").code, 2);
  const Outcome m = run("simulate examples/tiny-gpt.yaml --markdown");
  EXPECT_EQ(m.code, 0);
  EXPECT_TRUE(has(m.out, "| --- |"));
}

TEST_F(Program, TheScreenStartsWithTheAnswerAndIsNarrow) {
  const Outcome r = run("simulate examples/llama3-70b-1024-h100.yaml");
  ASSERT_EQ(r.code, 0) << r.err;
  const size_t answer = r.out.find("FITS"), detail = r.out.find("Time of the step");
  ASSERT_NE(answer, std::string::npos);
  EXPECT_LT(answer, detail);
  EXPECT_LE(lines_of(r.out), 45u);
  EXPECT_TRUE(has(r.out, "pipeline bubble"));
  std::istringstream text(r.out);
  for (std::string line; std::getline(text, line);) EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
}

TEST_F(Program, ExplainTellsBucketsInOneLineUnlessAskedForAll) {
  const std::string words = "simulate examples/llama2-7b-8-a100.yaml --explain";
  const Outcome grouped = run(words), full = run(words + " --full");
  ASSERT_EQ(grouped.code, 0) << grouped.err;
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_LT(2 * lines_of(grouped.out),
            lines_of(full.out) + lines_of(run("simulate examples/llama2-7b-8-a100.yaml").out));
  EXPECT_TRUE(has(grouped.out, " alike)"));
  EXPECT_FALSE(has(full.out, " alike)"));
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --full").code, 2);  // of --explain only
}

TEST_F(Program, TheSameWorkUnderAnotherNameIsTheSamePlan) {
  std::ofstream(folder_ / "other.yaml") << slurp(fs::path(WT_SOURCE_DIR) / "examples/tiny-gpt.yaml");
  const std::string other = in_folder("other.yaml") + " --cluster examples/tiny-cluster.yaml";
  EXPECT_EQ(run("plan " + other + " --digest").out, run("plan examples/tiny-gpt.yaml --digest").out);
  const std::string a = in_folder("a.wttrace"), b = in_folder("b.wttrace");
  ASSERT_EQ(run("simulate " + other + " --trace " + a).code, 0);
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + b).code, 0);
  EXPECT_EQ(run("diff " + a + " " + b).code, 0);
}

TEST_F(Program, TheRateOfASmallMachineHasDigits) {
  for (const char* job : {"examples/small-gpt-2-cpu.yaml", "examples/tiny-gpt.yaml"})
    for (const char* form : {"", " --explain"}) {
      const Outcome r = run(std::string("simulate ") + job + form);
      ASSERT_EQ(r.code, 0) << r.err;
      std::istringstream text(r.out);
      for (std::string line; std::getline(text, line);)
        for (const char* lost : {" 0 of ", " of 0 ", " 0.0 TFLOP/s"})
          EXPECT_FALSE(has(line, "FLOP/s") && has(line, lost)) << line;
    }
  EXPECT_TRUE(has(run("simulate examples/small-gpt-2-cpu.yaml").out, " GFLOP/s per GPU"));
}

TEST_F(Program, OverridesOfTheCommandLineHold) {
  const Outcome r = run("simulate examples/llama3-70b-1024-h100.yaml --cluster dgx-h200 --nodes 32 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j.at("gpus"), 256);
  EXPECT_EQ(j.at("cluster"), "dgx-h200");
  const Outcome set =
      run("simulate examples/llama3-70b-1024-h100.yaml --set cluster.nodes=64 --set training.global_batch=512 --json");
  ASSERT_EQ(set.code, 0) << set.err;
  EXPECT_EQ(Json::parse(set.out).at("gpus"), 512);
}

TEST_F(Program, FoldedAndAllRanksAgree) {
  const Json a = Json::parse(run("simulate examples/tiny-gpt.yaml --json").out);
  const Json b = Json::parse(run("simulate examples/tiny-gpt.yaml --json --all-ranks").out);
  EXPECT_EQ(a.at("step_time_s"), b.at("step_time_s"));
  EXPECT_EQ(a.at("time_s"), b.at("time_s"));
  EXPECT_EQ(b.at("simulated").at("distinct_ranks"), 8);
}

TEST_F(Program, TheFormulaOfMfuCanBeChosen) {
  auto mfu = [&](const char* id) {
    const Json j =
        Json::parse(run(std::string("simulate examples/llama3-70b-1024-h100.yaml --json --flops ") + id).out);
    EXPECT_EQ(j.at("flop_formula"), id);
    return j.at("mfu").get<double>();
  };
  EXPECT_LT(mfu("six_n"), mfu("model_causal"));
  EXPECT_LT(mfu("model_causal"), mfu("model_full"));
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --flops 7n").code, 2);
}

TEST_F(Program, ListsAsTablesAndJson) {
  const Outcome models = run("models"), clusters = run("clusters");
  EXPECT_EQ(models.code, 0) << models.err;
  EXPECT_EQ(clusters.code, 0) << clusters.err;
  EXPECT_TRUE(has(models.out, "llama3-70b"));
  EXPECT_TRUE(has(clusters.out, "dgx-h100"));
  const Json model_list = Json::parse(run("models --json").out), cluster_list = Json::parse(run("clusters --json").out);
  for (const Json& m : model_list.at("models"))
    if (m.at("name") == "llama3-70b") { EXPECT_EQ(m.at("parameters"), 70553706496); }
  for (const Json& c : cluster_list.at("clusters"))
    if (c.at("name") == "dgx-h100") {
      EXPECT_NEAR(c.at("dense_bf16_tflops").get<double>(), 989.4, 1);
    } else if (c.at("name") == "dgx-1v") {  // a V100 has no bf16
      EXPECT_TRUE(c.at("dense_bf16_tflops").is_null());
      EXPECT_EQ(c.at("dense_tflops_precision"), "fp16");
    }
}

TEST_F(Program, PlanAsJson) {
  const Outcome r = run("plan examples/tiny-gpt.yaml --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j.at("plan_digest").get<std::string>() + "\n", run("plan examples/tiny-gpt.yaml --digest").out);
  EXPECT_EQ(j.at("ranks"), 8);
  EXPECT_EQ(j.at("programs").size(), 2u);
  EXPECT_EQ(run("plan examples/tiny-gpt.yaml --json --digest").code, 2);
}

TEST_F(Program, AReaderThatLeavesAndAFullDisk) {
  const std::string words =
      "cd '" + std::string(WT_SOURCE_DIR) + "' && '" + std::string(WT_BINARY_DIR) + "/windtunnel' ";
  const int left = std::system(
      ("bash -c \"" + words + "plan examples/llama3-70b-1024-h100.yaml | head -1 >/dev/null; exit \\${PIPESTATUS[0]}\"")
          .c_str());
  EXPECT_EQ(WEXITSTATUS(left), 0);
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  const int full = std::system((words + "models >/dev/full 2>/dev/null").c_str());
  EXPECT_EQ(WEXITSTATUS(full), 4);
  EXPECT_EQ(run("simulate examples/tiny-gpt.yaml --trace /dev/full").code, 2);  // no ending: the format is unknown
}

// Ctrl-C: what is there is valid, a line says that it is not all, and the exit code is not that of a whole result.
TEST_F(Program, AnInterruptedSearchSaysSo) {
  const auto search = [&](const char* after) {  // seconds; a slow machine may not have come to it yet
    const std::string words =
        "cd '" + std::string(WT_SOURCE_DIR) + "' && timeout --preserve-status -s INT " + after + " '" +
        std::string(WT_BINARY_DIR) +
        "/windtunnel' search examples/llama3-70b-1024-h100.yaml --try-nodes 32,64,96,128,192,256,384,512 " +
        "--threads 1 --json >" + in_folder("out") + " 2>" + in_folder("err");
    return WEXITSTATUS(std::system(words.c_str()));
  };
  int code = -1;
  for (const char* after : {"0.3", "0.6", "1.2"})
    if ((code = search(after)) == 4) break;
  EXPECT_EQ(code, 4);
  EXPECT_TRUE(has(slurp(folder_ / "err"), "search: interrupted: ")) << slurp(folder_ / "err");
  EXPECT_TRUE(Json::accept(slurp(folder_ / "out")));
}

TEST_F(Program, NothingIsLeftBesideATrace) {
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + in_folder("a.pftrace")).code, 0);
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + in_folder("b.json.gz")).code, 0);
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + in_folder("c.wttrace")).code, 0);
  size_t files = 0;
  for (const auto& f : fs::directory_iterator(folder_))
    files += f.path().filename() != "out" && f.path().filename() != "err";
  EXPECT_EQ(files, 3u);
}

TEST_F(Program, TheSameRunGivesTheSameTraceFile) {
  ASSERT_EQ(run("simulate examples/tiny-llama.yaml --trace " + in_folder("t.wttrace")).code, 0);
  const std::string first = slurp(folder_ / "t.wttrace");
  ASSERT_EQ(run("simulate examples/tiny-llama.yaml --trace " + in_folder("t.wttrace")).code, 0);
  EXPECT_EQ(slurp(folder_ / "t.wttrace"), first);
}

TEST_F(Program, AuditOfASheet) {  // P67
  const Outcome r = run("audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40");
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* piece :
       {"GPUs needed: 975", "122 x 8 = 976", "1,979", "it says 349 GPUs", "2.8 times too few", "sparse"})
    EXPECT_TRUE(has(r.out, piece)) << piece << "\n" << r.out;
}

TEST_F(Program, AuditOfTheSmallestAndTheLargestWork) {
  for (const char* work :
       {"--flops 1 --days 90", "--flops 1 --gpus 1", "--flops 1 --days 1e6", "--flops 1e40 --days 1e-6",
        "--flops 1e40 --gpus 1", "--gpu-hours 1e-6", "--gpu-hours 1e15"}) {
    const Outcome r = run(std::string("audit --mfu 0.4 ") + work);
    ASSERT_EQ(r.code, 0) << work << "\n" << r.err;
    for (const char* no_number : {"nan", "inf", " -"}) EXPECT_FALSE(has(r.out, no_number)) << work << "\n" << r.out;
  }
  EXPECT_TRUE(has(run("audit --flops 1 --days 90 --mfu 0.4").out, "GPUs needed: 1 at"));
}

// The sheet counts an H100 and writes its own MFU: it is named with both, and not where another GPU is bought.
TEST_F(Program, TheSheetIsNamedOnlyForItsGpu) {
  EXPECT_TRUE(has(run("audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40").out, "a sheet passed around on the web"));
  const Outcome a100 = run("audit --flops 3e24 --days 90 --gpu a100 --mfu 0.40");
  EXPECT_TRUE(has(a100.out, "at the same MFU") && has(a100.out, "2.0 times too few")) << a100.out;
  EXPECT_FALSE(has(a100.out, "55.2")) << a100.out;
  for (const char* no_sparsity : {"--gpu mi300x", "--gpu h100 --precision fp32", "--gpu v100-sxm2-32 --precision fp16"})
    EXPECT_FALSE(has(run(std::string("audit --flops 3e24 --days 90 --mfu 0.4 ") + no_sparsity).out, "sheet that"))
        << no_sparsity;
}

TEST_F(Program, AuditOfClaimsOverTheSparsePeak) {  // P62: 400/1979 = "20 %", 480/1979 = 24.3 %
  const Outcome a = run("audit --gpu h100 --tflops 400 --mfu 0.202");
  EXPECT_TRUE(has(a.out, "MFU: 40.4 %")) << a.out;
  EXPECT_TRUE(has(a.out, "divides by the sparse peak of 1,979")) << a.out;
  EXPECT_TRUE(has(run("audit --gpu h200 --tflops 420").out, "MFU: 42.4 %"));
  EXPECT_TRUE(has(run("audit --gpu h100 --tflops 480").out, "MFU: 48.5 %"));
  EXPECT_TRUE(has(run("audit --gpu h100 --tflops 400 --mfu 0.404").out, "agrees"));
}

TEST_F(Program, AuditSaysWhatIsImpossible) {
  EXPECT_TRUE(has(run("audit --flops 3e24 --days 90 --gpus 100 --gpu h100 --mfu 0.4").out, "impossible: "));
  EXPECT_FALSE(has(run("audit --flops 3e24 --days 90 --gpus 1000 --gpu h100 --mfu 0.4").out, "impossible: "));
}

TEST_F(Program, AuditOfAFinishedRun) {  // P108: 8B on 15T tokens in 1.3M H100-hours is 15.6 %
  const Outcome r = run("audit --model llama3-8b --tokens 15e12 --gpu-hours 1.3e6");
  EXPECT_TRUE(has(r.out, "MFU: 15.6 %")) << r.out;
  EXPECT_TRUE(has(r.out, "question it")) << r.out;
}

TEST_F(Program, AuditOfAThroughputUnderEveryFormula) {  // P65: 13B at 1,845 tokens/s a GPU, with and without attention
  const std::string run_of = "audit --model llama-13b --gpu a100 --tokens-per-s-per-gpu 1845";
  const Outcome both = run(run_of + " --seq-len 2048 --tflops 144");
  ASSERT_EQ(both.code, 0) << both.err;
  for (const char* piece : {"six_n", "model_causal", "model_full", "palm", "narayanan_recompute", " 144.1 ", " 153.4 ",
                            "the quoted 144 TFLOP/s is the formula six_n"})
    EXPECT_TRUE(has(both.out, piece)) << piece << "\n" << both.out;
  EXPECT_TRUE(has(run(run_of + " --seq-len 2048 --tflops 153.4").out, "is the formula palm"));
  EXPECT_TRUE(has(run(run_of + " --seq-len 2048 --tflops 169").out, "is none of these; the nearest, palm"));
  const Outcome one = run(run_of);  // without the length of a sequence only what needs none
  EXPECT_TRUE(has(one.out, "six_n") && has(one.out, "need --seq-len")) << one.out;
  EXPECT_FALSE(has(one.out, "palm")) << one.out;
}

TEST_F(Program, AuditOfAFinishedRunByTheUsualFormulas) {
  const Outcome r = run("audit --model llama3-8b --tokens 15e12 --gpu-hours 1.3e6 --seq-len 8192");
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* piece : {"the same run by the usual formulas", "six_n", "15.6 %", "model_full"})
    EXPECT_TRUE(has(r.out, piece)) << piece << "\n" << r.out;
}

TEST_F(Program, AuditOfAJobAtItsPredictedMfu) {
  const Json j = Json::parse(run("simulate examples/llama3-70b-1024-h100.yaml --json").out);
  const Outcome r = run("audit examples/llama3-70b-1024-h100.yaml --gpus 1024");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, fmt_days(j.at("whole_run").at("days").get<double>()))) << r.out;
  EXPECT_EQ(run("audit examples/llama3-70b-1024-h100.yaml --gpus 1024 --mfu 0.4").code, 2);
}

TEST_F(Program, AuditAsksForWhatIsMissing) {
  EXPECT_EQ(run("audit").code, 2);
  EXPECT_EQ(run("audit --model llama3-8b --days 3 --gpus 8").code, 2);
  const Outcome gpu = run("audit --gpu h1000 --flops 1e24 --days 3 --gpus 8");
  EXPECT_EQ(gpu.code, 2);
  EXPECT_TRUE(has(gpu.err, "no device 'h1000'")) << gpu.err;
  EXPECT_EQ(run("audit --gpu h100 --flops -1 --days 3 --gpus 8").code, 2);
  // What is blamed is what was given, in words that the option takes.
  const Outcome asked = run("audit --gpu v100-sxm2-32 --precision fp8 --flops 1e24 --days 3 --gpus 8");
  EXPECT_EQ(asked.code, 2);
  EXPECT_TRUE(has(asked.err, "--precision: v100-sxm2-32 has no fp8 matrix products (--precision fp32, fp16)"))
      << asked.err;
  const Outcome unasked = run("audit --gpu v100-sxm2-32 --flops 1e24 --days 3 --gpus 8");
  EXPECT_EQ(unasked.code, 2);
  EXPECT_TRUE(has(unasked.err, "--gpu: v100-sxm2-32 has no bf16 matrix products")) << unasked.err;
}

TEST_F(Program, DiffOfATraceAndItsJobIsNothing) {
  const std::string trace = in_folder("t.wttrace");
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --all-ranks --trace " + trace).code, 0);
  const Outcome r = run("diff examples/tiny-gpt.yaml " + trace + " --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j.at("step").at(0).at("relative").get<double>(), 0.0);
  EXPECT_EQ(j.at("a").at("plan_digest"), j.at("b").at("plan_digest"));
  for (const Json& row : j.at("ops")) EXPECT_EQ(row.at("difference_s").get<double>(), 0.0) << row;
  EXPECT_EQ(run("diff " + trace + " " + trace + " --csv").code, 0);
  EXPECT_EQ(run("diff " + trace + " " + trace + " --csv --markdown").code, 2);
}

TEST_F(Program, DiffRefusesTwoPlansAndWhatIsNoTrace) {
  const std::string trace = in_folder("t.wttrace");
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + trace).code, 0);
  const Outcome two = run("diff examples/tiny-gpt.yaml " + trace + " --set strategy.tensor=4");
  EXPECT_EQ(two.code, 2);
  EXPECT_TRUE(has(two.err, "are of two plans")) << two.err;
  EXPECT_TRUE(has(two.err, "axis tp: 4 | 2")) << two.err;
  EXPECT_EQ(run("diff " + trace + " /no/such.wttrace").code, 2);
  EXPECT_EQ(run("diff " + trace + " " + trace + " --set-b strategy.tensor=4").code, 2);
  std::ofstream(folder_ / "cut.wttrace") << slurp(folder_ / "t.wttrace").substr(0, 900);
  const Outcome cut = run("diff " + trace + " " + in_folder("cut.wttrace"));
  EXPECT_EQ(cut.code, 2);
  EXPECT_TRUE(has(cut.err, "cut.wttrace")) << cut.err;
}

TEST_F(Program, DiffOfTwoJobsNamesWhatTheySayDifferently) {
  const Outcome r = run("diff examples/tiny-gpt.yaml examples/tiny-gpt.yaml --set-b strategy.tensor=4");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "strategy.tensor")) << r.out;
  EXPECT_TRUE(has(r.out, "step time")) << r.out;
  EXPECT_EQ(run("diff examples/tiny-gpt.yaml examples/tiny-gpt.yaml --set-b strategy.tensor=3").code, 3);
}

}  // namespace
