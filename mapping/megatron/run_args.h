#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/geometry/dtype.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The args of a run in a common state, whether stored as a dict or as a Namespace; null if there
/// are none.
const Value* run_args(const Value& common);
/// The same of the stored args alone; null if they are neither.
const Value* as_run_args(const Value* stored);
/// One of them, if it is an integer. Null `args`: none is.
std::optional<std::int64_t> run_arg(const Value* args, const char* name);
/// One of them, if it is true or false.
std::optional<bool> run_flag(const Value* args, const char* name);
/// Whether one of them is set. Null `args`: none is.
bool is_flag_set(const Value* args, const char* name);
/// Those that give pipeline stages different numbers of layers, if any do.
std::vector<std::string> uneven_stages(const Value* args);
/// The dtype in which the run computes; float32 if they do not say.
DType compute_dtype(const Value* args);

}  // namespace dckpt
