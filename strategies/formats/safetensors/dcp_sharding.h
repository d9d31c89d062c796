#pragma once

#include <map>
#include <optional>
#include <string>

#include "mapping/geometry/shape.h"

namespace dckpt {

/// The entry of `__metadata__` in which DCP's HuggingFaceStorageWriter says which part of a tensor
/// a file holds; only newer releases state the shape of the whole tensor:
///
///     {"w": {"saved_offsets": [5, 0], "global_shape": [9, 10]}, …}
inline constexpr const char* kDcpShardingInfo = "DCP_SHARDING_INFO";
inline constexpr const char* kDcpVersion = "DCP_VERSION";  ///< another entry, only in its files

/// The place of a part in its tensor.
struct DcpPart {
  Shape offsets;
  std::optional<Shape> global_shape{};

  friend bool operator==(const DcpPart&, const DcpPart&) = default;
};

/// Returns the places of the parts by key. `file` names the text in messages. Throws
/// CheckpointError (corrupt) for anything else.
std::map<std::string, DcpPart> parse_dcp_sharding(const std::string& json, const std::string& file);

}  // namespace dckpt
