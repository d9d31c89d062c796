#include "mapping/base/error.h"

#include <gtest/gtest.h>

#include <exception>

#include "tests/support/expect_error.h"

namespace dckpt::error_test {
namespace {

TEST(CheckpointError, SaysWhereAfterWhat) {
  const CheckpointError error(ErrorCode::kCorrupt, "the zip record is cut off",
                              {.key = "a.b", .file = "__0_0.distcp", .offset = 4096, .rank = 3});
  EXPECT_STREQ(error.what(),
               "the zip record is cut off [key 'a.b', file '__0_0.distcp', offset 4096, rank 3]");
  EXPECT_EQ(error.message(), "the zip record is cut off");
}

TEST(CheckpointError, WhatTheMessageNamesIsNotRepeated) {
  const CheckpointError error(ErrorCode::kIo, "'run' does not exist", {.key = "a", .file = "run"});
  EXPECT_STREQ(error.what(), "'run' does not exist [key 'a']");
  EXPECT_EQ(error.context().file, "run");
}

TEST(CheckpointError, EscapesNamesFromOutside) {
  const CheckpointError error(ErrorCode::kIo, "no", {.file = "a\x1b[2J\n"});
  EXPECT_STREQ(error.what(), "no [file 'a\\x1b[2J\\n']");
}

TEST(CheckpointError, OuterContextFillsOnlyTheGaps) {
  const auto body = [] {
    with_context({.key = "outer", .rank = 1},
                 [] { throw CheckpointError(ErrorCode::kMismatch, "no", {.key = "inner"}); });
  };
  const CheckpointError error = testing::error_of(body);
  EXPECT_EQ(error.context().key, "inner");
  EXPECT_EQ(error.context().rank, 1);
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
}

TEST(CheckpointError, SaysWhetherTheSameCallMaySucceedLater) {
  const auto retryable = [](ErrorCode code) { return CheckpointError(code, "no").retryable(); };
  EXPECT_TRUE(retryable(ErrorCode::kAborted));
  EXPECT_TRUE(retryable(ErrorCode::kUnavailable));
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kAlreadyExists, ErrorCode::kCancelled,
                               ErrorCode::kInternal, ErrorCode::kInvalidArgument})
    EXPECT_FALSE(retryable(code)) << to_string(code);
}

TEST(CheckpointError, CodesHaveNames) {
  EXPECT_STREQ(to_string(ErrorCode::kAlreadyExists), "already-exists");
  EXPECT_STREQ(to_string(ErrorCode::kAborted), "aborted");
  EXPECT_STREQ(to_string(ErrorCode::kUnavailable), "unavailable");
  EXPECT_STREQ(to_string(ErrorCode::kInternal), "internal");
}

TEST(CheckpointError, KeepsItsCauseWhenContextIsAdded) {
  const CheckpointError error(ErrorCode::kIo, "no", {}, std::make_exception_ptr(7));
  EXPECT_EQ(error.with({.key = "w"}).cause(), error.cause());
  EXPECT_EQ(CheckpointError(ErrorCode::kIo, "no").cause(), nullptr);
}

TEST(CheckpointError, ContextPassesResultsThrough) {
  int number = 7;
  int& same = with_context({}, [&]() -> int& { return number; });
  EXPECT_EQ(&same, &number);
}

}  // namespace
}  // namespace dckpt::error_test
