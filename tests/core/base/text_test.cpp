// Spelling help, whole-string number parsing, UTF-8: what stands between a user's file and the rest.
#include "core/base/text.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace wt {
namespace {

constexpr std::string_view kKeys[] = {"bandwidth", "latency", "tensor", "pipeline", "tp"};

TEST(Closest, FindsATypingError) {
  EXPECT_EQ(closest("bandwith", kKeys), "bandwidth");
  EXPECT_EQ(closest("tensr", kKeys), "tensor");
  EXPECT_EQ(closest("latency", kKeys), "latency");
  EXPECT_EQ(closest("t", kKeys), "tp");
}

TEST(Closest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(closest("optimizer", kKeys), std::nullopt);
  EXPECT_EQ(closest("", {}), std::nullopt);
  EXPECT_EQ(closest("bandwidth", {}), std::nullopt);
}

// The bound is max(1, length / 3): three letters of nine may be wrong, four may not.
TEST(Closest, StopsAtAThirdOfTheWord) {
  EXPECT_EQ(closest("xxxdwidth", kKeys), "bandwidth");
  EXPECT_EQ(closest("xxxxwidth", kKeys), std::nullopt);
}

TEST(Closest, DoesNoWorkOnAHugeWord) {
  const std::string longest(256, 'b'), longer(257, 'b');
  const std::string_view same[] = {longest, longer};
  EXPECT_EQ(closest(longest, same), longest);
  EXPECT_EQ(closest(longer, same), std::nullopt);
}

TEST(Suggest, NamesTheNearWordOrAllLegalOnes) {
  EXPECT_EQ(suggest("tensr", kKeys), "did you mean 'tensor'?");
  const std::string_view two[] = {"adam", "sgd"};
  EXPECT_EQ(suggest("lion", two), "legal: adam, sgd");
}

RC_GTEST_PROP(Closest, OneWrongLetterIsAlwaysFound, ()) {
  const std::string_view word = *rc::gen::elementOf(std::vector<std::string_view>{"bandwidth", "latency", "pipeline"});
  std::string typed(word);
  typed[*rc::gen::inRange<size_t>(0, typed.size())] = *rc::gen::inRange('a', 'z');
  RC_ASSERT(closest(typed, kKeys) == std::string(word));
}

TEST(ParseInt, TakesTheWholeStringOrNothing) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-17"), -17);
  EXPECT_EQ(parse_int("+17"), 17);
  for (const char* bad : {"", "+", "-", " 1", "1 ", "1x", "0x10", "1.0", "1e3", "--1", "+-1", "++1", "1,024", "١"})
    EXPECT_EQ(parse_int(bad), std::nullopt) << '\'' << bad << '\'';
  EXPECT_EQ(parse_int(std::string_view("1\0", 2)), std::nullopt);
}

TEST(ParseInt, RefusesOverflow) {
  EXPECT_EQ(parse_int("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_int("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_int("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_int("-9223372036854775809"), std::nullopt);
}

RC_GTEST_PROP(ParseInt, ReadsBackEveryNumber, (int64_t n)) { RC_ASSERT(parse_int(std::to_string(n)) == n); }

TEST(ParseDouble, TakesTheWholeStringOrNothing) {
  EXPECT_EQ(parse_double("1.5"), 1.5);
  EXPECT_EQ(parse_double("+1.5e-3"), 1.5e-3);
  EXPECT_EQ(parse_double("1e308"), 1e308);
  for (const char* bad : {"", "+", "1.5x", " 1", "1 ", "1.5.2", "1,5", "0x1p3", "+-1", "e5"})
    EXPECT_EQ(parse_double(bad), std::nullopt) << '\'' << bad << '\'';
}

TEST(ParseDouble, RefusesWhatIsNotAFiniteNumber) {
  for (const char* bad : {"nan", "NaN", "-nan", "nan(1)", "inf", "-inf", "+inf", "infinity", "1e309", "-1e309"})
    EXPECT_EQ(parse_double(bad), std::nullopt) << bad;
}

TEST(WithCommas, Groups) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1024), "1,024");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Join, PutsTheSeparatorBetween) {
  EXPECT_EQ(join({}, ", "), "");
  const std::vector<std::string> parts = {"a", "", "c"};
  EXPECT_EQ(join(parts, ", "), "a, , c");
}

TEST(Fnv1a, IsThePublishedFunction) {  // reference values: draft-eastlake-fnv, 64-bit FNV-1a
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ull);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));  // may be continued
}

TEST(IsUtf8, AcceptsEveryLength) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain"));
  EXPECT_TRUE(is_utf8("\xc2\x80"));          // U+0080, the first of two bytes
  EXPECT_TRUE(is_utf8("\xe0\xa0\x80"));      // U+0800, the first of three
  EXPECT_TRUE(is_utf8("\xf0\x90\x80\x80"));  // U+10000, the first of four
  EXPECT_TRUE(is_utf8("\xf4\x8f\xbf\xbf"));  // U+10FFFF, the last
  EXPECT_TRUE(is_utf8("\xed\x9f\xbf"));      // just below the surrogates
  EXPECT_TRUE(is_utf8("\xee\x80\x80"));      // just above
}

TEST(IsUtf8, RefusesMalformedBytes) {
  EXPECT_FALSE(is_utf8("\x80"));              // continuation without a start
  EXPECT_FALSE(is_utf8("\xc3"));              // cut short
  EXPECT_FALSE(is_utf8("\xe2\x82"));          // cut short
  EXPECT_FALSE(is_utf8("\xc3\x28"));          // second byte is no continuation
  EXPECT_FALSE(is_utf8("\xc0\x80"));          // overlong NUL
  EXPECT_FALSE(is_utf8("\xe0\x9f\xbf"));      // overlong
  EXPECT_FALSE(is_utf8("\xf0\x8f\xbf\xbf"));  // overlong
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));      // a surrogate
  EXPECT_FALSE(is_utf8("\xed\xbf\xbf"));      // the last surrogate
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(is_utf8("\xf8\x88\x80\x80\x80"));
  EXPECT_FALSE(is_utf8("ok\xff"));
}

RC_GTEST_PROP(IsUtf8, AcceptsEveryCodePoint, ()) {
  auto point = *rc::gen::inRange<uint32_t>(0, 0x110000);
  if (point >= 0xd800 && point <= 0xdfff) point = 'x';
  auto byte = [](uint32_t v) { return static_cast<char>(static_cast<unsigned char>(v)); };
  std::string s;
  if (point < 0x80) {
    s = {byte(point)};
  } else if (point < 0x800) {
    s = {byte(0xc0 | point >> 6), byte(0x80 | (point & 63))};
  } else if (point < 0x10000) {
    s = {byte(0xe0 | point >> 12), byte(0x80 | (point >> 6 & 63)), byte(0x80 | (point & 63))};
  } else {
    s = {byte(0xf0 | point >> 18), byte(0x80 | (point >> 12 & 63)), byte(0x80 | (point >> 6 & 63)),
         byte(0x80 | (point & 63))};
  }
  RC_ASSERT(is_utf8(s));
  RC_ASSERT(is_utf8(s.substr(0, s.size() - 1)) == (s.size() == 1));
}

}  // namespace
}  // namespace wt
