#include "strategies/views/scale_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::int64_t kTileElements = 256 << 10;

/// Returns the value of a float8_e8m0fnu: a power of two.
float power_of_two(std::byte code) {
  const int exponent = std::to_integer<int>(code);
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : std::ldexp(1.0F, exponent - 127);
}

}  // namespace

std::shared_ptr<const float> ScaleTiles::row(const QuantizedWeight& weight, ShapeView index) {
  Shape shape = source_.metadata().tensors[weight.scales].global_shape();
  const std::size_t axes = shape.size();
  Box box = whole(shape);
  std::int64_t matrix = 0, first = 0, position = 0;
  if (numel(shape) > 1) {  // a single scale may have any shape
    shape.resize(index.size() + 1, 1);
    box = whole(shape);
    const std::size_t rows = index.size() - 1;
    for (std::size_t axis = 0; axis < rows; ++axis) {
      matrix = matrix * shape[axis] + index[axis];
      box.offsets[axis] = index[axis];
      box.sizes[axis] = 1;
    }
    const std::int64_t row = index[rows] / weight.rows;
    const std::int64_t in_tile = std::max<std::int64_t>(kTileElements / shape.back(), 1);
    first = row / in_tile * in_tile;
    box.offsets[rows] = first;
    box.sizes[rows] = std::min(in_tile, shape[rows] - first);
    position = (row - first) * shape.back();
    box.offsets.resize(axes);
    box.sizes.resize(axes);
  }
  const auto tile = tiles_.get({weight.scales, matrix, first}, [&] { return read(weight, box); });
  return {tile, tile->data() + position};
}

ScaleTiles::Tile ScaleTiles::read(const QuantizedWeight& weight, const Box& box) const {
  if (weight.shape) check_shape(weight);
  Tile tile = floats(weight.scales, box);
  if (!weight.tensor_scale) return tile;
  const Shape& shape = source_.metadata().tensors[*weight.tensor_scale].global_shape();
  const float by = floats(*weight.tensor_scale, whole(shape)).front();
  for (float& scale : tile) scale *= by;
  return tile;
}

ScaleTiles::Tile ScaleTiles::floats(std::size_t tensor, const Box& box) const {
  const Tensor stored = read_box(source_, tensor, box, {.threads = 1, .staging = kTileStaging});
  Tile tile(static_cast<std::size_t>(stored.numel()));
  if (stored.dtype() == DType::kUInt8 || stored.dtype() == DType::kFloat8E8M0FNU)
    std::transform(stored.data(), stored.data() + tile.size(), tile.begin(), power_of_two);
  else
    cast_elements(stored.dtype(), stored.data(), DType::kFloat32,
                  reinterpret_cast<std::byte*>(tile.data()), tile.size());
  return tile;
}

void ScaleTiles::check_shape(const QuantizedWeight& weight) const {
  const TensorStorageMetadata& tensor = source_.metadata().tensors[*weight.shape];
  const auto axes = static_cast<std::int64_t>(weight.size.size());
  Shape found;
  if (tensor.global_shape() == Shape{axes} && can_cast(tensor.properties.dtype, DType::kInt64)) {
    const Tensor stored = read_box(source_, *weight.shape, whole(Shape{axes}),
                                   {.threads = 1, .staging = kTileStaging});
    found = weight.size;
    cast_elements(stored.dtype(), stored.data(), DType::kInt64,
                  reinterpret_cast<std::byte*>(found.data()), found.size());
  }
  if (found == weight.size) return;
  throw_error(ErrorCode::kMismatch, {.key = tensor.key},
              "the weight {} has the shape {} by its codes, two in a byte, but {} says {}; only "
              "codes of 4 bits without padding can be dequantized",
              quote(weight.key), to_string(weight.size), quote(tensor.key), to_string(found));
}

}  // namespace dckpt
