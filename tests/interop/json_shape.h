#pragma once

#include <nlohmann/json.hpp>

#include "mapping/geometry/shape.h"

namespace dckpt {

/// Returns the shape of a JSON list of numbers.
inline Shape shape_of(const nlohmann::json& json) {
  Shape shape;
  for (const nlohmann::json& extent : json) shape.push_back(extent.get<std::int64_t>());
  return shape;
}

}  // namespace dckpt
