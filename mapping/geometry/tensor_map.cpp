#include "mapping/geometry/tensor_map.h"

#include <string>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw CheckpointError(ErrorCode::kInvalidArgument, message);
}

void check_fields(const TensorMapLayout& layout, ShapeView global_shape) {
  const auto missing = [](const char* field) {
    refuse(std::string("the layout has no ") + field +
           "; it needs mesh_shape, tensor_map and rank_list");
  };
  if (layout.mesh_shape.empty()) missing("mesh_shape");
  if (layout.rank_list.empty()) missing("rank_list");
  if (layout.tensor_map.empty() && !global_shape.empty()) missing("tensor_map");
  if (layout.tensor_map.size() != global_shape.size()) {
    refuse("tensor_map has " + std::to_string(layout.tensor_map.size()) +
           " entries for a tensor of shape " + to_string(global_shape) +
           "; it needs one per tensor dim");
  }
}

bool is_uncut(const std::vector<std::int64_t>& axes) {
  return axes.empty() || (axes.size() == 1 && axes[0] == -1);
}

}  // namespace

MeshLayout to_mesh_layout(const TensorMapLayout& layout, ShapeView global_shape) {
  check_fields(layout, global_shape);
  MeshLayout result{DeviceMesh(layout.mesh_shape, layout.rank_list),
                    std::vector<Placement>(layout.mesh_shape.size()),
                    {}};
  const auto dims = static_cast<std::int64_t>(layout.mesh_shape.size());
  std::vector<bool> used(layout.mesh_shape.size(), false);
  for (std::size_t tensor_dim = 0; tensor_dim < global_shape.size(); ++tensor_dim) {
    const std::vector<std::int64_t>& axes = layout.tensor_map[tensor_dim];
    if (is_uncut(axes)) continue;
    const std::string where = " of tensor dim " + std::to_string(tensor_dim) + " in tensor_map";
    std::int64_t parts = 1;
    for (const std::int64_t axis : axes) {
      if (axis < 0 || axis >= dims) {
        refuse("mesh axis " + std::to_string(axis) + where + " does not exist: a " +
               to_string(ShapeView(layout.mesh_shape)) + " mesh has axes 0 to " +
               std::to_string(dims - 1));
      }
      const auto mesh_dim = static_cast<std::size_t>(dims - 1 - axis);
      if (used[mesh_dim])
        refuse("mesh axis " + std::to_string(axis) + where +
               " is used twice; it can cut a tensor only once");
      used[mesh_dim] = true;
      result.placements[mesh_dim] = Shard{static_cast<std::int64_t>(tensor_dim)};
      result.order.push_back(mesh_dim);
      parts *= layout.mesh_shape[mesh_dim];  // at most the number of ranks on the mesh
    }
    if (global_shape[tensor_dim] % parts != 0) {
      refuse("extent " + std::to_string(global_shape[tensor_dim]) + where +
             " does not divide into " + std::to_string(parts) + " equal parts");
    }
  }
  for (std::size_t mesh_dim = 0; mesh_dim < used.size(); ++mesh_dim) {
    if (!used[mesh_dim]) result.order.push_back(mesh_dim);
  }
  return result;
}

}  // namespace dckpt
