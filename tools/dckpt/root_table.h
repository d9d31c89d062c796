#pragma once

#include <string>

#include "dist_checkpointing/inspect/root_survey.h"

namespace dckpt::tool {

/// Prints the checkpoints of a training root as a table and, for three or more, along a time line.
/// Unless `all`, the checkpoints that the survey did not examine share a row.
void print_root(const RootSurvey& survey, const std::string& root, bool all);

}  // namespace dckpt::tool
