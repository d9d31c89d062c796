#include "migration/optimizer/optimizer_form.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/chunk_geometry.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

constexpr std::int64_t kMaxCells = std::int64_t{1} << 24;  // of one tensor

/// Returns the number of leading axes that Megatron's local tensors lack, each index a cell of its
/// own: those of stacked layers, and of experts.
std::size_t prepended_axes(std::string_view key) {
  return (has_layer_axis(key) ? 1U : 0U) + (key.find(".experts.") != key.npos ? 1U : 0U);
}

/// Returns the tensor cut into cells of shape `cell`, each one fragment; bytes come from wherever
/// the source has them.
TensorStorageMetadata reformulated(const TensorStorageMetadata& tensor, const Shape& cell) {
  TensorStorageMetadata out = tensor;
  Shape grid = tensor.size;
  for (std::size_t axis = 0; axis < grid.size(); ++axis) grid[axis] /= cell[axis];
  if (numel(grid) > kMaxCells) {
    throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                "the tensor would be cut into {} cells",
                grouped(static_cast<std::uint64_t>(numel(grid))));
  }
  out.flattened_shape = tensor.size;
  out.size = reformulated_size(tensor.size, grid);
  out.chunks = BoxList(out.size.size());
  out.places.clear();
  const auto cells = static_cast<std::size_t>(numel(grid));
  Box chunk{Shape(out.size.size(), 0), Shape(out.size.size(), 1)};
  chunk.sizes.back() = out.size.back();
  for (std::size_t i = 0; i < cells; ++i) {
    out.chunks.push_back(chunk);
    out.places.push_back(tensor.places[i * tensor.places.size() / cells]);
    for (std::size_t axis = grid.size(); axis-- > 0;) {
      if (++chunk.offsets[axis] < grid[axis]) break;
      chunk.offsets[axis] = 0;
    }
  }
  return out;
}

}  // namespace

OptimizerForms optimizer_forms(const Metadata& metadata) {
  OptimizerForms forms;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key)) continue;
    forms.any = true;
    forms.fragments |= tensor.flattened_shape.has_value();
    forms.boxes |=
        !tensor.flattened_shape && !parse_optimizer_state_key(tensor.key).model_key.empty();
  }
  for (const BytesStorageMetadata& object : metadata.objects)
    forms.any |= is_optimizer_key(object.key);
  return forms;
}

std::size_t reformulate_optimizer_state(Metadata& metadata, const Value& common,
                                        bool fragments_lost) {
  const std::string sharding = optimizer_sharding(common);
  const OptimizerForms forms = optimizer_forms(metadata);
  if (sharding == kBucketSpace && fragments_lost && forms.any && !forms.fragments) {
    throw_error(ErrorCode::kUnsupported,
                "the optimizer's state is in bucket space (fully_sharded_bucket_space), "
                "whose fragments cannot be flattened anew; write it as boxes (--flattened "
                "boxes), or leave the optimizer out (--exclude 'optimizer.*')");
  }
  if (sharding != kModelSpace) return 0;
  std::unordered_map<std::string_view, const TensorStorageMetadata*> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors) models.emplace(tensor.key, &tensor);
  std::size_t count = 0;
  std::vector<TensorStorageMetadata> out = metadata.tensors;
  for (TensorStorageMetadata& tensor : out) {
    const std::string_view key = parse_optimizer_state_key(tensor.key).model_key;
    if (tensor.flattened_shape || key.empty()) continue;
    if (numel(tensor.size) == 0) continue;
    const auto model = models.find(key);
    std::optional<Shape> cell;
    if (model != models.end() && equal(model->second->size, tensor.size))
      cell = regular_chunk(*model->second);
    if (!cell) cell = regular_chunk(tensor).value_or(tensor.size);
    std::fill_n(cell->begin(), std::min(prepended_axes(key), cell->size()), 1);
    tensor = reformulated(tensor, *cell);
    ++count;
  }
  metadata.tensors = std::move(out);
  return count;
}

}  // namespace dckpt
