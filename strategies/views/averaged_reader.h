#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "strategies/contract/reader.h"

namespace dckpt {

/// A tensor of another checkpoint, and its weight in a sum.
struct WeightedTensor {
  std::shared_ptr<const CheckpointReader> reader;
  std::size_t tensor = 0;  ///< position in that checkpoint's metadata
  double weight = 0;
};

/// A sum that takes the place of a tensor x: y = weight × x + Σ other.weight × other.
struct WeightedSum {
  double weight = 1;
  std::vector<WeightedTensor> others{};
};

/// Returns the checkpoint `source` with sums in place of some of its tensors, by their positions,
/// as a reader like any other. Sums are computed while elements are read, in float32 (in float64
/// for tensors of that type) and in the order of the others, and rounded once to the tensor's own
/// dtype, to nearest, ties to even. All tensors of a sum have one shape and a dtype that
/// is_convertible(). Checking a chunk also checks the others' tensor. When elements are read,
/// throws CheckpointError (mismatch) for sums that are too large for the dtype.
std::unique_ptr<CheckpointReader> averaged_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::map<std::uint32_t, WeightedSum> sums);

}  // namespace dckpt
