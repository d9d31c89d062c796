#pragma once

#include <map>
#include <string>

#include "mapping/geometry/shape.h"

namespace dckpt {

/// The entry of `__metadata__` in which DCP's HuggingFaceStorageWriter says which part of a tensor
/// a file holds:
///
///     {"w": {"saved_offsets": [5, 0]}, …}
inline constexpr const char* kDcpShardingInfo = "DCP_SHARDING_INFO";
inline constexpr const char* kDcpVersion = "DCP_VERSION";  ///< another entry, only in its files

/// Returns where the parts begin in the global tensors, by key. `file` names the text in messages.
/// Throws CheckpointError (corrupt) for anything else.
std::map<std::string, Shape> parse_dcp_sharding(const std::string& json, const std::string& file);

}  // namespace dckpt
