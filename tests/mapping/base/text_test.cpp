#include "mapping/base/text.h"

#include <gmock/gmock.h>

#include <regex>

#include "tests/support/random.h"

namespace dckpt::text_test {
namespace {

using ::testing::ElementsAre;

TEST(Quoted, KeepsTextThatIsHarmless) {
  EXPECT_EQ(quote("decoder.layers.0/ünï 码"), "'decoder.layers.0/ünï 码'");
}

TEST(Quoted, EscapesWhatSteersATerminalOrEndsTheQuote) {
  EXPECT_EQ(quote("a\x1b[31m\r\n\t\x7f'\\"), "'a\\x1b[31m\\r\\n\\t\\x7f\\'\\\\'");
  EXPECT_EQ(quote(std::string_view("\0", 1)), "'\\x00'");
  EXPECT_EQ(quote("\xe2\x80\xae"), "'\\xe2\\x80\\xae'") << "right-to-left override";
  EXPECT_EQ(quote("\xc2\x9b"), "'\\xc2\\x9b'") << "C1 control";
}

TEST(Quoted, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(quote("\xff\xc3"), "'\\xff\\xc3'");
  EXPECT_EQ(quote("\xed\xa0\x80"), "'\\xed\\xa0\\x80'") << "surrogate";
}

TEST(Quoted, CutsLongText) {
  EXPECT_EQ(quote("abcdef", 3), "'abc…'");
}

TEST(Printable, LeavesQuotesAlone) {
  EXPECT_EQ(printable("it's\n"), "it's\\n");
}

TEST(Utf8, AcceptsExactlyTheWellFormed) {
  EXPECT_TRUE(is_utf8("aé码😀"));
  EXPECT_FALSE(is_utf8("\xc0\x80")) << "overlong";
  EXPECT_FALSE(is_utf8("\xe0\x80\x80")) << "overlong";
  EXPECT_FALSE(is_utf8("\xf0\x80\x80\x80")) << "overlong";
  EXPECT_FALSE(is_utf8("\xed\xbf\xbf")) << "surrogate";
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80")) << "beyond U+10FFFF";
  EXPECT_FALSE(is_utf8("\xe7\xa0")) << "cut off";
}

TEST(QuotedList, CountsWhatItLeavesOut) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  EXPECT_EQ(quoted_list(names, 4), "'a', 'b', 'c', 'd'");
  EXPECT_EQ(quoted_list(names, 2), "'a', 'b' and 2 more");
}

TEST(Nearest, FindsSlipsOnly) {
  const std::vector<std::string> names = {"threads", "engine", "fsync"};
  EXPECT_EQ(nearest("thread", names), "threads");
  EXPECT_EQ(nearest("fsnc", names), "fsync");
  EXPECT_EQ(nearest("fsycn", names), "fsync");
  EXPECT_EQ(nearest("retention", names), std::nullopt);
}

TEST(Glob, StarCrossesDotsAndSlashes) {
  EXPECT_TRUE(glob_match("decoder.*.weight", "decoder.layers.0/self_attention.weight"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("a?", "a"));
}

TEST(Glob, ClassesAndUnclosedBrackets) {
  EXPECT_TRUE(glob_match("x[0-3]", "x2"));
  EXPECT_FALSE(glob_match("x[0-3]", "x4"));
  EXPECT_TRUE(glob_match("x[!0-3]", "x4"));
  EXPECT_TRUE(glob_match("[]a]", "]"));
  EXPECT_TRUE(glob_match("a[b", "a[b"));
}

TEST(Glob, AgreesWithRegularExpressions) {
  testing::Random random;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(random.trace(round));
    std::string pattern;
    std::string text;
    for (auto n = random.between(0, 6); n > 0; --n) pattern += "ab*?"[random.between(0, 3)];
    for (auto n = random.between(0, 6); n > 0; --n) text += "ab"[random.between(0, 1)];
    std::string expression;
    for (const char c : pattern) expression += c == '*' ? ".*" : c == '?' ? "." : std::string(1, c);
    EXPECT_EQ(glob_match(pattern, text), std::regex_match(text, std::regex(expression)))
        << pattern << " on " << text;
  }
}

TEST(Glob, ManyStarsStayFast) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(glob_match(pattern + "b", std::string(5000, 'a')));
}

TEST(Sizes, ForPeople) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

TEST(Sizes, AreReadWithUnits) {
  EXPECT_EQ(parse_size("12"), 12u);
  EXPECT_EQ(parse_size("8GiB"), std::uint64_t{8} << 30);
  EXPECT_EQ(parse_size("64 MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(parse_size("1.5k"), 1536u);
  for (const char* const wrong :
       {"", "GiB", "-1", "1 XB", "1GB", "1Gb", "1GiBs", "nan", "inf", "1e30", "12 12"})
    EXPECT_EQ(parse_size(wrong), std::nullopt) << wrong;
}

TEST(Numbers, AreDigitsOnly) {
  EXPECT_EQ(parse_u64("18446744073709551615"), UINT64_MAX);
  for (const char* const wrong : {"", "18446744073709551616", "-1", "+1", " 1", "1 ", "0x1", "1.0"})
    EXPECT_EQ(parse_u64(wrong), std::nullopt) << wrong;
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_THAT(split("a..b.", '.'), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", '.'), ElementsAre(""));
}

}  // namespace
}  // namespace dckpt::text_test
