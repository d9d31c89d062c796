#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/tensor.h"

namespace dckpt {

/// Returns a hash of the elements of each tensor item, by which ranks find out whether they hold
/// the same: the same in any memory and with any strides. 0 for a tensor without data, or in memory
/// that this process cannot reach; never otherwise. Call it in the thread that called save.
std::vector<std::uint64_t> hash_items(std::span<const Tensor> tensors,
                                      std::span<const WriteItem> items, CheckReplicas how,
                                      int threads);

}  // namespace dckpt
