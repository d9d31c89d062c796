#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "mapping/state/tensor.h"

namespace dckpt {

/// The range of addresses that contains the elements of a tensor.
struct MemoryRegion {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// Requires a tensor with elements.
MemoryRegion region_of(const Tensor& tensor);

/// Calls `visit` with the positions of any two tensors that have a byte in common. Interleaved
/// views, such as columns of one matrix, have none. Costs only a sort if nothing overlaps.
void for_each_overlap(std::span<const Tensor> tensors,
                      const std::function<void(std::size_t a, std::size_t b)>& visit);

}  // namespace dckpt
