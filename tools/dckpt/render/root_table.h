#pragma once

#include <string>

#include "operations/inspect/root_survey.h"

namespace dckpt::tool {

/// Number of lines of a kind (damaged checkpoints, leftovers, steps) that a report of a training
/// root shows if it does not show all.
inline constexpr std::size_t kShownLines = 20;

/// Prints the checkpoints of a training root as a table and, for three or more, along a time line.
/// Unless `all`, consecutive older checkpoints share a row, apart from the first kShownLines that
/// are not complete.
void print_root(const RootSurvey& survey, const std::string& root, bool all);

}  // namespace dckpt::tool
