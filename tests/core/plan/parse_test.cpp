// Texts with faults: every message with its line and column, all of them at once, and limits that a small text cannot pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/plan_io.hpp"
#include "tests/core/plan/small_plan.hpp"

namespace wt::plan {
namespace {

std::string errors_of(const std::string& text) {
  const auto p = parse_plan(text, "x.plan");
  return p.ok() ? "" : to_text(p.errors());
}

/// The small plan's text with one piece replaced.
std::string broken(const std::string& from, const std::string& to) {
  std::string text = print(small_plan());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

struct Case {
  const char* name;
  const char *from, *to, *expected;
};
class ParseFault : public testing::TestWithParam<Case> {};

TEST_P(ParseFault, IsToldWithItsPlace) {
  const Case& c = GetParam();
  EXPECT_EQ(errors_of(broken(c.from, c.to)), std::string(c.expected) + "\n");
}

const Case kCases[] = {
    {"other_file", "windtunnel plan 1", "hello", "x.plan:1:1: not a plan: expected 'windtunnel plan 1', found 'hello'"},
    {"version", "plan 1", "plan 2", "x.plan:1:17: version 2 of the plan text is not known (legal: 1)"},
    {"statement", "seed 7", "sed 7",
     "x.plan:3:1: unknown statement 'sed' (did you mean 'seed'?)\nx.plan:96:1: 'seed' is missing"},
    {"twice", "seed 7", "seed 7\nseed 8", "x.plan:4:1: 'seed' is given twice"},
    {"seed", "seed 7", "seed -7", "x.plan:3:6: expected a seed of 64 bits, found '-'"},
    {"trailing", "seed 7", "seed 7 8", "x.plan:3:8: expected the end of the line, found '8'"},
    {"axis_twice", "mesh pp 2, dp 2", "mesh pp 2, pp 2",
     "x.plan:4:12: axis 'pp' is declared twice\nx.plan:9:16: unknown axis 'dp'"},
    {"ranks", "dp 2\n", "dp 99999999999\n",
     "x.plan:4:15: the size of an axis 99999999999 is out of range (legal: 1 to 1073741824)\nx.plan:9:16: unknown axis "
     "'dp'"},
    {"overflow", "size 1 sequence", "size 99999999999999999999 sequence",
     "x.plan:6:22: the micro-batch size '99999999999999999999' is not a whole number of 64 bits"},
    {"placement", "placement loop", "placement lop",
     "x.plan:5:11: expected a placement, found 'lop' (did you mean 'loop'?)"},
    {"coordinate", "in 0, 1", "in 0, 2", "x.plan:10:36: a coordinate 2 is out of range (legal: 0 to 1)"},
    {"quote", "\"small\"", "\"small", "x.plan:2:6: the string has no closing quote"},
    {"escape", "made by \\\"", "made \\q by", "x.plan:7:12: unknown escape '\\q' in a string"},
    {"role", "buffer out: transient", "buffer out: transent",
     "x.plan:17:13: expected a role, found 'transent' (did you mean 'transient'?)"},
    {"shape", "buffer out: transient f32 [4, 2]", "buffer out: transient f32 [4, 1152921504606846976]",
     "x.plan:17:31: a dim 1152921504606846976 is out of range (legal: 0 to 288230376151711744)"},
    {"buffer_twice",
     "buffer out:", "buffer flat:", "x.plan:17:8: buffer 'flat' is declared twice\nx.plan:54:84: unknown buffer 'out'"},
    {"buffer", "(d_out, weight)", "(d_out, wait)", "x.plan:48:66: unknown buffer 'wait'"},
    {"suggestion", "(d_out, weight)", "(d_out, weigth)",
     "x.plan:48:66: unknown buffer 'weigth' (did you mean 'weight'?)"},
    {"kernel", "dgrad\": gemm", "dgrad\": gem",
     "x.plan:48:39: expected what the op does, found 'gem' (did you mean 'gemm'?)"},
    {"number", "    1 compute backward_input \"d_out\"", "    5 compute backward_input \"d_out\"",
     "x.plan:45:5: op 5 stands where op 1 should: waits name these numbers"},
    {"real", "work 64 flops 64 read", "work 1e999 flops 64 read",
     "x.plan:48:118: floating-point operations '1e999' is not a finite number"},
    {"work", "host_wait wait tail compute", "host_wait work 1 flops 1 read 1 written",
     "x.plan:70:43: 'work' belongs to compute kernels"},
    {"block", "update.0[0]", "updte.0[0]", "x.plan:89:5: unknown block 'updte' (did you mean 'update'?)"},
    {"part", "block setup of first", "block setup of firts", "x.plan:31:16: unknown part 'firts'"},
    {"counter", "\"forward first\".0[0]", "\"forward first\".0[i]",
     "x.plan:88:35: expected a micro-batch or the counter of a repeat, found 'i'"},
    {"nesting", "\"forward first\".0[0]", "2x{ 2x{ 2x{ 2x{ update.0[0] } } } }",
     "x.plan:88:29: repeats nest at most 3 deep"},
    {"empty_repeat", "\"forward first\".0[0]", "2x{ }", "x.plan:88:21: a repeat of nothing"},
    {"negative", "\"forward first\".0[0]", "2x{ update.0[0-i] }",
     "x.plan:89:17: a repeat reaches micro-batch -1 (legal: 0 to 65535)"},
    {"unclosed", "\"forward first\".0[0]", "(", "x.plan:88:17: expected the name of block, found '('"},
};

INSTANTIATE_TEST_SUITE_P(Planted, ParseFault, testing::ValuesIn(kCases), [](const auto& c) { return c.param.name; });

TEST(Parse, TellsAllFaultsAtOnce) {
  std::string text = print(small_plan());
  text.replace(text.find("seed 7"), 6, "seed x");
  text.replace(text.find("pipeline 2"), 10, "pipeline 0");
  text.replace(text.find("(hidden) -> (hidden[+1])"), 24, "(hidden) -> (hidn)     ");
  const auto p = parse_plan(text);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.errors().size(), 3u) << to_text(p.errors());
}

TEST(Parse, CommentsSpacesAndCarriageReturnsMeanNothing) {
  std::string text = print(small_plan()), spaced;
  for (char c : text) spaced += c == '\n' ? std::string("  # why\r\n\n") : std::string(1, c);
  const auto p = parse_plan(spaced);
  ASSERT_TRUE(p.ok()) << to_text(p.errors());
  EXPECT_EQ(p.value(), small_plan());
}

TEST(Parse, ASmallTextCannotExpandWithoutBound) {
  EXPECT_THAT(errors_of(broken("\"forward first\".0[0]", "16000000x{ 16000000x{ update.0[0] } }")),
              testing::HasSubstr("the orders hold more than 16777216 invocations"));
  EXPECT_THAT(errors_of(broken("segment layer 0\n", "segment layer 0 times 1000000\n")),
              testing::HasSubstr("more than 1048576 op instances"));
}

TEST(Parse, EveryPrefixIsRefusedOrParsed) {
  const std::string text = print(small_plan());
  for (size_t n = 0; n < text.size(); n += 7) {
    const auto p = parse_plan(std::string_view(text).substr(0, n));
    if (!p.ok()) { EXPECT_FALSE(p.errors().empty()); }
  }
}

}  // namespace
}  // namespace wt::plan
