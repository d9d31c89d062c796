#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt {

/// The pickle of a `.metadata` file without the keys that `removed` names. Everything else stays as
/// it was, also attributes that this library has no use for: DCP's planner_data, Megatron's
/// mcore_data and all_local_plans lose the entries of these keys only. (Plans in a form that is not
/// understood go as a whole: a plan that still names a removed key would make Megatron reuse
/// metadata that lack it.) `pickle` must be one that read_dcp_metadata accepts. Throws
/// CheckpointError naming `file_name`.
Bytes without_keys(ByteView pickle, const std::function<bool(std::string_view key)>& removed,
                   const std::string& file_name = ".metadata");

}  // namespace dckpt
