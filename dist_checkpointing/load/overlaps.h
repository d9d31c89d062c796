#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "mapping/state/tensor.h"

namespace dckpt {

/// The range of addresses that the elements of a tensor lie in.
struct MemoryRegion {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// The tensor has elements.
MemoryRegion region_of(const Tensor& tensor);

/// Calls `visit` with the positions of any two tensors that have a byte in common. Views that
/// interleave, as columns of one matrix do, have none. Costs a sort where nothing overlaps.
void for_each_overlap(std::span<const Tensor> tensors,
                      const std::function<void(std::size_t a, std::size_t b)>& visit);

}  // namespace dckpt
