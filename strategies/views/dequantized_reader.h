#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {

/// Keys of dequantized weights, and the stored keys of which each is made.
using QuantizedKeys = std::map<std::string, std::vector<std::string>>;

/// Returns the checkpoint `source` with values in place of weights, and without the scales, as a
/// reader like any other. Weights are decoded while they are read, and only the requested ones.
/// Throws CheckpointError: (invalid argument) for blocks without elements, and as
/// quantized_weights() does.
std::unique_ptr<CheckpointReader> dequantized_reader(std::unique_ptr<CheckpointReader> source,
                                                     const BlockScales& scales,
                                                     QuantizedKeys* keys = nullptr);

}  // namespace dckpt
