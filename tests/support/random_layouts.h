#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "mapping/geometry/flat_range.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/tensor.h"
#include "tests/support/random.h"

namespace dckpt::testing {

// Small tensors cut at random over ranks, each element of which has a value that tells its place.

struct RandomTensor {
  std::string key;
  DType dtype;
  Shape shape;
  std::size_t prepended;  ///< leading axes that local tensors lack
};

inline std::vector<RandomTensor> random_tensors(Random& random) {
  constexpr std::array kDTypes{DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kFloat64,
                               DType::kComplex128};
  std::vector<RandomTensor> tensors;
  for (std::int64_t i = random.between(1, 4); i > 0; --i) {
    RandomTensor tensor{"t" + std::to_string(i),
                        kDTypes[static_cast<std::size_t>(random.between(0, kDTypes.size() - 1))],
                        {},
                        0};
    for (std::int64_t axes = random.between(0, 4); axes > 0; --axes)
      tensor.shape.push_back(random.chance(4) ? 0 : random.between(1, 6));
    if (tensor.shape.size() > 1 && tensor.shape[0] > 0 && random.chance(30)) tensor.prepended = 1;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Cuts a box at random, prepended axes to single layers.
inline void cut_at_random(Random& random, Box box, std::size_t prepended, int cuts,
                          std::vector<Box>& out) {
  std::vector<std::size_t> axes;
  bool must = false;
  for (std::size_t axis = 0; axis < box.dims() && !must; ++axis) {
    must = axis < prepended && box.sizes[axis] > 1;
    if (must) axes.clear();
    if (box.sizes[axis] > 1) axes.push_back(axis);
  }
  if (axes.empty() || (!must && (cuts == 0 || random.chance(30)))) return out.push_back(box);
  const std::size_t axis =
      axes[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(axes.size()) - 1))];
  const std::int64_t at = random.between(1, box.sizes[axis] - 1);
  Box rest = box;
  rest.offsets[axis] += at;
  rest.sizes[axis] -= at;
  box.sizes[axis] = at;
  cut_at_random(random, std::move(box), prepended, must ? cuts : cuts - 1, out);
  cut_at_random(random, std::move(rest), prepended, must ? cuts : cuts - 1, out);
}

/// A shard of a rank; the number of its tensor is `spec.source`.
struct RandomShard {
  TensorShard spec;
  std::size_t prepended = 0;
};
using RandomLayout = std::vector<std::vector<RandomShard>>;  ///< by rank

/// Cuts every tensor over ranks [first, last), so that each element is held as main replica once
/// (`wanted`: any number of times, perhaps never). Some boxes are flattened, some have replicas.
inline RandomLayout random_layout(Random& random, const std::vector<RandomTensor>& tensors,
                                  std::int64_t ranks, std::int64_t first, std::int64_t last,
                                  bool wanted) {
  RandomLayout layout(static_cast<std::size_t>(ranks));
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const RandomTensor& tensor = tensors[t];
    const auto add_shard = [&](const Box& box, std::optional<TensorShard::Range> range, bool main) {
      layout[static_cast<std::size_t>(random.between(first, last - 1))].push_back(
          {{.key = tensor.key,
            .properties = {.dtype = tensor.dtype},
            .global_shape = tensor.shape,
            .box = box,
            .range = range,
            .main_replica = main,
            .source = t},
           tensor.prepended});
    };
    const auto give = [&](const Box& box, std::optional<TensorShard::Range> range) {
      if (!wanted || random.chance(85)) add_shard(box, range, true);
      for (int more = 0; more < 4 && random.chance(35); ++more) add_shard(box, range, wanted);
    };
    std::vector<Box> boxes;
    cut_at_random(random, whole(tensor.shape), tensor.prepended, 3, boxes);
    for (const Box& box : boxes) {
      const std::int64_t elements = numel(box.sizes);
      if (!random.chance(30)) {
        give(box, {});
        continue;
      }
      const std::int64_t a = random.between(0, elements), b = random.between(a, elements);
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, a}, {a, b}, {b, elements}})
        give(box, TensorShard::Range{begin, end});
    }
    if (!random.chance(30)) continue;  // overlaps: in sources, a replica that is cut differently
    std::vector<Box> others;
    cut_at_random(random, whole(tensor.shape), tensor.prepended, 3, others);
    add_shard(others.front(), {}, wanted);
  }
  return layout;
}

/// Returns the row-major number in the whole tensor of element `i` of a box's row-major elements.
inline std::int64_t global_number(const Shape& shape, const Box& box, std::int64_t i) {
  std::int64_t number = 0;
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    number += (box.offsets[axis] + i % box.sizes[axis]) * stride;
    i /= box.sizes[axis];
    stride *= shape[axis];
  }
  return number;
}

/// Calls visit(number, bytes) for the elements of a shard's tensor, in CPU memory or as if it were.
template <typename Visit>
void for_each_element(const RandomShard& shard, const Tensor& tensor, Visit&& visit) {
  const std::size_t size = item_size(tensor.dtype());
  const std::int64_t first = shard.spec.range ? shard.spec.range->begin : 0;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::int64_t at = 0;
    std::int64_t rest = i;
    for (std::size_t axis = tensor.dim(); axis-- > 0;) {
      at += rest % tensor.shape()[axis] * tensor.strides()[axis];
      rest /= tensor.shape()[axis];
    }
    visit(global_number(shard.spec.global_shape, shard.spec.box, first + i),
          tensor.mutable_data() + at * static_cast<std::int64_t>(size), size);
  }
}

/// Returns the byte of an element that tells its place.
inline std::byte told_byte(std::uint32_t tensor, std::int64_t number, std::size_t byte) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(number) * 4 + tensor + 1) * 0x9E3779B97F4A7C15U;
  return static_cast<std::byte>(mixed >> (8 * (byte % 8)));
}

inline void tell_places(const RandomShard& shard, const Tensor& tensor) {
  for_each_element(shard, tensor, [&](std::int64_t number, std::byte* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) bytes[i] = told_byte(shard.spec.source, number, i);
  });
}

inline std::int64_t wrong_elements(const RandomShard& shard, const Tensor& tensor) {
  std::int64_t wrong = 0;
  for_each_element(shard, tensor, [&](std::int64_t number, std::byte* bytes, std::size_t size) {
    bool right = true;
    for (std::size_t i = 0; i < size; ++i)
      right = right && bytes[i] == told_byte(shard.spec.source, number, i);
    wrong += right ? 0 : 1;
  });
  return wrong;
}

/// Returns the shape of a shard's tensor.
inline Shape local_shape(const RandomShard& shard) {
  if (shard.spec.range) return {shard.spec.range->end - shard.spec.range->begin};
  const Shape& sizes = shard.spec.box.sizes;
  return {sizes.begin() + static_cast<std::ptrdiff_t>(shard.prepended), sizes.end()};
}

/// Returns strides for a shape: row-major, or of axes in another order with gaps.
inline Shape random_strides(Random& random, const Shape& shape) {
  if (random.chance(60)) return row_major_strides(shape);
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random.engine());
  Shape strides(shape.size(), 1);
  std::int64_t stride = random.between(1, 2);
  for (const std::size_t axis : order) {
    strides[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

/// The number of random cases: all 10 000 with DCKPT_TEST_ALL_LAYOUTS, else `sample` of them.
inline int random_cases(int sample) {
  return std::getenv("DCKPT_TEST_ALL_LAYOUTS") != nullptr ? 10'000 : sample;
}

}  // namespace dckpt::testing
