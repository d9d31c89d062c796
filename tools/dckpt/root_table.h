#pragma once

#include <string>

#include "dist_checkpointing/inspect/root_survey.h"

namespace dckpt::tool {

/// The checkpoints of a training root as a table and, from three on, along time. `all`: otherwise
/// those that the survey did not examine share a row.
void print_root(const RootSurvey& survey, const std::string& root, bool all);

}  // namespace dckpt::tool
