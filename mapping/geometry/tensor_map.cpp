#include "mapping/geometry/tensor_map.h"

#include <string>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

void check_fields(const TensorMapLayout& layout, ShapeView global_shape) {
  const auto missing = [](const char* field) {
    throw_error(ErrorCode::kInvalidArgument,
                "the layout has no {}; it needs mesh_shape, tensor_map and rank_list", field);
  };
  if (layout.mesh_shape.empty()) missing("mesh_shape");
  if (layout.rank_list.empty()) missing("rank_list");
  if (layout.tensor_map.empty() && !global_shape.empty()) missing("tensor_map");
  if (layout.tensor_map.size() != global_shape.size()) {
    throw_error(ErrorCode::kInvalidArgument,
                "tensor_map has {} for a tensor of shape {}; it needs one per tensor dim",
                counted(layout.tensor_map.size(), "entry", "entries"), to_string(global_shape));
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
    const std::string where = str_format(" of tensor dim {} in tensor_map", tensor_dim);
    std::int64_t parts = 1;
    for (const std::int64_t axis : axes) {
      if (axis < 0 || axis >= dims) {
        throw_error(ErrorCode::kInvalidArgument,
                    "mesh axis {}{} does not exist: a {} mesh has axes 0 to {}", axis, where,
                    to_string(ShapeView(layout.mesh_shape)), dims - 1);
      }
      const auto mesh_dim = static_cast<std::size_t>(dims - 1 - axis);
      if (used[mesh_dim])
        throw_error(ErrorCode::kInvalidArgument,
                    "mesh axis {}{} is used twice; it can cut a tensor only once", axis, where);
      used[mesh_dim] = true;
      result.placements[mesh_dim] = Shard{static_cast<std::int64_t>(tensor_dim)};
      result.order.push_back(mesh_dim);
      parts *= layout.mesh_shape[mesh_dim];  // at most the number of ranks on the mesh
    }
    if (global_shape[tensor_dim] % parts != 0) {
      throw_error(ErrorCode::kInvalidArgument, "extent {}{} does not divide into {} equal parts",
                  global_shape[tensor_dim], where, parts);
    }
  }
  for (std::size_t mesh_dim = 0; mesh_dim < used.size(); ++mesh_dim) {
    if (!used[mesh_dim]) result.order.push_back(mesh_dim);
  }
  return result;
}

}  // namespace dckpt
