#include "strategies/tensor_io/stored_chunk.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Returns the number of elements from the first to the last one of a chunk; empty if the payload
/// cannot be the chunk's.
std::optional<std::int64_t> extent_of(const ChunkPayload& payload, ShapeView sizes) {
  if (payload.contiguous) return numel(sizes);
  if (payload.strides.size() != sizes.size()) return std::nullopt;
  std::optional<std::int64_t> elements = 1;
  for (std::size_t axis = 0; elements && axis < sizes.size(); ++axis) {
    const auto step = checked_mul(sizes[axis] - 1, payload.strides[axis]);
    elements = step && payload.strides[axis] >= 0 ? checked_add(*elements, *step) : std::nullopt;
  }
  return elements;
}

bool is_sound(const ChunkPayload& payload, const TensorStorageMetadata& tensor,
              const ReadItem& item) {
  const StorageInfo& place = tensor.places[item.chunk];
  const auto inside = [&](std::uint64_t offset, std::uint64_t length) {
    if (payload.decoded) return range_fits(offset, length, payload.decoded->size());
    return offset >= place.offset && range_fits(offset - place.offset, length, place.length);
  };
  const auto elements = extent_of(payload, tensor.chunks.sizes(item.chunk));
  const auto bytes =
      elements ? checked_mul<std::int64_t>(
                     *elements, static_cast<std::int64_t>(item_size(tensor.properties.dtype)))
               : std::nullopt;
  return payload.dtype == tensor.properties.dtype && bytes &&
         inside(payload.offset, static_cast<std::uint64_t>(*bytes)) &&
         (!payload.record || inside(payload.record->offset, payload.record->length));
}

}  // namespace

ChunkPayload locate_chunk(const CheckpointReader& reader, const ReadItem& item,
                          const ReadableFile& file) try {
  const TensorStorageMetadata& tensor = reader.metadata().tensors[item.tensor];
  ChunkPayload payload = reader.locate(item.tensor, item.chunk, file);
  if (is_sound(payload, tensor, item)) return payload;
  throw_error(ErrorCode::kCorrupt,
              "the elements lie outside the place of their chunk, which has {} bytes, or are "
              "not the expected ones; the checkpoint is damaged, or the reader of format '{}' "
              "is wrong",
              grouped(tensor.places[item.chunk].length), reader.info().format);
} catch (const CheckpointError& error) {
  const TensorStorageMetadata& tensor = reader.metadata().tensors[item.tensor];
  throw error.with(
      {.key = tensor.key, .file = file.name(), .offset = tensor.places[item.chunk].offset});
}

ReadItem as_stored(const TensorStorageMetadata& tensor, const ReadItem& item,
                   const ChunkPayload& payload) {
  const ShapeView sizes = tensor.chunks.sizes(item.chunk);
  const Shape dense = row_major_strides(sizes);
  // An item with every second row, for example, has twice the row stride in the file.
  Shape strides = payload.strides;
  bool by_axis = item.source.strides.size() == dense.size();
  for (std::size_t axis = 0; by_axis && axis < dense.size(); ++axis) {
    if (item.sizes[axis] <= 1 || item.source.strides[axis] == dense[axis]) continue;
    by_axis = dense[axis] > 0 && item.source.strides[axis] % dense[axis] == 0 &&
              item.source.strides[axis] / dense[axis] * (item.sizes[axis] - 1) < sizes[axis];
    if (by_axis) strides[axis] *= item.source.strides[axis] / dense[axis];
  }
  if (!by_axis) {
    throw_error(
        ErrorCode::kUnsupported,
        "a flattened tensor is stored with gaps between its elements; save it contiguously");
  }
  std::vector<std::size_t> order(dense.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t axis) { return strides[axis]; });
  ReadItem stored = item;
  stored.source.offset = 0;
  std::int64_t position = item.source.offset;
  for (std::size_t axis = 0; axis < dense.size(); ++axis) {
    stored.source.offset += position / dense[axis] * payload.strides[axis];
    position %= dense[axis];
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    stored.sizes[i] = item.sizes[order[i]];
    stored.source.strides[i] = strides[order[i]];
    stored.target.strides[i] = item.target.strides[order[i]];
  }
  return stored;
}

}  // namespace dckpt
