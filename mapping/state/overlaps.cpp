#include "mapping/state/overlaps.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace dckpt {
namespace {

using Extents = std::map<std::int64_t, std::int64_t, std::greater<>>;  // by stride, in bytes

void add_extents(const Tensor& tensor, Extents& extents) {
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  extents[1] = item;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis) {
    const std::int64_t extent = tensor.shape()[axis];
    const std::int64_t stride = std::abs(tensor.strides()[axis]) * item;
    if (extent > 1) extents.try_emplace(stride, 1).first->second += extent - 1;
  }
}

/// Returns whether two tensors whose regions overlap certainly have no byte in common, such as
/// columns of one matrix or every other element of a vector. `distance` is the offset of b from a.
/// The strides are the digits of a number system: if no digit of the two carries, they are compared
/// one by one.
bool interleave(const Tensor& a, const Tensor& b, std::uintptr_t distance) {
  Extents of_a;
  Extents of_b;
  add_extents(a, of_a);
  add_extents(b, of_b);
  Extents strides = of_a;
  strides.insert(of_b.begin(), of_b.end());
  auto rest = static_cast<std::int64_t>(distance);
  std::int64_t larger = 0;
  bool apart = false;
  for (const auto& [stride, any] : strides) {
    const auto extent_in = [stride = stride](const Extents& extents) {
      const auto found = extents.find(stride);
      return found == extents.end() ? std::int64_t{1} : found->second;
    };
    const std::int64_t digit = rest / stride;
    rest %= stride;
    if (larger != 0 && std::max(extent_in(of_a), digit + extent_in(of_b)) > larger / stride)
      return false;
    if (larger % stride != 0) return false;
    apart = apart || digit >= extent_in(of_a);
    larger = stride;
  }
  return apart;
}

}  // namespace

MemoryRegion region_of(const Tensor& tensor) {
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  std::int64_t first = 0;
  std::int64_t last = item;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis) {
    const std::int64_t reach = (tensor.shape()[axis] - 1) * tensor.strides()[axis] * item;
    (reach < 0 ? first : last) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(tensor.data());
  return {base + static_cast<std::uintptr_t>(first), base + static_cast<std::uintptr_t>(last)};
}

void for_each_overlap(std::span<const Tensor> tensors,
                      const std::function<void(std::size_t a, std::size_t b)>& visit) {
  std::vector<std::pair<MemoryRegion, std::size_t>> regions;
  regions.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0) regions.emplace_back(region_of(tensors[i]), i);
  }
  std::ranges::sort(regions, {}, [](const auto& region) { return region.first.begin; });
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const auto& [region, a] = regions[i];
    for (std::size_t j = i + 1; j < regions.size() && regions[j].first.begin < region.end; ++j) {
      const auto& [other, b] = regions[j];
      if (!interleave(tensors[a], tensors[b], other.begin - region.begin)) visit(a, b);
    }
  }
}

}  // namespace dckpt
