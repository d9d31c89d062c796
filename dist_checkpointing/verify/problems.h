#pragma once

#include <vector>

#include "mapping/base/error.h"

namespace dckpt {

using Problems = std::vector<CheckpointError>;

/// Runs one check; a CheckpointError becomes a problem. Returns whether there was none.
template <typename Check>
bool attempt(Problems& problems, const ErrorContext& context, Check&& check) {
  try {
    check();
    return true;
  } catch (const CheckpointError& error) {
    problems.push_back(error.with(context));
    return false;
  }
}

}  // namespace dckpt
