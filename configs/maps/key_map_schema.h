#pragma once

#include "configs/maps/key_map.h"
#include "configs/yaml/schema.h"

namespace dckpt {

/// The one description of a map file.
const config::Type<KeyMap>& key_map_type();

/// A formula of numbers: "a", "a * b", "a + b", "a / b" (exact), "a round_up b".
struct MapFormula {
  enum class Op : std::uint8_t { kNone, kTimes, kPlus, kOver, kRoundUp };
  std::string left;
  Op op = Op::kNone;
  std::string right{};
};
/// Empty if the text is not a formula.
std::optional<MapFormula> parse_formula(std::string_view text);

}  // namespace dckpt
