// What anchors and aliases may add to a tree, whatever size of file a reader allows.
#include "core/spec/tree.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wt::tree {
namespace {

constexpr Limits kLarge{.nodes = 10'000'000, .bytes = int64_t{64} << 20};

Result<Node> parse(const std::string& text) {
  return parse_yaml(text, std::make_shared<const Source>(Source{.label = "a.yaml", .directory = {}}), kLarge);
}

std::string numbers(int n) {
  std::string out = "[";
  for (int i = 0; i < n; ++i) out += i ? ", 1" : "1";
  return out + "]";
}

TEST(Anchors, NestedAliasesAreRefusedBeforeTheyAreCopiedWhereTheFileMayBeLarge) {
  std::string bomb = "a: &a " + numbers(10) + "\n";
  for (char c = 'b'; c < 'h'; ++c) {
    bomb += fmt::format("{0}: &{0} [", c);
    for (int i = 0; i < 10; ++i) bomb += fmt::format("{}*{}", i ? ", " : "", static_cast<char>(c - 1));
    bomb += "]\n";
  }
  const auto got = parse(bomb);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(to_text(got.errors()), testing::HasSubstr("more than 100000 values once anchors are expanded"));
}

TEST(Anchors, AnchorsInsideAnchorsAreCopiesToo) {
  std::string text = "a: ";
  for (int i = 0; i < 30; ++i) text += fmt::format("&a{} [", i);
  text += numbers(5000) + std::string(30, ']') + "\n";
  const auto got = parse(text);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(to_text(got.errors()), testing::HasSubstr("once anchors are expanded"));
}

TEST(Anchors, WhatALargeFileWritesOutIsNotCounted) {
  std::string text = "shared: &s {a: 1, b: 2}\nrows:\n";
  for (int i = 0; i < 20'000; ++i) text += fmt::format("  - {{id: {}, of: *s, values: {}}}\n", i, numbers(8));
  const auto got = parse(text);
  ASSERT_TRUE(got.ok()) << to_text(got.errors());
  EXPECT_EQ(got.value().find("rows")->value.items.size(), 20'000u);
}

}  // namespace
}  // namespace wt::tree
