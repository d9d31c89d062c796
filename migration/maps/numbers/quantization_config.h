#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "mapping/state/value.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {

/// The form of a model's quantized weights according to `quantization_config` in its config.json.
struct QuantizationConfig {
  /// The part of a float8 weight that has a scale. Empty unless it is the same for all weights.
  std::optional<ScaledPart> part{};
  /// The numbers of weights of a row that share a scale, and of bits of a weight, in its groups of
  /// integers (compressed-tensors). The former is empty if a scale of one of them serves a row.
  std::set<std::int64_t> group_sizes{};
  std::set<std::int64_t> bits{};
};

/// Reads the description. Fields that it lacks stay empty.
QuantizationConfig quantization_config(const Value& config);

}  // namespace dckpt
