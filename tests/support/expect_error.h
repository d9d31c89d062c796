#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt::testing {

/// Returns the CheckpointError that `body` throws. Fails the test if there is none.
template <typename Body>
CheckpointError error_of(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const CheckpointError& error) {
    return error;
  }
  ADD_FAILURE() << "no CheckpointError was thrown";
  return CheckpointError(ErrorCode::kUnsupported, "nothing was thrown");
}

}  // namespace dckpt::testing
