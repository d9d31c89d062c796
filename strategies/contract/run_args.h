#pragma once

#include <cstdint>
#include <optional>

#include "mapping/geometry/dtype.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The args of a run in a common state, whether stored as a dict or as a Namespace; null if there
/// are none.
const Value* run_args(const Value& common);
/// One of them, if it is an integer. Null `args`: none is.
std::optional<std::int64_t> run_arg(const Value* args, const char* name);
/// One of them, if it is true or false.
std::optional<bool> run_flag(const Value* args, const char* name);
/// The dtype in which the run computes; float32 if they do not say.
DType compute_dtype(const Value* args);

}  // namespace dckpt
