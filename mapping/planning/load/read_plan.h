#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/metadata.h"

namespace DCKPT_API dckpt {

/// A part of one stored chunk that goes to one destination: a box of `sizes`, addressed by strides
/// on both sides. All offsets and strides count elements; the source is the chunk's row-major
/// elements, the destination the wanted tensor's.
struct ReadItem {
  std::uint32_t tensor = 0;       ///< position in Metadata::tensors
  std::uint32_t chunk = 0;        ///< position in its chunks
  std::uint32_t destination = 0;  ///< position in the list of destinations
  Shape sizes;
  StridedView source;
  StridedView target;
  Shape offsets;  ///< of the box in the global tensor
};

/// A wanted part of a stored tensor: a box in its global shape, or the row-major elements [begin,
/// end) of that box.
struct WantedShard {
  std::uint32_t tensor = 0;
  std::uint32_t destination = 0;
  Box box;
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::optional<Range> range{};
  /// Strides of the destination, one per axis of the box (or a single one for a range); empty: its
  /// elements are row-major without gaps.
  std::optional<Shape> strides{};
  /// The box may reach beyond the stored tensor; elements outside are not read. Otherwise they are
  /// an error.
  bool clip = false;
};

/// Returns the pairwise overlap of wanted shards and stored chunks, for any mix of boxes, flat
/// ranges and reformulated flattened chunks. Elements that no chunk holds are not in any item (the
/// metadata has been validated before, or the destination was zeroed). Throws CheckpointError
/// (corrupt) for reformulated metadata that contradict themselves.
std::vector<ReadItem> plan_reads(const Metadata& metadata, std::span<const WantedShard> wanted);

}  // namespace dckpt
