#pragma once

#include <cstddef>
#include <optional>

#include "mapping/geometry/box.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// The places of elements of a tensor, in its global shape, among the row-major elements of one
/// stored chunk. Borrows the tensor.
class ChunkGeometry {
 public:
  /// Throws CheckpointError (corrupt) for reformulated metadata that contradict themselves.
  ChunkGeometry(const TensorStorageMetadata& tensor, std::size_t chunk);

  /// Returns nothing unless the chunk holds all of the box, which must have elements. A box that
  /// spans several pieces of a reformulated tensor is not found.
  std::optional<StridedView> find(const Box& box) const;

 private:
  std::optional<StridedView> find_reformulated(const Box& box) const;

  const TensorStorageMetadata& tensor_;
  Box chunk_;      ///< in the stored size
  Shape strides_;  ///< strides of the chunk; for a reformulated tensor, of one piece
  Shape cell_;     ///< the shape of a piece of a reformulated tensor
};

/// Returns the size that all chunks of an ordinary tensor have, if they form a grid without smaller
/// ones at its ends. Empty otherwise, also for tensors without elements or chunks.
std::optional<Shape> regular_chunk(const TensorStorageMetadata& tensor);

}  // namespace dckpt
