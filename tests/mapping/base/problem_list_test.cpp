#include "mapping/base/problem_list.h"

#include <gtest/gtest.h>

namespace dckpt::problem_list_test {
namespace {

std::string message_of(const ProblemList& problems) {
  try {
    problems.raise_if_any(ErrorCode::kMismatch, "it does not fit:");
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.message();
  }
  return "no error";
}

TEST(ProblemList, IsNoErrorWhenEmpty) {
  EXPECT_TRUE(ProblemList().empty());
  EXPECT_EQ(message_of({}), "no error");
}

TEST(ProblemList, HasALinePerProblem) {
  ProblemList problems;
  problems.add("one");
  problems.add("two");
  EXPECT_EQ(message_of(problems), "it does not fit:\n  one\n  two");
}

TEST(ProblemList, CountsWhatItDoesNotShow) {
  ProblemList problems;
  for (std::size_t i = 0; i < ProblemList::kShown; ++i) problems.add("line");
  EXPECT_EQ(message_of(problems).find("more"), std::string::npos);
  for (int i = 0; i < 1234; ++i) problems.add("line");
  EXPECT_TRUE(message_of(problems).ends_with("\n  … and 1,234 more"));
}

}  // namespace
}  // namespace dckpt::problem_list_test
