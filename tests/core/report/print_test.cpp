// The printed forms against golden texts. The report is made by hand, so that no model of time changes them.
// WT_UPDATE=1 writes the texts anew: look at the difference before it is kept.
#include "core/report/print.hpp"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/file.hpp"
#include "jobs.hpp"

namespace wt::report {
namespace {

/// Two stages, one of them nearly full, and every term of time.
struct Made {
  Lowered l =
      lowered({"strategy.pipeline=2", "strategy.tensor=2", "training.total_tokens=1e12", "training.global_batch=32"});
  StepReport r;
  std::vector<std::string> assumptions = {
      "kernel times: a short assumption",
      "a long assumption that has to be broken over two lines because it says more than "
      "a line of the screen can hold at the width that a terminal has"};
  std::vector<std::string> warnings = {"examples/x.yaml: without effect on time or memory here: \"rms_norm_eps\", y"};

  Made() {
    l.job.name = "made, \"by hand\"";
    l.job.model.name = "gpt";
    r.step_time = Time::from_seconds(2.5);
    r.critical_rank = 4;
    r.time = {.compute = 1.5,
              .exposed_tensor = 0.3,
              .exposed_data = 0.2,
              .exposed_pipeline = 0.05,
              .bubble = 0.4,
              .optimizer = 0.03,
              .host = 0.02};
    r.by_stage = {{0, 0, r.time}, {1, 4, r.time}};
    r.tokens_per_second = 32 * 2048 / 2.5;
    r.tokens_per_second_per_gpu = r.tokens_per_second / 8;
    r.model_tflops_per_gpu = 124.8;
    r.hardware_tflops_per_gpu = 140.4;
    r.peak_tflops = 312;
    r.mfu = 0.4;
    r.hfu = 0.45;
    r.bubble_fraction = 0.16;
    auto& m = r.memory;
    m.capacity = {80ll << 30};
    for (int64_t s = 0; s < 2; ++s) {
      StageMemory x;
      x.stage = s;
      x.peak = {(70ll - 4 * s) << 30};
      x.context = {1ll << 30};
      x.communicators = {1ll << 29};
      x.communicator_count = 3;
      x.cached = {1ll << 28};
      x.fragmentation = {1ll << 28};
      x.reserved = x.peak + x.cached + x.context + x.communicators + x.fragmentation;
      x.peak_phase = "backward";
      x.items = {{"activations", {40ll << 30}, 1},
                 {"weights", {20ll << 30}, 1},
                 {"optimizer states", {(10ll - 4 * s) << 30}, 1}};
      x.largest = {{"fc1_out", {30ll << 30}, 24}, {"weights.bucket0", {20ll << 30}, 1}};
      x.phases = {{"load", {20ll << 30}}, {"backward", x.peak}};
      m.stages.push_back(std::move(x));
    }
    m.peak_rank = 0;
    m.host_gib_per_node = 12.5;
    m.host_items = {{"processes", Bytes{int64_t{8} << 30}, 4}, {"checkpoint staged", Bytes{int64_t{9} << 29}, 1}};
    m.checkpoint_gib = 5.5;
    m.fits = std::string(verdict(m.stages[0].reserved, m.capacity));
  }
  Sheet sheet() const {
    return {l.job,
            l.plan,
            r,
            0x0123456789abcdefull,
            assumptions,
            warnings,
            {8, 2, 12345, 67, 0.25},
            StepBand{2.25, 3, "4 of 5 runs lay so near (40 runs)"}};
  }
};

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = WT_SOURCE_DIR "/tests/golden/reports/" + name;
  if (std::getenv("WT_UPDATE")) { ASSERT_TRUE(write_file_atomically(path, text).ok()); }
  auto golden = read_file(path);
  ASSERT_TRUE(golden.ok()) << to_text(golden.errors());
  EXPECT_EQ(text, golden.value()) << "WT_UPDATE=1 accepts the new text";
}

TEST(Print, Screen) { expect_golden("made.txt", print_screen(Made().sheet())); }
TEST(Print, Csv) { expect_golden("made.csv", print_csv(Made().sheet())); }
TEST(Print, Markdown) { expect_golden("made.md", print_markdown(Made().sheet())); }
TEST(Print, Json) { expect_golden("made.json", print_json(Made().sheet())); }

TEST(Print, JsonTermsAddUpAndHostIsLeftOutWhenZero) {
  Made made;
  const auto j = nlohmann::json::parse(print_json(made.sheet()));
  double sum = 0;
  for (const auto& [key, value] : j.at("time_s").items()) sum += value.get<double>();
  EXPECT_DOUBLE_EQ(sum, 2.5);
  EXPECT_EQ(j.at("time_s").count("host"), 1u);
  made.r.time.host = 0;
  EXPECT_EQ(nlohmann::json::parse(print_json(made.sheet())).at("time_s").count("host"), 0u);
}

TEST(Print, AJobThatDoesNotFitSaysSoAndKeepsItsNumbers) {
  Made made;
  made.r.memory.capacity = {40ll << 30};
  made.r.memory.fits = std::string(verdict(made.r.memory.stages[0].reserved, made.r.memory.capacity));
  const std::string text = print_screen(made.sheet());
  EXPECT_NE(text.find("OUT OF MEMORY"), std::string::npos);
  EXPECT_NE(text.find("32.0 GiB too much"), std::string::npos) << text;
  EXPECT_NE(text.find("2.50 s"), std::string::npos);
}

TEST(Print, ADeviceWithoutThePeakHasNoMfu) {
  Made made;
  made.r.peak_tflops = made.r.mfu = made.r.hfu = 0;
  const std::string text = print_screen(made.sheet());
  EXPECT_EQ(text.find("MFU      "), std::string::npos);
  EXPECT_NE(text.find("no bf16 peak"), std::string::npos) << text;
}

TEST(Print, TextThatIsNotUtf8StaysValidJson) {
  Made made;
  made.l.job.name = "broken \xff name";
  EXPECT_TRUE(nlohmann::json::accept(print_json(made.sheet())));
}

TEST(Print, TheLimitNamesTheTwoLargestCauses) {
  EXPECT_EQ(limit_text(Made().r), "compute (60 % of the step), then pipeline bubble (16 %)");
  EXPECT_EQ(limit_text(StepReport{}), "unknown");
}

TEST(Print, Tables) {
  Table t({"a", "bb"});
  t.add({"long", "1"});
  t.add({"x", ""});
  EXPECT_EQ(t.text(), "  a     bb\n  long   1\n  x\n");
  EXPECT_EQ(t.markdown(), "| a | bb |\n| --- | ---: |\n| long | 1 |\n| x |  |\n");
}

}  // namespace
}  // namespace wt::report
