#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "strategies/contract/reader.h"

namespace dckpt {

/// A matrix of another checkpoint.
struct LowRankFactor {
  std::size_t tensor = 0;   ///< position in that checkpoint's metadata
  bool transposed = false;  ///< the factor is the transpose of the stored matrix
};

/// A product that is added to a tensor of two axes, with r as the inner extent:
///
///   y[i, j] = x[i, j] + scale × Σₖ left[i, k] × right[k, j]
///
/// Everything is computed in float32 (the last addition in float64 for tensors of that type) and
/// rounded once to the tensor's own dtype, to nearest, ties to even.
struct LowRankTerm {
  std::uint32_t tensor = 0;             ///< position in the source's metadata
  std::optional<LowRankFactor> left{};  ///< none: y = x + scale × right, for tensors of one axis
  LowRankFactor right{};
  float scale = 1;
};

/// The default memory for pieces of factors, in bytes, over all threads.
inline constexpr std::uint64_t kDefaultFactorMemory = std::uint64_t{32} << 20;

/// Returns the checkpoint `source` with products added to some of its tensors, as a reader like any
/// other. The products are computed while elements are read, only for the requested ones, from
/// pieces of the factors. Throws CheckpointError: (mismatch) for factors whose shapes do not make
/// up that of their tensor; (unsupported) for elements that are not float32, float16, bfloat16 or
/// float64, and for flattened tensors; when they are read, (mismatch) for sums that are not
/// finite, or too large for the dtype.
std::unique_ptr<CheckpointReader> low_rank_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::shared_ptr<const CheckpointReader> factors,
                                                  const std::vector<LowRankTerm>& terms,
                                                  std::uint64_t memory = kDefaultFactorMemory);

}  // namespace dckpt
