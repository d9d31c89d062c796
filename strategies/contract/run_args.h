#pragma once

#include <cstdint>
#include <optional>

#include "mapping/state/value.h"

namespace dckpt {

/// The args of a run in a common state, whether stored as a dict or as a Namespace; null if there
/// are none.
const Value* run_args(const Value& common);
/// One of them, if it is an integer. Null `args`: none is.
std::optional<std::int64_t> run_arg(const Value* args, const char* name);

}  // namespace dckpt
