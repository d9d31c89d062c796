#pragma once

#include <string>

#include "mapping/base/error.h"

namespace dckpt {

/// Rethrows the exception being handled as `who`'s: see run_foreign().
[[noreturn]] void throw_as_foreign(const std::string& who, const ErrorContext& context);

/// Runs code that the program has passed in: a step of a planner, or a hook. Whatever it throws
/// becomes a CheckpointError that begins with `who` ("planner 'x'", "SaveHooks::accept") and has
/// the fields of `context` that it lacks.
template <typename Code>
auto run_foreign(const std::string& who, const ErrorContext& context, Code&& code) {
  try {
    return code();
  } catch (...) {
    throw_as_foreign(who, context);
  }
}

/// Returns "planner 'x'"; empty for a built-in planner, which has no name.
std::string planner_text(const std::string& name);

}  // namespace dckpt
