#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"

namespace DCKPT_API dckpt {

/// A place in a text: line and column count from 1, columns in bytes. Zero: nowhere in particular.
struct TextPlace {
  int line = 0;
  int column = 0;
};

/// One thing that is wrong with a configuration file.
struct ConfigProblem {
  TextPlace place{};
  std::string message{};
  /// Or kUnsupported: sound, but this version cannot do it.
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string file{};  ///< that it is in, if not the one that is being checked
};

using ConfigProblems = std::vector<ConfigProblem>;

/// "production.yaml:4:11: save.io.threads: found 'many', …"
std::string to_string(const ConfigProblem& problem, const std::string& file);

/// Everything that is wrong in one CheckpointError, in the order of the text: unsupported if that
/// is all, else invalid-argument. Nothing if there is no problem.
void raise_if_any(ConfigProblems problems, const std::string& file);

/// Orders problems as they stand in the text.
void sort_by_place(ConfigProblems& problems);

}  // namespace dckpt
