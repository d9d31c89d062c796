#include "mapping/state/fused_shards.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

[[noreturn]] void refuse(const std::string& message, const std::string& key = {}) {
  throw_error(ErrorCode::kInvalidArgument, {.key = key}, message);
}

/// A box of a local tensor whose elements are consecutive, and its place in the global one.
struct Part {
  Shape local_offset, local_shape, global_offset;
  std::int64_t begin = 0;  ///< element of the flattened local tensor
};

/// Returns the matrices of a fused tensor, separately for each expert.
std::vector<Part> parts_of(const ShardedTensor& whole, std::size_t axis,
                           const std::vector<std::int64_t>& rows) {
  const std::size_t global_axis = axis + static_cast<std::size_t>(whole.prepend_axis_num);
  const std::int64_t local = whole.local_shape[axis];
  const bool positive = std::all_of(rows.begin(), rows.end(), [](std::int64_t n) { return n > 0; });
  if (!positive || std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) != local) {
    refuse(
        str_format("a tensor of shape {} has {} rows, which are not those of matrices of {} rows",
                   to_string(whole.local_shape), local, to_string(ShapeView(rows))),
        whole.key);
  }
  const std::int64_t ranks = whole.global_shape[global_axis] / local;
  const std::int64_t tp = whole.global_offset[global_axis] / local;
  std::vector<Part> parts;
  std::int64_t begin = 0;
  for (std::int64_t outer = 0; outer < (axis == 0 ? 1 : whole.local_shape[0]); ++outer) {
    std::int64_t first = 0;
    for (const std::int64_t count : rows) {
      Part part{Shape(whole.local_shape.size(), 0), whole.local_shape, whole.global_offset, begin};
      if (axis == 1) {
        part.local_offset[0] = outer;
        part.local_shape[0] = 1;
        part.global_offset[global_axis - 1] += outer;
      }
      part.local_offset[axis] = first;
      part.local_shape[axis] = count;
      part.global_offset[global_axis] = first * ranks + tp * count;
      begin += numel(part.local_shape);
      first += count;
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

Tensor narrowed(Tensor tensor, const Part& part) {
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis)
    tensor = tensor.narrow(axis, part.local_offset[axis], part.local_shape[axis]);
  return tensor;
}

/// Joins loaded parts: where they are neighbors in memory, the result is a handle of this memory.
Tensor joined(const std::map<int, Tensor>& parts, Shape shape) {
  const Tensor& first = parts.begin()->second;
  const std::byte* next = first.data();
  bool neighbors = true;
  for (const auto& [number, part] : parts) {
    neighbors = neighbors && part.is_contiguous() && part.data() == next;
    if (neighbors) next += part.nbytes();
  }
  if (neighbors) {
    Shape strides = row_major_strides(shape);
    return {first.dtype(),        std::move(shape), std::move(strides),
            first.mutable_data(), first.owner(),    first.device()};
  }
  Tensor whole = Tensor::empty(first.dtype(), std::move(shape));
  std::byte* to = whole.data();
  for (const auto& [number, part] : parts) {
    const Tensor dense = part.contiguous();
    std::memcpy(to, dense.data(), dense.nbytes());
    to += dense.nbytes();
  }
  return whole;
}

}  // namespace

ShardedTensorFactory fused_column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                           const std::vector<std::int64_t>& rows,
                                           const ParallelTensorOptions& options) {
  const ShardedTensor whole = column_parallel(rank, key, data, options);
  std::vector<Part> parts =
      parts_of(whole, options.experts && !options.experts->number ? 1 : 0, rows);
  const ShardedTensorOptions described{.prepend_axis_num = whole.prepend_axis_num,
                                       .allow_shape_mismatch = whole.allow_shape_mismatch};
  ShardedTensorFactory factory{
      .key = std::move(key), .data = std::move(data), .replica_id = whole.replica_id};
  factory.build = [parts = std::move(parts), described, global_shape = whole.global_shape](
                      const std::string& name, const Tensor& local, const ReplicaId& replica_id,
                      std::optional<FlattenedRange> range) {
    ShardedTensorOptions copy = described;
    copy.replica_id = replica_id;
    Value built = Value::dict();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      if (!range) {
        built[std::to_string(i)] = ShardedTensor::from_box(name, narrowed(local, part),
                                                           global_shape, part.global_offset, copy);
        continue;
      }
      const std::int64_t begin = std::max(range->begin, part.begin);
      const std::int64_t end = std::min(range->end, part.begin + numel(part.local_shape));
      if (begin >= end) continue;
      built[std::to_string(i)] = ShardedTensor::from_flat_range(
          name, local.narrow(0, begin - range->begin, end - begin), part.local_shape, global_shape,
          part.global_offset, {begin - part.begin, end - part.begin}, copy);
    }
    return built;
  };
  factory.merge = [shape = whole.local_shape](const Value& loaded) -> Value {
    std::map<int, Tensor> loaded_parts;  // ordered by their numbers
    std::int64_t elements = 0;
    for (const auto& [number, part] : loaded.as_dict()) {
      loaded_parts.emplace(std::stoi(number.as_str()), part.as_tensor());
      elements += part.as_tensor().numel();
    }
    if (loaded_parts.empty()) return Value();
    return joined(loaded_parts, loaded_parts.begin()->second.dim() == 1 ? Shape{elements} : shape);
  };
  return factory;
}

ShardedTensorFactory gated_column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                           const ParallelTensorOptions& options) {
  const std::size_t axis = options.experts && !options.experts->number ? 1 : 0;
  const std::int64_t rows = data.dim() > axis ? data.shape()[axis] : 0;
  if (rows % 2 != 0) {
    refuse(str_format("the {} rows of a tensor of shape {} are not two matrices of equal size",
                      rows, to_string(data.shape())),
           key);
  }
  return fused_column_parallel(rank, std::move(key), std::move(data), {rows / 2, rows / 2},
                               options);
}

}  // namespace dckpt
