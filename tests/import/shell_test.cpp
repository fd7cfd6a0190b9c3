#include "import/shell.hpp"
#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> last_words(const std::string& script, const std::map<std::string, std::string>& given = {}) {
  const ShellScript s = read_shell(script, given);
  std::vector<std::string> out;
  if (!s.commands.empty())
    for (const ShellWord& w : s.commands.back().words) out.push_back(w.text);
  return out;
}

TEST(Shell, VariablesDefaultsArithmetic) {
  EXPECT_THAT(last_words("A=4\nB=$((A * 2 + 1))\nrun $A ${B} ${C:-7} \"${A}x\" '$A'"),
              ElementsAre("run", "4", "9", "7", "4x", "$A"));
  EXPECT_THAT(last_words("A=${A:-3}; run $A", {{"A", "5"}}), ElementsAre("run", "5"));
  EXPECT_THAT(last_words("A=1\nA=2\nrun $A", {{"A", "9"}}), ElementsAre("run", "9"));  // --var wins
  EXPECT_THAT(last_words("N=$((2**3*2/3%4))\nrun $N"), ElementsAre("run", "1"));
}

TEST(Shell, ArraysAndContinuation) {
  EXPECT_THAT(
      last_words("ARGS=(\n  --a 1   # first\n  --b \"x y\"\n)\nARGS+=(--c)\nrun \\\n  \"${ARGS[@]}\" ${ARGS[0]}"),
      ElementsAre("run", "--a", "1", "--b", "x y", "--c", "--a"));
}

TEST(Shell, UnquotedTextIsSplit) {
  EXPECT_THAT(last_words("OPT=\"--a 1 \\\n --b 2\"\nrun $OPT \"$OPT\""),
              ElementsAre("run", "--a", "1", "--b", "2", "--a 1  --b 2"));
}

TEST(Shell, ConditionsThatAreKnownAreDecided) {
  const std::string script =
      "if [ $MODEL = big ]; then L=80\nelif [[ $MODEL == mid ]]; then L=40\nelse L=8\nfi\nrun $L";
  EXPECT_THAT(last_words("MODEL=big\n" + script), ElementsAre("run", "80"));
  EXPECT_THAT(last_words("MODEL=mid\n" + script), ElementsAre("run", "40"));
  EXPECT_THAT(last_words("MODEL=x\n" + script), ElementsAre("run", "8"));
  EXPECT_THAT(last_words("N=3\nif [ $N -gt 2 ] && [ -n \"$N\" ]; then A=1; else A=2; fi; run $A"),
              ElementsAre("run", "1"));
}

TEST(Shell, WhatIsNotKnownKeepsItsName) {
  const ShellScript s = read_shell(
      "if [ $1 = big ]; then L=80; else L=8; fi\nN=$(nproc --all)\nfor i in 1 2; do K=$i; done\nrun $L $N $K $UNSET",
      {});
  const auto& w = s.commands.back().words;
  ASSERT_EQ(w.size(), 5u);
  EXPECT_THAT(w[1].open, ElementsAre(HasSubstr("L (in a condition of line 1)")));
  EXPECT_THAT(w[2].open, ElementsAre(HasSubstr("$(nproc --all)")));
  EXPECT_FALSE(w[3].open.empty());
  EXPECT_THAT(w[4].open, ElementsAre("UNSET"));
}

TEST(Shell, EvalAndBashOfKnownTextAreFollowed) {
  EXPECT_THAT(last_words("X=2\ncmd=\"run --a $X\"\neval $cmd"), ElementsAre("run", "--a", "2"));
  EXPECT_THAT(last_words("X=2\nsrun -N 2 bash -c 'run --a $X'"), ElementsAre("run", "--a", "2"));
}

TEST(Shell, SlurmDirectivesSetItsVariables) {
  EXPECT_THAT(last_words("#!/bin/bash\n#SBATCH --nodes=4 # number\n#SBATCH --ntasks-per-node 8\nrun $SLURM_NNODES "
                         "$((SLURM_JOB_NUM_NODES * 2))"),
              ElementsAre("run", "4", "8"));
}

TEST(Shell, HereDocumentsAreExpanded) {
  const ShellScript s = read_shell("B=8\ncat <<EOT > ds.json\n{\"train_batch_size\": $B}\nEOT\nrun", {});
  ASSERT_EQ(s.documents.size(), 1u);
  EXPECT_EQ(s.documents[0].text.text, "{\"train_batch_size\": 8}\n");
}

TEST(Shell, HostileTextIsBounded) {
  std::string doubling = "A=xxxxxxxxxxxxxxxx\n";
  for (int i = 0; i < 60; ++i) doubling += "A=$A$A\n";
  EXPECT_LT(last_words(doubling + "run $A").back().size(), size_t{1} << 22);
  EXPECT_NO_THROW(last_words(std::string(100000, '(') + "\n" + std::string(100000, '{')));
  EXPECT_NO_THROW(last_words("X=" + std::string(5000, '$') + "{" + std::string(5000, '(')));
  std::string nested = "1";
  for (int i = 0; i < 10000; ++i) nested = "(" + nested + ")";
  long long n = 0;
  EXPECT_FALSE(shell_arithmetic(nested, n));
  EXPECT_FALSE(shell_arithmetic("9223372036854775807+1", n));
  EXPECT_FALSE(shell_arithmetic("1/0", n));
  EXPECT_THAT(last_words("eval 'eval \"eval $0\"'\nrun"), ElementsAre("run"));
}

}  // namespace
}  // namespace wt::import
