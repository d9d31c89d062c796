#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/layout.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/sharded_tensor.h"

namespace DCKPT_API dckpt {

/// Describes the part of a tensor on a device mesh that a rank holds (torch: a DTensor of FSDP2,
/// HSDP or tensor parallelism): one ShardedTensor per piece, whose data is a view into `local`.
/// There is usually one piece, several if a StridedShard leaves separate pieces, and none on a rank
/// outside the mesh, whose `local` is ignored. Put several into a dict of the state dict under
/// different names (a list would need the same length on all ranks). The replica id is
/// LocalPart::replica, so that each piece is main on exactly one rank of the mesh. Throws
/// CheckpointError (invalid argument) if the layout does not fit the tensor (see local_part) or
/// `local` does not have the resulting shape.
std::vector<ShardedTensor> sharded_tensors_from_layout(const std::string& key, const Tensor& local,
                                                       ShapeView global_shape,
                                                       const MeshLayout& layout, int rank);

/// Does the same for saving as HyperParallel's planner does: also throws CheckpointError (invalid
/// argument) on a rank that is not in `rank_list`. For loading, where such a rank requests nothing,
/// use to_mesh_layout() and the function above.
std::vector<ShardedTensor> sharded_tensors_from_tensor_map(const std::string& key,
                                                           const Tensor& local,
                                                           ShapeView global_shape,
                                                           const TensorMapLayout& layout, int rank);

}  // namespace dckpt
