#pragma once

#include <optional>

#include "configs/maps/key_map.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Returns whether a map names the type or a class of a model, by its config.json.
bool is_map_of(const KeyMap& map, const Value& config);

/// Returns the shipped map for a model by its config.json, if there is one.
std::optional<KeyMap> shipped_map(const Value& config);

/// Returns the same; for a model of text and images without one, the map for its language model.
std::optional<KeyMap> shipped_map_of_text(const Value& config);

}  // namespace dckpt
