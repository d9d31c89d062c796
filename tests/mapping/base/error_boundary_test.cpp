#include "mapping/base/error_boundary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "tests/support/expect_error.h"

namespace dckpt::error_boundary_test {
namespace {

using ::testing::HasSubstr;

template <typename Exception>
CheckpointError leaving(const Exception& exception) {
  return testing::error_of([&] {
    try {
      throw exception;
    } catch (...) {
      throw_checkpoint_error();
    }
  });
}

TEST(ErrorBoundary, CheckpointErrorsPassUnchanged) {
  const CheckpointError error =
      leaving(CheckpointError(ErrorCode::kMismatch, "no such key", {.key = "w", .rank = 3}));
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(error.context().key, "w");
  EXPECT_EQ(error.context().rank, 3);
}

TEST(ErrorBoundary, EverythingElseBecomesOne) {
  EXPECT_EQ(leaving(std::bad_alloc()).message(), "out of memory");
  EXPECT_THAT(
      leaving(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)))
          .message(),
      HasSubstr("the system refused"));
  const auto refused = std::filesystem::filesystem_error(
      "status", "/a/b", std::make_error_code(std::errc::permission_denied));
  EXPECT_THAT(leaving(refused).message(), HasSubstr("/a/b"));
  EXPECT_THAT(leaving(std::logic_error("of a callback")).message(), HasSubstr("of a callback"));
  EXPECT_THAT(leaving(7).message(), HasSubstr("unknown type"));
}

TEST(ErrorBoundary, WhatTheSystemRefusesIsIoAndWhatNobodyExpectsIsInternal) {
  EXPECT_EQ(leaving(std::bad_alloc()).code(), ErrorCode::kIo);
  EXPECT_EQ(leaving(std::system_error(std::make_error_code(std::errc::io_error))).code(),
            ErrorCode::kIo);
  EXPECT_EQ(leaving(std::logic_error("of a callback")).code(), ErrorCode::kInternal);
  EXPECT_EQ(leaving(7).code(), ErrorCode::kInternal);
}

TEST(ErrorBoundary, TheCauseIsTheExceptionItself) {
  EXPECT_THROW(std::rethrow_exception(leaving(std::logic_error("of a callback")).cause()),
               std::logic_error);
  EXPECT_EQ(leaving(CheckpointError(ErrorCode::kMismatch, "no such key")).cause(), nullptr);
}

}  // namespace
}  // namespace dckpt::error_boundary_test
