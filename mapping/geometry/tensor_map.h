#pragma once

#include <cstdint>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/layout.h"

namespace DCKPT_API dckpt {

/// HyperParallel's description of the distribution of a tensor over a mesh: the mesh axes that cut
/// each tensor dim.
struct TensorMapLayout {
  Shape mesh_shape;
  /// The mesh axes that cut each tensor dim, counted from the right (0 = the last mesh dimension),
  /// the major one first. Empty or {-1}: not cut.
  std::vector<std::vector<std::int64_t>> tensor_map;
  std::vector<int> rank_list;  ///< global ranks on the mesh, row-major
};

/// Returns the same layout in torch's terms. Throws CheckpointError (invalid argument) if a field
/// is missing (empty), if tensor_map does not have an entry for each tensor dim or names an axis
/// that does not exist or is used twice, or if an extent does not divide into equal parts. A rank
/// that is not in rank_list is not an error: it holds nothing.
MeshLayout to_mesh_layout(const TensorMapLayout& layout, ShapeView global_shape);

}  // namespace dckpt
