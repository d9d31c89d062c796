#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strategies/contract/reader.h"

namespace dckpt {

/// Suffix of the key of a weight's scales, and the rows and columns of their blocks, as in the
/// published files of DeepSeek V3.
inline constexpr const char* kFp8Scales = "_scale_inv";
inline constexpr std::int64_t kFp8Block = 128;

/// Returns whether a tensor has elements, two axes, and is float32, bfloat16 or float16.
bool can_quantize(const TensorStorageMetadata& tensor);

/// Returns the checkpoint `source` with float8_e4m3fn codes in place of weights, each followed by
/// its scales in float32, one for each block of its two axes: the inverse of dequantized_reader(),
/// see quantize_fp8(). Weights are quantized while they are read; each is read for its codes and
/// for its scales. `chosen` selects them by position, among those that can_quantize().
std::unique_ptr<CheckpointReader> quantized_reader(std::unique_ptr<CheckpointReader> source,
                                                   const std::vector<bool>& chosen);

}  // namespace dckpt
