#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "mapping/state/value.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {

/// What `quantization_config` in a model's config.json says of its quantized weights.
struct QuantizationConfig {
  std::optional<ScaledPart>
      part{};  ///< of a float8 weight that has a scale, if it is the same for all
  /// The numbers of weights of a row that share a scale, and of bits of a weight, in its groups of
  /// integers (compressed-tensors). The former is empty if a scale of one of them serves a row.
  std::set<std::int64_t> group_sizes{};
  std::set<std::int64_t> bits{};
};

QuantizationConfig quantization_config(const Value& config);

}  // namespace dckpt
