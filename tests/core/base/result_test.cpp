// A Result is a value or at least one diagnostic, and says so in one line each.
#include "core/base/result.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace wt {
namespace {

TEST(Result, HoldsAValue) {
  Result<std::unique_ptr<int>> r(std::make_unique<int>(3));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(*r.value(), 3);
  EXPECT_DEATH((void)r.errors(), "CHECK");
}

TEST(Result, HoldsDiagnosticsAndSaysThemWhenMisused) {
  const Result<int> r(Diagnostic{"job.yaml:3:1", "unknown key 'tensr'", "did you mean 'tensor'?"});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.errors().size(), 1u);
  EXPECT_DEATH((void)r.value(), "unknown key 'tensr'");
}

TEST(Result, IsNeverNeither) { EXPECT_DEATH(Result<int>(Diagnostics{}), "CHECK"); }

TEST(Diagnostics, PrintOneLineEach) {
  EXPECT_EQ(to_text(Diagnostics{{"a:1", "wrong", "try b"}, {"", "bad", ""}}), "a:1: wrong (try b)\nbad\n");
}

TEST(StatusOf, IsOkOnlyWithoutErrors) {
  EXPECT_TRUE(status_of({}).ok());
  EXPECT_FALSE(status_of({{"a", "b", ""}}).ok());
}

}  // namespace
}  // namespace wt
