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
  std::string suffix;  ///< what the key of a weight's scales has behind the weight's: "_scale_inv"
  std::int64_t rows = 128;
  std::int64_t columns = 128;
  DType dtype = DType::kBFloat16;  ///< of the values: float32, float16 or bfloat16
};

/// A tensor's scales are held in memory while it is read; more are not supported.
inline constexpr std::uint64_t kMaxScaleBytes = std::uint64_t{16} << 20;

/// Whether a checkpoint has float8 tensors, or tensors under keys of scales.
bool is_quantised(const Metadata& metadata, const std::string& suffix);

/// The checkpoint `source` with values in place of weights, and without the scales: a reader like
/// any other. Weights are decoded while they are read, and only what is wanted of them. Throws
/// CheckpointError: (invalid argument) for blocks without elements, (mismatch) with all weights
/// that lack scales, scales that lack a weight or have another shape; (unsupported) beyond
/// kMaxScaleBytes.
std::unique_ptr<CheckpointReader> dequantized_reader(std::unique_ptr<CheckpointReader> source,
                                                     const BlockScales& scales);

}  // namespace dckpt
