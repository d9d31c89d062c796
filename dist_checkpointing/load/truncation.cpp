#include "dist_checkpointing/load/truncation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/tensor_request.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/geometry/dtype.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

/// Returns whether all slices along `axis` are zero or all equal the first.
bool repeats_itself(const Tensor& tensor, std::size_t axis) {
  const ShapeView shape = tensor.shape();
  const auto extent = static_cast<std::size_t>(shape[axis]);
  const auto inner = static_cast<std::size_t>(numel(shape.subspan(axis + 1))) *
                     static_cast<std::size_t>(item_size(tensor.dtype()));
  const ByteView bytes(tensor.data(), tensor.nbytes());
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  bool zeros = true;
  bool copies = true;
  for (std::size_t at = 0; at < bytes.size(); at += extent * inner) {
    const ByteView first = bytes.subspan(at, inner);
    for (std::size_t row = 1; row < extent; ++row) {
      const ByteView slice = bytes.subspan(at + row * inner, inner);
      zeros = zeros && std::ranges::all_of(slice, is_zero);
      copies = copies && std::ranges::equal(slice, first);
    }
  }
  return zeros || copies;
}

bool is_padding(const OpenedCheckpoint& from, const ShardedTensor& shard,
                const TensorStorageMetadata& stored, std::size_t axis) {
  const Shape& whole_shape = stored.global_shape();
  if (stored.flattened_shape || shard.global_shape[axis] == 0) return false;
  Box box = whole(whole_shape);
  box.offsets[axis] = shard.global_shape[axis] - 1;
  box.sizes[axis] = whole_shape[axis] - box.offsets[axis];
  const DType dtype = stored.properties.dtype;
  if (numel(box.sizes) > kMaxPadding / static_cast<std::int64_t>(item_size(dtype))) return false;
  TensorRequestBuilder builder(*from.reader, from.keys, from.options);
  const Tensor part = builder.add(ShardedTensor::from_box(
      shard.key, Tensor::empty(dtype, box.sizes), whole_shape, box.offsets));
  const TensorRequest request = builder.finish();
  read_tensors(*from.reader, request.items, request.destinations,
               {.threads = from.options.threads,
                .engine = from.options.engine,
                .staging = from.options.staging,
                .verify = from.options.verify != Verify::kNone});
  return repeats_itself(part, axis);
}

}  // namespace

std::optional<Misfit> truncation_of(LoadCall& load, const OpenedCheckpoint& from,
                                    const ShardedTensor& shard,
                                    const TensorStorageMetadata& stored) {
  const Shape& shape = stored.global_shape();
  if (shape.size() != shard.global_shape.size() || !shape_mismatch_allowed(shard, load.options))
    return std::nullopt;
  std::vector<std::size_t> cut;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shard.global_shape[axis] < shape[axis]) cut.push_back(axis);
  }
  if (cut.empty()) return std::nullopt;
  const bool allowed = std::ranges::any_of(
      load.options.allow_truncation,
      [&](const std::string& pattern) { return glob_match(pattern, shard.key); });
  if (allowed) {
    if (std::ranges::find(load.report.truncated, shard.key) == load.report.truncated.end())
      load.report.truncated.push_back(shard.key);
    return std::nullopt;
  }
  if (cut.size() == 1 && is_padding(from, shard, stored, cut[0])) return std::nullopt;
  return Misfit{
      str_format("{} of {} {} of axis {} are asked for, and the next save would lose the rest, for "
                 "key",
                 shard.global_shape[cut[0]], shape[cut[0]], cut[0] == 0 ? "rows" : "elements",
                 cut[0]),
      shard.key,
      advice_for_uneven(shard, shape) +
          "load.allow_truncation for this key drops it, as for a padded vocabulary"};
}

}  // namespace dckpt
