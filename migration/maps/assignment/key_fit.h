#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "configs/maps/key_map.h"
#include "mapping/planning/metadata.h"
#include "migration/maps/sides/key_prefix.h"
#include "migration/maps/sides/map_sides.h"
#include "migration/maps/sides/map_target.h"

namespace dckpt {

/// A side of a map in the layout, and with the prefix, in which it knows most keys of a checkpoint.
struct KeyFit {
  std::size_t known = 0;
  MapSide side{};
  KeyPrefix prefix{};
};

/// `layers` is the number of layers after which some of Hugging Face's keys continue to count. A
/// given `layout` is the only one.
KeyFit fit_keys(const KeyMap& map, KeyNames names, const Metadata& source, bool text_only,
                std::optional<std::int64_t> layers, std::optional<MegatronLayout> layout);

}  // namespace dckpt
