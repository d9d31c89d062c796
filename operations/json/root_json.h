#pragma once

#include <cstdint>
#include <string>

#include "mapping/state/value.h"
#include "operations/inspect/root_survey.h"

namespace dckpt {

/// Returns {"directory", "why", "passed_over"}.
Value to_value(const LatestChoice& choice);

/// Returns {"name", "iteration", "purpose", "state", "saved"}.
Value to_value(const UnfinishedWork& work);

/// Adds "resume", "iterations" and "unfinished" to the JSON of a checkpoint; see to_json().
void add_survey(Value& json, const RootSurvey& survey, bool with_retention);

/// Returns "2026-11-25T01:42:07Z", or none for 0. `since_1970` is in nanoseconds.
Value utc_time(std::int64_t since_1970);

}  // namespace dckpt
