#include "configs/yaml/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dckpt::yaml_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = YamlNode::Kind;

/// Returns the problems of a text as "line:column: message".
std::vector<std::string> problems_of(const std::string& text) {
  ConfigProblems problems;
  parse_yaml(text, problems);
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : problems) lines.push_back(to_string(problem, "f").substr(2));
  return lines;
}

YamlNode parsed(const std::string& text) {
  ConfigProblems problems;
  const auto node = parse_yaml(text, problems);
  EXPECT_THAT(problems, IsEmpty());
  return node.value_or(YamlNode{});
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Yaml, NodesKnowTheirPlaces) {
  const YamlNode root = parsed("# comment\nsave:\n  io: {threads: 4}\nlist:\n- a\n- 'b'\n");
  const YamlNode& threads = *root.find("save")->find("io")->find("threads");
  EXPECT_EQ(threads.text, "4");
  EXPECT_EQ(threads.place.line, 3);
  EXPECT_EQ(threads.place.column, 17);
  const YamlNode& list = *root.find("list");
  ASSERT_EQ(list.values.size(), 2u);
  EXPECT_FALSE(list.values[0].quoted);
  EXPECT_TRUE(list.values[1].quoted);
  EXPECT_EQ(list.values[1].place.line, 6);
}

TEST(Yaml, AFileWithoutContentIsNull) {
  for (const char* const text : {"", "# nothing\n", "---\n", "---\n...\n", "~", "\xEF\xBB\xBF"})
    EXPECT_EQ(parsed(text).kind, Kind::kNull) << text;
}

TEST(Yaml, DuplicateKeysAreReportedWithBothPlacesAndTheFirstOneStands) {
  ConfigProblems problems;
  const auto root = parse_yaml("a: 1\nb: {x: 1, x: 2}\na: 3\n", problems);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->find("a")->text, "1");
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(to_string(problems[0], "f"), "f:2:11: field 'x' is given twice, first at line 2");
  EXPECT_EQ(to_string(problems[1], "f"), "f:3:1: field 'a' is given twice, first at line 1");
}

TEST(Yaml, NothingThatExpandsIsAccepted) {
  EXPECT_THAT(problems_of("a: &x [1]\nb: *x\n"),
              ElementsAre(HasSubstr("1:4: the anchor '&x' is refused"),
                          HasSubstr("2:4: an alias is refused")));
  const std::string bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n";
  EXPECT_THAT(problems_of(bomb), AllOf(::testing::SizeIs(9), Each(HasSubstr("refused"))));
  EXPECT_THAT(
      problems_of("a: !!python/object:os.system ls\n"),
      ElementsAre(HasSubstr("the tag 'tag:yaml.org,2002:python/object:os.system' is refused")));
  EXPECT_EQ(parsed("<<: {a: 1}\n").keys[0].text,
            "<<");  // a merge key is an ordinary key, which no schema has
}

TEST(Yaml, KeysMustBeText) {
  EXPECT_THAT(problems_of("[1, 2]: x\n"),
              ElementsAre(HasSubstr("the name of a field must be text")));
  EXPECT_THAT(problems_of("~: x\n"), ElementsAre("1:1: the name of a field must be text"));
}

TEST(Yaml, ASecondDocumentIsRefused) {
  EXPECT_THAT(problems_of("a: 1\n---\nb: 2\n"), ElementsAre(HasSubstr("2:1: a second document")));
}

TEST(Yaml, SyntaxErrorsNameTheirPlace) {
  EXPECT_THAT(problems_of("save:\n  compat: [a, b\nload: x\n"),
              ElementsAre(HasSubstr(": this is not YAML: ")));
  EXPECT_THAT(problems_of("a: 1\n\tb: 2\n"), ElementsAre(HasSubstr("2:")));
}

TEST(Yaml, DepthIsAcceptedUpToTheLimitAndRefusedBeyond) {
  const auto nested = [](int depth) {
    return repeated("[", static_cast<std::size_t>(depth)) +
           repeated("]", static_cast<std::size_t>(depth));
  };
  EXPECT_THAT(problems_of(nested(kMaxYamlDepth)), IsEmpty());
  EXPECT_THAT(problems_of(nested(kMaxYamlDepth + 1)),
              ElementsAre("1:17: nested more than 16 levels deep"));
}

TEST(Yaml, SizeIsAcceptedUpToTheLimitAndRefusedBeyond) {
  const std::string largest = "# " + std::string(kMaxYamlBytes - 2, 'x');
  EXPECT_THAT(problems_of(largest), IsEmpty());
  EXPECT_THAT(problems_of(largest + "x"),
              ElementsAre(HasSubstr("the file has more than 256.0 KiB")));
}

TEST(Yaml, TheLargestHostileFilesEndInAnErrorAndNotInTheStack) {
  for (const char* const unit : {"[", "{", "- ", "? ", "a: ", "{a: ", "[{", "!a ", "&a ", "*a ",
                                 "'a", "\"a ", "|", "---\n", "[?", "? - ", "a:\n "}) {
    EXPECT_FALSE(problems_of(repeated(unit, kMaxYamlBytes / std::string(unit).size())).empty())
        << unit;
  }
}

TEST(Yaml, BytesThatAreNoTextAreRefused) {
  EXPECT_THAT(problems_of("a: 1\nb: \x04 2\n"),
              ElementsAre(HasSubstr("2:4: a control character ('\\x04')")));
  EXPECT_THAT(problems_of(std::string("a: \0", 4)),
              ElementsAre(HasSubstr("1:4: a control character")));
  EXPECT_THAT(problems_of("a: \xff\n"), ElementsAre(HasSubstr("must be UTF-8")));
}

TEST(Yaml, TextSurvivesBeingWritten) {
  for (const std::string& text :
       {std::string("^module\\.(.*)$"), std::string("a \"b\" 'c'\n\t\x01 é"), std::string("true"),
        std::string(), std::string("# - {")}) {
    YamlNode map;
    map.kind = Kind::kMap;
    map.keys.push_back(YamlNode::plain("key"));
    map.values.push_back(YamlNode::list({YamlNode::string(text), YamlNode::plain("7")}));
    const YamlNode again = parsed(to_yaml_text(map));
    EXPECT_EQ(again.find("key")->values[0].text, text);
    EXPECT_TRUE(again.find("key")->values[0].quoted);
    EXPECT_FALSE(again.find("key")->values[1].quoted);
  }
}

}  // namespace
}  // namespace dckpt::yaml_test
