#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"

namespace DCKPT_API dckpt {

/// A place in a text: line and column count from 1, columns in bytes. Zero: no particular place.
struct TextPlace {
  int line = 0;
  int column = 0;
};

/// One problem of a configuration file.
struct ConfigProblem {
  TextPlace place{};
  std::string message{};
  /// kUnsupported for values that are sound but that this version cannot handle.
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string file{};  ///< the file of the problem, if not the one being checked
};

using ConfigProblems = std::vector<ConfigProblem>;

/// Returns "production.yaml:4:11: save.io.threads: found 'many', …".
std::string to_string(const ConfigProblem& problem, const std::string& file);

/// Throws all problems in one CheckpointError, in the order of the text: unsupported if all are,
/// else invalid-argument. Does nothing if there is no problem.
void raise_if_any(ConfigProblems problems, const std::string& file);

/// Sorts problems by their place in the text.
void sort_by_place(ConfigProblems& problems);

}  // namespace dckpt
