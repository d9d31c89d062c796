#pragma once

#include <optional>
#include <string_view>

#include "mapping/geometry/shape.h"

namespace dckpt {

/// The name of the file of one cell of a ShardedObject: `shard_<offset>_<shape>.pt`, numbers joined
/// by dots. Megatron before 0.8 lost the last number of the shape when there was more than one
/// axis: `shard_0.1_1.pt` instead of `shard_0.1_1.8.pt`; then `shape` is shorter than `offset`.
struct ZarrObjectName {
  Shape offset;
  Shape shape;
  bool is_truncated() const noexcept { return shape.size() < offset.size(); }
};

/// Returns empty if the name is not of that form, or its offset lies outside the shape as far as
/// that is known.
std::optional<ZarrObjectName> parse_zarr_object_name(std::string_view file_name);

}  // namespace dckpt
