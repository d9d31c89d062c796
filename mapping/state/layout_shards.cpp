#include "mapping/state/layout_shards.h"

#include <algorithm>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

void check_shape(const Tensor& local, const LocalPart& part, ShapeView global_shape,
                 const MeshLayout& layout) {
  if (local.shape() == part.shape) return;
  std::string message = str_format("the local tensor has shape {}, but {} gives this rank {} of {}",
                                   to_string(local.shape()), to_string(layout),
                                   to_string(part.shape), to_string(global_shape));
  if (std::any_of(layout.placements.begin(), layout.placements.end(),
                  [](const Placement& p) { return std::holds_alternative<StridedShard>(p); })) {
    message +=
        ". FSDP2 over tensor parallelism cuts by the tensor-parallel dimension first: where "
        "extents do not divide, describe it with Shard instead of "
        "StridedShard and with MeshLayout::order";
  }
  throw_error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

std::vector<ShardedTensor> sharded_tensors_from_layout(const std::string& key, const Tensor& local,
                                                       ShapeView global_shape,
                                                       const MeshLayout& layout, int rank) {
  return with_context({.key = key, .rank = rank}, [&] {
    std::vector<ShardedTensor> shards;
    const auto part = local_part(layout, global_shape, rank);
    if (!part) return shards;
    check_shape(local, *part, global_shape, layout);
    shards.reserve(part->pieces.size());
    for (const LocalPiece& piece : part->pieces) {
      Tensor view = local;
      for (std::size_t axis = 0; axis < view.dim(); ++axis)
        view = view.narrow(axis, piece.local_offsets[axis], piece.box.sizes[axis]);
      shards.push_back(ShardedTensor::from_box(key, std::move(view), Shape(global_shape),
                                               piece.box.offsets, {.replica_id = part->replica}));
    }
    return shards;
  });
}

std::vector<ShardedTensor> sharded_tensors_from_tensor_map(const std::string& key,
                                                           const Tensor& local,
                                                           ShapeView global_shape,
                                                           const TensorMapLayout& layout,
                                                           int rank) {
  return with_context({.key = key, .rank = rank}, [&] {
    const MeshLayout mesh_layout = to_mesh_layout(layout, global_shape);
    if (!mesh_layout.mesh.coordinate_of(rank)) {
      throw_error(ErrorCode::kInvalidArgument,
                  "rank " + std::to_string(rank) +
                      " holds the tensor, but is not in the rank_list of its layout, "
                      "which names " +
                      std::to_string(layout.rank_list.size()) +
                      " ranks; add the rank, or save the tensor on those ranks only");
    }
    return sharded_tensors_from_layout(key, local, global_shape, mesh_layout, rank);
  });
}

}  // namespace dckpt
