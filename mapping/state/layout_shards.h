#pragma once

#include <string>
#include <vector>

#include "mapping/geometry/layout.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {

/// What a rank holds of a tensor that lies on a mesh (torch: a DTensor of FSDP2, HSDP or tensor
/// parallelism): one ShardedTensor per piece, whose data are views into `local`. Usually one;
/// several where a StridedShard leaves pieces apart; none on a rank outside the mesh, whose `local`
/// is not looked at. Several go into a dict of the state dict under names of their own (a list
/// would need the same length on all ranks). The replica id is LocalPart::replica, so that each
/// piece is main on exactly one rank of the mesh. Throws CheckpointError (invalid argument) if the
/// layout does not fit the tensor (see local_part) or `local` has another shape than it gives.
std::vector<ShardedTensor> sharded_tensors_from_layout(const std::string& key, const Tensor& local,
                                                       ShapeView global_shape,
                                                       const MeshLayout& layout, int rank);

}  // namespace dckpt
