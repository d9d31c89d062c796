#include "configs/policy/separation_hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace dckpt::separation_hint_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(SeparationHint, MostTextsCanBeginAFileName) {
  for (const std::string& hint :
       std::vector<std::string>{"", "optimizer", "optimizer.state.", "größe", ".hidden",
                                "with blank", "..", std::string(kMaxSeparationHint, 'x')}) {
    EXPECT_EQ(problem_of_separation_hint(hint), std::nullopt) << hint;
    EXPECT_NO_THROW(check_separation_hint(hint));
  }
}

TEST(SeparationHint, WhatLeavesTheDirectoryOrIsNoTextIsRefused) {
  for (const std::string& hint :
       {std::string("a/b"), std::string("/"), std::string("a\\b"), std::string("a\nb"),
        std::string("a\0b", 3), std::string("\x7f")}) {
    EXPECT_THAT(problem_of_separation_hint(hint),
                Optional(HasSubstr("has a slash, a backslash or a control character")))
        << hint;
  }
  EXPECT_THAT(problem_of_separation_hint("\xff"), Optional(HasSubstr("'\\xff' is not UTF-8")));
  EXPECT_THAT(problem_of_separation_hint(std::string(kMaxSeparationHint + 1, 'x')),
              Optional(HasSubstr("has 201 bytes, more than the limit of 200")));
  EXPECT_EQ(testing::error_of([] { check_separation_hint("a/b"); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::separation_hint_test
