#include "configs/policy/rename.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dckpt::rename_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Optional;

std::string renamed(const std::vector<RenameRule>& rules, const std::string& key) {
  return KeyRenamer(rules)(key);
}

TEST(Rename, GroupsOfTheMatchGoWhereTheReplacementSays) {
  EXPECT_EQ(renamed({{"^module\\.(.*)$", "\\1"}}, "module.decoder.weight"), "decoder.weight");
  EXPECT_EQ(renamed({{"(\\w+)\\.(\\w+)", "\\2-\\1-\\0"}}, "a.b"), "b-a-a.b");
  EXPECT_EQ(renamed({{"(x)|(y)", "<\\1\\2>"}}, "xy"),
            "<x><y>");  // a group that did not participate is empty
}

TEST(Rename, KeysWithoutAMatchStay) {
  EXPECT_EQ(renamed({{"^module\\.", ""}}, "decoder.module.weight"), "decoder.module.weight");
}

TEST(Rename, EveryMatchIsReplaced) {
  EXPECT_EQ(renamed({{"layers\\.", "blocks."}}, "layers.0.layers.1"), "blocks.0.blocks.1");
}

TEST(Rename, EachRuleSeesWhatTheOnesBeforeHaveMade) {
  EXPECT_EQ(renamed({{"a", "b"}, {"b", "c"}}, "ab"), "cc");
}

TEST(Rename, OnlyBackslashesAreSpecialInTheReplacement) {
  EXPECT_EQ(renamed({{"a", "$1 $& \\\\ \\0"}}, "a"), "$1 $& \\ a");
}

TEST(Rename, EmptyMatchesAreReplacedBetweenCharacters) {
  EXPECT_EQ(renamed({{"x*", "-"}}, "aé"), "-a-é-");
  EXPECT_EQ(renamed({{"$", ".weight"}}, "decoder"), "decoder.weight");
  EXPECT_EQ(renamed({{"^", "module."}}, "decoder"), "module.decoder");
}

TEST(Rename, NoExpressionBacktracks) {
  EXPECT_EQ(renamed({{"^(a+)+$", "x"}}, std::string(kMaxRenamedKey - 1, 'a') + "!").size(),
            kMaxRenamedKey);
  EXPECT_EQ(renamed({{"^((a|b)*)*$", "x"}}, std::string(kMaxRenamedKey, 'a')), "x");
}

TEST(Rename, WhatOnlyBacktrackingCanMatchIsRefused) {
  for (const char* from : {"(a)\\1", "a(?=b)", "a(?!b)", "(?<=a)b"}) {
    EXPECT_THAT(problem_of({from, ""}), Optional(HasSubstr("no back-references, no look-ahead")))
        << from;
  }
}

TEST(Rename, WithoutRulesEveryKeyIsAccepted) {
  const KeyRenamer none{std::vector<RenameRule>{}};
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none(std::string(kMaxRenamedKey + 1, 'k')).size(), kMaxRenamedKey + 1);
}

TEST(Rename, ProblemsOfRulesAreExplained) {
  EXPECT_EQ(problem_of({"(a)(b)", "\\2\\1"}), std::nullopt);
  EXPECT_THAT(problem_of({"(", ""}), Optional(HasSubstr("'from' is no regular expression")));
  EXPECT_THAT(problem_of({"", "x"}), Optional(HasSubstr("'from' is empty")));
  EXPECT_THAT(problem_of({"(a)", "\\2"}),
              Optional(std::string("'to' refers to group \\2, but 'from' has only one group")));
  EXPECT_THAT(problem_of({"a", "\\1"}), Optional(HasSubstr("no groups")));
  EXPECT_THAT(problem_of({"a", "x\\"}), Optional(HasSubstr("a backslash must be followed")));
  EXPECT_THAT(problem_of({"a", "\\n"}), Optional(HasSubstr("a backslash must be followed")));
  const CheckpointError error = error_of([] { renamed({{"[", "x"}}, "key"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("cannot rename keys from '[' to 'x'"));
}

TEST(Rename, PatternsAndKeysHaveLimits) {
  EXPECT_EQ(problem_of({std::string(kMaxRenamePattern, 'a'), ""}), std::nullopt);
  EXPECT_NE(problem_of({std::string(kMaxRenamePattern + 1, 'a'), ""}), std::nullopt);
  EXPECT_NE(problem_of({"a", std::string(kMaxRenamePattern + 1, 'a')}), std::nullopt);
  EXPECT_EQ(renamed({{"^(.*)$", "\\1"}}, std::string(kMaxRenamedKey, 'k')).size(), kMaxRenamedKey);
  EXPECT_EQ(error_of([] {
              renamed({{"^(.*)$", "\\1"}}, std::string(kMaxRenamedKey + 1, 'k'));
            }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(error_of([] {
              renamed({{"k", "kk"}}, std::string(kMaxRenamedKey, 'k'));
            }).code(),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace dckpt::rename_test
