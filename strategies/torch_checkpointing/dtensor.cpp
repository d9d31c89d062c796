#include "strategies/torch_checkpointing/dtensor.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

bool is_named(const Value& value, std::string_view module, std::string_view name) {
  return value.is(Value::Kind::kGlobal) && value.as_global().module == module &&
         value.as_global().name == name;
}

/// Returns an attribute of an object that has a dict of them; null if there is none.
const Value* attribute(const Value& object, const char* name) {
  if (!object.is(Value::Kind::kOpaque) || object.as_opaque().states.size() != 1) return nullptr;
  return object.as_opaque().states.front().find(name);
}

std::optional<Shape> integers(const Value* value) {
  if (value == nullptr) return std::nullopt;
  // torch.Size pickles as a call of the class with a tuple.
  if (value->is(Value::Kind::kOpaque)) {
    const Opaque& object = value->as_opaque();
    if (object.class_path() != "torch.Size" || !object.args.is_sequence() ||
        object.args.size() != 1)
      return std::nullopt;
    return integers(&object.args.items().front());
  }
  if (!value->is_sequence()) return std::nullopt;
  Shape numbers;
  for (const Value& item : value->items()) {
    if (!item.is_int()) return std::nullopt;
    numbers.push_back(item.as_int());
  }
  return numbers;
}

struct Axes {
  Shape shape;
  Shape strides;
};

/// Returns the grid of a mesh in the list of ranks: {shape, stride}, or from torch 2.15 on one such
/// layout per axis.
std::optional<Axes> axes_of(const Value* layout) {
  if (layout == nullptr) return std::nullopt;
  const auto flat = [](const Value& of) -> std::optional<Axes> {
    const auto shape = integers(attribute(of, "shape"));
    const auto strides = integers(attribute(of, "stride"));
    if (!shape || !strides || shape->size() != strides->size()) return std::nullopt;
    return Axes{*shape, *strides};
  };
  const Value* const axes = attribute(*layout, "axes");
  if (axes == nullptr) return flat(*layout);
  if (!axes->is_sequence()) return std::nullopt;
  Axes all;
  for (const Value& axis : axes->items()) {
    const auto one = flat(axis);
    if (!one || one->shape.size() != 1) return std::nullopt;
    all.shape.push_back(one->shape.front());
    all.strides.push_back(one->strides.front());
  }
  return all;
}

/// Returns the ranks of the mesh, row-major: every `strides`-th of the list, beginning so that the
/// pickling rank is at its coordinates.
std::optional<DeviceMesh> mesh_of(const Value& mesh) {
  const auto axes = axes_of(attribute(mesh, "_layout"));
  const auto listed = integers(attribute(mesh, "_flatten_rank_map"));
  const auto coordinates = integers(attribute(mesh, "_coordinate_on_dim"));
  const Value* const rank = attribute(mesh, "_rank");
  if (!axes || !listed || !coordinates || rank == nullptr || !rank->is_int() ||
      coordinates->size() != axes->shape.size() || axes->shape.size() > kMaxDims)
    return std::nullopt;
  const auto size = checked_numel(axes->shape);
  const auto count = static_cast<std::int64_t>(listed->size());
  if (!size || *size < 1 || *size > count) return std::nullopt;
  const auto own = std::ranges::find(*listed, rank->as_int());
  if (own == listed->end()) return std::nullopt;
  // Anything outside the list is refused, so that sums of such products stay small.
  std::int64_t first = own - listed->begin();
  for (std::size_t axis = 0; axis < axes->shape.size(); ++axis) {
    const std::int64_t stride = axes->strides[axis];
    const std::int64_t at = (*coordinates)[axis];
    if (axes->shape[axis] < 1 || stride < 0 || stride > count || at < 0 || at >= axes->shape[axis])
      return std::nullopt;
    first -= at * stride;
  }
  std::vector<int> ranks;
  Shape position(axes->shape.size(), 0);
  for (std::int64_t i = 0; i < *size; ++i) {
    std::int64_t index = first;
    for (std::size_t axis = 0; axis < position.size(); ++axis)
      index += position[axis] * axes->strides[axis];
    if (index < 0 || index >= count) return std::nullopt;
    const std::int64_t number = (*listed)[static_cast<std::size_t>(index)];
    if (number < 0 || number > INT32_MAX) return std::nullopt;
    ranks.push_back(static_cast<int>(number));
    for (std::size_t axis = position.size(); axis-- > 0;) {
      if (++position[axis] < axes->shape[axis]) break;
      position[axis] = 0;
    }
  }
  return DeviceMesh(axes->shape, std::move(ranks));
}

std::optional<Placement> placement_of(const Value& value) {
  if (!value.is(Value::Kind::kOpaque)) return std::nullopt;
  const std::string path = value.as_opaque().class_path();
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto number = [&](const char* field) -> std::optional<std::int64_t> {
    const Value* const found = attribute(value, field);
    if (found == nullptr || !found->is_int()) return std::nullopt;
    return found->as_int();
  };
  if (name == "Replicate") return Replicate{};
  const auto dim = number("dim");
  if (name == "Shard" && dim) return Shard{*dim};
  const auto factor = number("split_factor");
  if (name == "_StridedShard" && dim && factor) return StridedShard{*dim, *factor};
  return std::nullopt;
}

std::optional<MeshLayout> layout_of(const Value& spec) {
  const Value* const mesh = attribute(spec, "mesh");
  const Value* const placements = attribute(spec, "placements");
  if (mesh == nullptr || placements == nullptr || !placements->is_sequence()) return std::nullopt;
  std::optional<DeviceMesh> found = mesh_of(*mesh);
  if (!found) return std::nullopt;
  MeshLayout layout{.mesh = *std::move(found), .placements = {}};
  for (const Value& item : placements->items()) {
    const auto placement = placement_of(item);
    if (!placement) return std::nullopt;
    layout.placements.push_back(*placement);
  }
  return layout;
}

}  // namespace

std::optional<PickledDTensor> dtensor_of(const Value& value) {
  if (!value.is(Value::Kind::kOpaque)) return std::nullopt;
  const Opaque& call = value.as_opaque();
  if (call.class_path() != "torch._tensor._rebuild_from_type_v2" || !call.args.is_sequence() ||
      call.args.size() != 4)
    return std::nullopt;
  const ValueList& args = call.args.items();
  const bool is_dtensor = is_named(args[0], "torch._utils", "_rebuild_wrapper_subclass") &&
                          args[1].is(Value::Kind::kGlobal) &&
                          args[1].as_global().name == "DTensor" &&
                          args[1].as_global().module.starts_with("torch.distributed.");
  if (!is_dtensor) return std::nullopt;
  const auto fail = [](const char* what) -> CheckpointError {
    return {ErrorCode::kCorrupt, std::string("a DTensor ") + what};
  };
  // (class, dtype, shape, stride, …) and (None, attributes)
  if (!args[2].is_sequence() || args[2].size() < 3) throw fail("lacks its dtype and shape");
  const Value* state = &args[3];
  if (state->is_sequence() && state->size() == 2) state = &state->items()[1];
  const Value* const stored = state->find("_local_tensor");
  const std::optional<Tensor> local = stored == nullptr ? std::nullopt : tensor_of(*stored);
  const auto shape = integers(&args[2].items()[2]);
  if (!local || !shape) throw fail("lacks its local tensor or its shape");
  PickledDTensor dtensor{.local = *local, .dtype = local->dtype(), .global_shape = *shape};
  if (const Value* const spec = state->find("_spec")) dtensor.layout = layout_of(*spec);
  return dtensor;
}

}  // namespace dckpt
