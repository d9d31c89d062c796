#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/enum_names.h"
#include "mapping/geometry/dtype.h"
#include "migration/maps/sides/map_target.h"

namespace dckpt {

/// Extra states that a map does not make can be left out on request.
enum class ExtraStates : std::uint8_t { kNone, kLeaveOut };

/// The settings of a map, from `KeyMapOptions::set`.
struct MapSettings {
  MapTarget target{};
  ExtraStates extra_states = ExtraStates::kNone;
  std::optional<DType> values{};  ///< dtype of dequantized weights
  bool fp8 = false;               ///< linear layers are quantized
  std::map<std::string, std::string> numbers{};
};

/// Reads settings of the form NAME=VALUE; all other names than those of the fields are those of
/// numbers. Throws CheckpointError (invalid argument).
[[nodiscard]] MapSettings parse_settings(const std::vector<std::string>& set);

}  // namespace dckpt
