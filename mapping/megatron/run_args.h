#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/geometry/dtype.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Returns the args of a run in a common state, stored as a dict or as a Namespace; null if there
/// are none.
const Value* run_args(const Value& common);
/// Does the same for the stored args alone; null if they are neither.
const Value* as_run_args(const Value* stored);
/// Returns an arg if it is an integer; nothing for null `args`.
std::optional<std::int64_t> run_arg(const Value* args, const char* name);
/// Returns an arg if it is true or false.
std::optional<bool> run_flag(const Value* args, const char* name);
/// Returns whether a flag is set; false for null `args`.
bool is_flag_set(const Value* args, const char* name);
/// Returns the args that give pipeline stages different numbers of layers, if any do.
std::vector<std::string> uneven_stages(const Value* args);
/// Returns the dtype in which the run computes; float32 if the args do not say.
DType compute_dtype(const Value* args);

}  // namespace dckpt
