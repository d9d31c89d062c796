#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt {

/// Returns the pickle of a `.metadata` file without the keys for which `removed` returns true.
/// Everything else stays as it was, also attributes that this library does not use: DCP's
/// planner_data, Megatron's mcore_data and all_local_plans lose only the entries of these keys.
/// (Plans in an unknown form are removed as a whole: a plan that still names a removed key would
/// make Megatron reuse metadata that lack it.) `pickle` must be one that read_dcp_metadata accepts.
/// Throws CheckpointError naming `file_name`.
Bytes without_keys(ByteView pickle, const std::function<bool(std::string_view key)>& removed,
                   const std::string& file_name = ".metadata");

}  // namespace dckpt
