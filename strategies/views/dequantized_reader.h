#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strategies/contract/reader.h"

namespace dckpt {

/// Weights of 8 bits (float8) with a scale for each block of their last two axes:
///
///   value[…, i, j] = weight[…, i, j] × scales[…, i / rows, j / columns]
///
/// in float32, rounded to `dtype` to nearest, ties to even. The last blocks may be smaller. Where
/// a single block covers all, its scale may have any shape of one element.
struct BlockScales {
  std::string suffix;  ///< suffix of a weight's key that makes its scales': "_scale_inv"
  std::int64_t rows = 128;
  std::int64_t columns = 128;
  DType dtype = DType::kBFloat16;  ///< dtype of the values: float32, float16 or bfloat16
};

/// The limit of a tensor's scales, which are held in memory while it is read.
inline constexpr std::uint64_t kMaxScaleBytes = std::uint64_t{16} << 20;

/// Returns whether a checkpoint has float8 tensors, or tensors under keys of scales.
bool is_quantised(const Metadata& metadata, const std::string& suffix);

/// Returns the checkpoint `source` with values in place of weights, and without the scales, as a
/// reader like any other. Weights are decoded while they are read, and only the requested ones.
/// Throws CheckpointError: (invalid argument) for blocks without elements, (mismatch) naming all
/// weights that lack scales, and scales that lack a weight or have another shape; (unsupported)
/// beyond kMaxScaleBytes.
std::unique_ptr<CheckpointReader> dequantized_reader(std::unique_ptr<CheckpointReader> source,
                                                     const BlockScales& scales);

}  // namespace dckpt
