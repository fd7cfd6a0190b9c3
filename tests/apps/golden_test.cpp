// What a user reads of two small jobs, whole: the plan and the screen, as golden texts. On a machine that is made up, so
// that no measured curve moves them; figures move with the model of collectives and of gaps, and are then accepted anew.
#include <algorithm>

#include "program.hpp"

namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = WT_SOURCE_DIR "/tests/golden/" + name;
  if (std::getenv("WT_UPDATE")) std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(text, slurp(path)) << name << ": WT_UPDATE=1 accepts the new text";
}

/// Without what is not of the job: the band (its width is that of the published rows) and the simulator's own time.
std::string of_the_job(const std::string& screen) {
  std::istringstream lines(screen);
  std::string line, kept;
  while (std::getline(lines, line)) {
    if (line.starts_with("  band ")) continue;
    if (const size_t time = line.find(" ops in "); time != std::string::npos)
      line.erase(time + 4, line.find(';', time) - time - 4);
    kept += line + "\n";
  }
  return kept;
}

class Golden : public Program, public testing::WithParamInterface<const char*> {};

TEST_P(Golden, PlanAndScreen) {
  const std::string job = GetParam(), file = "examples/" + job + ".yaml";
  const Outcome plan = run("plan " + file), screen = run("simulate " + file);
  ASSERT_EQ(plan.code, 0) << plan.err;
  ASSERT_EQ(screen.code, 0) << screen.err;
  expect_golden("plans/" + job + ".plan", plan.out);
  expect_golden("reports/" + job + ".txt", of_the_job(screen.out));
}

INSTANTIATE_TEST_SUITE_P(Jobs, Golden, testing::Values("tiny-gpt", "tiny-llama"),
                         [](const testing::TestParamInfo<const char*>& i) {
                           std::string name = i.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
