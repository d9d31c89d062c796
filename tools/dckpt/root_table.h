#pragma once

#include <string>

#include "dist_checkpointing/inspect/root_survey.h"
#include "mapping/state/value.h"

namespace dckpt::tool {

/// The checkpoints of a training root as a table and, from three on, along time. `all`: otherwise
/// those that the survey did not examine share a row.
void print_root(const RootSurvey& survey, const std::string& root, bool all);

/// [{"directory", "iteration", "saved", "bytes", "files", "state", "why", "resumed", "tracked",
/// "removed_by_policy"}]; the last is none without a policy.
Value iterations_json(const RootSurvey& survey, bool with_policy);
/// [{"name", "iteration", "purpose", "state", "saved"}]
Value unfinished_json(const RootSurvey& survey);

}  // namespace dckpt::tool
